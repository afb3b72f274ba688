"""What was measured, and medians of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any

#: The name under which the handler in a loop stands beside the peers.
IN_PROCESS = "in-process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One round's load of one kind on one peer.

    Attributes:
        scenario: such as ``v1@16``; for the handler in a loop, ``v1@batch 16``.
        workload: the one that these numbers are about.
        rate: requests per second.
        p50: latency in milliseconds; also ``p99``.
        server_cpu: CPU time of the server's processes in microseconds per request; if two workloads
            run at once, per request of either.
        client_cpu: the same for the load generator.
        answers: how many were checked.
        wrong: how many were wrong.
        fault: what was wrong with one of them.
    """

    peer: str
    scenario: str
    workload: str
    rate: float
    p50: float
    p99: float
    server_cpu: float = 0.0
    client_cpu: float = 0.0
    answers: int = 0
    wrong: int = 0
    fault: str = ""

    @property
    def load(self) -> str:
        """The scenario for people, with the workload if several ran at once."""
        return f"{self.workload} in {self.scenario}" if "+" in self.scenario else self.scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One start of one peer: seconds to the first right answer, and memory in bytes.

    Attributes:
        rss: resident memory, summed over its processes, after each model has answered.
        pss: the same with shared pages counted once.
        pss_loaded: PSS after the load.
    """

    peer: str
    store: str
    first_answer: float
    rss: int
    pss: int
    pss_loaded: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A measurement that failed."""

    peer: str
    what: str
    why: str


@dataclass(slots=True)
class Results:
    """All rounds of a run."""

    samples: list[Sample] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def sample(self, peer: str, scenario: str, workload: str) -> Sample | None:
        """The medians over the rounds, wrong answers summed; None if there is no such sample."""
        found = [
            sample
            for sample in self.samples
            if (sample.peer, sample.scenario, sample.workload) == (peer, scenario, workload)
        ]
        if not found:
            return None
        counts = {"answers": sum(s.answers for s in found), "wrong": sum(s.wrong for s in found)}
        fault = next((sample.fault for sample in found if sample.fault), "")
        return Sample(**{**_medians(found), **counts, "fault": fault})

    def weight(self, peer: str, store: str) -> Weight | None:
        """The medians over the rounds; None if the peer did not serve that store."""
        found = [weight for weight in self.weights if (weight.peer, weight.store) == (peer, store)]
        return Weight(**_medians(found)) if found else None


def _medians(found: list[Any]) -> dict[str, Any]:
    """Texts of the first of some records of one kind, and the medians of their numbers."""
    values: dict[str, Any] = {}
    for name in (each.name for each in fields(found[0])):
        column = [getattr(record, name) for record in found]
        values[name] = column[0] if isinstance(column[0], str) else median(column)
    return values
