"""The measurement: each round starts every peer in turn, checks its answers, memory and load."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.inprocess import Answers, Loop, ask
from benchmarks.load import LoadError, Traffic
from benchmarks.peers import BATCH_ROWS, Peer
from benchmarks.results import IN_PROCESS, Failure, Results, Sample, Weight
from benchmarks.servers import Server, ServerFailed, running
from benchmarks.workloads import Workload, alike, workloads

#: Seconds of warm-up, relative to the seconds of the load that counts.
WARM_UP = 0.4
#: Seconds between two calls of the handler alone, as long as a client with one connection pauses
#: between requests: on a shared machine the caches lose the model in that time.
PAUSE = 0.0005


@dataclass(frozen=True, slots=True)
class Scenario:
    """Workloads that run on a server at the same time, each with a number of connections.

    Attributes:
        group: its name for ``--workloads``; a peer runs all scenarios of a group or none.
        streams: names of workloads, with their connections.
        rate: requests per second of each that come at random times; see `Stream`.
    """

    group: str
    streams: Sequence[tuple[str, int]]
    rate: float | None = None

    @property
    def name(self) -> str:
        """``v1@16``, or ``v1@4+explain@4``; ``v1@50/s`` if requests come at a rate."""
        loads = [(name, f"{self.rate:g}/s" if self.rate else n) for name, n in self.streams]
        return "+".join(f"{workload}@{load}" for workload, load in loads)


SCENARIOS = (
    *(Scenario("v1", [("v1", connections)]) for connections in (1, 16, 64)),
    *(Scenario("arrivals", [("v1", 64)], rate) for rate in (20, 200)),
    Scenario("v2", [("v2", 16)]),
    Scenario("mean-json", [("mean-json", 8)]),
    Scenario("mean-binary", [("mean-binary", 8)]),
    Scenario("explain", [("explain", 4)]),
    Scenario("explain", [("v1", 4)]),
    Scenario("explain", [("v1", 4), ("explain", 4)]),
    Scenario("resnet", [("resnet", 8)]),
)
#: The values of ``--workloads``; "memory" is that of one model and of ten, without load.
MEMORY = "memory"
GROUPS = (*dict.fromkeys(scenario.group for scenario in SCENARIOS), MEMORY)
#: The stores with which memory and time to the first answer are compared, and the workload there.
ONE, TEN, ASKED = "mnist", "ten", "v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Attributes:
        groups: names of `GROUPS`.
        seconds: of each load.
        stores: the folder with the stores that `benchmarks.archives` built.
        work: a folder for the servers' files.
        prefix: put before the commands of all that is measured.
    """

    peers: Sequence[Peer]
    groups: Sequence[str]
    rounds: int
    seconds: float
    stores: Path
    work: Path
    prefix: Sequence[str] = ()


class Rounds:
    """Runs a plan.

    Args:
        plan: what is measured.
        say: takes progress lines.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._workloads = workloads()
        self._scenarios = [scenario for scenario in SCENARIOS if scenario.group in plan.groups]
        self._expected: dict[str, list[Any]] = {}
        self._numbers = itertools.count(1)
        self.results = Results()

    def run(self) -> Results:
        """All rounds: A B C, A B C, ..."""
        self._answer()
        for number in range(1, self._plan.rounds + 1):
            self._say(f"round {number} of {self._plan.rounds}")
            if "v1" in self._plan.groups:
                self._loop()
            for store in (ONE, "mean", "resnet18", TEN):
                for peer in self._plan.peers:
                    self._visit(peer, store)
        return self.results

    def _answer(self) -> None:
        """Get the right answers from the handlers.

        Raises:
            RuntimeError: two requests have the same answer, so mixed-up answers would not show.
        """
        for store in dict.fromkeys(workload.store for workload in self._workloads.values()):
            asked = [workload for workload in self._workloads.values() if workload.store == store]
            jobs = [Answers(workload.rows, workload.explains) for workload in asked]
            for workload, answers in zip(asked, ask(self._plan.stores / store, jobs), strict=True):
                if any(alike(*pair) for pair in itertools.permutations(answers, 2)):
                    raise RuntimeError(f"{workload.name}: two requests have one answer")
                self._expected[workload.name] = answers

    # --- without a server ---

    def _loop(self) -> None:
        """The handler in a loop, with the fastest number of intra-op threads."""
        for size, pause in ((1, 0.0), (1, PAUSE), (BATCH_ROWS, 0.0)):
            self._loop_of(self._workloads[ASKED], size, pause)

    def _loop_of(self, workload: Workload, size: int, pause: float) -> None:
        jobs = [
            Loop(workload.rows, size, self._plan.seconds, threads, pause)
            for threads in sorted({1, len(os.sched_getaffinity(0))})
        ]
        durations = max(ask(self._plan.stores / workload.store, jobs, self._plan.prefix), key=len)
        apart = f", {1000 * pause:g} ms apart" if pause else ""
        self._note(
            Sample(
                peer=IN_PROCESS,
                scenario=f"{workload.name}@batch {size}{apart}",
                workload=workload.name,
                rate=size * len(durations) / (sum(durations) + pause * len(durations)),
                p50=1000 * _quantile(durations, 0.50),
                p99=1000 * _quantile(durations, 0.99),
            )
        )

    # --- with one ---

    def _visit(self, peer: Peer, store: str) -> None:
        scenarios = [scenario for scenario in self._scenarios if self._can(peer, scenario, store)]
        weighs = MEMORY in self._plan.groups and store in (ONE, TEN) and peer.many
        if not scenarios and not weighs:
            return
        folder = self._plan.work / f"{next(self._numbers)}-{peer.name}-{store}"
        try:
            with running(peer, self._plan.stores / store, folder, self._plan.prefix) as server:
                self._measure(server, store, scenarios)
        except (ServerFailed, LoadError) as error:
            self.results.failures.append(Failure(peer.name, store, str(error)))
            self._say(f"  {peer.name:11} {store}: FAILED: {error}")

    def _can(self, peer: Peer, scenario: Scenario, store: str) -> bool:
        """Whether a peer has all routes of the scenario's group, and this is its store."""
        needed = [
            self._workloads[name]
            for other in SCENARIOS
            if other.group == scenario.group
            for name, _ in other.streams
        ]
        return all(work.route in peer.routes and work.store == store for work in needed)

    def _measure(self, server: Server, store: str, scenarios: Sequence[Scenario]) -> None:
        names = dict.fromkeys(name for scenario in scenarios for name, _ in scenario.streams)
        first, *others = [self._workloads[name] for name in names or (ASKED,)]
        models = sorted(archive.stem for archive in (self._plan.stores / store).glob("*.mar"))
        server.await_answer(server.path(first, models[0]), first.bodies[0])
        seconds = time.perf_counter() - server.started
        for model in models:
            self._check(server, first, model)
        memory = server.memory()
        for workload in others:
            self._check(server, workload, store)
        for scenario in scenarios:
            self._load(server, scenario)
        weight = Weight(
            peer=server.peer.name,
            store=store,
            first_answer=seconds,
            rss=memory.rss,
            pss=memory.pss,
            pss_loaded=server.memory().pss,
        )
        self.results.weights.append(weight)
        self._say(
            f"  {weight.peer:11} {store}: first answer after {seconds:.1f} s, "
            f"{weight.pss / 1e6:,.0f} MB, after the load {weight.pss_loaded / 1e6:,.0f} MB"
        )

    def _check(self, server: Server, workload: Workload, model: str) -> None:
        """Send every request once, one at a time.

        Raises:
            ServerFailed: an answer is not the handler's.
        """
        path = server.path(workload, model)
        server.await_answer(path, workload.bodies[0])
        for index, body in enumerate(workload.bodies):
            status, content = server.ask(path, body)
            fault = workload.fault(index, status, content, self._expected[workload.name][index])
            if fault is not None:
                raise ServerFailed(f"{workload.name}: request {index}: {fault}")

    def _load(self, server: Server, scenario: Scenario) -> None:
        work = [self._workloads[name] for name, _ in scenario.streams]
        streams = [
            server.stream(workload, connections, scenario.rate)
            for workload, (_, connections) in zip(work, scenario.streams, strict=True)
        ]
        server.drive(streams, WARM_UP * self._plan.seconds)
        server_before, client_before = server.cpu_seconds(), time.process_time()
        traffics = server.drive(streams, self._plan.seconds)
        client_cpu = time.process_time() - client_before
        server_cpu = server.cpu_seconds() - server_before
        answers = sum(traffic.answers.total() for traffic in traffics)
        for workload, traffic in zip(work, traffics, strict=True):
            self._note(
                self._sample(
                    server.peer.name,
                    scenario.name,
                    workload,
                    traffic,
                    1e6 * server_cpu / answers,
                    1e6 * client_cpu / answers,
                )
            )

    def _sample(
        self,
        peer: str,
        scenario: str,
        workload: Workload,
        traffic: Traffic,
        server_cpu: float,
        client_cpu: float,
    ) -> Sample:
        wrong, fault = 0, ""
        for (index, status, body), count in traffic.answers.items():
            found = workload.fault(index, status, body, self._expected[workload.name][index])
            if found is not None:
                wrong, fault = wrong + count, fault or f"request {index}: {found}"
        return Sample(
            peer=peer,
            scenario=scenario,
            workload=workload.name,
            rate=traffic.in_time / self._plan.seconds,
            p50=1000 * _quantile(traffic.latencies, 0.50),
            p99=1000 * _quantile(traffic.latencies, 0.99),
            server_cpu=server_cpu,
            client_cpu=client_cpu,
            answers=traffic.answers.total(),
            wrong=wrong,
            fault=fault,
        )

    def _note(self, sample: Sample) -> None:
        self.results.samples.append(sample)
        wrong = f", {sample.wrong} WRONG: {sample.fault}" if sample.wrong else ""
        self._say(
            f"  {sample.peer:11} {sample.load:25} {sample.rate:8,.0f}/s, p50 {sample.p50:.2f} ms, "
            f"p99 {sample.p99:.2f} ms{wrong}"
        )


def _quantile(values: Sequence[float], share: float) -> float:
    """The quantile: the value that ``share`` of the values do not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
