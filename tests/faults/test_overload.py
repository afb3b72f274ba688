"""A full queue is refused at once and told apart; what was accepted is answered."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import grpc
import pytest

from .actor import GRPC, NATIVE, PROTOCOLS, Answer, Client, Gate, store_of, talking_to, until

QUEUE = 8


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    store = store_of(
        tmp_path_factory.mktemp("store"), m=f"batchSize: 1\njobQueueSize: {QUEUE}", other=""
    )
    with talking_to(store) as client:
        yield client


@pytest.fixture
def full(client: Client, gate: Callable[[], Gate]) -> tuple[Gate, list[Future[Answer]]]:
    """One request runs and the queue behind it is full, with requests of every protocol."""
    wall = gate()
    begun = [client.begin("v1", "m", wall.command)]
    wall.reached()
    begun += [client.begin(PROTOCOLS[i % 4], "m", f"say {i}") for i in range(QUEUE)]
    until(lambda: client.queued("m") == QUEUE)
    return wall, begun


def test_one_too_many_is_refused_and_all_others_are_answered(
    client: Client, full: tuple[Gate, list[Future[Answer]]]
) -> None:
    wall, begun = full
    before = client.shed("m", "queue_full")
    refusals = {protocol: client.ask(protocol, "m", "say no") for protocol in PROTOCOLS}
    for protocol, refusal in refusals.items():
        assert "queue is full" in refusal.text
        if protocol == GRPC:
            assert refusal.status == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert refusal.headers["grpc-retry-pushback-ms"] == "1000"
        else:
            assert refusal.status == 503
            assert refusal.headers["retry-after"] == "1"
    assert '"type": "ServiceUnavailableException"' in refusals[NATIVE].text
    assert client.shed("m", "queue_full") - before == len(PROTOCOLS)
    assert client.ask("v1", "other", "say hello").ok  # a full queue is one model's own
    wall.open()
    answers = [one.result() for one in begun]
    assert all(answer.ok for answer in answers)
    for i, answer in enumerate(answers[1:]):
        assert f"say {i}" in answer.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refusal_takes_milliseconds(
    client: Client, full: tuple[Gate, list[Future[Answer]]], protocol: str
) -> None:
    wall, begun = full
    seconds = []
    for _ in range(50):
        began = time.perf_counter()
        assert not client.ask(protocol, "m", "say no").ok
        seconds.append(time.perf_counter() - began)
    # The client's own time counts here; the middle one is not the machine's worst moment.
    assert sorted(seconds)[25] < 0.02
    wall.open()
    assert all(one.result().ok for one in begun)


def test_a_thousand_at_once(client: Client) -> None:
    before = client.shed("m", "queue_full")
    asked = [client.begin(PROTOCOLS[i % 4], "m", f"say {i}") for i in range(1000)]
    answers = [one.result() for one in asked]
    refused = [answer for answer in answers if not answer.ok]
    assert all("queue is full" in answer.text for answer in refused)
    for i, answer in enumerate(answers):
        assert not answer.ok or f"say {i}" in answer.text
    assert client.shed("m", "queue_full") - before == len(refused)
    assert client.queued("m") == 0
