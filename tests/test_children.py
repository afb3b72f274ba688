import signal
import subprocess
import sys
import time

import pytest
from joblib.externals.loky.backend.process import LokyProcess

from kserve_torch import children

PROGRAM = """
import asyncio, os, signal, sys
import uvloop
from kserve_torch.children import keep_signals_from_forks

hasty = own = False

def forked():
    if hasty:  # whoever told it did not wait for what else a fork begins with
        os.kill(os.getpid(), signal.SIGTERM)
    if not own:
        signal.set_wakeup_fd(-1)  # asyncio, since Python 3.12

os.register_at_fork(after_in_child=forked)

def ending():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        if own:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
        os.write(write, b"x")
        signal.alarm(5)  # it ends in any case
        signal.pause()
        os._exit(0)
    if not hasty:
        os.read(read, 1)
        os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def serve():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, print, "the server's")
    keep_signals_from_forks()
    code = ending()
    await asyncio.sleep(0.01)  # for signals that came to the server
    return code

factory = None if sys.argv[1] == "asyncio" else uvloop.new_event_loop
for hasty, own in ((False, False), (False, True), (True, False)):
    with asyncio.Runner(loop_factory=factory) as runner:
        print(runner.run(serve()))
hasty = False
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
print(ending())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_signals_end_forks_of_a_server_and_are_a_program_s_own_after_it(loop: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, loop],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.split(), done.stderr) == (["-15", "3", "-15", "7"], "")


def sleeping() -> LokyProcess:
    child = LokyProcess(target=time.sleep, args=[60], daemon=True)
    child.start()
    return child


def test_processes_that_were_started_since_then_are_told_to_end() -> None:
    others = sleeping()
    ours = children.Children()
    child = sleeping()
    ours.end()
    assert (others.exitcode, child.exitcode) == (None, -signal.SIGTERM)
    others.terminate()
    others.join()


def test_processes_that_do_not_end_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "CHILD_SECONDS", 0.05)
    ours = children.Children()
    child = sleeping()
    monkeypatch.setattr(child, "terminate", lambda: None)  # it takes longer
    ours.end()
    child.join(10)
    assert child.exitcode == -signal.SIGKILL
