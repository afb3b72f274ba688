"""The clients in the README do what it shows."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .server import ROOT, Server

TEXT = (ROOT / "README.md").read_text()
CLIENTS = TEXT.partition("## Clients\n")[2].partition("\n## ")[0]
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", CLIENTS, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", CLIENTS, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(mnist_store: Path) -> Iterator[Server]:
    with Server(mnist_store) as running:
        yield running


def output(server: Server, command: list[str], text: str) -> str:
    """What ``text``, with the addresses of this server, prints when it is run."""
    here = text.replace(":8085", f":{server.ports['inference']}")
    here = here.replace(":8081", f":{server.ports['grpc']}")
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "COLUMNS": "80"}
    ran = subprocess.run(
        [*command, here], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_section_is_there() -> None:
    assert len(PROGRAMS) == 4
    assert len(COMMANDS) == 1


@pytest.mark.parametrize(
    "program", PROGRAMS, ids=["httpx", "tritonclient http", "tritonclient grpc", "kserve"]
)
def test_programs(server: Server, program: str) -> None:
    shown = program.rstrip().rpartition("\n# ")[2]
    assert output(server, [sys.executable, "-c"], program) == f"{shown}\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(("command", "shown"), COMMANDS)
def test_commands(server: Server, command: str, shown: str) -> None:
    assert output(server, ["sh", "-c"], command.replace("curl ", "curl -s ")) == shown.rstrip()
