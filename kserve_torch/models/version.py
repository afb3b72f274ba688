"""One version of one model: it is loaded, scaled and stopped, and answers requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kserve_torch.engine.intake import Intake
from kserve_torch.engine.queues import Queues, VersionStatistics
from kserve_torch.engine.sequences import Sequences
from kserve_torch.engine.worker import Worker, WorkerState
from kserve_torch.errors import NotReady, ServingError
from kserve_torch.events import Accepted, Event, WorkerChanged
from kserve_torch.messages import NOTHING, Reply, Request, Verb
from kserve_torch.models.firsts import Firsts
from kserve_torch.models.state import State, VersionState

if TYPE_CHECKING:
    from kserve_torch.archives.archive import Archive
    from kserve_torch.codec.signature import Signature
    from kserve_torch.runtime.instance import Instance
    from kserve_torch.settings import Limits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a model version is made from, and made again from when it is loaded again.

    Attributes:
        source: a file of the model store, a URL, or a path from the configuration; None if unknown.
        handler: the handler to use instead of the archive's own.
        overrides: fields of `Limits` that take precedence over the archive's.
    """

    source: str | Path | None = None
    handler: str | None = None
    overrides: Mapping[str, Any] = NOTHING


class ModelVersion(VersionState):
    """A model version that is served, is being loaded, or failed to load.

    Args:
        archive: its opened archive; None if that could not even be read.
        install: installs what the archive requires, outside of ``startup_timeout``; None if there
            is nothing.
        load: makes a handler instance; called on a worker's thread with the worker's index and the
            first instances, whose weights it shares.
        emit: takes every event.
        origin: what it was made from.

    Attributes:
        batches: whether requests may share a call of the handler.
    """

    def __init__(
        self,
        name: str,
        version: str,
        archive: Archive | None,
        limits: Limits,
        install: Callable[[], object] | None,
        load: Callable[[int, Firsts], Instance],
        emit: Callable[[Event], None],
        origin: Origin,
    ) -> None:
        self.archive = archive
        self.limits = limits
        self.loaded_at_startup = False
        self.load_seconds = 0.0
        self._install = install
        self._load = load
        self._origin = origin
        self._firsts = Firsts(lambda: self._queues.workers)
        self._seen: Signature = NOTHING
        self._scaling = asyncio.Lock()
        self.config = config = archive.config if archive is not None else NOTHING
        stateful = config.get("sequenceBatching", False)
        self._sequences = Sequences(f"{name} {version}") if stateful else None
        concurrent = config.get("asyncCommunication", False) and not stateful
        tickets = config.get("useJobTicket", False) and not concurrent
        self.batches = not (stateful or tickets)
        queues = Queues(
            name,
            version,
            limits,
            load=self._instance,
            ran=emit,
            changed=self._worker_changed,
            singly=not self.batches,
            concurrent=concurrent,
        )
        self._intake = Intake(name, version, queues, limits.client_timeout, emit, tickets)
        super().__init__(name, version, queues, emit)

    # --- life ---

    async def start(self, workers: int | None = None) -> None:
        """Load the first instance, warm it up, then start the other workers.

        Args:
            workers: how many instead of ``min_workers``.

        Raises:
            LoadFailed: with the one clear reason; the state is then UNAVAILABLE.
            NotReady: not within ``startup_timeout``, or it was unloaded meanwhile.
        """
        count = self.limits.min_workers if workers is None else workers
        async with self._scaling:
            self._become(State.LOADING)
            if count:
                log.info("model %s %s is loading", self.name, self.version)
            await self._start(count, max(count, self.limits.max_workers))

    async def try_again(self) -> None:
        """Load it once more if it has failed to load; until it is ready, the reason stays.

        Raises:
            LoadFailed: it has failed again.
            OutOfMemory: likewise.
            NotReady: likewise, or it was unloaded meanwhile.
        """
        async with self._scaling:
            if self.state is State.UNAVAILABLE:
                await self._start(self.limits.min_workers, self.limits.max_workers)

    async def _start(self, minimum: int, maximum: int) -> None:
        try:
            await self._bring(minimum, maximum)
        except ServingError as error:
            if self.state is not State.UNLOADING:
                self.fail(error.message)
            raise
        self.load_seconds = max((worker.load_seconds for worker in self.workers), default=0.0)
        self.reason = ""
        self._become(State.READY)
        done = "ready" if self.ready else "registered, without workers"
        log.info("model %s %s is %s", self.name, self.version, done)

    async def _bring(self, minimum: int, maximum: int) -> None:
        """Bring the number of workers within the bounds; what they need is installed before."""
        if minimum and self._install is not None:
            await asyncio.to_thread(self._install)
        if self.state is not State.UNLOADING:
            await self._queues.predict.scale(*self._bounds(minimum, maximum))
        if self.state is State.UNLOADING:
            raise NotReady(f"Model {self.name} {self.version} was unloaded while workers loaded")

    def _bounds(self, minimum: int, maximum: int) -> tuple[int, int]:
        return self._sequences.bounds(minimum, maximum) if self._sequences else (minimum, maximum)

    async def scale(self, minimum: int, maximum: int) -> None:
        """Change the number of workers and wait until they are ready.

        A version that failed to load is loaded again. If it fails, the bounds are those before.

        Raises:
            LoadFailed: a worker could not be started.
            NotReady: one was not ready in time, or the version cannot have workers.
        """
        async with self._scaling:
            if self.state is State.READY:
                before = self.scaled_to
                try:
                    await self._bring(minimum, maximum)
                except ServingError:
                    if self.state is State.READY:  # it was not unloaded meanwhile
                        # Nobody would start the workers that are missing: the caller is told.
                        await self._queues.predict.scale(*before)
                    raise
            elif self.state is not State.UNAVAILABLE or self.archive is None:
                raise self._not_ready()
            elif minimum:
                self._become(State.LOADING)
                await self._start(minimum, maximum)

    def form_batches(self, rows: int, delay: float) -> None:
        """Form prediction batches of up to ``rows`` rows and ``delay`` seconds from now on."""
        self._queues.predict.lane.form_batches(rows, delay)

    async def drain(self) -> None:
        """Wait until every accepted request is answered."""
        await self._intake.drain()

    async def stop(self, seconds: float) -> None:
        """Stop the workers; what still waits is answered with NotReady."""
        self._become(State.UNLOADING)
        await self._queues.stop(seconds)

    # --- questions ---

    def signature(self, side: str) -> Sequence[Mapping[str, Any]]:
        """The tensors that the archive declares, else those seen at its warm-up.

        Args:
            side: ``inputs`` or ``outputs``.
        """
        signature: Signature = self.config.get("signature", self._seen)
        return signature.get(side, ())

    def output_names(self) -> Sequence[str]:
        """The names that the archive declares; those seen at its warm-up are its inputs'."""
        signature: Signature = self.config.get("signature", NOTHING)
        return [output["name"] for output in signature.get("outputs", ())]

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers for predictions, also those that are leaving."""
        return self._queues.predict.roster.all()

    @property
    def scaled_to(self) -> tuple[int, int]:
        """The present bounds on the number of workers."""
        staffing = self._queues.predict.staffing
        return staffing.minimum, staffing.maximum

    @property
    def origin(self) -> Origin:
        """What to make it from again: its source and overrides, and the workers it was scaled to.

        Scaling to none is not carried over: a model that is loaded again is to serve.
        """
        fewest, most = self.scaled_to
        configured = self._bounds(self.limits.min_workers, self.limits.max_workers)
        if not fewest or (fewest, most) == configured:
            return self._origin
        bounds = {"min_workers": fewest, "max_workers": most}
        return replace(self._origin, overrides={**self._origin.overrides, **bounds})

    def statistics(self) -> VersionStatistics:
        """A snapshot for metrics, describe and tests."""
        return self._queues.statistics()

    # --- requests ---

    async def submit(self, request: Request) -> Reply:
        """Queue a request and wait for its answer; cancelling the wait withdraws the request.

        Raises:
            NotReady: no worker can take it.
            Overloaded: the queue is full, or no worker is free and it may not wait for one.
            DeadlineExceeded: its deadline or ``responseTimeout`` passed.
            HandlerError: the handler failed it.
        """
        self._require_loaded()
        self._emit(Accepted(self.name, request.asked, request.verb))
        self._require_workers()
        self._queues.watch()
        if self._sequences is not None:
            request = self._sequences.named(request)
        return await self._intake.submit(request)

    async def describe(self) -> Any:
        """The handler's own description, for which it gets one empty row (CONTRACT E4)."""
        request = Request(
            id="describe", model=self.name, version=self.version, rows=({},), verb=Verb.DESCRIBE
        )
        return (await self.submit(request)).results[0]

    # --- reports from the workers ---

    def _instance(self, index: int) -> Instance:
        instance = self._load(index, self._firsts)
        self._seen = self._seen or instance.signature
        return instance

    def _worker_changed(self, worker: Worker) -> None:
        self._firsts.changed(worker)
        seconds = worker.load_seconds if worker.state is WorkerState.READY else 0.0
        self._tell(
            WorkerChanged(self.name, self.version, worker.number, worker.state.value, seconds)
        )
