"""The end: nothing accepted is lost, nothing is left behind; a second signal is obeyed at once."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from ..makers import make_archive
from ..server import STARTED, Server, free_ports
from .actor import GRPC, PROTOCOLS, V1, Answer, Client, Gate, add_actor, store_of, talking_to, until


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return store_of(folder, m="batchSize: 1")


@contextmanager
def stopping(store: Path, temporary: Path, *options: str) -> Iterator[Client]:
    """A server that writes below ``temporary``; the test ends it."""
    temporary.mkdir()
    with talking_to(store, *options, env={"TMPDIR": str(temporary)}) as client:
        yield client
        assert client.server.process.poll() is not None, "the test has not stopped the server"


def refused(client: Client) -> bool:
    """Whether the HTTP port takes no new connections."""
    try:
        httpx.get(f"{client.server.url}/v2/health/live", trust_env=False)
    except httpx.TransportError:
        return True
    return False


def ready(client: Client) -> bool:
    try:
        return bool(client.http.get("/v2/health/ready").json()["ready"])
    except httpx.TransportError:
        return False


def test_under_load_no_request_fails(store: Path, tmp_path: Path) -> None:
    """Clients go on as long as the server says it is ready, as those behind a service do."""
    with stopping(store, tmp_path / "tmp", "--drain_seconds", "1") as client:
        answers: list[tuple[str, Answer]] = []

        def ask_on(worker: int) -> None:
            protocol = PROTOCOLS[worker % len(PROTOCOLS)]
            count = 0
            while ready(client):
                text = f"say {worker} {count}"
                answers.append((text, client.ask(protocol, "m", text)))
                count += 1

        threads = [threading.Thread(target=ask_on, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(answers) > 200)
        code = client.server.stop()
        for thread in threads:
            thread.join()
        assert code == 0
        assert [answer for text, answer in answers if text not in answer.text] == []
        assert list((tmp_path / "tmp").iterdir()) == []


def test_what_runs_and_waits_is_answered(
    store: Path, tmp_path: Path, gate: Callable[[], Gate]
) -> None:
    wall = gate()
    with stopping(store, tmp_path / "tmp") as client:
        begun = [client.begin(V1, "m", wall.command)]
        wall.reached()
        begun += [client.begin(protocol, "m", f"say {protocol}") for protocol in PROTOCOLS * 2]
        until(lambda: client.queued("m") == 8)
        client.server.process.send_signal(signal.SIGINT)
        until(lambda: refused(client))
        assert client.server.process.poll() is None
        wall.open()
        assert client.server.wait() == 0
        assert all(one.result().ok for one in begun)
        assert "Traceback" not in client.server.log
        *_, last = client.server.lines
        assert last.endswith(" INFO kserve_torch.server: stopped")
        assert list((tmp_path / "tmp").iterdir()) == []


def test_while_it_drains(store: Path, tmp_path: Path, gate: Callable[[], Gate]) -> None:
    """Not ready for more, and still there for those who have not heard of it."""
    with stopping(store, tmp_path / "tmp", "--drain_seconds", "30") as client:
        assert client.http.get("/v2/health/ready").json() == {"ready": True}
        client.server.process.send_signal(signal.SIGTERM)
        until(lambda: not ready(client))
        answer = client.http.get("/v2/health/ready")
        assert (answer.status_code, answer.json()) == (503, {"ready": False})
        assert answer.headers["connection"] == "close"
        assert client.http.get("/v2/health/live").json() == {"live": True}
        assert client.http.get("/v2/models/m/ready").status_code == 503
        assert client.http.get("/v1/models/m").status_code == 503
        assert client.http.get("/ping").status_code == 500
        for protocol in PROTOCOLS:
            assert client.ask(protocol, "m", "say still here").ok
        answer = client.http.post("/predictions/m", content="say still here")
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        client.server.stop(signal.SIGTERM)


def test_a_second_signal_ends_it_at_once(
    store: Path, tmp_path: Path, gate: Callable[[], Gate]
) -> None:
    wall = gate()
    with stopping(store, tmp_path / "tmp") as client:
        lost = client.begin(V1, "m", wall.command)
        wall.reached()
        client.server.process.send_signal(signal.SIGTERM)
        until(lambda: refused(client))
        assert client.server.stop(signal.SIGTERM, timeout=5) == 1
        with pytest.raises(httpx.TransportError):
            lost.result()
        assert list((tmp_path / "tmp").iterdir()) == []


def test_the_file_for_torchserves_stop_goes_at_once_too(store: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "kserve_torch", "torchserve", "--model-store", str(store)]
    http, grpc_port = map(str, free_ports(2))
    ports = ("--http_port", http, "--grpc_port", grpc_port, "--drain_seconds", "20")
    server = Server(None, *ports, command=command, env={"TMPDIR": str(tmp_path / "tmp")})
    assert (tmp_path / "tmp/.model_server.pid").read_text() == str(server.process.pid)
    server.process.send_signal(signal.SIGTERM)
    until(lambda: "draining" in server.log)
    assert server.stop(signal.SIGTERM, timeout=10) == 1
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_grace_period_runs_out(store: Path, tmp_path: Path, gate: Callable[[], Gate]) -> None:
    wall = gate()
    with stopping(store, tmp_path / "tmp", "--grace_period", "1") as client:
        lost = client.begin(V1, "m", wall.command)
        wall.reached()
        began = time.monotonic()
        assert client.server.stop(timeout=10) == 1
        assert 0.9 < time.monotonic() - began < 6
        with pytest.raises(httpx.TransportError):
            lost.result()
        assert "stopped with requests in flight" in client.server.log
        assert list((tmp_path / "tmp").iterdir()) == []


def test_a_worker_that_hangs_does_not_hold_it_up(tmp_path: Path, gate: Callable[[], Gate]) -> None:
    (tmp_path / "store").mkdir()
    store = store_of(tmp_path / "store", m="batchSize: 1\nresponseTimeout: 1")
    wall = gate()
    with stopping(store, tmp_path / "tmp") as client:
        assert client.ask(V1, "m", wall.command).status == 504
        assert client.server.stop(timeout=10) == 0
        assert list((tmp_path / "tmp").iterdir()) == []


THREAD = """
import threading

class Handler:
    def initialize(self, context):
        threading.Thread(target=threading.Event().wait).start()  # no daemon

    def handle(self, data, context):
        return ["done" for _ in data]
"""
PROCESS = """
import multiprocessing
import threading

class Handler:
    def initialize(self, context):
        wait = threading.Event().wait
        self.child = multiprocessing.get_context("fork").Process(target=wait)
        self.child.start()

    def handle(self, data, context):
        return [self.child.pid for _ in data]
"""
POOL = """
import threading
from concurrent.futures import ThreadPoolExecutor

class Handler:
    def initialize(self, context):
        self.pool = ThreadPoolExecutor(1)

    def handle(self, data, context):
        self.pool.submit(threading.Event().wait)
        return ["done" for _ in data]
"""
COMPUTING = """
import torch

class Handler:
    def initialize(self, context):
        self.matrix = torch.eye(500)

    def handle(self, data, context):
        while True:
            self.matrix = torch.tanh(self.matrix @ self.matrix)
"""


@pytest.mark.parametrize(
    ("handlers", "status"), [((THREAD, POOL), 200), ((COMPUTING,), 504)], ids=["idle", "busy"]
)
def test_threads_that_never_end_do_not_hold_it_up(
    tmp_path: Path, handlers: tuple[str, ...], status: int
) -> None:
    (tmp_path / "store").mkdir()
    for number, handler in enumerate(handlers):
        add_actor(tmp_path / "store", f"m{number}", handler=handler)
    with stopping(tmp_path / "store", tmp_path / "tmp") as client:
        hurry = {"x-request-timeout-ms": "300"} if status == 504 else {}
        for number in range(len(handlers)):
            assert client.ask(V1, f"m{number}", "say hello", headers=hurry).status == status
        assert client.server.stop(timeout=20) == 0
        assert list((tmp_path / "tmp").iterdir()) == []


def test_processes_of_handlers_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    add_actor(tmp_path / "store", "m", handler=PROCESS)
    with stopping(tmp_path / "store", tmp_path / "tmp") as client:
        answer = client.http.post("/v1/models/m:predict", json={"instances": [1]})
        (pid,) = answer.json()["predictions"]
        assert psutil.pid_exists(pid)
        assert client.server.stop(timeout=20) == 0
        assert not psutil.pid_exists(pid)


def add_late(store: Path, wall: Gate) -> None:
    """The model ``late``, which loads as long as the gate is closed."""
    handler = f"open({str(wall.path)!r}).read()\ndef handle(data, context): return data"
    add_actor(store, "late", handler=handler)


def test_a_later_load_that_hangs_does_not_hold_it_up(
    store: Path, tmp_path: Path, gate: Callable[[], Gate]
) -> None:
    wall = gate()
    with stopping(store, tmp_path / "tmp") as client:
        add_late(store, wall)
        with pytest.raises(httpx.ReadTimeout):  # the load goes on
            client.http.post("/v2/repository/models/late/load", timeout=0.5)
        wall.reached()
        assert client.server.stop(timeout=20) == 0
        assert list((tmp_path / "tmp").iterdir()) == []


def test_a_client_that_waits_for_a_load_is_told(
    store: Path, tmp_path: Path, gate: Callable[[], Gate]
) -> None:
    wall = gate()
    with stopping(store, tmp_path / "tmp") as client:
        add_late(store, wall)
        with ThreadPoolExecutor() as pool:
            path = "/v2/repository/models/late/load"
            loading = pool.submit(client.http.post, path, timeout=20)
            wall.reached()
            assert client.server.stop(timeout=20) == 0
            assert loading.result().status_code == 503
            assert loading.result().json() == {"error": "the server is being stopped"}


@pytest.mark.parametrize("options", [(), ("--open_early", "true")])
def test_while_a_model_loads(
    tmp_path: Path, gate: Callable[[], Gate], options: tuple[str, ...]
) -> None:
    wall = gate()
    (tmp_path / "store").mkdir()
    add_actor(
        tmp_path / "store",
        "m",
        handler=PROCESS.replace(
            "self.child.start()",
            f"""
        self.child.start()
        open({str(tmp_path / "child")!r}, "w").write(str(self.child.pid))
        open({str(wall.path)!r}).read()
""",
        ),
    )
    (tmp_path / "tmp").mkdir()
    environment = {"TMPDIR": str(tmp_path / "tmp")}
    server = Server(tmp_path / "store", *options, env=environment, wait=False)
    wall.reached()
    assert server.stop(timeout=20) == 0
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))
    assert STARTED not in server.log
    assert "failed to load" not in server.log


def test_a_grpc_stream_ends_with_its_answers(
    store: Path, tmp_path: Path, gate: Callable[[], Gate]
) -> None:
    wall = gate()
    with stopping(store, tmp_path / "tmp") as client:
        answer = client.begin(GRPC, "m", wall.command)
        wall.reached()
        client.server.process.send_signal(signal.SIGTERM)
        until(lambda: refused(client))
        late = client.ask(GRPC, "m", "say no", timeout=5)
        assert late.status == grpc.StatusCode.UNAVAILABLE
        wall.open()
        assert client.server.wait() == 0
        assert answer.result().ok


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_as_process_1(store: Path, tmp_path: Path) -> None:
    """As in a container: no init above it, nobody else reaps, signals have no default action."""
    probe = ["unshare", "--fork", "--pid", "--kill-child", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("unshare is not allowed here")
    (tmp_path / "tmp").mkdir()
    report = tmp_path / "pid"
    script = f"echo $$ > {report}; exec {sys.executable} -m kserve_torch --model_dir {store}"
    command = ["unshare", "--fork", "--pid", "--kill-child", "sh", "-c", script + ' "$@"', "sh"]
    http, grpc_port = map(str, free_ports(2))
    ports = ("--http_port", http, "--grpc_port", grpc_port, "--drain_seconds", "0")
    server = Server(None, *ports, command=command, env={"TMPDIR": str(tmp_path / "tmp")})
    assert report.read_text().strip() == "1"
    [child] = psutil.Process(server.process.pid).children()
    child.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert list((tmp_path / "tmp").iterdir()) == []


FORKING = """
import multiprocessing, time

def handle(data, context):
    if data is None:
        return None
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    other = fork.Process(target=lambda: begun.set() or time.sleep(30), daemon=True)
    other.start()
    begun.wait(30)
    other.terminate()
    other.join(5)
    return [other.exitcode for row in data]
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_end_of_a_process_that_a_handler_forked_is_not_the_servers(
    tmp_path: Path, loop: str
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": FORKING}, modelName="m")
    with talking_to(tmp_path, "--event-loop", loop) as client:
        for _ in range(2):
            answer = client.http.post("/v1/models/m:predict", json={"instances": [1]})
            assert answer.json() == {"predictions": [-signal.SIGTERM]}
        assert ready(client)
        assert client.server.stop() == 0


#: As a Java VM, which KoNLPy starts for example.
TAKES_SIGNALS = """
import ctypes, signal

class Handler:
    def initialize(self, context):
        for number in (signal.SIGTERM, signal.SIGINT):
            ctypes.CDLL(None).signal(number, ctypes.c_void_p(0))

    def handle(self, data, context):
        return [1] * len(data)
"""


def test_a_library_that_takes_the_signals_for_itself(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    make_archive(store / "m.mar", {"handler.py": TAKES_SIGNALS}, modelName="m")
    with Server(store) as server:
        assert server.stop() == 0
