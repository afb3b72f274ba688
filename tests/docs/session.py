"""Reads a page's examples and tries them, as somebody would who follows the page from the top.

What a page shows is told apart by the language of its code block:

- ``console``: lines that begin with ``$ `` are commands, and what stands under one is its answer,
  with ``…`` for anything. A command that starts the server starts it; the rest of the page speaks
  to it.
- any other language: if the first line is a comment with nothing but a path, the file is written.
- ``bash`` is for what needs a cluster or a tool that is not among the project's own: not tried.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ..server import ROOT, Server, free_ports

#: What the pages are about has these folders beside it.
BESIDE = ("handlers", "kf_request_json", "deploy")
#: Ports as the pages name them, and the settings behind.
PORTS = {
    8080: "TS_HTTP_PORT",
    8081: "TS_GRPC_PORT",
    8082: "TS_METRICS_ADDRESS",
    8085: "TS_INFERENCE_ADDRESS",
    7070: "TS_GRPC_INFERENCE_PORT",
    7071: "TS_GRPC_MANAGEMENT_PORT",
}
#: What ``make serve`` comes to once everything is set up.
MAKE_SERVE = "python -m kserve_torch --model_dir model-store"
#: What has its own place in CI.
ELSEWHERE = ("make test", "make check", "make bench")

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"(?:#|//|<!--) ([\w./-]+/[\w.-]+|[\w-]+\.\w+)(?: -->)?\n")
_STARTS = re.compile(r"(make serve|python -m kserve_torch|torchserve|kserve-torch)\b")
_ONLY_TELLS = re.compile(r"--(help|version|print-settings|stop|check)\b")
_PORT = re.compile(r"(?<=(?:127\.0\.0\.1|localhost):)\d{4}\b")


@dataclass(frozen=True, slots=True)
class Example:
    """A command and what it answers."""

    line: int
    command: str
    answer: str


@dataclass(frozen=True, slots=True)
class File:
    """A file that the page has its reader write."""

    line: int
    path: str
    content: str


def steps(page: str) -> Iterator[Example | File]:
    """What is to be done on a page, in its order."""
    for block in _BLOCK.finditer(page):
        line = page.count("\n", 0, block.start()) + 2
        language, content = block.groups()
        path = _PATH.match(content)
        if language == "console":
            yield from _examples(content, line)
        elif path and language != "bash":
            yield File(line, path[1], content)


def _examples(block: str, line: int) -> Iterator[Example]:
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    line += parts[0].count("\n")
    for part in parts[1:]:
        lines = part.splitlines()
        # A command goes on behind a backslash.
        end = next(i for i, text in enumerate(lines) if not text.endswith("\\")) + 1
        yield Example(line, "\n".join(lines[:end]), "\n".join(lines[end:]))
        line += len(lines)


def _assignments(command: str) -> tuple[str, str]:
    """A command's ``NAME=value`` words in front, and the rest."""
    found = re.match(r"((?:[A-Z_]+=\S* )*)(.*)", command, re.DOTALL)
    assert found is not None
    return found[1], found[2]


def matches(shown: str, got: str) -> bool:
    """Whether an answer is as the page shows it; ``…`` stands for anything."""
    pattern = ".*".join(re.escape(_trimmed(part)) for part in shown.split("…"))
    return re.fullmatch(pattern, _trimmed(got), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


class Session:
    """A reader's folder and server.

    Args:
        folder: to work in, empty.
        store: a model store with the MNIST archive, as ``make serve`` builds it.
    """

    def __init__(self, folder: Path, store: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._server: Server | None = None
        for name in BESIDE:
            (folder / name).symlink_to(ROOT / name)
        shutil.copytree(store, folder / "model-store")
        (folder / ".curlrc").write_text("silent\nshow-error\n")  # as it is on a terminal
        self._programs = folder / ".programs"
        self._programs.mkdir()
        self._program("python", "")
        self._program("kserve-torch", "-m kserve_torch")
        self._program("torchserve", "-m kserve_torch torchserve")

    def _program(self, name: str, arguments: str) -> None:
        file = self._programs / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        file.chmod(0o755)

    def write(self, file: File) -> None:
        """Write a file of the page."""
        path = self._folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._with_ports(file.content))

    def try_out(self, example: Example) -> str:
        """Run a command; returns what it says, errors included.

        One whose answer is not shown has to succeed.
        """
        command = example.command.partition("  #")[0].strip()
        if command in ELSEWHERE:
            return ""
        if _STARTS.match(_assignments(command)[1]) and not _ONLY_TELLS.search(command):
            log = self._start(command.replace("make serve", MAKE_SERVE))
            assert example.answer or self._server, log
            return log
        done = subprocess.run(
            ["bash", "-c", self._with_ports(command)],
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
            check=not example.answer,
        )
        return done.stdout

    def _start(self, command: str) -> str:
        self.stop()
        settings, words = _assignments(command)
        server = Server(
            None,
            command=["bash", "-c", f"{settings} exec {words}"],
            env=self._environment(),
            cwd=self._folder,
            wait=False,
        )
        try:
            server.wait_started()
        except AssertionError:  # some pages show what is wrong with a setting
            return server.log
        self._server = server
        return server.log

    def stop(self) -> None:
        """Stop the server, if there is one; it has to end well."""
        if self._server is not None:
            server, self._server = self._server, None
            code = server.stop()
            assert code == 0, server.log

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **{PORTS[port]: self._setting(port) for port in PORTS},
            "TS_MANAGEMENT_ADDRESS": self._setting(8085),
            "TS_DRAIN_SECONDS": "0",
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CURL_HOME": str(self._folder),
            "no_proxy": "*",
        }

    def _setting(self, port: int) -> str:
        mine = str(self._ports[port])
        return f"http://127.0.0.1:{mine}" if PORTS[port].endswith("ADDRESS") else mine

    def _with_ports(self, text: str) -> str:
        return _PORT.sub(lambda found: str(self._ports[int(found[0])]), text)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.kill() if kind else self.stop()
