"""Metrics that handlers report, as the ``metrics_config`` file lists them (CONTRACT M1-M6, X3)."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kserve_torch.errors import SettingError
from kserve_torch.events import Finished, Measured
from kserve_torch.metrics.family import CLIENT_SECONDS, Family, counter, gauge, histogram
from kserve_torch.metrics.torchserve import help_text
from kserve_torch.settings.metrics_file import AUTOMATIC, METRIC_NAME, ListedMetric
from kserve_torch.ts.metrics.unit import UNITS

log = logging.getLogger(__name__)

#: Reported by every base handler under ``handler.profile``.
PROFILED = "ts_handler_"
PREDICTION = "PredictionTime"
HOSTNAME = "Hostname"


_MAKERS: Mapping[str, Callable[..., Family[Any]]] = {
    "counter": counter,
    "gauge": gauge,
    "histogram": partial(histogram, bounds=CLIENT_SECONDS),
}


def _make(kind: str, name: str, unit: str, dimensions: Iterable[str]) -> Family[Any]:
    labels = dict.fromkeys([*map(_label, dimensions), HOSTNAME])
    return _MAKERS[kind](name, help_text(kind, unit), tuple(labels))


class HandlerMetrics:
    """The families of the handlers' own metrics.

    Args:
        listed: what the ``metrics_config`` file lists.
        auto_detect: ``model_metrics_auto_detect``: also show metrics that the file does not list.
        hostname: the value of the label ``Hostname`` that every metric has.
        taken: the names of the server's own families and their samples.

    Raises:
        SettingError: the file lists a metric that cannot be shown.
    """

    def __init__(
        self,
        listed: Iterable[ListedMetric],
        auto_detect: bool,
        hostname: str,
        taken: Collection[str],
    ) -> None:
        self._host = hostname
        self._auto_detect = auto_detect
        self._taken = set(taken)
        self._complained: set[str] = set()
        self._lock = threading.Lock()
        self._families: dict[str, Family[Any]] = {}
        for each in {each.name: each for each in (*AUTOMATIC, *listed)}.values():
            if fault := self._add(_make(each.kind, each.name, each.unit, each.dimensions)):
                raise SettingError(f"metrics_config: {each.name!r}: {fault}")

    def families(self) -> Iterable[Family[Any]]:
        """The listed families and those that were detected."""
        return list(self._families.values())

    def measured(self, event: Measured) -> None:
        """Add a handler's number to its series, or log once why not.

        The series' type is the one that is known by the name, whichever method reports a number, as
        TorchServe's frontend has it: an ``add_time`` may fill a histogram.
        """
        family = self._families.get(event.name) or self._detect(event)
        if family is None:
            return
        values = {_label(name): value for name, value in event.dimensions}
        values.setdefault(HOSTNAME, self._host)
        if values.keys() != set(family.labels):
            self._complain(
                event.name,
                f"reported with dimensions {sorted(values)}, known with {sorted(family.labels)}",
            )
            return
        if family.kind == "counter" and event.value < 0:
            self._complain(event.name, "a counter cannot go down")
            return
        series = family.series(*(values[label] for label in family.labels))
        if family.kind == "counter":
            series.add(event.value)
        elif family.kind == "gauge":
            series.set(event.value)
        else:
            series.observe(event.value)

    def finished(self, events: Sequence[Finished]) -> None:
        """Note how long the handler took for the last request: TorchServe's PredictionTime.

        Handlers need not report it themselves (CONTRACT M6).
        """
        last = events[-1]
        if last.error is None:
            of_model = (("ModelName", last.model), ("Level", "Model"))
            milliseconds = round(last.timing.handler * 1000, 2)
            self.measured(Measured(PREDICTION, "gauge", "ms", of_model, milliseconds))

    def left(self, model: str, version: str) -> None:
        """Forget a model when its last version has left: ``version`` is "" then."""
        if not version:
            for family in self.families():
                family.forget(ModelName=model)

    def _detect(self, event: Measured) -> Family[Any] | None:
        if not self._auto_detect and not event.name.startswith(PROFILED):
            self._complain(
                event.name, "list it in metrics_config or set model_metrics_auto_detect=true"
            )
        elif event.kind not in _MAKERS or not METRIC_NAME.fullmatch(event.name):
            self._complain(event.name, f"not a name and type for Prometheus ({event.kind})")
        else:
            unit = UNITS.get(event.unit, event.unit)
            new = _make(event.kind, event.name, unit, [name for name, _ in event.dimensions])
            with self._lock:
                if event.name not in self._families and (fault := self._add(new)):
                    self._complain(event.name, fault)
        return self._families.get(event.name)

    def _add(self, family: Family[Any]) -> str:
        """Show a family; "", or why the whole text would be unreadable for some of its readers."""
        if clash := family.names & self._taken:
            return f"another metric has the name {min(clash)}"
        for label in family.labels:
            if label.startswith("__") or (label, family.kind) == ("le", "histogram"):
                return f"the label {label} is Prometheus' own"
        self._families[family.name] = family
        self._taken |= family.names
        return ""

    def _complain(self, name: str, reason: str) -> None:
        if name not in self._complained:
            self._complained.add(name)
            log.warning("handler metric %s is not shown on /metrics: %s", name, reason)


def _label(dimension: str) -> str:
    """The dimension's name as a label: Prometheus allows letters, digits and underscores."""
    label = re.sub(r"[^a-zA-Z0-9_]", "_", dimension)
    return f"_{label}" if label[:1].isdigit() or not label else label
