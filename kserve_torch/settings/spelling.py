"""Guesses for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Least similarity: one letter in ten may be wrong or missing.
_ALIKE = 0.88


def near(word: str, known: Iterable[str]) -> str | None:
    """The known name that ``word`` looks like; None if there is none, or if it is one itself.

    Case, ``_`` and ``-`` do not count: they are the most common mistakes.
    """
    names = {_plain(name): name for name in reversed(list(known))}
    found = difflib.get_close_matches(_plain(word), names, n=1, cutoff=_ALIKE)
    return names[found[0]] if found and names[found[0]] != word else None


def with_guess(word: str, known: Iterable[str]) -> str:
    """``word``, with the known name that it looks like if there is one."""
    guess = near(word, known)
    return f"{word} (did you mean {guess}?)" if guess else word


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
