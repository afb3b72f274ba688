"""Which request of a batch is at fault: handlers know only rows, by their index in ``data``."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from contextlib import suppress

from kserve_torch.errors import BadRow, ClientError, HandlerError, InvalidInput
from kserve_torch.messages import Request

#: The start of a reason that names a field of the row.
_FIELD = re.compile(r"\w+: ")


class RequestFault(Exception):
    """One request of a batch is at fault; the others can be run again without it.

    Attributes:
        index: of the request, among those of `Instance.run`.
        error: the answer to it.
    """

    def __init__(self, index: int, error: ClientError) -> None:
        super().__init__(error.message)
        self.index = index
        self.error = error


def refused_inputs(error: InvalidInput) -> InvalidInput:
    """The error, and what a row was: clients of other servers send batches (CONTRACT D2)."""
    return InvalidInput(f"{error.message}; each input is one row without v2_rows: batch")


def fault_of(error: BadRow, requests: Sequence[Request]) -> Exception:
    """An error for the bad row's request, with the row as its protocol names it."""
    reason, row = str(getattr(error, "reason", "")), -1
    with suppress(AttributeError, TypeError):
        row = operator.index(error.index)  # may be numpy's integer
    end = 0
    for index, request in enumerate(requests):
        start, end = end, end + len(request.rows)
        if start <= row < end:
            element = request.element.format(row - start)
            joint = "." if _FIELD.match(reason) else ": "
            return RequestFault(index, InvalidInput(f"{element}{joint}{reason}"))
    return HandlerError(f"the handler refused row {row} of {end}: {reason}")
