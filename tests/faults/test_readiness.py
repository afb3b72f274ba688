"""Ready means that a request would be served now; live means that a restart would not help."""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ..hosts import hosting
from ..server import Server
from .actor import GRPC, PROTOCOLS, V1, V2, Client, Gate, add_actor, store_of, talking_to, until

#: Waits at a gate before it is initialised.
SLOW = "open({!r}).read()\n"


def health(client: Client) -> dict[str, bool]:
    """What every place that tells readiness says; native ping is for models only."""
    get = client.http.get
    ready = get("/v2/health/ready")
    assert (ready.status_code == 200) == ready.json()["ready"]
    check = health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest())
    serving = check.status == health_pb2.HealthCheckResponse.SERVING
    assert serving == ready.json()["ready"]
    live = get("/v2/health/live")
    assert (live.status_code == 200) == live.json()["live"]
    return {"live": live.json()["live"], "ready": ready.json()["ready"]}


def index(client: Client) -> dict[str, tuple[str, str]]:
    listed = client.http.post("/v2/repository/index", content=b"").json()
    return {entry["name"]: (entry["state"], entry["reason"]) for entry in listed}


def test_no_models(tmp_path: Path, gate: Callable[[], Gate]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("nowhere")
    with talking_to(tmp_path) as client:
        assert health(client) == {"live": True, "ready": False}
        assert index(client) == {}
        assert client.ask(V1, "m", "say no").status == 404
        add_actor(tmp_path, "m")
        assert client.http.post("/v2/repository/models/m/load").status_code == 200
        assert health(client) == {"live": True, "ready": True}
        assert client.http.post("/v2/repository/models/m/unload").status_code == 200
        assert health(client) == {"live": True, "ready": False}
        a_load_goes_on_when_its_client_leaves(client, tmp_path, gate())


def a_load_goes_on_when_its_client_leaves(client: Client, store: Path, wall: Gate) -> None:
    add_actor(store, "m", handler=SLOW.format(str(wall.path)) + "def handle(d, c): return d")
    leaving = httpx.Timeout(5, read=0.3)
    url = f"{client.server.url}/v2/repository/models/m/load"
    with pytest.raises(httpx.ReadTimeout):  # the load does wait
        httpx.post(url, timeout=leaving, trust_env=False)
    until(lambda: index(client) == {"m": ("LOADING", "")})
    wall.open()
    until(lambda: index(client) == {"m": ("READY", "")})
    assert client.ask(GRPC, "m", "say hello").status != grpc.StatusCode.UNAVAILABLE


def test_ports_open_only_when_every_model_was_tried(
    tmp_path: Path, gate: Callable[[], Gate]
) -> None:
    """KServe's default readiness probe is a bare TCP connect."""
    wall = gate()
    store = tmp_path / "store"
    store.mkdir()
    add_actor(store, "slow", handler=SLOW.format(str(wall.path)) + "def handle(d, c): return d")
    add_actor(store, "broken", handler="import absent_package")
    add_actor(store, "fine")
    server = Server(store, wait=False)
    wall.reached()
    try:
        httpx.get(f"{server.url}/v2/health/live", trust_env=False)
        raise AssertionError("the port is open")
    except httpx.ConnectError:
        pass
    wall.open()
    server.wait_started()
    client = Client(server)
    assert health(client) == {"live": True, "ready": False}
    states = index(client)
    assert states["fine"] == states["slow"] == ("READY", "")
    assert states["broken"][0] == "UNAVAILABLE"
    assert "absent_package" in states["broken"][1]
    for protocol in PROTOCOLS:
        assert client.ask(protocol, "fine", "say hello").ok
        answer = client.ask(protocol, "broken", "say hello")
        assert answer.status in (503, grpc.StatusCode.UNAVAILABLE)
        assert "absent_package" in answer.text
        assert tempfile.gettempdir() not in answer.text
    assert client.http.get("/v1/models/broken").status_code == 503
    assert client.http.get("/v1/models/fine").json() == {"name": "fine", "ready": True}
    client.close()
    assert server.stop() == 0


def test_a_model_whose_first_load_failed_gets_ready_by_itself(tmp_path: Path) -> None:
    hub, store = tmp_path / "hub", tmp_path / "store"
    store.mkdir()
    add_actor(store, "m", handler=f"open({str(hub)!r})\ndef handle(d, c): return d")
    with talking_to(store) as client:
        assert health(client) == {"live": True, "ready": False}
        state, reason = index(client)["m"]
        assert state == "UNAVAILABLE"
        assert "file not found: hub" in reason
        hub.touch()
        until(lambda: index(client) == {"m": ("READY", "")})
        assert health(client) == {"live": True, "ready": True}


def test_open_early(tmp_path: Path, gate: Callable[[], Gate]) -> None:
    wall = gate()
    store = tmp_path / "store"
    store.mkdir()
    add_actor(store, "slow", handler=SLOW.format(str(wall.path)) + "def handle(d, c): return d")
    server = Server(store, "--open_early", wait=False)
    wall.reached()
    client = Client(server)
    assert health(client) == {"live": True, "ready": False}
    assert index(client) == {"slow": ("LOADING", "")}
    for protocol in PROTOCOLS:
        answer = client.ask(protocol, "slow", "say no")
        assert answer.status in (503, grpc.StatusCode.UNAVAILABLE)
        assert "still loading" in answer.text
    wall.open()
    server.wait_started()
    assert health(client) == {"live": True, "ready": True}
    client.close()
    assert server.stop() == 0


def test_open_early_while_archives_are_fetched(tmp_path: Path) -> None:
    """Which models there are is not known yet: none of them is said not to exist."""
    fetching, wall = threading.Event(), threading.Event()
    for folder in ("hub", "store"):
        (tmp_path / folder).mkdir()
    add_actor(tmp_path / "hub", "m")

    class Slow(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            fetching.set()
            wall.wait(30)
            super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with hosting(partial(Slow, directory=str(tmp_path / "hub"))) as hub:
        options = ("--open_early", "--load_models", f"m={hub}/m.mar")
        server = Server(tmp_path / "store", *options, wait=False)
        fetching.wait(30)
        client = Client(server)
        assert health(client) == {"live": True, "ready": False}
        assert client.http.get("/ping").status_code == 500
        for path in ("/v1/models/m", "/v2/models/m", "/v2/models/m/ready"):
            assert client.http.get(path).status_code == 503
        for protocol in PROTOCOLS:
            answer = client.ask(protocol, "m", "say no")
            assert answer.status in (503, grpc.StatusCode.UNAVAILABLE)
            assert "still loading" in answer.text
        wall.set()
        server.wait_started()
    assert health(client) == {"live": True, "ready": True}
    assert client.http.get("/ping").status_code == 200
    assert client.ask(V1, "m", "say yes").ok
    assert client.http.get("/v1/models/nobody").status_code == 404
    client.close()
    assert server.stop() == 0


def test_too_many_hung_workers(tmp_path: Path, gate: Callable[[], Gate]) -> None:
    store = store_of(tmp_path, m="batchSize: 1\nresponseTimeout: 1\nminWorkers: 4", other="")
    walls = [gate() for _ in range(4)]
    with talking_to(store) as client:
        hung = [client.begin(PROTOCOLS[i], "m", wall.command) for i, wall in enumerate(walls)]
        assert not any(one.result().ok for one in hung)
        assert health(client) == {"live": False, "ready": False}
        assert index(client)["m"] == ("UNAVAILABLE", "4 handler threads are hung")
        assert client.ask(V2, "other", "say on").ok
        # They come back after all: nothing needs a restart any more.
        for wall in walls:
            wall.open()
        until(lambda: client.http.get("/v2/health/ready").status_code == 200)
        assert health(client) == {"live": True, "ready": True}
        assert client.ask(V1, "m", "say again").ok
        assert index(client)["m"] == ("READY", "")


def test_liveness_is_quick_while_handlers_work(tmp_path: Path) -> None:
    """Handlers that hold the interpreter's lock are the worst case for the event loop."""
    store = store_of(tmp_path, m="batchSize: 1\nminWorkers: 2\nmaxWorkers: 2")
    with talking_to(store) as client:
        busy = [client.begin(V1, "m", "burn 1") for _ in range(4)]
        until(lambda: client.metric("inflight_requests", model_name="m") == 4)
        seconds = []
        while not all(one.done() for one in busy):
            began = time.perf_counter()
            assert client.http.get("/v2/health/live").json() == {"live": True}
            seconds.append(time.perf_counter() - began)
        assert sorted(seconds)[len(seconds) // 2] < 0.5, seconds  # a call takes 1 s or more
        assert all(one.result().ok for one in busy)
