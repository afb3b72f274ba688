"""Which request of a batch is at fault: handlers know rows only, by their place in ``data``."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate

from kserve_torch.errors import BadRow, ClientError, HandlerError, InvalidInput
from kserve_torch.messages import Request

#: A reason that begins with the field of the row that it is about.
_FIELD = re.compile(r"\w+: ")


class RequestFault(Exception):
    """One request of a batch is at fault; the others can be run again without it.

    Attributes:
        index: which of the requests that `Instance.run` was given.
        error: what to answer it with.
    """

    def __init__(self, index: int, error: ClientError) -> None:
        super().__init__(error.message)
        self.index = index
        self.error = error


def fault_of(error: BadRow, requests: Sequence[Request], counts: list[int]) -> Exception:
    """The owner of a bad row, and the row by the name that its protocol has for it."""
    reason, row = str(getattr(error, "reason", "")), -1
    with suppress(AttributeError, TypeError):
        row = operator.index(error.index)  # numpy's integers are none of Python's
    for index, end in enumerate(accumulate(counts)):
        if 0 <= row < end:
            element = requests[index].element.format(row - (end - counts[index]))
            joint = "." if _FIELD.match(reason) else ": "
            return RequestFault(index, InvalidInput(f"{element}{joint}{reason}"))
    return HandlerError(f"the handler refused row {row} of {sum(counts)}: {reason}")
