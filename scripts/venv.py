"""Makes the virtual environment that the Makefile's targets run in, and prints its path.

It holds what pyproject.toml asks for, in the versions of constraints.txt, and not the package
itself: checkouts with the same needs share one environment and run from their own sources.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"


def main() -> int:
    """Creates the environment unless it is there, complete; with ``--path`` only prints where."""
    needs = requirements()
    home = cache() / fingerprint(needs)
    if "--path" not in sys.argv[1:]:
        ensure(home, needs)
    print(home)
    return 0


def ensure(home: Path, needs: list[str]) -> None:
    """Creates the environment at ``home`` once; several checkouts may try at the same time."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{home}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = home / "complete"
        if not stamp.exists() or not (home / "bin" / "python").exists():
            create(home, needs)
            stamp.touch()


def requirements() -> list[str]:
    """What the package needs, with the extras for development and measurements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = ("bench", "dev", "onnx", "tracing")
    return sorted({*project["dependencies"], *(need for name in wanted for need in extras[name])})


def cache() -> Path:
    """Where environments are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "kserve_torch")


def fingerprint(needs: list[str]) -> str:
    """The same for the same requirements, versions and Python."""
    text = "\n".join((*needs, CONSTRAINTS.read_text(), sys.version, sys.prefix))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def create(home: Path, needs: list[str]) -> None:
    """A fresh environment at ``home``; what an interrupted run left there goes first."""
    say(f"Setting up {home} (once; torch is large, so this takes minutes)")
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    command = [home / "bin" / "python", "-m", "pip", "install", "--no-input"]
    command += ["--disable-pip-version-check", "--no-compile", "-c", CONSTRAINTS, *needs]
    last_lines: deque[str] = deque(maxlen=30)
    with subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        for line in pip.stdout or ():
            last_lines.append(line)
            if line.startswith(("Collecting", "Downloading", "Installing")):
                say(f"  {line.rstrip():.100}")
    if pip.returncode:
        sys.exit("".join(last_lines) + "pip failed; run the same command again to retry")


def say(text: str) -> None:
    """Progress goes to standard error, because standard output carries the path."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
