"""One handler instance: the border between Requests and Replies and the handler's rows.

::

    [Request, ...] -> rows of all -> handle(data, context) -> one result per row -> [Reply, ...]

If the handler says which row is at fault, only that row's request fails.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from kserve_torch.archives.archive import Archive
from kserve_torch.codec.rows import to_row
from kserve_torch.codec.signature import Signature
from kserve_torch.errors import BadRow, HandlerError, InvalidInput, OutOfMemory
from kserve_torch.handler.base import takes_arrays
from kserve_torch.handler.calls import adapts_format
from kserve_torch.messages import NOTHING, Reply, Request, RowReply, Tensor
from kserve_torch.namespace.loader import Namespace
from kserve_torch.runtime import devices, output, rootlog
from kserve_torch.runtime.context import Context
from kserve_torch.runtime.entry import Entry, load_entry
from kserve_torch.runtime.fault import fault_of, refused_inputs
from kserve_torch.runtime.reasons import forget_frames, handler_failure
from kserve_torch.runtime.sharing import Weights
from kserve_torch.runtime.torchstate import DefaultDtype
from kserve_torch.runtime.warmup import warm_up

log = logging.getLogger(__name__)


class Instance:
    """One loaded handler with its own modules and Context, used by one thread at a time.

    Attributes:
        context: what the handler is given.
        device: of the model, as torch writes it.
        gpu_id: index of its accelerator; None for the CPU.
        on_write: called, on the thread of a call, when its handler has written to weights that it
            shared: the other instances are to be loaded anew.
        on_part: called, on the handler's thread, after each intermediate result of `run`.
        signature: the input and output tensors of the warm-up; empty without one.
        weights: those of its handler, which other instances may share.
    """

    def __init__(
        self,
        archive: Archive,
        namespace: Namespace,
        context: Context,
        v2_rows: str,
    ) -> None:
        self.context = context
        self.device = "cpu"
        self.signature: Signature = NOTHING
        self._archive = archive
        self._namespace = namespace
        self._version = archive.manifest.version
        self._v2_rows = v2_rows
        self._dtype = DefaultDtype()
        self.gpu_id: int | None = context.system_properties["gpu_id"]
        self._stream = devices.stream_on(self.gpu_id)
        self._runner = asyncio.Runner()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entry: Entry
        self.weights: Weights
        self.on_write: Callable[[], object] = lambda: None
        self.on_part: Callable[[], object] = lambda: None
        self._arrays = False

    def initialize(self, first: Instance | None) -> None:
        """Import and initialise the handler; see `loading.load_instance`."""
        if threading.current_thread() is not threading.main_thread():
            self._namespace.enter_thread()
            # Handlers ask for "the" event loop; on TorchServe there is one.
            self._loop = self._runner.get_loop()
        output.mend()
        # Also on the worker's GPU and stream, so that ``cuda()`` means the same GPU as in calls.
        with self._namespace.loading(), self._dtype.chosen(), self._stream:
            self._entry = load_entry(self._namespace, self._archive.manifest.handler)
            self._finish(self._entry.initialize(self.context))
            self._arrays = takes_arrays(self._entry.service)  # known only now
        devices.settle(self.gpu_id)
        self.weights = Weights(self._entry.service)
        if first is not None:
            self.weights.tie_to(first.weights)
            if self.gpu_id is not None:
                devices.free_cache()  # torch keeps the space of those that it had before
        default = "cpu" if self.gpu_id is None else f"cuda:{self.gpu_id}"
        self.device = str(getattr(self._entry.service, "device", None) or default)

    def warm_up(self) -> None:
        """Answer the archive's sample, if there is one, and take the signature from it.

        Raises:
            LoadFailed: the handler cannot answer it.
            OutOfMemory: it does not fit.
        """
        self.signature = warm_up(self.run, self._archive, self.context, self._v2_rows)

    def run(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer ``requests``, all of one verb, with one call of the handler.

        It is called once more if its model is in a memory format that its own code cannot handle.

        Raises:
            RequestFault: one request holds a row that the handler cannot read.
            OutOfMemory: the batch does not fit.
            DeviceLost: the GPU was lost in an earlier call.
            HandlerError: the handler raised (its exception is the cause), or its answer has a wrong
                number of results.
        """
        try:
            return self._run(requests)
        except HandlerError as error:
            adapted = adapts_format(self._entry.service, error.__cause__)
            if not adapted or any(request.partly_answered for request in requests):
                raise
        return self._run([request.anew() for request in requests])

    def _run(self, requests: Sequence[Request]) -> list[Reply]:
        devices.require(self.gpu_id)
        try:
            rows = iter(self._call(requests))
            return [self._reply(list(islice(rows, len(request.rows)))) for request in requests]
        except BaseException as error:  # not only the handler's: rows may not fit into memory
            failure = self._failure(error, requests)
            if failure is error:
                raise
            raise failure from error

    def _reply(self, rows: list[RowReply]) -> Reply:
        return Reply(model=self.context.model_name, version=self._version, rows=rows)

    def _failure(self, error: BaseException, requests: Sequence[Request]) -> BaseException:
        """What `run` raises for what it caught; ``error`` itself if that can go on as it is."""
        if isinstance(error, BadRow):
            return fault_of(error, requests)
        if isinstance(error, InvalidInput) and self._has_inputs_only(requests):
            return refused_inputs(error)
        failure = handler_failure(error)
        if isinstance(failure, HandlerError | OutOfMemory):
            devices.examine(self.gpu_id)
        if isinstance(failure, OutOfMemory):
            forget_frames(error)
            devices.free_cache()
        return failure

    def _call(self, requests: Sequence[Request]) -> list[RowReply]:
        data = [to_row(row, self._arrays) for request in requests for row in request.rows]
        if not data:  # handlers take an empty list to mean initialisation (CONTRACT T-25)
            return []
        by_row = [request for request in requests for _ in range(len(request.rows))]
        call = self._in_call(self.context, by_row, self.on_part)
        with call, self._namespace.activate(), self._dtype, self._stream:
            results = self._finish(self._entry.handle(data, self.context))
            # Still in the stream that computes the results.
            results = self._checked(results, len(by_row), len(data), requests)
            return Context.row_replies(self.context, results)

    @contextmanager
    def _in_call(
        self, context: Context, requests_by_row: Sequence[Request], on_part: Callable[[], object]
    ) -> Iterator[None]:
        """What is done before a call of the handler, and after it, however it ends."""
        # Of the class: a handler may keep things under these names on the context (CONTRACT C1).
        Context.begin(context, requests_by_row, on_part)
        output.mend()
        try:
            with restored():
                yield
        finally:
            self._look()
            Context.end(context)

    def _look(self) -> None:
        if self.weights.look():
            log.warning(
                "%s: the handler writes to the weights, which workers share: the others are loaded "
                "anew, each with its own. What they answered meanwhile may be wrong",
                self.context.model_name,
            )
            self.on_write()

    def _checked(
        self, results: Any, rows: int, left: int, requests: Sequence[Request]
    ) -> Sequence[Any]:
        """The results, if there is one per row (CONTRACT R6, T-03).

        The inputs of a single v2 request may belong together, as token ids and their mask do: the
        handler then has fewer outputs than inputs, and TorchServe's envelope sends what there is.

        Args:
            results: what the handler answered.
            rows: how many the handler was given.
            left: how many its list has now. Handlers pad it for models of a fixed batch size; the
                padding's results are dropped, as in TorchServe.
            requests: whose rows they are.

        Raises:
            HandlerError: there are too many or too few, or they are no list.
        """
        if not isinstance(results, list | tuple):  # TorchServe's envelopes take tuples as well
            kind = type(results).__name__
            raise HandlerError(f"the handler answered a {kind}, a list of {rows} results is wanted")
        if rows < len(results) == left:
            return results[:rows]
        if 0 < len(results) < rows and self._has_inputs_only(requests):
            return results
        if len(results) != rows:
            raise HandlerError(f"the handler answered {len(results)} results for {rows} rows")
        return results

    def _has_inputs_only(self, requests: Sequence[Request]) -> bool:
        """Whether the rows are the inputs of one v2 request, not elements of a batch."""
        return (
            len(requests) == 1
            and self._v2_rows == "tensor"
            and all(isinstance(row, Tensor) for row in requests[0].rows)
        )

    def _finish(self, result: Any) -> Any:
        """The result, awaited if the handler is asynchronous (CONTRACT H4)."""
        return self._runner.run(_awaited(result)) if inspect.isawaitable(result) else result

    # --- many calls at once ---

    @property
    def concurrent(self) -> bool:
        """Whether its handler takes many requests at once, with `answer` (CONTRACT H4)."""
        return inspect.iscoroutinefunction(self._entry.handle)

    def host(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, which calls `answer`, on the handler's event loop until it ends."""
        with self._namespace.activate(), self._dtype, self._stream:
            self._runner.run(work)

    async def answer(self, request: Request, on_part: Callable[[], object]) -> Reply:
        """Answer one request beside others, with a Context of its own.

        Args:
            request: the request.
            on_part: called, on the handler's thread, after each intermediate result.

        Raises:
            asyncio.CancelledError: the caller was cancelled.
            Exception: as `run`.
        """
        devices.require(self.gpu_id)
        try:
            rows = await self._call_beside_others(request, on_part)
        except BaseException as error:  # not only the handler's: its context may not be copied
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            failure = self._failure(error, [request])
            if failure is error:
                raise
            raise failure from error
        return self._reply(rows)

    async def _call_beside_others(
        self, request: Request, on_part: Callable[[], object]
    ) -> list[RowReply]:
        data = [to_row(row, self._arrays) for row in request.rows]
        if not data:
            return []
        context = copy.deepcopy(self.context)
        context.metrics = copy.copy(context.metrics)  # it knows for which requests it measures
        with self._in_call(context, [request] * len(data), on_part):
            results = await self._entry.handle(data, context)
            results = self._checked(results, len(request.rows), len(data), [request])
            return Context.row_replies(context, results)

    def close(self) -> None:
        """Forget the handler and its modules."""
        try:
            # A handler may have closed the loop, or still run it on a thread.
            if self._loop is None or not (self._loop.is_closed() or self._loop.is_running()):
                self._runner.close()
        finally:
            devices.leave(self.gpu_id, self._stream)
            self._namespace.close()


@contextmanager
def restored() -> Iterator[None]:
    """Undo what a handler does to the process's logging and garbage collection.

    Garbage is collected again if it was before.
    """
    collects = gc.isenabled()
    try:
        yield
    finally:
        rootlog.restore()
        if collects:
            gc.enable()


def _is_cancelled() -> bool:
    """Whether the running task itself was cancelled, and not one that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
