"""``ts.handler_utils.micro_batching``: a batch cut into micro batches that overlap in the steps.

::

    rows -> preprocess -> inference -> postprocess -> results
             threads       threads      threads

Each step has its own threads and takes a micro batch from the step before as soon as it is done.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kserve_torch.errors import BadRow
from kserve_torch.handler.base import answer
from kserve_torch.runtime import devices, profiler

__all__ = ["HANDLER_METHODS", "MicroBatching", "WorkerThread", "execute_call"]

HANDLER_METHODS = ["preprocess", "inference", "postprocess"]


@dataclass(frozen=True)
class WorkerThread:
    """A step's thread, and the event that stops it."""

    event: threading.Event
    thread: threading.Thread


@dataclass(frozen=True)
class _Micro:
    """A micro batch on its way.

    Attributes:
        value: what the last step made of it; an exception once a step raised.
        stream: of the handler's caller, who reads the results in it; None on the CPU.
    """

    index: int
    value: Any
    stream: Any


def execute_call(
    in_queue: queue.Queue[_Micro | None],
    out_queue: queue.Queue[_Micro | None],
    handle: Callable[[Any], Any],
    thread_local_data: threading.local,
    event: threading.Event,
) -> None:
    """Run one step on micro batches until ``event`` is set; None wakes it up."""
    while not event.is_set():
        micro = in_queue.get()
        if micro is None:
            continue
        thread_local_data.micro_batch_idx = micro.index
        out_queue.put(micro if isinstance(micro.value, BaseException) else _step(micro, handle))
        del micro  # waiting for the next one must not keep this one's data


def _step(micro: _Micro, handle: Callable[[Any], Any]) -> _Micro:
    try:
        with devices.within(micro.stream):
            return replace(micro, value=handle(micro.value))
    except BaseException as error:  # `MicroBatching.handle` raises it
        return replace(micro, value=error)


def _wake(groups: Mapping[str, list[WorkerThread]], queues: Mapping[str, queue.Queue[Any]]) -> None:
    """Let all threads end, without waiting for them."""
    for method, group in groups.items():
        for worker in group:
            worker.event.set()
        for _ in group:
            queues[f"{method}_in"].put(None)


class MicroBatching:
    """Set as a handler's ``handle``; the handler keeps its three steps.

    The threads end with `shutdown`, or when the handler is garbage: they refer to it weakly.

    Args:
        parent_handler: the handler.
        micro_batch_size: rows per micro batch.
        parallelism: threads per step, 1 by default.

    Attributes:
        thread_local_data: its ``micro_batch_idx`` is the calling thread's micro batch.
    """

    def __init__(
        self,
        parent_handler: Any,
        micro_batch_size: int = 1,
        parallelism: Mapping[str, int] | None = None,
    ) -> None:
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self._parallelism: dict[str, int] = {}
        self.thread_local_data = threading.local()
        self.thread_groups: dict[str, list[WorkerThread]] = {m: [] for m in HANDLER_METHODS}
        queues: list[queue.Queue[Any]] = [queue.Queue() for _ in range(len(HANDLER_METHODS) + 1)]
        self.queues = {f"{m}_in": queues[i] for i, m in enumerate(HANDLER_METHODS)}
        self.queues |= {f"{m}_out": queues[i + 1] for i, m in enumerate(HANDLER_METHODS)}
        weakref.finalize(self, _wake, self.thread_groups, self.queues).atexit = False
        self.parallelism = dict(parallelism or {})

    @property
    def parallelism(self) -> dict[str, int]:
        """Threads per step, where they were set."""
        return dict(self._parallelism)

    @parallelism.setter
    def parallelism(self, parallelism: Mapping[str, int]) -> None:
        for method, threads in parallelism.items():
            if method not in HANDLER_METHODS or threads < 0:
                allowed = ", ".join(HANDLER_METHODS)
                raise ValueError(
                    f"parallelism: {method}: {threads}; allowed: {allowed}, each at least 0"
                )
        self._parallelism.update(parallelism)
        for method in HANDLER_METHODS:
            self._resize(method)

    def _resize(self, method: str) -> None:
        group, wanted = self.thread_groups[method], self._parallelism.get(method, 1)
        while len(group) < wanted:
            group.append(self._start(method))
        self._stop(method, len(group) - wanted)

    def _start(self, method: str) -> WorkerThread:
        event = threading.Event()
        handler = weakref.ref(self.handler)

        def run(data: Any) -> Any:
            return getattr(handler(), method)(data)

        queues = self.queues[f"{method}_in"], self.queues[f"{method}_out"]
        arguments = (*queues, run, self.thread_local_data, event)
        thread = threading.Thread(target=execute_call, args=arguments, daemon=True)
        thread.start()
        return WorkerThread(event, thread)

    def _stop(self, method: str, count: int) -> None:
        leaving = [self.thread_groups[method].pop() for _ in range(count)]
        for worker in leaving:
            worker.event.set()
        while any(worker.thread.is_alive() for worker in leaving):
            self.queues[f"{method}_in"].put(None)
            for worker in leaving:
                worker.thread.join(0.01)

    def shutdown(self) -> None:
        """Stop all threads."""
        for method in HANDLER_METHODS:
            self._stop(method, len(self.thread_groups[method]))

    def handle(self, data: list[Any]) -> list[Any]:
        """The rows' results, in order.

        Raises:
            RuntimeError: a step has no threads.
            BadRow: a step refused a row; its index is that in ``data``, not in the micro batch.
            Exception: what a step raised for the first micro batch that failed.
        """
        for method, group in self.thread_groups.items():
            if not group:
                raise RuntimeError(f"parallelism: {method}: 0; no thread runs this step")
        size, stream = self.micro_batch_size, devices.current_stream()
        starts = range(0, len(data), size)
        for index, start in enumerate(starts):
            self.queues["preprocess_in"].put(_Micro(index, data[start : start + size], stream))
        done = [self.queues["postprocess_out"].get() for _ in starts]
        done.sort(key=lambda micro: micro.index)
        for micro in done:
            if isinstance(micro.value, BadRow):
                row = starts[micro.index] + micro.value.index
                raise BadRow(row, micro.value.reason) from micro.value
            if isinstance(micro.value, BaseException):
                raise micro.value
        return [result for micro in done for result in micro.value]

    def get_micro_batch_idx(self) -> int | None:
        """Which micro batch of its batch the calling thread works on; None outside the steps."""
        return getattr(self.thread_local_data, "micro_batch_idx", None)

    def __call__(self, data: list[Any], context: Any) -> list[Any]:
        """Answer one batch: predictions in micro batches, all else by the handler itself."""
        start = time.perf_counter()
        self.handler.context = context
        if self.handler._is_describe() or self.handler._is_explain() or profiler.enabled():
            output = answer(self.handler, data)
        else:
            output = self.handle(data)
        milliseconds = round((time.perf_counter() - start) * 1000, 2)
        context.metrics.add_time("HandlerTime", milliseconds, None, "ms")
        return output
