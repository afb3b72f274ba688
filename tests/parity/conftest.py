"""Fixtures of the comparison with TorchServe: the environment, the archives, the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..handlers.store import build_store
from ..makers import make_archive
from .differences import ALLOWED, unexpected
from .exchange import Step, differences
from .pair import Pair
from .report import Report
from .torchserve import Absent, python

ECHO = Path(__file__).with_name("echo.py")

Compare = Callable[[Pair, Step, str], None]


@pytest.fixture(scope="session", autouse=True)
def _torchserve() -> None:
    try:
        python()
    except Absent as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def echo_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two versions of a model that echoes, a broken one, and one too large."""
    store = tmp_path_factory.mktemp("echo") / "model-store"
    files = {"echo.py": ECHO.read_text()}
    for file, version in (("echo.mar", "1.0"), ("echo2.mar", "2.0")):
        make_archive(store / file, files, modelName="echo", handler="echo.py", modelVersion=version)
    broken = {"handler.py": "def handle(data, context): (\n"}
    make_archive(store / "broken.mar", broken, modelName="broken")
    large = {"handler.py": "def handle(data, context):\n    raise MemoryError\n"}
    make_archive(store / "large.mar", large, modelName="large")
    return store


@pytest.fixture(scope="session")
def handler_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the archives of ``handlers/``."""
    return build_store(tmp_path_factory.mktemp("handlers"))


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    """Collects the comparisons; writes their table into README.md in the end."""
    collected = Report()
    yield collected
    collected.write()


@pytest.fixture
def compare(report: Report) -> Compare:
    """Sends a step to both servers; they must differ just where `differences` says so."""

    def check(pair: Pair, step: Step, group: str) -> None:
        theirs, ours = pair.send(step)
        found = differences(theirs, ours)
        wrong = unexpected(step.name, found)
        report.add(group, found, wrong)
        if wrong:
            shown = "\n".join(f"{path}: {how}" for path, how in list(wrong.items())[:10])
            pytest.fail(f"{step.name}\n{shown}\ntheirs: {theirs!s:.900}\nours:   {ours!s:.900}")
        if not found and step.name in ALLOWED:
            pytest.fail(f"{step.name}: no longer differs, take it out of differences.py")

    return check
