import re
import subprocess

from .server import ROOT


def test_an_unsuitable_python_is_told_of() -> None:
    command = ["make", "test", "PYTHON=false"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("no Python from 3.11 to 3.13 found\nmake")


def test_the_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(" ".join(re.findall(r"^([a-z ]+):(?!=)", makefile, re.MULTILINE)).split())
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert targets - set(re.findall(r"make (\w+)", shown.stdout)) == {"help", "venv"}
