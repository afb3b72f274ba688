r"""What a handler knows besides its rows: the model, the requests' headers, the responses.

One `Context` belongs to one handler instance for the whole life of the model, so a handler may
keep things on it (CONTRACT C1, C5). Before each ``handle()`` call the worker's thread calls
`Context.begin`, afterwards `Context.row_replies` and `Context.end`::

    begin(request per row) -> handle(rows, context) -> row_replies(results) -> end()
                                   \-> emit(results, ids): intermediate results of a stream
"""

from __future__ import annotations

import copy
import logging
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kserve_torch.messages import Request, RowReply
from kserve_torch.runtime.processor import RequestProcessor

log = logging.getLogger(__name__)

#: Tells a client of a streamed answer whether more follows (CONTRACT R10).
STREAM_NEXT = "ts_stream_next"


def sequence_header(part: str) -> str:
    """The header for a sequence's id, start or end, by the environment or TorchServe's default."""
    return os.environ.get(f"TS_REQUEST_SEQUENCE_{part.upper()}", f"ts_request_sequence_{part}")


def _nothing() -> None:
    """What is done after a part if nobody needs to know."""


class _RowId(str):
    """A request's id in one call, told by identity: clients choose ids, so two may be equal."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _RowId:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def _alias(name: str) -> property:
    """Another name of an attribute: where TorchServe keeps it, so that handlers know it as well."""
    return property(operator.attrgetter(name), lambda self, value: setattr(self, name, value))


class Context:
    """TorchServe's Context (CONTRACT 3.6); a handler may set any further attribute on it.

    Attributes:
        model_name: the registered name.
        manifest: the parsed MANIFEST.json, or None.
        system_properties: ``model_dir``, ``gpu_id``, ``batch_size``, ``server_name``,
            ``server_version``, ``limit_max_image_pixels``.
        model_yaml_config: the parsed model-config.yaml.
        metrics: takes the handler's own metrics (CONTRACT M1).
        request_ids: row index -> request id of the running batch, or None.
        request_processor: one `RequestProcessor` per row of the running batch.
        stopping_criteria: of continuous-batching handlers (CONTRACT R10); not used here.
        cl_socket: always None here; TorchServe's socket to its front end.
    """

    _system_properties = _alias("system_properties")
    _metrics = _alias("metrics")
    _request_processor = _alias("request_processor")

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: Mapping[str, Any] | None,
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.model_yaml_config = {} if model_yaml_config is None else model_yaml_config
        self.metrics = metrics
        self._limit_max_image_pixels = limit_max_image_pixels
        self.request_ids: dict[int, str] | None = None
        self.request_processor: list[RequestProcessor] = []
        self._on_part: Callable[[], object] = _nothing
        self.stopping_criteria: list[Callable[..., Any]] | None = None
        self.cl_socket: Any = None
        self.header_key_sequence_id = sequence_header("id")
        self.header_key_sequence_start = sequence_header("start")
        self.header_key_sequence_end = sequence_header("end")

    @property
    def has_one_request(self) -> bool:
        """Whether all rows of the running batch are of one request."""
        # Only worked out when asked for: hardly any batch needs it.
        return len({id(processor.request) for processor in self.request_processor}) < 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and vars(self) == vars(other)

    def __deepcopy__(self, memo: dict[int, Any]) -> Context:
        """A copy for the same instance: it measures and answers as this one (CONTRACT H4).

        Requests are shared: what waits for a stream cannot be copied.
        """
        requests = [processor.request for processor in self.request_processor]
        for shared in (self.metrics, self._on_part, *requests):
            memo[id(shared)] = shared
        other = copy.copy(self)
        memo[id(self)] = other
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other

    # --- the worker's side ------------------------------------------------------------------------

    def begin(
        self, requests_by_row: Sequence[Request], on_part: Callable[[], object] = _nothing
    ) -> None:
        """Prepare one ``handle()`` call.

        Args:
            requests_by_row: whom row ``i`` belongs to.
            on_part: called, on the handler's thread, after each intermediate result.
        """
        self._on_part = on_part
        self.request_ids = {i: _RowId(request.id) for i, request in enumerate(requests_by_row)}
        self.request_processor = [RequestProcessor.of(request) for request in requests_by_row]
        if self.metrics is not None:
            self.metrics.request_ids = self.request_ids

    def end(self) -> None:
        """Drop the call and its requests, which may be large."""
        self.request_ids = None
        self.request_processor = []
        self._on_part = _nothing

    def row_replies(self, results: Sequence[Any]) -> list[RowReply]:
        """The final reply of each row of the batch, or of the first ones, if results are fewer."""
        for processor in self.request_processor:
            if processor.get_response_header(STREAM_NEXT) == "true":
                processor.add_response_property(STREAM_NEXT, "false")
        rows = zip(self.request_processor[: len(results)], results, strict=True)
        return [processor.reply(result) for processor, result in rows]

    def emit(
        self, results: Sequence[Any] | Mapping[int, Any], request_ids: Mapping[int, str]
    ) -> None:
        """Send intermediate results of rows to the clients that listen.

        A thread that a handler left behind may still send for requests of an earlier call; results
        for requests that are not in the running call are dropped.

        Args:
            results: by the keys of ``request_ids``.
            request_ids: index -> request id, for the rows that are meant; a handler may have
                renumbered them, as for a micro batch.
        """
        parts: dict[int, dict[int, RowReply]] = {}
        firsts: dict[int, int] = {}
        for index, request_id in sorted(request_ids.items()):
            row = self._row_of(index, request_id)
            if row is None:
                log.debug("%s: a result for request %s came late", self.model_name, request_id)
                continue
            processor = self.request_processor[row]
            processor.add_response_property(STREAM_NEXT, "true")
            which = id(processor.request)
            if which not in firsts:
                firsts[which] = self._first_row(row)
            first = firsts[which]
            parts.setdefault(first, {})[row - first] = processor.reply(results[index])
        for first, rows in parts.items():
            request = self.request_processor[first].request
            if request is not None and request.parts is not None:
                request.parts(rows)
        if parts:
            self._on_part()

    def _row_of(self, index: int, request_id: str) -> int | None:
        """The running call's row with this id object, or with an equal id if a handler made it."""
        own = self.request_ids or {}
        same = operator.is_ if isinstance(request_id, _RowId) else operator.eq
        if index in own and same(own[index], request_id):
            return index
        return next((row for row, one in own.items() if same(one, request_id)), None)

    def _first_row(self, index: int) -> int:
        """The first row of the request that row ``index`` belongs to."""
        request = self.request_processor[index].request
        while index and self.request_processor[index - 1].request is request:
            index -= 1
        return index

    # --- the handler's side (CONTRACT C2) ---------------------------------------------------------

    def get_request_id(self, idx: int = 0) -> str | None:
        """The request id of row ``idx``, or None."""
        own = None if self.request_ids is None else self.request_ids.get(idx)
        return None if own is None else str(own)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Header ``key`` of row ``idx`` in any case, or None."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        """All headers of row ``idx``."""
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> Any:
        """The sequence id in row ``idx``'s headers, or None."""
        return self.get_request_header(idx, self.header_key_sequence_id)

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of row ``idx``'s response."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """The content type that was set for row ``idx``, or None."""
        return self.get_response_headers(idx).get("content-type")

    def set_response_status(self, code: int | None = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the HTTP status of row ``idx``'s response; nothing while no call runs."""
        if self.request_processor:
            self.request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: int | None = 200, phrase: str = "") -> None:
        """Set the HTTP status of every row's response."""
        for processor in self.request_processor:
            processor.report_status(code, phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Status and reason phrase of row ``idx``'s response."""
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of row ``idx``'s response."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """All headers that were set for row ``idx``'s response."""
        return self.request_processor[idx].get_response_headers()
