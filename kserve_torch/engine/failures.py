"""What the log says of a request that fails, whoever finds out."""

from __future__ import annotations

import logging

from kserve_torch.errors import ClientError, ServingError, Unsupported
from kserve_torch.messages import Request

log = logging.getLogger(__name__)

#: Characters of a client's id in a line, as in the access log.
LONGEST_ID = 200
#: And of an error's text, in which a handler may quote the request.
LONGEST_TEXT = 1000


def log_failed(
    label: str, request: Request, error: ServingError, cause: BaseException | None = None
) -> None:
    """Log why a request failed: its answer, and the traceback of what was raised.

    ``label`` is its model, or the queue that it was in.
    """
    # As the access log has them, for JSON logs: who looks for an id finds the traceback, too.
    id_, why = request.id[:LONGEST_ID], error.message[:LONGEST_TEXT]
    extra = {"fields": {"model": request.model, "id": id_}}
    # Requests that no server could answer must not fill the log with tracebacks.
    if isinstance(error, ClientError | Unsupported):
        text = "%s: request %s was refused: %s"
        log.info(text, label, id_, why, extra=extra)
    else:
        text = "%s: request %s failed: %s"
        log.error(text, label, id_, why, exc_info=cause, extra=extra)
