"""Files that handlers write once more: whoever uses the old ones keeps them.

Many handlers extract or copy their weights as they load, and all workers of a model into the same
folder. The weights of those that run already are mapped from the files there. If one were
truncated to be written anew, the next access to such weights would end the process with SIGBUS.

What is copied or opened outside of the model's folder is truncated as ever: handlers write to the
name of a temporary file, and read from the one that they have open.
"""

from __future__ import annotations

import builtins
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from kserve_torch.namespace.scopes import current_scope

_numbers = count()


def install() -> None:
    """Let `zipfile`, `tarfile` and `shutil` write an archive's files under another name first."""
    vars(zipfile)["open"], vars(shutil)["open"] = _open, _open_copy  # they hide the builtin
    tarfile.TarFile.makefile = _replacing(tarfile.TarFile.makefile)  # type: ignore[method-assign]


def let_go(file: Any, mode: Any, root: Path) -> None:
    """Before code of the archive in ``root`` opens a file there, which another takes the place of.

    That is if it would be truncated.
    """
    if mode in ("wb", "bw", "wb+", "w+b") and _is_replaceable(file) and _is_within(root, file):
        with suppress(OSError):
            if os.path.getsize(file):  # empty ones are locks: `fcntl.flock` needs the same file
                os.unlink(file)


def _open(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
    """The ``open`` of `zipfile`, which writes files within ``with`` only."""
    if mode == "wb" and current_scope() is not None and _is_replaceable(file):
        return _written(file)
    return builtins.open(file, mode, *args, **options)


def _open_copy(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
    """The same of `shutil`."""
    scope = current_scope() if mode == "wb" else None
    if scope is not None and _is_replaceable(file) and _is_within(scope.root, file):
        return _written(file)
    return builtins.open(file, mode, *args, **options)


@contextmanager
def _written(file: Any) -> Iterator[BinaryIO]:
    with _replaced(file) as new, open(new, "wb") as written:
        yield written


def _replacing(makefile: Any) -> Any:
    @wraps(makefile)
    def replacing(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Any) -> None:
        if current_scope() is None or not _is_replaceable(path):
            makefile(archive, member, path)
            return
        with _replaced(path) as new:
            makefile(archive, member, new)

    return replacing


@contextmanager
def _replaced(file: Any) -> Iterator[str]:
    """The name of a file to write in the block, which then takes the place of ``file``.

    Until then others that look for ``file`` find the old one: workers load at the same time.
    """
    new = os.path.join(os.path.dirname(file), f".kserve_torch-{os.getpid()}-{next(_numbers)}")
    try:
        yield new
        os.replace(new, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise


def _is_within(root: Path, file: str | os.PathLike[str]) -> bool:
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(root))


def _is_replaceable(file: Any) -> bool:
    """Whether it is a name, of an ordinary file or of none, in a folder that can be written to."""
    if not isinstance(file, str | os.PathLike) or os.path.islink(file):
        return False
    ordinary = os.path.isfile(file) or not os.path.exists(file)
    return ordinary and os.access(os.path.dirname(file) or ".", os.W_OK)
