import importlib
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.namespace import imports
from kserve_torch.namespace.importlock import Turns, _bootstrap
from kserve_torch.namespace.loader import Namespace

from ..makers import write

#: Alone it can be imported at any place. Two threads that begin with ``ring`` and ``ring.leaf``
#: each hold the lock that the other one needs.
RING = {
    "ring/__init__.py": "import meeting\nmeeting.begun.set()\nmeeting.other.wait(1)\n"
    "from ring.leaf import LEAF\nRING = 1\n",
    "ring/leaf.py": "import ring\nLEAF = 2\n",
    "meeting.py": "import threading\nbegun, other = threading.Event(), threading.Event()\n",
}


class Watched:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, busy: Callable[[], Any]) -> None:
        self._lock = threading.RLock()
        self._busy = busy

    def acquire(self, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self._busy()
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


@pytest.fixture(autouse=True)
def install() -> None:
    imports.install()


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Where threads meet that import the installed package ``ring``."""
    monkeypatch.syspath_prepend(write(tmp_path / "installed", RING))
    yield importlib.import_module("meeting")
    for name in [
        name for name in list(sys.modules) if name.partition(".")[0] in ("ring", "meeting")
    ]:
        del sys.modules[name]


@pytest.mark.parametrize("late", [True, False], ids=["in initialize", "at the top"])
def test_models_that_import_a_package_at_two_places(
    tmp_path: Path, meeting: Any, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    watched = Watched(meeting.other.set)
    monkeypatch.setattr(_bootstrap._ModuleLockManager.turns, "_lock", watched)

    def load(number: int, statement: str) -> None:
        text = f"def load():\n    {statement}\n{'' if late else 'load()'}\n"
        namespace = Namespace(write(tmp_path / f"archive{number}", {"handler.py": text}))
        with closing(namespace), namespace.activate():
            namespace.import_module("handler").load()

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(load, 1, "from ring import RING")
        assert meeting.begun.wait(20)
        two = pool.submit(load, 2, "from ring.leaf import LEAF")
        one.result()
        two.result()


THREADED = """
import threading
found = []
def work():
    import threaded_too
    found.append(threaded_too.X)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_a_module_that_waits_for_a_thread_that_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bootstrap._ModuleLockManager.turns, "_patience", 600.0)
    files = {"handler.py": "", "threaded.py": THREADED, "threaded_too.py": "X = 5"}
    namespace = Namespace(write(tmp_path, files))
    with namespace.activate():
        assert namespace.import_module("threaded").found == [5]
    namespace.close()


def in_turn(turns: Turns, work: Callable[[], Any]) -> Any:
    turns.begin()
    try:
        return work()
    finally:
        turns.end()


def elsewhere(work: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def test_a_thread_without_an_archive_never_waits() -> None:
    main = threading.current_thread()
    turns = Turns(lambda: threading.current_thread() is main, patience=600)
    assert in_turn(turns, elsewhere(lambda: in_turn(turns, lambda: 3)).result) == 3


def test_one_that_is_stuck_is_not_waited_for_for_ever() -> None:
    turns = Turns(lambda: True, patience=0.01)
    # The holder of the turn waits for a thread that wants one.
    assert in_turn(turns, elsewhere(lambda: in_turn(turns, lambda: 4)).result) == 4
    assert elsewhere(lambda: in_turn(turns, lambda: 5)).result() == 5


def test_one_that_is_stuck_is_waited_for_once() -> None:
    turns = Turns(lambda: True, patience=0.01)

    def has_turn() -> bool:
        return bool(in_turn(turns, lambda: turns._thread.has_turn))

    with ThreadPoolExecutor(1) as pool:
        turns.begin()
        assert not pool.submit(has_turn).result()
        turns._patience = 600
        assert not pool.submit(has_turn).result()
        turns.end()  # it has got on after all
        assert pool.submit(has_turn).result()


def test_one_that_gets_on_is_waited_for() -> None:
    turns = Turns(lambda: True, patience=600)
    tries: list[int] = []

    class Lock:
        """Is had at the third try; meanwhile its owner comes one module further a try."""

        def acquire(self, timeout: float) -> bool:
            tries.append(turns._steps)
            turns._steps += 1
            return len(tries) == 3

        def release(self) -> None:
            pass

    turns._lock = Lock()  # type: ignore[assignment]
    assert in_turn(turns, lambda: turns._thread.has_turn)
    assert tries == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_can_import() -> None:
    """Whichever thread has the turn: the one that forks, or another, which is not in the fork."""
    turns = Turns(lambda: True, patience=600)

    def fork(work: Callable[[], Any]) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join(20)
        process.kill()
        return process.exitcode

    turns.begin()
    try:
        assert fork(turns.end) == 0
        codes: list[int | None] = []
        # Not one of a pool, which would wait for itself at the end of the fork.
        other = threading.Thread(target=lambda: codes.append(fork(lambda: in_turn(turns, int))))
        other.start()
        other.join()
        assert codes == [0]
    finally:
        turns.end()


def test_a_turn_ends_even_if_the_module_cannot_be_unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory, for one; all others would wait at every import from then on."""
    manager = _bootstrap._ModuleLockManager

    def full(*error: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        held = manager("a_module")
        held.__enter__()
        patch.setattr(manager.__base__, "__exit__", full)
        with pytest.raises(MemoryError):
            held.__exit__(None, None, None)
    assert manager.turns._thread.depth == 0
