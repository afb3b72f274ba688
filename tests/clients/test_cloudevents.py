"""CloudEvents senders, with the SDK that kserve itself uses."""

from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
from cloudevents.conversion import to_binary, to_structured
from cloudevents.http import CloudEvent, from_http

from ..server import Server

PREDICT = "/v1/models/identity:predict"


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def event(data: Any = None) -> CloudEvent:
    attributes = {"type": "my.type", "source": "my-source", "id": "7", "extra": "more"}
    return CloudEvent(attributes, {"instances": [[1, 2], "a"]} if data is None else data)


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


def test_structured_without_its_content_type_is_answered_plainly(client: httpx.Client) -> None:
    _, body = to_structured(event())
    answer = client.post(PREDICT, headers={"content-type": "application/json"}, content=body)
    assert answer.json() == {"predictions": [[1, 2], "a"]}


def test_an_instance_that_looks_like_an_event_is_none(client: httpx.Client) -> None:
    names = ("time", "type", "source", "id", "specversion", "data")
    body = {**dict.fromkeys(names, "1.0"), "instances": [1]}
    assert client.post(PREDICT, json=body).json() == {"predictions": [1]}


@pytest.mark.parametrize("kind", [to_binary, to_structured])
def test_an_event_without_instances(client: httpx.Client, kind: Any) -> None:
    headers, body = kind(event({"other": 1}))
    answer = client.post(PREDICT, headers=headers, content=body)
    assert answer.status_code == 400
    assert "instances" in answer.json()["error"]


def test_the_agents_logger_and_batcher_add_headers(client: httpx.Client) -> None:
    """KServe's agent sets these on plain requests: they are no event and do no harm."""
    headers = {"Ce-Id": "5", "Ce-Inferenceservicename": "x", "Ce-Namespace": "y"}
    answer = client.post(PREDICT, headers=headers, json={"instances": [1]})
    assert orjson.loads(answer.content) == {"predictions": [1]}
    assert not [name for name in answer.headers if name.startswith("ce-")]
