"""What happened, as frozen facts, and the interface of those who observe it.

The engine emits; metrics and logs subscribe. An observer runs on the event loop, but `Measured` and
`WorkerChanged` come from workers' threads; it must be quick and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, get_args

from kserve_torch.frozen import frozen
from kserve_torch.messages import NO_TIME, NOTHING, Timing, Verb


@frozen()
class Accepted:
    """A request found its version; its queue may still refuse it.

    ``asked`` is the version that the client named, "" for the default.
    """

    model: str
    asked: str = ""
    verb: Verb = Verb.PREDICT


@frozen()
class Shed:
    """A request was refused or left the queue unanswered by a handler.

    ``reason`` is one of ``queue_full``, ``not_ready``, ``deadline``, ``disconnected``.
    """

    model: str
    version: str
    reason: str


@frozen()
class Finished:
    """A request that was queued has ended.

    ``error`` is None if a handler answered it, ``Cancelled`` if its client left, else the name of
    the error's class.
    """

    model: str
    version: str
    timing: Timing
    error: str | None = None
    asked: str = ""
    verb: Verb = Verb.PREDICT


@frozen()
class BatchRan:
    """One batch was run: its rows and requests, and how often the handler was called."""

    model: str
    version: str
    rows: int
    requests: int
    calls: int = 1


@frozen()
class WorkerChanged:
    """A worker became ready, died, hung or stopped; ``seconds`` is its load time when ready."""

    model: str
    version: str
    worker: int
    state: str
    seconds: float = 0.0


@frozen()
class StateChanged:
    """A model version became ready, failed, or is on its way out."""

    model: str
    version: str
    state: str


@frozen()
class DefaultChanged:
    """A version became the default of its model, or is made it once more."""

    model: str
    version: str


@frozen()
class Responded:
    """A protocol edge sent an answer: its route's protocol, status and total seconds.

    ``version`` is the one that answered or failed, "" if there was none; ``error`` is the error
    class's name, "" for none; ``headers`` are the request's if an observer asked for them: events
    are kept until they are counted, and headers would push other things out of the caches.
    """

    protocol: str
    model: str
    version: str
    status: int
    seconds: float
    request_id: str = ""
    rows: int = 0
    timing: Timing = NO_TIME
    error: str = ""
    headers: Mapping[str, str] = NOTHING


@frozen()
class Measured:
    """A handler's own metric (CONTRACT M1-M6); comes from worker threads, not from the loop.

    Attributes:
        kind: ``counter``, ``gauge`` or ``histogram``.
        unit: TorchServe's unit word: ``ms``, ``s``, ``percent``, ``count``, ``MB``, ``kB``, ``GB``,
            ``B``, ``unit``.
        dimensions: name and value pairs, the custom ones first, then ModelName and Level.
    """

    name: str
    kind: str
    unit: str
    dimensions: tuple[tuple[str, str], ...]
    value: float


Event = (
    Accepted
    | Shed
    | Finished
    | BatchRan
    | WorkerChanged
    | StateChanged
    | DefaultChanged
    | Responded
    | Measured
)


E = TypeVar("E", bound=Event)


class Observers:
    """Tells each event to those who asked for its kind, in the order in which they were added.

    Attributes:
        want_headers: whether one of them wants the requests' headers in `Responded`.
    """

    def __init__(self) -> None:
        self.want_headers = False
        self._by_kind: dict[type, list[Callable[[Any], None]]] = {k: [] for k in get_args(Event)}

    def add(
        self, observer: Callable[[E], None], kinds: Iterable[type[E]] = get_args(Event)
    ) -> None:
        """Tell ``observer`` of events of these kinds from now on."""
        for kind in kinds:
            self._by_kind[kind].append(observer)

    def tell(self, event: Event) -> None:
        """Tell an event; on any thread."""
        for observer in self._by_kind[type(event)]:
            observer(event)
