"""Folders that archives put on ``sys.path``: each archive sees its own there, but no other's.

Handlers write ``sys.path.insert(0, os.path.join(model_dir, "yolov5"))``, and some take it out again
with ``remove`` or ``pop``. The list stays as they leave it, but not all search the same folders::

    sys.path   .../a/yolov5   /usr/lib/python3   .../site-packages   .../b
    archive a  before: .../a/yolov5              after: nothing
    archive b  before: nothing                   after: .../b
    all else                  /usr/lib/python3   .../site-packages

An archive searches its entries before or after its own folders (`folders`); the `PathFinder` of all
other code skips them. So two models, or two versions of one, may each bring their own ``utils``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import machinery
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_lock = threading.Lock()
#: Folders of open archives, symbolic links resolved, and how many instances each has.
_roots: Counter[str] = Counter()
#: Entries that were on ``sys.path`` before any archive.
_servers: set[str] = set()


def claim(root: Path) -> None:
    """From now on, all below ``root`` belongs to its archive."""
    with _lock:
        _roots[os.path.realpath(root)] += 1


def release(root: Path) -> None:
    """Undo one `claim`; the last one removes the archive's folders from ``sys.path``."""
    real = os.path.realpath(root)
    with _lock:
        _roots[real] -= 1
        if _roots[real] > 0:
            return
        del _roots[real]
    for entry in list(sys.path):
        if _added(entry) and _in_one_of([real], entry):
            with suppress(ValueError):  # a handler may just have removed it
                sys.path.remove(entry)


def is_an_archives(path: str) -> bool:
    """Whether ``path`` is in an open archive; it may be relative to the working directory."""
    return _in_one_of(list(_roots), path)


def folders(root: Path) -> tuple[list[str], list[str]]:
    """An archive's entries on ``sys.path``: those before the server's own, and those after.

    Relative entries start at ``root``, the archive's folder, and at the working directory, which a
    handler may have changed to a folder of its archive.
    """
    real = os.path.realpath(root)
    entries = list(sys.path)
    middle = max((i for i, entry in enumerate(entries) if not _added(entry)), default=0)
    own = [
        (index, os.path.abspath(folder))
        for index, entry in enumerate(entries)
        if entry and _added(entry)
        for folder in dict.fromkeys((os.path.join(root, entry), entry))
        if _in_one_of([real], folder)
    ]
    return [f for i, f in own if i < middle], [f for i, f in own if i > middle]


class Shown(Sequence[str]):
    """A package's ``__path__`` that can be read, but on which `PathFinder` finds nothing."""

    def __init__(self, read: Callable[[], Sequence[str]]) -> None:
        self._read = read

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __len__(self) -> int:
        return len(self._read())


class PathFinder(machinery.PathFinder):
    """Replaces importlib's, under the same name: others look for it in ``sys.meta_path``."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if isinstance(path, Shown):
            return None
        if path is None and _roots:
            path = list(_of_all())
        return super().find_spec(fullname, path, target)


def install() -> None:
    """Put `PathFinder` in place; what is on ``sys.path`` now stays everybody's."""
    _servers.update(entry for entry in sys.path if os.path.isabs(entry))
    sys.meta_path[sys.meta_path.index(machinery.PathFinder)] = PathFinder


def _added(entry: object) -> bool:
    return isinstance(entry, str) and entry not in _servers


def _of_all() -> Iterator[str]:
    """Entries of ``sys.path`` that belong to no archive."""
    roots = list(_roots)
    return (entry for entry in list(sys.path) if not _added(entry) or not _in_one_of(roots, entry))


def _in_one_of(roots: Iterable[str], entry: str) -> bool:
    """Whether ``entry`` is one of ``roots`` or below one; it may be relative."""
    try:
        real = os.path.realpath(entry)
    except FileNotFoundError:  # relative, and the working directory was removed
        return False
    return any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots)
