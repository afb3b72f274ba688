"""Errors to answers on the KServe routes, in one place (INTERFACE: ``{"error": text}``)."""

from __future__ import annotations

import logging

from kserve_torch.errors import MethodNotAllowed, Overloaded, ServingError
from kserve_torch.http.call import Answer, json_answer

log = logging.getLogger(__name__)


def kserve_answer(error: BaseException, request_id: str = "") -> Answer:
    """The answer of a ``/v1`` or ``/v2`` route to an error."""
    told = as_told(error, request_id)
    return json_answer({"error": told.message}, told.http, error_headers(told))


def as_told(error: BaseException, request_id: str) -> ServingError:
    """What a client is told of an error; of one that nobody foresaw, only the log has the text."""
    if isinstance(error, ServingError):
        return error
    log.error("request %s: unexpected error", request_id, exc_info=error)
    return ServingError(f"Internal error: {type(error).__name__}")


def error_headers(error: ServingError) -> tuple[tuple[str, str], ...]:
    """What HTTP says of an error in headers (RFC 9110 10.2.1, 10.2.3)."""
    match error:
        case Overloaded():
            return (("retry-after", str(error.retry_after)),)
        case MethodNotAllowed() if error.allowed:
            return (("allow", ", ".join(error.allowed)),)
    return ()
