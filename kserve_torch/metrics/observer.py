"""Who counts which events, and the text of all metric families."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY

from kserve_torch.events import (
    Accepted,
    BatchRan,
    Event,
    Finished,
    Measured,
    Responded,
    Shed,
    StateChanged,
    WorkerChanged,
)
from kserve_torch.metrics.custom import HandlerMetrics
from kserve_torch.metrics.engine import engine_families
from kserve_torch.metrics.family import Family
from kserve_torch.metrics.host import device_families, gpu_families, host_families
from kserve_torch.metrics.sdk import KServeMetrics, names_in, process_text
from kserve_torch.metrics.serving import ServingMetrics
from kserve_torch.metrics.torchserve import LEGACY, TorchServeMetrics

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry
    from kserve_torch.settings import Settings
    from kserve_torch.settings.metrics_file import ListedMetric

log = logging.getLogger(__name__)

#: What is measured, for the log, and what makes families of it with the present numbers.
Source = tuple[str, Callable[[], Iterable[Family[Any]]]]

#: The fields of frequent events that are labels somewhere: events with equal fields are counted
#: together. One by one they would be a quarter of the event loop's work.
_LABELS: dict[type[Event], Callable[[Any], Any]] = {
    Accepted: attrgetter("model", "asked", "verb"),
    Finished: attrgetter("model", "version", "asked", "verb", "error"),
    Responded: attrgetter("protocol", "model", "version", "status"),
}
#: How many of them, and of the handlers' measurements, are kept before they are counted.
_KEPT = 96
#: Seconds until then: after these the answers are out, and handlers compute.
_COUNT_SECONDS = 0.002

#: How many removed versions are still shown. Registering one after the other, as in a roll-out,
#: must not fill the memory with series.
_LEFT = 20


class Metrics:
    """Counts events and shows them as Prometheus text.

    ``metrics_mode`` selects TorchServe's families (CONTRACT X1): ``prometheus`` shows all,
    ``legacy`` the three ``ts_*`` counters and ``log`` none. This server's own families and KServe's
    are always shown, because autoscalers need them.

    Args:
        settings: what to show.
        registry: its events are counted from now on; queues, workers and readiness are read from it
            at every scrape.

    Raises:
        SettingError: the ``metrics_config`` file lists a metric that cannot be shown.
    """

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._reported: set[str] = set()
        self._registry = registry
        serving, kserve, torchserve = ServingMetrics(), KServeMetrics(), _torchserve(settings)
        self._sources: list[Source] = [
            ("engine", partial(engine_families, registry)),
            ("requests", serving.families),
            ("KServe", kserve.families),
            ("devices", device_families),
            *(("TorchServe", ts.families) for ts in torchserve),
            *_machine(settings),
        ]
        handlers = self._handlers(settings, registry.listed_metrics)
        self._sources += [("handlers", own.families) for own in handlers]
        self._take_measured = [own.measured for own in handlers]
        #: What counts the events of `_LABELS`, those with equal labels together.
        self._alike: dict[type[Event], list[Callable[[list[Any]], None]]] = {
            Accepted: [ts.accepted for ts in torchserve],
            Finished: [
                *(serving.finished, kserve.finished),
                *(ts.finished for ts in torchserve),
                *(own.finished for own in handlers),
            ],
            Responded: [serving.responded, *(ts.responded for ts in torchserve)],
        }
        self._forget = [serving.left, kserve.left, *(ts.left for ts in torchserve)]
        self._forget += [own.left for own in handlers]
        #: Removed versions, the latest last; some may have been registered again.
        self._left: dict[tuple[str, str], None] = {}
        self._kept: list[Event] = []
        self._measured: deque[Measured] = deque()
        self._measuring = threading.Lock()
        add = registry.observers.add
        add(serving.shed, [Shed])
        add(serving.batch_ran, [BatchRan])
        add(serving.state_changed, [StateChanged])
        add(self._state_changed, [StateChanged])
        add(serving.worker_changed, [WorkerChanged])
        for ts in torchserve:
            add(ts.worker_changed, [WorkerChanged])
        add(self._keep, _LABELS)
        add(self._keep_measured, [Measured])

    def _keep(self, event: Event) -> None:
        """Count an event of `_LABELS` by the next scrape at the latest; on the event loop."""
        self._kept.append(event)
        if len(self._kept) % _KEPT == 0:
            asyncio.get_running_loop().call_later(_COUNT_SECONDS, self._count)

    def _keep_measured(self, event: Measured) -> None:
        # Counted later: the answer would wait for it, and after a model's call caches are cold.
        self._measured.append(event)
        if len(self._measured) >= _KEPT:
            self._measure()

    def _state_changed(self, event: StateChanged) -> None:
        """If a version was removed, forget the series of the one that was removed `_LEFT` ago."""
        if event.state != "UNLOADING":
            return
        model, version = event.model, event.version
        self._left.pop((model, version), None)
        self._left[model, version] = None
        if len(self._left) <= _LEFT:
            return
        model, version = next(iter(self._left))
        del self._left[model, version]
        here = [each.version for each in self._registry.all() if each.name == model]
        if version in here:
            return
        self._count()
        whole = not here and all(model != other for other, _ in self._left)
        for forget in self._forget:
            forget(model, version)
            if whole:
                forget(model, "")

    def _measure(self) -> None:
        """Count what handlers have measured; on any thread."""
        with self._measuring:
            while self._measured:
                event = self._measured.popleft()
                for take in self._take_measured:
                    take(event)

    def _count(self) -> None:
        """Count the kept events; on the event loop, where they are emitted."""
        self._measure()
        kept, self._kept = self._kept, []
        alike: dict[Any, list[Event]] = {}
        for event in kept:
            kind = type(event)
            alike.setdefault((kind, _LABELS[kind](event)), []).append(event)
        for (kind, _), events in alike.items():
            for take in self._alike[kind]:
                take(events)

    def pieces(self, names: Collection[str] | None = None) -> Iterator[bytes]:
        """All families as text in Prometheus's format.

        In pieces that take milliseconds each, with hundreds of models too.

        Args:
            names: families or samples to keep, as ``name[]`` asks for them; None keeps all.
        """
        self._count()
        families = self._families()
        for family in families:
            text = "".join(f"{line}\n" for line in family.lines(names))
            # Handlers' labels may hold lone surrogates, as of undecodable file names.
            yield text.encode(errors="xmlcharrefreplace")
        taken = frozenset[str]().union(*(family.names for family in families))
        yield process_text(names, taken, self._report)

    def _handlers(self, settings: Settings, listed: Iterable[ListedMetric]) -> list[HandlerMetrics]:
        """The source of the handlers' own metrics, if ``metrics_mode`` selects it."""
        if settings.metrics_mode != "prometheus":
            return []
        taken = set().union(
            *(family.names for family in self._families()), *map(names_in, REGISTRY.collect())
        )
        detect = settings.model_metrics_auto_detect
        return [HandlerMetrics(listed, detect, socket.gethostname(), taken)]

    def _families(self) -> list[Family[Any]]:
        """What all sources measure now; what cannot be measured must not hide the rest."""
        found: list[Family[Any]] = []
        for name, families in self._sources:
            try:
                found.extend(families())  # keeps those before the one that fails
            except Exception as error:  # psutil's, torch's and the driver's have no common root
                self._report(f"metrics: {name} cannot be measured", error)
        return found

    def _report(self, fault: str, error: Exception | None) -> None:
        """Log why something is not shown, at the first scrape only."""
        if fault not in self._reported:
            self._reported.add(fault)
            level = logging.ERROR if error else logging.WARNING
            log.log(level, "%s (logged once)", fault, exc_info=error)


def _torchserve(settings: Settings) -> list[TorchServeMetrics]:
    """The source of TorchServe's families about requests, if ``metrics_mode`` selects it."""
    if settings.metrics_mode == "log":
        return []
    names = LEGACY if settings.metrics_mode == "legacy" else None
    return [TorchServeMetrics(socket.gethostname(), names)]


def _machine(settings: Settings) -> list[Source]:
    """The sources of TorchServe's families about the machine, likewise."""
    if settings.metrics_mode != "prometheus" or settings.disable_system_metrics:
        return []
    hostname = socket.gethostname()
    return [("host", partial(host_families, hostname)), ("GPUs", partial(gpu_families, hostname))]
