import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kserve_torch.scratch import Scratch

HOLDING = """
import sys
from kserve_torch.scratch import Scratch
held = Scratch()
print(held.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_what_a_killed_server_left_is_removed_and_what_others_use_stays(tmp: Path) -> None:
    foreign = tmp / "kserve_torch-foreign"
    foreign.mkdir()
    command = [sys.executable, "-c", HOLDING]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        (left / "models").mkdir()
        beside = Scratch()
        assert left.is_dir()
        other.kill()
        assert other.wait() == -signal.SIGKILL
    after = Scratch()
    assert {*tmp.iterdir()} == {foreign, beside.folder, after.folder}
    for one in (beside, after):
        one.close()
    assert [*tmp.iterdir()] == [foreign]


def test_the_folder_is_locked_for_those_that_remove_old_files(tmp: Path) -> None:
    """As systemd-tmpfiles, whose manual says how to keep a folder: workers may start much later."""
    held = Scratch()
    folder = os.open(held.folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.close()
    os.close(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_the_folders_of_other_users_are_left_alone(tmp: Path) -> None:
    lock = tmp / "kserve_torch-theirs/.lock"
    lock.parent.mkdir()
    lock.touch()
    os.chown(lock, 65534, 65534)
    Scratch().close()
    assert lock.exists()


def test_locks_that_are_links_are_left_alone(tmp: Path) -> None:
    (tmp / "kserve_torch-link").mkdir()
    (tmp / "file").touch()
    (tmp / "kserve_torch-link/.lock").symlink_to(tmp / "file")
    Scratch().close()
    assert (tmp / "kserve_torch-link").is_dir()
