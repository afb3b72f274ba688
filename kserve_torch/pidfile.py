"""The file that tells ``torchserve --stop`` which process to stop (CONTRACT F6)."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kserve_torch.errors import SettingError

if TYPE_CHECKING:
    from psutil import Process

logger = logging.getLogger(__name__)

#: Longer than any drain and grace period that makes sense.
_STOP_SECONDS = 60
_PROGRAMS = ("torchserve", "kserve_torch", "kserve-torch")


def path() -> Path:
    """Where TorchServe keeps it, too."""
    return Path(tempfile.gettempdir(), ".model_server.pid")


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Names this process in the file while the block runs; the server starts without it, too.

    One that is named there and still runs stays: this one may be about to find its ports taken.
    """
    other = _recorded()
    try:
        if other is None:
            _write(os.getpid())
        else:
            logger.warning("--stop is for process %d, which was started before this", other.pid)
    except OSError as error:
        logger.warning("--stop will not work: %s: %s", path(), error.strerror)
    try:
        yield
    finally:
        forget()


def forget() -> None:
    """Removes the file if it names this process."""
    if _read() == os.getpid():
        path().unlink(missing_ok=True)


def stop() -> int | None:
    """Asks the recorded server to stop and waits until it has; its process id, or None for none.

    Raises:
        SettingError: it is still running after a minute.
    """
    process = _recorded()
    if process is None:
        return None
    import psutil

    ends = time.monotonic() + _STOP_SECONDS
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
        # One that has ended stays a zombie until the program that started it asks for its end.
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > ends:
                raise SettingError(
                    f"process {process.pid} is still running {_STOP_SECONDS} s after SIGTERM"
                )
            time.sleep(0.05)
    return process.pid


def _recorded() -> Process | None:
    """The server that the file names, if it runs and is not this process."""
    pid = _read()
    if pid is None or pid == os.getpid():
        return None
    import psutil  # not at the top: few starts need it

    try:
        process = psutil.Process(pid)
        words = process.cmdline()
    except psutil.Error:
        return None
    # Else the number was given to another process since.
    return process if any(Path(word).name in _PROGRAMS for word in words) else None


def _write(pid: int) -> None:
    """A new file, so that nobody's link in the shared folder is followed."""
    path().unlink(missing_ok=True)
    number = os.open(path(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w") as file:
        file.write(str(pid))


def _read() -> int | None:
    """The recorded process; only a file of our own counts."""
    try:
        if path().lstat().st_uid != os.geteuid():
            return None
        return int(path().read_text())
    except (OSError, ValueError):
        return None
