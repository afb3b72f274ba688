"""What TorchScript says of an error: a traceback of its own, then the line that matters."""

from __future__ import annotations

import re


def last_line(text: str) -> str:
    """The line of such a text that says what is wrong, as ``<Type>: <text>``.

    Where a kernel in Python raised it, as those of `products` do, that kernel's frames follow.
    """
    line = text.partition("\n\nAt:\n")[0].splitlines()[-1]
    return re.sub("^(RuntimeError: )+", "RuntimeError: ", line)
