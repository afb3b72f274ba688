"""What handlers set for their responses, status and headers, as far as it can be sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kserve_torch.codec.document import brief
from kserve_torch.errors import HandlerError, PredictionError
from kserve_torch.messages import Reply, RowReply

#: Response headers that only the server sets.
OURS = frozenset({"content-type", "content-length", "transfer-encoding", "connection", "date"})
#: The same where the body is the server's: a handler that asks another server and hands on its
#: headers would have clients unpack what is not packed.
ABOUT_BODY = frozenset({"content-encoding", "inference-header-content-length"})

#: RFC 9110 5.1 and 5.5; values may be Latin-1. Line breaks could smuggle in further headers.
_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


def check_rows(reply: Reply) -> None:
    """Fail the call if the handler gave one of its rows an error status (CONTRACT R8).

    Raises:
        PredictionError: with the first such status, and the row's result as its text.
        HandlerError: it is not a valid status.
    """
    for row in reply.rows:
        check_status(row)
        if row.status >= 400:
            text = row.result if isinstance(row.result, str) else str(row.phrase or "")
            raise PredictionError(text or f"the handler answered status {row.status}", row.status)


def check_status(row: RowReply) -> None:
    """Check that a status can be that of a final answer (RFC 9110 15).

    Raises:
        HandlerError: it cannot.
    """
    if not isinstance(row.status, int) or not 200 <= row.status <= 599:
        shown = brief(row.status)
        raise HandlerError(f"the handler set status {shown}, it must be a number from 200 to 599")


def row_headers(reply: Reply) -> list[tuple[str, str]]:
    """Headers that the handler set, for any of the rows, beside a body that is the server's.

    None of the request's is among them (T-22).

    Raises:
        HandlerError: one of them cannot be sent.
    """
    merged: dict[str, str] = {}
    for row in reply.rows:
        merged.update(row.headers)
    return [pair for pair in sendable(merged) if pair[0].lower() not in ABOUT_BODY]


def sendable(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Headers that a handler set, without those that only the server sets.

    Raises:
        HandlerError: a name or value has characters that headers cannot have.
    """
    pairs = [(name, str(value).strip()) for name, value in headers.items()]
    for name, value in pairs:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            why = "its name or value has characters that no header can have"
            raise HandlerError(f"the handler set header {name!r}: {why}")
    return [(name, value) for name, value in pairs if name.lower() not in OURS]
