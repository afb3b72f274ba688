"""Fixtures for every test."""

import gc
import logging
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from .forks import Forks
from .handlers.store import build_store
from .server import ROOT

# Where two processes share a busy machine, examples are slow to make and to try now and then.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

TESTS = ROOT / "tests"

#: Whose files take longest; they are begun first when several processes run the tests.
FIRST = ("handlers", "deploy", "e2e", "faults")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(TESTS).parts[0]
        return FIRST.index(folder) if folder in FIRST else len(FIRST)

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """As the server starts: without a look for garbage, and never at what the imports made.

    Each unload collects garbage, which would take half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_finish() -> None:
    """One intra-op thread: others run tests too, and a second would wait for its core."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What shares a server goes to one process: a file, and all of ``tests/handlers/``."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "handlers" if file.startswith("tests/handlers/") else file

    return ByServer(config, log)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutine tests run on asyncio, as the server does."""
    return "asyncio"


@pytest.fixture(scope="session")
def mnist_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with ``mnist.mar`` in it."""
    store = tmp_path_factory.mktemp("mnist") / "model-store"
    command = [sys.executable, ROOT / "handlers/build_archive.py", "mnist", "--output", store]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return store


@pytest.fixture(scope="session")
def handler_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with every archive of ``handlers/``; beside it what they were made from."""
    return build_store(tmp_path_factory.mktemp("handlers"))


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Runs code in processes that have imported torch and nothing else."""
    process = Forks("torch")
    yield process
    process.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what UTF-8 cannot carry: a captured log with half a surrogate pair ends xdist."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture
def shared_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """What archives add to logging is not apart any more after the test."""
    from kserve_torch.namespace import loggers
    from kserve_torch.runtime import rootlog

    changed = {
        logging: ("_logRecordFactory", "getLogRecordFactory", "setLogRecordFactory"),
        logging.Filterer: ("addFilter",),
        logging.Logger: ("addHandler",),
        loggers: ("_servers_factory",),
        rootlog: ("_kept",),
    }
    for owner, names in changed.items():
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(loggers, "_servers", [])


@pytest.fixture
def untouched_logging(shared_logging: None) -> Iterator[None]:
    """Logging is one for the process; the test leaves it as it was."""
    from kserve_torch import logs

    names = (None, "kserve_torch", "kserve_torch.access", "py.warnings", *logs._QUIET)
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    logging.captureWarnings(False)
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
