"""Standard output and error, which handlers redirect, wrap and close as if they were alone.

On TorchServe each has a process of its own. Here closing the two files has no effect on others, and
`contextlib` redirects only what the calling thread writes.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Self

_NAMES = ("stdout", "stderr")
_PRINT = builtins.print


class _Nowhere(io.TextIOBase):
    """The target of a redirection to None."""

    def write(self, text: str) -> int:
        """Drop it."""
        return len(text)


class _Lasting:
    """A file that stays open when somebody closes it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Only flush it."""
        self.flush()


class Standard(_Lasting):
    """One of the two files, which each thread may redirect.

    The target of a redirection may itself write to this file, as a tee does: it then gets the file
    that it replaced.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._threads = threading.local()

    def __getattr__(self, name: str) -> Any:
        with self._in_place() as file:
            found = getattr(file, name)
        if file is self._file or not callable(found):
            return found

        def call(*values: Any, **options: Any) -> Any:
            with self._in_place():
                return found(*values, **options)

        return call

    def write(self, text: str) -> int:
        """Write; text that cannot be written is dropped: no handler can do anything about it.

        The program that reads it may be gone, or the terminal, or the disk be full.
        """
        with self._in_place() as file, _dropped(file is self._file):
            file.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush; errors of the file are dropped as in `write`."""
        with self._in_place() as file, _dropped(file is self._file):
            file.flush()

    @property
    def buffer(self) -> Any:
        """The binary file below; a wrapper closes it when it is garbage, so this one stays open."""
        return _Lasting(self.__getattr__("buffer"))

    def detach(self) -> Any:
        """The binary file below, which this file keeps too."""
        return self.buffer

    def redirect(self, file: Any) -> Any:
        """Write to ``file`` on this thread; returns a function that undoes it."""
        before = self._others
        self._threads.others = (*before, file)
        return functools.partial(setattr, self._threads, "others", before)

    @property
    def _others(self) -> tuple[Any, ...]:
        """The targets of this thread's redirections, the current one last."""
        return getattr(self._threads, "others", ())

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[Any]:
        """The current target; within the block, the one before it is."""
        others = self._others
        self._threads.others = others[:-1]
        try:
            yield others[-1] if others else self._file
        finally:
            self._threads.others = others


def _dropped(own: bool) -> AbstractContextManager[None]:
    return contextlib.suppress(OSError) if own else contextlib.nullcontext()


def share() -> None:
    """Replace the two files with shared ones; references to the old files stay as they are."""
    for name in _NAMES:
        file = getattr(sys, name)
        if file is None:  # a program without a console
            continue
        shared = Standard(file)
        setattr(sys, name, shared)
        setattr(sys, f"__{name}__", shared)
    builtins.print = _print
    _redirect_by_thread()


@functools.wraps(_PRINT)
def _print(*values: object, file: Any = None, **options: Any) -> None:
    """Keep a reference to the file: `print` crashes if another thread replaces it meanwhile."""
    _PRINT(*values, file=sys.stdout if file is None else file, **options)


def mend() -> None:
    """Put a file back whose replacement has been closed."""
    for name in _NAMES:
        if getattr(getattr(sys, name), "closed", False):
            setattr(sys, name, getattr(sys, f"__{name}__"))


@functools.cache
def _redirect_by_thread() -> None:
    """Make ``redirect_stdout`` and ``redirect_stderr`` affect only the calling thread."""
    for kind in (contextlib.redirect_stdout, contextlib.redirect_stderr):
        kind.__enter__ = _enter(kind.__enter__)  # type: ignore[method-assign]
        kind.__exit__ = _leave(kind.__exit__)  # type: ignore[method-assign]


def _enter(original: Any) -> Any:
    def enter(self: Any) -> Any:
        shared = getattr(sys, self._stream)
        if not isinstance(shared, Standard):
            return original(self)
        target = self._new_target
        self._old_targets.append(shared.redirect(_Nowhere() if target is None else target))
        return target

    return enter


def _leave(original: Any) -> Any:
    def leave(self: Any, *error: Any) -> Any:
        if not isinstance(self._old_targets[-1], functools.partial):
            return original(self, *error)
        self._old_targets.pop()()
        return None

    return leave
