"""Deadlines cover the queue; who has left is in no batch; a worker that hangs is replaced."""

import re
import socket
from collections.abc import Callable, Iterator

import grpc
import pytest

from .actor import GRPC, NATIVE, PROTOCOLS, V1, V2, Client, Gate, store_of, talking_to, until

#: What the log says of a client that left a queue.
LEFT = re.compile(r"model=m version=1.0 status=499 ms=\S+ rows=1 batch=0 queue_ms=[1-9]")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    store = store_of(
        tmp_path_factory.mktemp("store"),
        m="batchSize: 1",
        impatient="batchSize: 1\nclientTimeoutInMills: 300",
        hangs="batchSize: 1\nresponseTimeout: 1",
    )
    with talking_to(store) as client:
        yield client


def late(protocol: str, milliseconds: float) -> dict[str, object]:
    """How a request of this protocol says until when it waits."""
    if protocol == GRPC:
        return {"timeout": milliseconds / 1000}
    return {"headers": {"x-request-timeout-ms": str(milliseconds)}}


def is_late(protocol: str, status: object) -> bool:
    wanted = {GRPC: grpc.StatusCode.DEADLINE_EXCEEDED, NATIVE: 500}
    return status == wanted.get(protocol, 504)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_deadline_that_passes_in_the_queue(
    client: Client, gate: Callable[[], Gate], protocol: str
) -> None:
    wall = gate()
    running = client.begin(V1, "m", wall.command)
    wall.reached()

    def shed() -> float:
        return client.shed("m", "deadline") + client.shed("m", "disconnected")

    before = shed()
    while shed() == before:  # a gRPC client's time may be over before its call has been sent
        answer = client.ask(protocol, "m", "raise", **late(protocol, 100))
        assert is_late(protocol, answer.status)
        if protocol != GRPC:  # a gRPC client does not wait for the server's word
            assert "deadline passed while it waited in the queue" in answer.text
    assert client.queued("m") == 0
    wall.open()
    assert running.result().ok


@pytest.mark.parametrize("protocol", [V1, V2, NATIVE])
def test_a_deadline_that_passes_while_it_runs(
    client: Client, gate: Callable[[], Gate], protocol: str
) -> None:
    wall = gate()
    answer = client.begin(protocol, "m", wall.command, **late(protocol, 250))
    wall.reached()
    assert is_late(protocol, answer.result().status)
    assert "deadline passed while it ran" in answer.result().text
    wall.open()
    assert client.ask(V1, "m", "say on").ok


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_time_that_a_model_gives_its_clients(
    client: Client, gate: Callable[[], Gate], protocol: str
) -> None:
    wall = gate()
    running = client.begin(protocol, "impatient", wall.command)
    wall.reached()
    waiting = client.begin(protocol, "impatient", "raise")
    assert is_late(protocol, waiting.result().status)
    assert is_late(protocol, running.result().status)
    wall.open()
    assert client.ask(V1, "impatient", "say on").ok


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models/m:predict", '{"instances": [{"data": "raise"}]}'),
        (
            "/v2/models/m/infer",
            '{"inputs": [{"name": "a", "shape": [1], "datatype": "BYTES", "data": ["raise"]}]}',
        ),
        ("/predictions/m", '"raise"'),
    ],
    ids=[V1, V2, NATIVE],
)
def test_who_leaves_the_queue_is_in_no_batch(
    client: Client, gate: Callable[[], Gate], path: str, body: str
) -> None:
    wall = gate()
    running = client.begin(V1, "m", wall.command)
    wall.reached()
    before = client.shed("m", "disconnected")
    left = len(LEFT.findall(client.server.log))
    head = f"POST {path} HTTP/1.1\r\nhost: m\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", client.server.ports["http"])) as sock:
        sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        until(lambda: client.queued("m") == 1)
    until(lambda: len(LEFT.findall(client.server.log)) == left + 1)
    assert client.queued("m") == 0
    assert client.shed("m", "disconnected") == before + 1
    wall.open()
    assert running.result().ok
    assert "raise" not in client.server.log.replace("raised", "")


def test_a_grpc_client_that_cancels(client: Client, gate: Callable[[], Gate]) -> None:
    from kserve_torch.grpc.protos import open_inference_pb2 as pb

    wall = gate()
    running = client.begin(V1, "m", wall.command)
    wall.reached()
    before = client.shed("m", "disconnected")
    contents = pb.InferTensorContents(bytes_contents=[b"raise"])
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="data", shape=[1], datatype="BYTES", contents=contents
    )
    call = client.grpc.ModelInfer.future(pb.ModelInferRequest(model_name="m", inputs=[tensor]))
    until(lambda: client.queued("m") == 1)
    call.cancel()
    until(lambda: client.shed("m", "disconnected") == before + 1)
    assert client.queued("m") == 0
    wall.open()
    assert running.result().ok
    assert "raise" not in client.server.log.replace("raised", "")


def test_hung_handlers(client: Client, gate: Callable[[], Gate]) -> None:
    """Each protocol is told, and the next request is served by a fresh worker."""
    for protocol in (V1, NATIVE, GRPC):
        wall = gate()
        hung = client.begin(protocol, "hangs", wall.command)
        wall.reached()
        waiting = client.begin(V2, "hangs", "say next")
        assert is_late(protocol, hung.result().status)
        assert "responseTimeout" in hung.result().text
        assert "say next" in waiting.result().text
        assert client.metric("workers", model_name="hangs", state="HUNG") == 1
        assert client.http.get("/v2/health/ready").json() == {"ready": True}
        # Python cannot stop a thread; it goes home when its handler answers after all.
        wall.open()
        until(lambda: client.metric("workers", model_name="hangs", state="HUNG") == 0)
    place = r"it is at .*\bhandler\.py:\d+ in handle .*; requests that fail: \S+$"
    line = rf"worker \d+ is hung: .* not answered for 1 s; {place}"
    assert re.search(line, client.server.log, re.MULTILINE)
    assert client.http.get("/v2/health/live").json() == {"live": True}
