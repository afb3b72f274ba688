"""Errors to answers on the KServe routes, in one place (INTERFACE: ``{"error": text}``)."""

from __future__ import annotations

import logging

from kserve_torch.errors import Overloaded, ServingError
from kserve_torch.http.exchange import Answer, json_answer

log = logging.getLogger(__name__)


def kserve_answer(error: BaseException, request_id: str = "") -> Answer:
    """The answer of a ``/v1`` or ``/v2`` route to an error."""
    if not isinstance(error, ServingError):
        log.error("request %s: unexpected error", request_id, exc_info=error)
        return json_answer({"error": f"internal error ({type(error).__name__})"}, 500)
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, Overloaded):
        headers = (("retry-after", str(error.retry_after)),)
    return json_answer({"error": error.message}, error.http, headers)
