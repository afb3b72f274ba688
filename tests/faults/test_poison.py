"""One bad request among others fails alone, whatever protocol each of them came by."""

import json
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from .actor import (
    GRPC,
    NATIVE,
    PROTOCOLS,
    V1,
    V2,
    Client,
    Gate,
    add_actor,
    store_of,
    talking_to,
    tensor,
    until,
)

#: What goes wrong, and its status on KServe's routes, on TorchServe's and in gRPC.
POISONS = {
    "raise boom": (500, 503, grpc.StatusCode.INTERNAL),
    "short": (500, 503, grpc.StatusCode.INTERNAL),
    "exit": (500, 503, grpc.StatusCode.INTERNAL),
    "bad": (400, 400, grpc.StatusCode.INVALID_ARGUMENT),
    "code 418": (418, 418, grpc.StatusCode.INVALID_ARGUMENT),
    "code 42": (500, 500, grpc.StatusCode.INTERNAL),
    "memory": (507, 507, grpc.StatusCode.RESOURCE_EXHAUSTED),
    "status 507": (507, 507, grpc.StatusCode.RESOURCE_EXHAUSTED),
    "status 1000": (500, 503, grpc.StatusCode.INTERNAL),
    "header x-a=b\\r\\nx-c: d": (500, 503, None),
    "header x-a=\\u2603": (500, 503, None),
}


#: Answers each row as it came, and leaves nothing of it.
DIGGER = """
import json

def dig(value):
    inner = value.values() if isinstance(value, dict) else value
    for one in list(inner) if isinstance(value, (dict, list)) else []:
        dig(one)
    if isinstance(value, (dict, list, bytearray)):
        value.clear()

class Digger:
    def handle(self, data, context):
        texts = [json.dumps(row, default=lambda value: value.decode()) for row in data]
        dig(data[:])
        if any("poison" in text for text in texts):
            raise ValueError("poison")
        return texts
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    store = store_of(
        tmp_path_factory.mktemp("store"),
        m="batchSize: 8\nmaxBatchDelay: 20000",
        memory="batchSize: 8\nmaxBatchDelay: 20000",
    )
    add_actor(store, "digger", "batchSize: 8\nmaxBatchDelay: 20000", DIGGER)
    with talking_to(store) as client:
        yield client


@pytest.fixture(autouse=True)
def _serves_on(client: Client) -> Iterator[None]:
    yield
    begun = [client.begin(PROTOCOLS[i % 4], "m", f"say {i}") for i in range(8)]
    assert all(one.result().ok for one in begun)
    assert client.http.get("/v2/health/ready").json() == {"ready": True}


def batch(client: Client, model: str, *commands: tuple[str, str]) -> list[object]:
    """Eight requests of all protocols that the handler gets in one call."""
    begun = []
    for i, (protocol, command) in enumerate(commands):
        begun.append(client.begin(protocol, model, command))
        if i < len(commands) - 1:  # the last one completes the batch
            until(lambda count=i + 1: client.queued(model) == count)
    return [one.result() for one in begun]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("poison", POISONS)
def test_one_bad_request_among_eight(client: Client, poison: str, protocol: str) -> None:
    kserve, native, code = POISONS[poison]
    ran = client.metric("batch_rows_count", model_name="m")
    commands = [(PROTOCOLS[i % 4], f"say {i}") for i in range(8)]
    guilty = 4 + PROTOCOLS.index(protocol)
    commands[guilty] = (protocol, poison)
    answers = batch(client, "m", *commands)
    assert client.metric("batch_rows_count", model_name="m") == ran + 1
    bad = answers.pop(guilty)
    assert all(answer.ok for answer in answers), answers
    said = [f"say {i}" for i in range(8) if i != guilty]
    assert all(text in answer.text for text, answer in zip(said, answers, strict=True))
    if protocol == GRPC and code is None:
        return  # gRPC metadata leaves out what it cannot carry
    assert bad.status == {NATIVE: native, GRPC: code}.get(protocol, kserve), bad
    assert "Traceback" not in bad.text
    assert tempfile.gettempdir() not in bad.text


def test_the_log_says_how_many_results_were_missing(client: Client) -> None:
    answers = batch(client, "m", *((V1, "say a") for _ in range(7)), (V2, "short"))
    assert [answer.ok for answer in answers] == [True] * 7 + [False]
    assert "0 results for 1 rows" in answers[-1].text
    assert "0 results for 1 rows" in client.server.log


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_log_says_why_an_answer_cannot_be_sent(client: Client, protocol: str) -> None:
    why = "failed: the handler set status 1000, it must be"
    before = client.server.log.count(why)
    batch(client, "m", *((V1, "say a") for _ in range(7)), (protocol, "status 1000"))
    until(lambda: client.server.log.count(why) == before + 1)


def test_a_bad_row_is_named_as_its_protocol_does(client: Client) -> None:
    body = {"instances": [{"data": "say a"}, {"data": "bad"}, *[{"data": "say b"}] * 6]}
    answer = client.http.post("/v1/models/m:predict", json=body)
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "instances[1].data: unreadable"},
    )


def test_a_request_that_fits_nowhere_shrinks_no_batch(client: Client) -> None:
    commands = [(PROTOCOLS[i % 4], f"say {i}") for i in range(7)]
    answers = batch(client, "m", (V1, "memory"), *commands)
    assert [answer.ok for answer in answers] == [False] + [True] * 7
    assert "m 1.0 predict: out of memory with" not in client.server.log


def test_out_of_memory_shrinks_the_batch_and_is_remembered(client: Client) -> None:
    answers = batch(client, "memory", *((PROTOCOLS[i % 4], "big") for i in range(8)))
    assert all(answer.ok for answer in answers)
    said = "out of memory with 4 rows; batches have at most 2 for the next 10 minutes"
    until(lambda: said in client.server.log)  # after the answers
    # Two rows are a full batch now: nobody waits for maxBatchDelay.
    assert all(one.result().ok for one in [client.begin(V1, "memory", "big") for _ in range(2)])
    assert client.server.log.count("memory 1.0 predict: out of memory with") == 3


def test_a_full_batch_with_two_poisons(client: Client, gate: Callable[[], Gate]) -> None:
    commands = [(PROTOCOLS[i % 4], f"say {i}") for i in range(8)]
    commands[0], commands[5] = (V1, "raise one"), (V2, "raise two")
    answers = batch(client, "m", *commands)
    assert [answer.ok for answer in answers] == [i not in (0, 5) for i in range(8)]
    assert "one" in answers[0].text
    assert "two" in answers[5].text


def test_who_is_run_again_is_run_with_what_was_sent(client: Client) -> None:
    deep = {"deep": [{"values": [[1], [2]]}, "x"]}
    row = {"name": "data", "shape": [1], "datatype": "BYTES", "data": "text"}
    sent: list[tuple[str, dict[str, Any], object]] = [
        ("/v1/models/digger:predict", {"json": {"instances": ["poison"]}}, None),
        ("/v1/models/digger:predict", {"json": {"instances": [deep, [[0]]]}}, [deep, [[0]]]),
        ("/v2/models/digger/infer", {"json": {"inputs": [tensor("text")]}}, [row]),
        ("/predictions/digger", {"json": deep}, [{"body": deep}]),
        ("/predictions/digger", {"content": b"bytes"}, [{"body": "bytes"}]),
        ("/predictions/digger", {"files": {"data": b"file"}}, [{"data": "file"}]),
        ("/predictions/digger", {"data": {"field": "text"}}, [{"field": "text"}]),
    ]
    with ThreadPoolExecutor(len(sent)) as threads:
        answers = [threads.submit(client.http.post, path, **body) for path, body, _ in sent]
    for answer, (_, _, rows) in zip(answers, sent, strict=True):
        seen = answer.result().json()
        if rows is None:
            assert "poison" in seen["error"]
        else:
            assert _rows(seen) == rows


def _rows(answer: Any) -> list[Any]:
    """What a digger found, whatever protocol it told it in."""
    if "predictions" in answer:
        return [json.loads(text) for text in answer["predictions"]]
    return [json.loads(answer["outputs"][0]["data"][0])] if "outputs" in answer else [answer]
