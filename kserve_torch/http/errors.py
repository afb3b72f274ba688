"""Errors to answers on the KServe routes, in one place (INTERFACE: ``{"error": text}``)."""

from __future__ import annotations

import logging

from kserve_torch.errors import ServingError
from kserve_torch.http.call import Answer, json_answer

log = logging.getLogger(__name__)


def kserve_answer(error: BaseException, request_id: str = "") -> Answer:
    """The answer of a ``/v1`` or ``/v2`` route to an error."""
    told = as_told(error, request_id)
    return json_answer({"error": told.message}, told.http, told.headers)


def as_told(error: BaseException, request_id: str) -> ServingError:
    """What a client is told of an error; of one that nobody foresaw, only the log has the text."""
    if isinstance(error, ServingError):
        return error
    log.error("request %s: unexpected error", request_id, exc_info=error)
    return ServingError(f"Internal error: {type(error).__name__}")
