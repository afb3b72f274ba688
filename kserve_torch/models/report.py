"""Reports how a request ended, whichever protocol it came by."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kserve_torch.engine.failures import log_failed
from kserve_torch.errors import HandlerError, PredictionError
from kserve_torch.events import Responded
from kserve_torch.messages import NO_TIME, NOTHING, Reply, Request

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry


def log_unsendable(registry: Registry, request: Request, error: Exception) -> None:
    """Log why the handler's answer cannot be sent: its author does not see the client's error."""
    if isinstance(error, HandlerError) and not isinstance(error, PredictionError):
        version = registry.version_of(request.model, request.version)
        log_failed(f"{request.model} {version} {request.verb}", request, error)


def responded(
    registry: Registry,
    protocol: str,
    request: Request,
    status: int,
    began: float,
    reply: Reply | None,
    error: BaseException | None = None,
) -> Responded:
    """The event of how a request ended.

    Args:
        registry: the models.
        protocol: the name of the protocol in metrics and the access log.
        request: as far as it could be decoded.
        status: the answer's, in HTTP's terms.
        began: ``time.perf_counter()`` at which the request was there.
        reply: the handler's, or None if there is none.
        error: what kept the client from an answer, be it its departure, or None.
    """
    version = reply.version if reply else registry.version_of(request.model, request.version)
    timing = reply.timing if reply else getattr(error, "timing", None)
    return Responded(
        protocol,
        request.model,
        version,
        status,
        time.perf_counter() - began,
        request.id,
        len(request.rows),
        timing or NO_TIME,
        type(error).__name__ if isinstance(error, Exception) else "",
        request.headers if registry.observers.want_headers else NOTHING,
    )
