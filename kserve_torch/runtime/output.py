"""Standard output and error, which handlers redirect, wrap and close as if they were alone.

Each had a process of its own on TorchServe. Here nobody closes the two files for others, and what
`contextlib` redirects is what the thread writes that asked for it.
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
    """What it means to redirect to None."""

    def write(self, text: str) -> int:
        """Lose it."""
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
        """Close it for whoever asks."""
        self.flush()


class Standard(_Lasting):
    """One of the two files; each thread may have others in its place.

    What is redirected to may write to this one in turn, as a file does that also writes to where it
    all went before: it finds the one that it took the place of.
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
        """Write, or lose what nobody reads any more: the program that started this one is gone."""
        with self._in_place() as file, _unread(file is self._file):
            file.write(text)
        return len(text)

    def flush(self) -> None:
        """Likewise."""
        with self._in_place() as file, _unread(file is self._file):
            file.flush()

    @property
    def buffer(self) -> Any:
        """The bytes below; what wraps them closes them when it is forgotten."""
        return _Lasting(self.__getattr__("buffer"))

    def detach(self) -> Any:
        """The bytes below; they stay below this file too."""
        return self.buffer

    def redirect(self, file: Any) -> Any:
        """Write to ``file`` on this thread; returns what puts back what was there before."""
        before = self._others
        self._threads.others = (*before, file)
        return functools.partial(setattr, self._threads, "others", before)

    @property
    def _others(self) -> tuple[Any, ...]:
        """The files in its place on this thread, the present one last."""
        return getattr(self._threads, "others", ())

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[Any]:
        """The file that is written to; in the block, that is the one before it."""
        others = self._others
        self._threads.others = others[:-1]
        try:
            yield others[-1] if others else self._file
        finally:
            self._threads.others = others


def _unread(own: bool) -> AbstractContextManager[None]:
    return contextlib.suppress(BrokenPipeError) if own else contextlib.nullcontext()


def share() -> None:
    """Make the two files that there are now last; what has them already keeps them as they are."""
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
    """Hold on to the file: `print` itself crashes if another thread replaces it meanwhile."""
    _PRINT(*values, file=sys.stdout if file is None else file, **options)


def mend() -> None:
    """Have the files back in whose place somebody has put one that is closed by now."""
    for name in _NAMES:
        if getattr(getattr(sys, name), "closed", False):
            setattr(sys, name, getattr(sys, f"__{name}__"))


@functools.cache
def _redirect_by_thread() -> None:
    """Let ``redirect_stdout`` and ``redirect_stderr`` change nothing for other threads."""
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
