"""What the log says of a request that fails, whoever finds out."""

from __future__ import annotations

import logging

from kserve_torch.errors import ClientError, ServingError
from kserve_torch.messages import Request

log = logging.getLogger(__name__)


def log_failed(
    label: str, request: Request, error: ServingError, cause: BaseException | None = None
) -> None:
    """Log why a request failed.

    Args:
        label: its model, or the queue that it was in.
        request: it.
        error: the answer.
        cause: what was raised, for its traceback.
    """
    # As the access log has them, for JSON logs: who looks for an id finds the traceback, too.
    extra = {"fields": {"model": request.model, "id": request.id}}
    if isinstance(error, ClientError):  # bad requests must not fill the log with tracebacks
        text = "%s: request %s was refused: %s"
        log.info(text, label, request.id, error.message, extra=extra)
    else:
        text = "%s: request %s failed: %s"
        log.error(text, label, request.id, error.message, exc_info=cause, extra=extra)
