"""OpenTelemetry spans: one per answer, with child spans for the queue and the handler.

OpenTelemetry's own variables switch it on and configure exporter, sampling and service name. Spans
are made after the answer has been sent, from times that are measured anyway.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from kserve_torch.events import Responded
from kserve_torch.messages import Timing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

#: Variables with the address of a collector.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Variables with the protocol to send spans with; the first one takes precedence.
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
#: How addresses end whose protocol is gRPC unless a variable says otherwise; others' is HTTP.
GRPC_PORT = ":4317"
#: The default service name.
SERVICE = "kserve-torch"
#: Seconds that sending the last spans may take.
LAST_SECONDS = 2.0
#: Loggers that warn of each malformed header, and quote it.
_TALKATIVE = ("opentelemetry.baggage", "opentelemetry.trace.propagation")
#: The package that sends spans, for each protocol.
_EXPORTERS = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http",
}


def tracing(environ: Mapping[str, str]) -> Tracing | None:
    """The observer that makes spans, or None if no collector is configured.

    Also None, with a warning in the log, if packages are missing or a variable is wrong.

    Args:
        environ: the environment; the SDK itself reads the process's.
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter == "none"
    address = next(filter(None, map(environ.get, ENDPOINTS)), None)
    if off or address is None:
        return None
    protocol = next(filter(None, map(environ.get, PROTOCOLS)), None) or _usual_protocol(address)
    obstacle = _obstacle(exporter, protocol)
    if not obstacle:
        try:
            return _tracing(environ, _EXPORTERS[protocol])
        except ImportError as error:
            obstacle = f"the packages of the extra 'tracing' are not installed: {error}"
        except Exception as error:  # the SDK's, about one of its variables
            obstacle = f"{type(error).__name__}: {error}"
    log.warning("no traces are sent: %s", obstacle)
    return None


def _usual_protocol(address: str) -> str:
    """The one of the collector's port; KServe names its port for gRPC, and no protocol."""
    return "grpc" if address.rstrip("/").endswith(GRPC_PORT) else "http/protobuf"


def _obstacle(exporter: str, protocol: str) -> str:
    """Which of the two is not supported; empty if both are."""
    if exporter != "otlp":
        return f"exporter {exporter}, only otlp is supported"
    if protocol not in _EXPORTERS:
        return f"protocol {protocol}, only {' and '.join(_EXPORTERS)} are supported"
    return ""


def _tracing(environ: Mapping[str, str], package: str) -> Tracing:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(
        resource=Resource.create({} if named else {"service.name": SERVICE}),
        shutdown_on_exit=False,
    )
    tracing = Tracing(provider)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    exporter = importlib.import_module(f"{package}.trace_exporter").OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))  # last, because it starts a thread
    return tracing


class Tracing:
    """Observer that makes a span of every `Responded`.

    Args:
        provider: where the spans go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.propagate import extract

        self._provider = provider
        self._tracer = provider.get_tracer("kserve_torch")
        self._parent = extract

    def __call__(self, event: Responded) -> None:
        """Make the spans of an answer, as children of the span in the request's headers."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        now, timing = time.time_ns(), event.timing
        left = now - _ns(time.monotonic() - timing.began) if timing.began else now
        # By now a moment has passed since the answer. The request came before it was queued.
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
        """Child spans for queue and handler; ``left`` is when it left the queue, in ns."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(span)
        queue = self._tracer.start_span("queue", context, start_time=left - _ns(timing.queued))
        queue.end(left)
        rows = {"batch.rows": timing.batch_rows}
        handler = self._tracer.start_span("handler", context, attributes=rows, start_time=left)
        handler.end(left + _ns(timing.handler))

    async def close(self) -> None:
        """Send the remaining spans, for at most `LAST_SECONDS`."""
        with suppress(TimeoutError):  # the SDK's own time limit does not cover its retries
            async with asyncio.timeout(LAST_SECONDS):
                await asyncio.to_thread(self._provider.force_flush)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
