"""Coverage-guided fuzzing with the extra ``fuzz``: ``make fuzz TARGET=read_v2 SECONDS=60``.

A target starts from its seeds; libFuzzer's options may follow its name.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kserve_torch"]):
    from tests.fuzz.seeds import SEEDS
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz the target that the first argument names, until libFuzzer's options end it."""
    name = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as corpus:
        for i, seed in enumerate(SEEDS[name]):
            Path(corpus, str(i)).write_bytes(seed)
        atheris.Setup([*sys.argv, corpus], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
