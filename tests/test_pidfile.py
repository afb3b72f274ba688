import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kserve_torch import pidfile

from .server import Server, free_ports

IDLE = "import signal; signal.pause()"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def idle(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a signal, called with the words of the test's parameter."""
    process = subprocess.Popen([sys.executable, "-c", IDLE, *request.param])
    yield process
    process.kill()
    process.wait()


def test_the_file_names_this_process_while_it_serves() -> None:
    with pidfile.recorded():
        assert pidfile.path().read_text() == str(os.getpid())
        assert pidfile.path().stat().st_mode & 0o777 == 0o600
    assert not pidfile.path().exists()


def test_the_file_of_a_later_server_is_left_alone() -> None:
    with pidfile.recorded():
        pidfile.path().write_text("1")
    assert pidfile.path().read_text() == "1"


@pytest.mark.parametrize("idle", [["torchserve", "--start"]], indirect=True)
def test_a_second_server_leaves_the_first_one_to_stop(
    idle: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """It may have to end at once, for want of its ports."""
    pidfile.path().write_text(str(idle.pid))
    with pidfile.recorded():
        assert f"--stop is for process {idle.pid}" in caplog.text
    assert pidfile.path().read_text() == str(idle.pid)
    assert pidfile.stop() == idle.pid


@pytest.mark.parametrize("idle", [["torchserve", "--start"]], indirect=True)
def test_that_it_does_is_logged_as_the_settings_say(
    idle: subprocess.Popen[bytes], folder: Path
) -> None:
    pidfile.path().write_text(str(idle.pid))
    command = [sys.executable, "-m", "kserve_torch", "torchserve", "--model-store", str(folder)]
    http, grpc_port = map(str, free_ports(2))
    options = ("--http_port", http, "--grpc_port", grpc_port, "--log_json", "--drain_seconds=0")
    with Server(None, *options, command=command, env={"TMPDIR": str(folder)}) as server:
        assert server.stop() == 0
    (line,) = [line for line in server.lines if "--stop is for process" in line]
    assert json.loads(line)["level"] == "WARNING"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
@pytest.mark.parametrize("idle", [["torchserve", "--start"]], indirect=True)
def test_the_file_of_another_user_does_not_count(idle: subprocess.Popen[bytes]) -> None:
    pidfile.path().write_text(str(idle.pid))
    os.chown(pidfile.path(), 65534, 65534)
    assert pidfile.stop() is None


def test_the_first_process_of_a_container_takes_over_the_file_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both have the number 1."""
    words = Path("/proc/self/cmdline").read_text().split("\0")
    monkeypatch.setattr(pidfile, "_PROGRAMS", [Path(word).name for word in words])
    pidfile.path().write_text(str(os.getpid()))
    with pidfile.recorded():
        assert not caplog.text
    assert not pidfile.path().exists()


@pytest.mark.parametrize("idle", [["something", "else"]], indirect=True)
def test_the_file_of_a_server_that_was_killed_is_taken_over(idle: subprocess.Popen[bytes]) -> None:
    pidfile.path().write_text(str(idle.pid))
    with pidfile.recorded():
        assert pidfile.path().read_text() == str(os.getpid())


def test_a_link_in_the_shared_folder_is_not_followed(folder: Path) -> None:
    victim = folder / "victim"
    victim.write_text("precious")
    pidfile.path().symlink_to(victim)
    with pidfile.recorded():
        assert not pidfile.path().is_symlink()
    assert victim.read_text() == "precious"


def test_a_folder_that_refuses_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "absent"))
    with pidfile.recorded():
        assert "--stop will not work" in caplog.text


@pytest.mark.parametrize("idle", [["torchserve", "--start"]], indirect=True)
def test_stop_ends_the_recorded_server(idle: subprocess.Popen[bytes]) -> None:
    pidfile.path().write_text(str(idle.pid))
    assert pidfile.stop() == idle.pid
    assert idle.wait() in (0, -signal.SIGTERM)


@pytest.mark.parametrize("idle", [["torchserve", "--start"]], indirect=True)
def test_stop_does_not_wait_for_who_started_the_server(
    idle: subprocess.Popen[bytes], folder: Path
) -> None:
    """Which has its exit code still to ask for."""
    pidfile.path().write_text(str(idle.pid))
    stop = [sys.executable, "-m", "kserve_torch", "torchserve", "--stop"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    said = subprocess.run(stop, env=environment, capture_output=True, text=True, timeout=30)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == f"The server (process {idle.pid}) has stopped.\n"


@pytest.mark.parametrize("idle", [["something", "else"]], indirect=True)
def test_stop_spares_a_process_that_inherited_the_number(idle: subprocess.Popen[bytes]) -> None:
    pidfile.path().write_text(str(idle.pid))
    assert pidfile.stop() is None
    assert idle.poll() is None


@pytest.mark.parametrize("text", ["", "no number", str(2**22 + 1)])
def test_stop_with_nothing_to_stop(text: str) -> None:
    pidfile.path().write_text(text)
    assert pidfile.stop() is None


def test_stop_without_a_file_or_from_the_server_itself() -> None:
    assert pidfile.stop() is None
    with pidfile.recorded():
        assert pidfile.stop() is None
