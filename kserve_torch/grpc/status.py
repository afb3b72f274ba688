"""Errors as gRPC statuses; the only place that turns one into the other."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from grpc import StatusCode

from kserve_torch.errors import Overloaded, PredictionError, ServingError

log = logging.getLogger(__name__)

#: The text for unexpected errors; the log has the details.
UNEXPECTED = "internal server error"

#: Most bytes of a status text in UTF-8: it is sent in a header, where each that is not printable
#: ASCII takes three bytes, and clients refuse headers over 8 KiB.
MAX_TEXT = 2000

#: The gRPC codes for HTTP codes that a handler may choose (CONTRACT R7, R8).
_CODES = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    408: StatusCode.DEADLINE_EXCEEDED,
    409: StatusCode.ALREADY_EXISTS,
    412: StatusCode.FAILED_PRECONDITION,
    413: StatusCode.RESOURCE_EXHAUSTED,
    416: StatusCode.OUT_OF_RANGE,
    429: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
    507: StatusCode.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How an RPC ended, with its trailing metadata."""

    code: StatusCode
    text: str
    metadata: tuple[tuple[str, str], ...] = ()


def code_of(http: int) -> StatusCode:
    """The gRPC code for an HTTP code."""
    other = StatusCode.INVALID_ARGUMENT if 400 <= http < 500 else StatusCode.INTERNAL
    return _CODES.get(http, other)


def status_of(error: Exception, method: str) -> Status:
    """The status that answers ``error``.

    An unexpected error is logged here with its traceback; a `ServingError` was logged where it was
    raised. Then the traceback goes: its frames hold the request, and what in turn holds the error,
    and would stay in memory until Python looks for garbage.

    Args:
        error: what the RPC raised.
        method: the RPC's name, for the log.
    """
    status = _status(error, method)
    error.__traceback__ = None
    return status


def _status(error: Exception, method: str) -> Status:
    if not isinstance(error, ServingError):
        log.error("%s: unexpected %s", method, type(error).__name__, exc_info=error)
        return Status(code=StatusCode.INTERNAL, text=UNEXPECTED)
    chosen = isinstance(error, PredictionError)
    code = code_of(error.http) if chosen else StatusCode[error.grpc]
    text = error.message.encode()[:MAX_TEXT].decode(errors="ignore")
    if not isinstance(error, Overloaded):
        return Status(code=code, text=text)
    # gRPC's form of Retry-After (gRFC A6).
    pause = ("grpc-retry-pushback-ms", str(1000 * error.retry_after))
    return Status(code=code, text=text, metadata=(pause,))
