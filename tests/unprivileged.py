"""Makes permissions count, also where the tests run as root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[None]:
    """Act as a user who may do what all may do."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@contextmanager
def locked_folder() -> Iterator[Path]:
    """A folder that every user can see, and nobody but root can look into."""
    # Not pytest's own: others than its user cannot come near that one.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0)
        yield Path(folder)
        os.chmod(folder, 0o700)
