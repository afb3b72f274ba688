"""What each stage of the server costs per request: ``python -m benchmarks.micro [part of a name]``.

Everything runs in this process and without sockets, so that a regression can be located. Of several
repetitions the fastest counts: the others were disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.peers import BATCH_ROWS
from benchmarks.workloads import HEADER_LENGTH, MODELS, workloads
from kserve_torch.archives.archive import open_archive
from kserve_torch.codec import v1, v2, v2_reply
from kserve_torch.engine.lane import Lane
from kserve_torch.engine.ticket import Ticket
from kserve_torch.engine.window import Window
from kserve_torch.http.app import App
from kserve_torch.http.metrics import MetricsText
from kserve_torch.http.v1 import V1
from kserve_torch.http.v2 import V2
from kserve_torch.messages import Request, Tensor, Verb
from kserve_torch.metrics import Metrics
from kserve_torch.models.registry import Registry
from kserve_torch.runtime.instance import Instance
from kserve_torch.runtime.loading import LoadOptions, load_instance
from kserve_torch.settings import load_settings

ECHO = MODELS / "echo"
REPETITIONS = 7
#: Seconds of one repetition, at least.
LONG_ENOUGH = 0.05


@dataclass(frozen=True, slots=True)
class Stage:
    """One step in serving a request.

    Attributes:
        run: repeats it this many times.
        requests: how many requests each repetition serves.
    """

    name: str
    run: Callable[[int], Awaitable[None]]
    requests: int = 1


async def measure(stage: Stage) -> float:
    """Microseconds per request."""
    times, took = 1, 0.0
    while took < LONG_ENOUGH:
        times *= 2
        took = await _seconds(stage, times)
    fastest = min([await _seconds(stage, times) for _ in range(REPETITIONS)])
    return 1e6 * fastest / times / stage.requests


async def _seconds(stage: Stage, times: int) -> float:
    began = time.perf_counter()
    await stage.run(times)
    return time.perf_counter() - began


def plain(name: str, call: Callable[[], object], requests: int = 1) -> Stage:
    """A stage that is one function."""

    async def run(times: int) -> None:
        for _ in range(times):
            call()

    return Stage(name, run, requests)


# --- stages ---


def codec_stages() -> Iterator[Stage]:
    """Bodies to rows, results to bodies."""
    known = workloads()
    json = "application/json"
    content = known["v1"].bodies[0].content
    yield plain("codec: v1 decode, one image", lambda: v1.decode(content, json))
    yield plain("codec: v1 encode, one label", lambda: v1.encode([7]))
    for name, what in (
        ("v2", "[1,28,28] JSON"),
        ("mean-json", "[1,3,224,224] JSON"),
        ("mean-binary", "[1,3,224,224] binary"),
    ):
        body = known[name].bodies[0]
        length = body.headers.get(HEADER_LENGTH)
        yield plain(f"codec: v2 decode, {what}", partial(v2.decode, body.content, length))
    request = v2.decode(known["v2"].bodies[0].content, None)
    label = Tensor(name="input-0", datatype="INT64", array=np.asarray([7]))
    yield plain(
        "codec: v2 encode, one label",
        lambda: v2_reply.encode("mnist", "1.0", "0", [label], request),
    )
    large = Tensor(name="input-0", datatype="FP32", array=known["mean-json"].rows[0]["data"])
    yield plain(
        "codec: v2 encode, [1,3,224,224] JSON",
        lambda: v2_reply.encode("mean", "1.0", "0", [large], request),
    )


def queue_stages() -> Iterator[Stage]:
    """Requests to batches."""
    window: Window[int] = Window(BATCH_ROWS, 0.0, 100)

    def fill() -> None:
        for item in range(BATCH_ROWS):
            window.push(item, 1, 0.0)
        window.take()

    yield plain(f"window: push and take, {BATCH_ROWS} requests", fill, BATCH_ROWS)
    lane = Lane("echo", "1.0", Verb.PREDICT, Window[Ticket](BATCH_ROWS, 0.0, 100))
    stopping = threading.Event()
    request = _request()

    def queue() -> None:
        for _ in range(BATCH_ROWS):
            lane.submit(request)
        lane.take(stopping)

    yield plain(f"lane: submit and take, {BATCH_ROWS} requests", queue, BATCH_ROWS)


def handler_stages(workdir: Path) -> Iterator[Stage]:
    """Batches to replies, with a handler that does nothing."""
    instance = load_instance(
        open_archive(ECHO, workdir),
        name="echo",
        measure=lambda measured: None,
        options=LoadOptions(workdir=workdir),
    )
    request = _request()
    for rows in (1, BATCH_ROWS):
        batch, results = [request] * rows, [1] * rows
        yield plain(
            f"context: begin and row_replies, batch of {rows}",
            partial(_context_call, instance, batch, results),
            rows,
        )
        yield plain(f"instance: run, batch of {rows}", partial(instance.run, batch), rows)


def _context_call(instance: Instance, batch: list[Request], results: list[int]) -> None:
    instance.context.begin(batch)
    instance.context.row_replies(results)


def app_stages(app: App) -> Iterator[Stage]:
    """Everything but sockets and HTTP parsing, the worker's thread included."""
    known = workloads()
    for name, path in (("v1", "/v1/models/echo:predict"), ("v2", "/v2/models/echo/infer")):
        for together in (1, BATCH_ROWS):
            run = _app_run(app, path, known[name].bodies[0].content, together)
            yield Stage(f"app: {name}, {together} at a time", run, together)


def _app_run(app: App, path: str, body: bytes, together: int) -> Callable[[int], Awaitable[None]]:
    async def client(times: int) -> None:
        for _ in range(times):
            await call_app(app, path, body)

    async def run(times: int) -> None:
        await asyncio.gather(*(client(times) for _ in range(together)))

    return run


async def call_app(app: App, path: str, body: bytes) -> None:
    """Send an application one complete request.

    Raises:
        RuntimeError: the answer's status is not 200.
    """
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1:8080"),
            (b"user-agent", b"benchmark"),
            (b"accept", b"*/*"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ],
        "server": ("127.0.0.1", 8080),
    }
    answer = await app.answer(scope, body)
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer}")


def _request() -> Request:
    return Request(id="benchmark", model="echo", rows=({"data": "text"},))


# --- running them ---


async def run(part: str) -> None:
    """Measure the stages whose names contain ``part``."""
    settings = load_settings(["--model_dir", str(ECHO)], {}, "kserve_torch")
    registry = Registry(settings)
    metrics = Metrics(settings, registry)
    limits = {"batch_size": BATCH_ROWS, "max_batch_delay": 0.0}
    await registry.register(ECHO, name="echo", overrides=limits)
    routes = (V1(registry, V2(registry)).route, V2(registry).route)
    text = MetricsText(metrics.pieces, enabled=True).route
    app = App(routes, text, {}, settings.max_request_size)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as workdir:
        stages = (
            *codec_stages(),
            *queue_stages(),
            *handler_stages(Path(workdir)),
            *app_stages(app),
        )
        print(f"{'stage':46}{'µs per request':>16}")
        for stage in stages:
            if part in stage.name:
                print(f"{stage.name:46}{await measure(stage):16,.2f}", flush=True)
    await registry.close()


def main() -> None:
    """Print a line per stage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="only stages with this in their names")
    part = parser.parse_args().part
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(part))


if __name__ == "__main__":
    main()
