"""The state of a model version: what clients are told of it, and whether it takes requests."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from kserve_torch.engine.queues import Queues
from kserve_torch.errors import NotReady
from kserve_torch.events import Event, Shed, StateChanged, WorkerChanged


class State(StrEnum):
    """The state of a model version, in the words of the repository extension (CONTRACT O80)."""

    LOADING = "LOADING"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    UNLOADING = "UNLOADING"


class VersionState:
    """The state of one model version.

    Attributes:
        name: the registered name.
        version: the version, as the manifest says.
        state: its state; clients see `standing`.
        reason: why it failed to load, else "".
        needed: whether the server is ready only if this version is, as long as it is the default of
            its model: it is configured, has been ready, or has replaced a default that was needed.
    """

    def __init__(
        self, name: str, version: str, queues: Queues, emit: Callable[[Event], None]
    ) -> None:
        self.name = name
        self.version = version
        self.state = State.LOADING
        self.reason = ""
        self.needed = False
        self._queues = queues
        self._emit = emit

    # --- changes ---

    def fail(self, reason: str) -> None:
        """Turn UNAVAILABLE; ``reason`` is shown in the repository index."""
        self.reason = reason
        self._become(State.UNAVAILABLE)
        self._queues.predict.close()

    def _become(self, state: State) -> None:
        self.state = state
        self._tell(StateChanged(self.name, self.version, state.value))

    def _tell(self, change: StateChanged | WorkerChanged) -> None:
        if self.ready:
            self.needed = True
        self._emit(change)

    # --- questions ---

    @property
    def ready(self) -> bool:
        """Whether a request would be served now (CONTRACT T-46)."""
        return self.state is State.READY and self.ready_workers > 0 and self.live

    @property
    def standing(self) -> tuple[State, str]:
        """The state as clients see it, and the reason if no request would be served (CONTRACT O80).

        A loaded version without a ready worker is LOADING while one is started, else UNAVAILABLE.
        """
        if self.state is not State.READY:
            return self.state, self.reason
        if self.ready:
            return State.READY, ""
        if not self.live:
            return State.UNAVAILABLE, self._hanging()
        starting = self._queues.predict.roster.size
        return State.LOADING if starting else State.UNAVAILABLE, self._lacking()

    @property
    def live(self) -> bool:
        """False once so many threads hang that only a new process helps."""
        return self._queues.live

    @property
    def hung(self) -> int:
        """How many handler threads were given up and still hang."""
        return self._queues.hung

    @property
    def ready_workers(self) -> int:
        """How many workers for predictions are ready and stay."""
        return self._queues.predict.roster.ready

    # --- requests ---

    def require_ready(self) -> None:
        """Refuse a request that needs no handler wherever one that does would be refused.

        Raises:
            NotReady: no worker could take a request.
        """
        self._require_loaded()
        self._require_workers()

    def _require_loaded(self) -> None:
        if self.state is not State.READY or not self.live:
            self._emit(Shed(self.name, self.version, "not_ready"))
            raise self._not_ready()

    def _require_workers(self) -> None:
        workers = self._queues.predict
        if workers.roster.size:
            return
        if workers.staffing.given_up or not workers.staffing.minimum:
            self._emit(Shed(self.name, self.version, "not_ready"))
            label = f"Model {self.name} {self.version}"
            raise NotReady(f"{label}: {self._lacking()}. Scale it up to serve requests")

    def _lacking(self) -> str:
        staffing = self._queues.predict.staffing
        if staffing.given_up:
            return f"no worker could be started: {staffing.reason}"
        return "no worker is ready"

    def _not_ready(self) -> NotReady:
        why = {
            State.LOADING: "it is still loading",
            State.UNLOADING: "it is being unloaded",
            State.READY: self._hanging(),
        }.get(self.state, f"it failed to load: {self.reason}")
        return NotReady(f"Model with name {self.name} is not ready: {why}.")

    def _hanging(self) -> str:
        return f"{self.hung} handler threads are hung"
