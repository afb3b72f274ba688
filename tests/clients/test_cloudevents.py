"""CloudEvents senders, with the SDK that kserve itself uses."""

from collections.abc import Iterator

import httpx
import pytest
from cloudevents.conversion import to_binary, to_structured
from cloudevents.http import CloudEvent, from_http

from ..server import Server

PREDICT = "/v1/models/identity:predict"


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def event() -> CloudEvent:
    attributes = {"type": "my.type", "source": "my-source", "id": "7", "extra": "more"}
    return CloudEvent(attributes, {"instances": [[1, 2], "a"]})


def test_binary(client: httpx.Client) -> None:
    headers, body = to_binary(event())
    answer = client.post(PREDICT, headers=headers, content=body)
    assert answer.headers["content-type"] == "application/json"
    answered = from_http(answer.headers, answer.content)
    assert answered.get_data() == {"predictions": [[1, 2], "a"]}
    assert answered["type"] == "io.kserve.inference.response"
    assert answered["source"] == "io.kserve.inference.identity"
    assert answered["specversion"] == "1.0"
    assert answered["id"] != "7"


def test_structured(client: httpx.Client) -> None:
    headers, body = to_structured(event())
    answer = client.post(PREDICT, headers=headers, content=body)
    assert answer.headers["content-type"] == "application/cloudevents+json"
    answered = from_http(answer.headers, answer.content)
    assert answered.get_data() == {"predictions": [[1, 2], "a"]}
    assert answered["source"] == "io.kserve.inference.identity"
