"""Spans for OpenTelemetry: one for each answer, and below it its wait and its handler's call.

OpenTelemetry's own variables switch it on and say where spans go, which are kept and what the
service is called. Spans are made when the answer is out, from the times that were taken anyway.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from kserve_torch.events import Event, Responded
from kserve_torch.messages import Timing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

#: Each of them names a collector.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Each of them says how spans are sent, the first one before the second.
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
#: The service's name, where nobody gives it one.
SERVICE = "kserve-torch"
#: Seconds for which the last spans may take to leave.
LAST_SECONDS = 2.0
#: Warn of each header that a client made up, and quote it.
_TALKATIVE = ("opentelemetry.baggage", "opentelemetry.trace.propagation")
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def tracing(environ: Mapping[str, str]) -> Tracing | None:
    """The observer that makes spans, or None if no collector is named.

    None, too, if what it needs is absent or a variable is wrong; the log says so.

    Args:
        environ: the environment; the SDK reads its own variables from the process's.
    """
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    none = environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    if off or none or not any(map(environ.get, ENDPOINTS)):
        return None
    if not all(map(_is_installed, _PACKAGES)):
        log.warning("no traces are sent: the packages of the extra 'tracing' are not installed")
        return None
    protocol = next(filter(None, map(environ.get, PROTOCOLS)), PROTOCOL)
    if protocol != PROTOCOL:
        log.warning("no traces are sent: protocol %s, only %s is supported", protocol, PROTOCOL)
        return None
    try:
        return _tracing(environ)
    except Exception as error:  # of the SDK's, about one of the variables that it reads
        log.warning("no traces are sent: %s: %s", type(error).__name__, error)
        return None


def _tracing(environ: Mapping[str, str]) -> Tracing:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(
        resource=Resource.create({} if named else {"service.name": SERVICE}),
        shutdown_on_exit=False,
    )
    tracing = Tracing(provider)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    # Last, because it starts a thread.
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return tracing


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


class Tracing:
    """Observer that makes a span of every `Responded`.

    Args:
        provider: where they go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.propagate import extract

        self._provider = provider
        self._tracer = provider.get_tracer("kserve_torch")
        self._parent = extract

    def __call__(self, event: Event) -> None:
        """Makes the spans of `Responded`, below the one that the request's headers name."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        if not isinstance(event, Responded):
            return
        now, timing = time.time_ns(), event.timing
        left = now - _ns(time.monotonic() - timing.began) if timing.began else now
        # Answers are told of a moment after they went out: none came after it was queued.
        began = min(now - _ns(event.seconds), left - _ns(timing.queued))
        span = self._tracer.start_span(
            f"{event.protocol} {event.model}" if event.version else event.protocol,
            context=self._parent(event.headers),
            kind=SpanKind.SERVER,
            start_time=began,
            attributes={
                "http.response.status_code": event.status,
                "model.name": event.model,
                "model.version": event.version,
                "request.id": event.request_id,
                "request.rows": event.rows,
            },
        )
        if span.is_recording():
            if event.error:
                span.set_attribute("error.type", event.error)
            if event.status >= 500:
                span.set_status(Status(StatusCode.ERROR))
            if timing.began:
                self._stages(span, timing, left)
        span.end(began + _ns(event.seconds))

    def _stages(self, span: Span, timing: Timing, left: int) -> None:
        """Spans of the queue, which the request left at a time in ns, and of the handler."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(span)
        queue = self._tracer.start_span("queue", context, start_time=left - _ns(timing.queued))
        queue.end(left)
        rows = {"batch.rows": timing.batch_rows}
        handler = self._tracer.start_span("handler", context, attributes=rows, start_time=left)
        handler.end(left + _ns(timing.handler))

    async def close(self) -> None:
        """Send what has not been sent; a collector that is not there has `LAST_SECONDS` to come."""
        with suppress(TimeoutError):  # the SDK's own limit leaves out what it tries again
            async with asyncio.timeout(LAST_SECONDS):
                await asyncio.to_thread(self._provider.force_flush)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
