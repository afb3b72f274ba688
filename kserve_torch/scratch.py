"""The folder below TMPDIR that a server writes to; removes those of killed servers.

A pod's volume at /tmp outlives its containers: each container that is killed, for example for its
memory, would leave another copy of every model there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "kserve_torch-"
#: Locked for as long as the folder's process lives.
_LOCK = ".lock"


class Scratch:
    """A new folder; folders of this user's servers that have ended are removed."""

    def __init__(self) -> None:
        clear()
        # A hung handler may still write to it.
        temporary = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        self._held = contextlib.ExitStack()
        self.folder = Path(self._held.enter_context(temporary))
        unlocked = self.folder / "unlocked"
        with contextlib.suppress(OSError):  # not every file system has locks
            self._lock(unlocked, os.O_CREAT | os.O_RDWR)
            unlocked.rename(self.folder / _LOCK)
            # Else systemd-tmpfiles removes what is not read for ten days.
            self._lock(self.folder, os.O_RDONLY)

    def _lock(self, path: Path, how: int) -> None:
        number = os.open(path, how, 0o600)
        self._held.callback(os.close, number)
        fcntl.flock(number, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it."""
        self._held.close()


def clear() -> None:
    """Remove what servers that have ended left behind.

    They may have filled the folder, and `tempfile.gettempdir` passes over one that is full.
    """
    folders = {os.environ.get(name) or "/tmp" for name in ("TMPDIR", "TEMP", "TMP")}
    for lock in (lock for folder in folders for lock in Path(folder).glob(f"{_PREFIX}*/{_LOCK}")):
        with contextlib.suppress(OSError):  # another user's, or in use
            held = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if os.fstat(held).st_uid == os.geteuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(held)
