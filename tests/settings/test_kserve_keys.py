"""Our copy of kserve's flags against kserve's own parser, in an interpreter of its own."""

import json
import subprocess
import sys

import pytest

from kserve_torch.settings.keys import IGNORED
from kserve_torch.settings.kserve_keys import KServeKeys
from kserve_torch.settings.options import help_text, read_command_line
from kserve_torch.settings.table import KEYS

SCRIPT = """
import json
from kserve.model_server import parser
print(json.dumps([[a.option_strings[0], a.dest, a.nargs, a.default] for a in parser._actions]))
"""


@pytest.fixture(scope="module")
def flags() -> list[tuple[str, str, int | None, object]]:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def test_every_flag_of_kserve_is_accepted(flags: list[tuple[str, str, int | None, object]]) -> None:
    for flag, dest, nargs, _ in flags:
        line = read_command_line([flag] if nargs == 0 else [flag, "1"], "kserve_torch")
        assert line.unknown == ()
        assert list(line.values or line.ignored) == [dest]


def test_defaults_are_those_of_kserve(flags: list[tuple[str, str, int | None, object]]) -> None:
    theirs = {dest: default for _, dest, _, default in flags}
    own = KServeKeys.__annotations__.keys()
    assert theirs.keys() == own | (IGNORED & theirs.keys())
    # Theirs is "model"; here a model's own name is the default.
    assert {name: KEYS[name].default for name in own - {"model_name"}} == {
        name: theirs[name] for name in own - {"model_name"}
    }


def test_help_names_every_flag(flags: list[tuple[str, str, int | None, object]]) -> None:
    """Those without an effect here as well (INTERFACE, Start)."""
    words = {word.strip(",") for word in help_text("kserve_torch").split()}
    assert {f"--{dest}" for _, dest, _, _ in flags} <= words
