"""Builds the stores that are served: ``python -m benchmarks.archives DIR``.

A program of its own, so that the load generator's process does not import torch.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "handlers" / "build_archive.py"
MODELS = ROOT / "benchmarks" / "models"
#: How many models the store "ten" has.
MANY = 10


def main() -> None:
    """Build the stores ``mnist``, ``mean``, ``resnet18`` and ``ten`` in a folder."""
    folder = Path(sys.argv[1])
    mnist = ROOT / "handlers" / "mnist"
    _build(mnist, folder / "mnist")
    _build(MODELS / "mean", folder / "mean")
    with tempfile.TemporaryDirectory() as work:
        copy = shutil.copytree(MODELS / "resnet18", Path(work, "resnet18"))
        _random_resnet(copy / "resnet18.pt")
        _build(copy, folder / "resnet18")
        copy = shutil.copytree(mnist, Path(work, "mnist"))
        recipe = json.loads((copy / "archive.json").read_text())
        for number in range(MANY):
            renamed = {**recipe, "name": f"{recipe['name']}{number}"}
            (copy / "archive.json").write_text(json.dumps(renamed))
            _build(copy, folder / "ten")


def _build(source: Path, store: Path) -> None:
    command = [sys.executable, str(BUILD), str(source), "--output", str(store)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _random_resnet(path: Path) -> None:
    """Write random weights: only their cost matters."""
    import torch
    from torchvision.models import resnet18

    torch.manual_seed(18)
    torch.save(resnet18(weights=None).state_dict(), path)


if __name__ == "__main__":
    main()
