from __future__ import annotations

import orjson
import pytest

from kserve_torch.codec import cloudevents, v1
from kserve_torch.errors import InvalidInput

EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "/client",
    "type": "ask",
    "time": "2026-01-02T03:04:05Z",
    "data": {"instances": [1]},
}
HEADERS = {
    "ce-specversion": "1.0",
    "ce-id": "1",
    "ce-source": "/client",
    "ce-type": "ask",
    "ce-time": "2026-01-02T03:04:05Z",
    "ce-extra": "e",
    "content-type": "application/json",
}
NEW = {"id": "2", "time": "2026-01-02T03:04:06Z"}


def structured(media_type=cloudevents.MEDIA_TYPE, **members):
    return v1.decode(orjson.dumps({**EVENT, **members}), media_type)


def test_binary_event_needs_all_four_headers():
    event = cloudevents.from_headers(HEADERS)
    assert event.structured is False
    assert event.attributes["extra"] == "e"
    assert "content-type" not in event.attributes
    for name in ("ce-specversion", "ce-id", "ce-source", "ce-type"):
        rest = {key: value for key, value in HEADERS.items() if key != name}
        assert cloudevents.from_headers(rest) is None


def test_structured_event_is_unwrapped():
    decoded = structured()
    assert decoded.instances == [1]
    assert decoded.event.structured is True
    assert decoded.event.attributes["source"] == "/client"


def test_event_under_plain_json_is_answered_plainly():
    decoded = structured("application/json")
    assert decoded.instances == [1]
    assert decoded.event.structured is False


@pytest.mark.parametrize("version", [1, "7", ["1.0"]])
def test_an_event_of_any_version(version):
    assert structured("application/json", specversion=version).instances == [1]


def test_a_body_that_only_looks_like_an_event():
    decoded = structured(instances=[2])
    assert decoded.instances == [2]
    assert decoded.event is None
    short = {key: value for key, value in EVENT.items() if key != "time"}
    with pytest.raises(InvalidInput, match='Expected "instances"'):
        v1.decode(orjson.dumps(short), "application/json")
    assert v1.decode(orjson.dumps(short), cloudevents.MEDIA_TYPE).instances == [1]


@pytest.mark.parametrize("data", ["text", None, [1]])
def test_data_that_is_no_object(data):
    with pytest.raises(InvalidInput, match=r"^data: expected an object"):
        structured(data=data)


def test_declared_event_without_data():
    body = {key: value for key, value in EVENT.items() if key != "data"}
    with pytest.raises(InvalidInput, match='Expected "instances"'):
        v1.decode(orjson.dumps(body), cloudevents.MEDIA_TYPE)


def test_response_attributes():
    event = cloudevents.from_headers(HEADERS)
    assert cloudevents.response_attributes(event, "m", {}, **NEW) == {
        "specversion": "1.0",
        "type": "io.kserve.inference.response",
        "source": "io.kserve.inference.m",
        **NEW,
    }
    environ = {"CE_TYPE": "t", "CE_SOURCE": "s", "CE_MERGE": "True"}
    merged = cloudevents.response_attributes(event, "m", environ, **NEW)
    assert merged == {"specversion": "1.0", "extra": "e", "type": "t", "source": "s", **NEW}


def test_attributes_keep_their_types():
    """A boolean is ``true`` in both forms, not Python's ``True``; a name remains text."""
    event = structured(flag=True, count=5, share=0.5, source=7).event
    environ = {"CE_MERGE": "true", "CE_SOURCE": "s"}
    merged = cloudevents.response_attributes(event, "m", environ, **NEW)
    headers = dict(cloudevents.to_headers(merged))
    assert (headers["ce-flag"], headers["ce-count"], headers["ce-share"]) == ("true", "5", "0.5")
    body = orjson.loads(cloudevents.to_structured(merged, b"{}"))
    assert (body["flag"], body["count"], body["share"]) == (True, 5, "0.5")
    assert event.attributes["source"] == "7"


def test_what_describes_the_requests_data_or_is_no_attribute_is_not_answered():
    event = structured(datacontenttype="text/x", nothing=None, several=[1], nested={"a": 1}).event
    assert not event.attributes.keys() & {"data", "nothing", "several", "nested"}
    merged = cloudevents.response_attributes(event, "m", {"CE_MERGE": "true"}, **NEW)
    assert "datacontenttype" not in merged


def test_structured_event_around_tensors():
    inputs = [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}]
    decoded = structured(data={"inputs": inputs})
    assert (decoded.inputs[0].name, decoded.event.structured) == ("x", True)


def test_what_headers_cannot_hold():
    attributes = {
        "plain": "io.KServe/a?b=c&d:e;f~g",
        "odd": 'a b"c%\r\nx: y\u20ac\ud800',
        "x\r\ny": "1",
        "a b": "1",
        "": "1",
        "kept\n": "1",
    }
    headers = dict(cloudevents.to_headers(attributes))
    assert headers == {
        "ce-plain": "io.KServe/a?b=c&d:e;f~g",
        "ce-odd": "a%20b%22c%25%0D%0Ax:%20y%E2%82%AC?",
    }


def test_values_of_headers_are_decoded():
    headers = {f"ce-{name}": name for name in ("specversion", "source", "type", "id")}
    event = cloudevents.from_headers({**headers, "ce-odd": "a%20%E2%82%ACb"})
    assert event.attributes["odd"] == "a \u20acb"
    assert dict(cloudevents.to_headers(event.attributes))["ce-odd"] == "a%20%E2%82%ACb"
