"""Metric families and their text, with names, types and label order exactly as given.

TorchServe's counters have no ``_total`` suffix, which prometheus_client's would add, and KServe's
metric aggregator drops families without a type (CONTRACT X5, T-20).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import accumulate
from math import inf
from typing import Generic, Protocol, TypeVar

#: Bounds in seconds, from the server's own time per request to a long generation.
SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
#: The default bounds of Prometheus' clients, and so of TorchServe's and KServe's histograms.
CLIENT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
#: Bounds for the rows of a batch.
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

#: What the names of a metric's samples have after its own, by its type.
_SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}

#: One sample of a series: a suffix of the family's name, an extra label as text, the value.
Sample = tuple[str, str, float]


class Series(Protocol):
    """The numbers of one label set."""

    def samples(self) -> Iterator[Sample]:
        """The present samples."""


class Value:
    """One number, of a counter or a gauge; safe on any thread."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Raise the value by ``amount``."""
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        """Replace the value."""
        self._value = value

    def samples(self) -> Iterator[Sample]:
        """One sample, under the family's own name."""
        yield "", "", self._value


class Distribution:
    """Counts of observed values by bucket, of a histogram; safe on any thread."""

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._lock = threading.Lock()
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, *values: float) -> None:
        """Count each value in the first bucket whose upper bound is at least the value."""
        buckets = [bisect_left(self._bounds, value) for value in values]
        with self._lock:
            for bucket in buckets:
                self._counts[bucket] += 1
            self._sum += sum(values)

    def samples(self) -> Iterator[Sample]:
        """Cumulative buckets, then the count and the sum."""
        with self._lock:
            totals, summed = list(accumulate(self._counts)), self._sum
        for bound, total in zip(self._bounds, totals, strict=True):
            yield "_bucket", f'le="{_number(bound)}"', total
        yield "_count", "", totals[-1]
        yield "_sum", "", summed


S = TypeVar("S", bound=Series)


class Family(Generic[S]):
    """All series of one name.

    Args:
        name: the metric's full name.
        kind: ``counter``, ``gauge`` or ``histogram``.
        text: the HELP line.
        labels: label names, in the order in which they are written.
        make: makes the series of a new label set.
    """

    def __init__(
        self, name: str, kind: str, text: str, labels: Sequence[str], make: Callable[[], S]
    ) -> None:
        self.name = name
        self.kind = kind
        self.labels = tuple(labels)
        self._text = text
        self._make = make
        self._series: dict[tuple[str, ...], S] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> frozenset[str]:
        """See `names_of`."""
        return names_of(self.name, self.kind)

    def series(self, *values: str) -> S:
        """The series of these label values, one per label name."""
        found = self._series.get(values)
        if found is not None:
            return found
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has labels {self.labels}, got values {values}")
        with self._lock:
            return self._series.setdefault(values, self._make())

    def forget(self, **labels: str) -> None:
        """Remove the series that have these label values."""
        with self._lock:
            for values in list(self._series):
                if labels.items() <= dict(zip(self.labels, values, strict=True)).items():
                    del self._series[values]

    def lines(self, names: Container[str] | None = None) -> Iterator[str]:
        """The family as lines of the text format 0.0.4, HELP and TYPE first.

        Args:
            names: names of families or samples to keep (CONTRACT X1); None keeps all.
        """
        if names is not None and not any(name in names for name in self.names):
            return
        whole = names is None or self.name in names
        yield f"# HELP {self.name} {_escaped(self._text)}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from (line for name, line in self._samples() if whole or name in (names or ()))

    def _samples(self) -> Iterator[tuple[str, str]]:
        for values, series in list(self._series.items()):
            pairs = [f'{k}="{_quoted(v)}"' for k, v in zip(self.labels, values, strict=True)]
            for suffix, extra, value in series.samples():
                labels = ",".join([*pairs, extra] if extra else pairs)
                name = self.name + suffix
                braced = f"{{{labels}}}" if labels else ""
                yield name, f"{name}{braced} {_number(value)}"


def names_of(name: str, kind: str) -> frozenset[str]:
    """The names that a metric and its samples have; no other metric of the text may have them."""
    return frozenset([name, *(name + suffix for suffix in _SUFFIXES.get(kind, ()))])


def counter(name: str, text: str, labels: Sequence[str] = ()) -> Family[Value]:
    """A family of numbers that only rise."""
    return Family(name, "counter", text, labels, Value)


def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Family[Value]:
    """A family of numbers that rise and fall."""
    return Family(name, "gauge", text, labels, Value)


def histogram(
    name: str, text: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS
) -> Family[Distribution]:
    """A family of distributions over buckets with these rising upper bounds."""
    return Family(name, "histogram", text, labels, lambda: Distribution(bounds))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', r"\"")


def _number(value: float) -> str:
    return "+Inf" if value == inf else repr(float(value))
