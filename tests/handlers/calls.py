"""Requests to a model of the running server."""

import base64
import json
from typing import Any

import httpx

from ..server import ROOT, Server

PICTURES = ROOT / "handlers" / "mnist" / "test_data"
SAMPLES = ROOT / "kf_request_json"


def picture(digit: int) -> bytes:
    """A PNG file of 28x28 pixels."""
    return (PICTURES / f"{digit}.png").read_bytes()


def encoded(digit: int) -> str:
    return base64.b64encode(picture(digit)).decode()


def post(server: Server, path: str, body: Any) -> httpx.Response:
    with server.client() as client:
        return client.post(path, json=body)


def v1(server: Server, model: str, *data: Any, verb: str = "predict") -> list[Any]:
    """What the v1 protocol answers to one instance for each of ``data``."""
    response = post(
        server, f"/v1/models/{model}:{verb}", {"instances": [{"data": one} for one in data]}
    )
    assert response.status_code == 200, response.text
    return response.json()["predictions" if verb == "predict" else "explanations"]


def v2(server: Server, model: str, *texts: str, verb: str = "infer") -> list[dict[str, Any]]:
    """The outputs that the v2 protocol answers to one BYTES input for each of ``texts``."""
    inputs = [
        {"name": f"input-{i}", "datatype": "BYTES", "shape": [1], "data": [text]}
        for i, text in enumerate(texts)
    ]
    response = post(server, f"/v2/models/{model}/{verb}", {"inputs": inputs})
    assert response.status_code == 200, response.text
    return response.json()["outputs"]


def objects(outputs: list[dict[str, Any]]) -> list[Any]:
    """The JSON objects in BYTES outputs."""
    return [json.loads(text) for output in outputs for text in output["data"]]


def upload(server: Server, model: str, body: bytes) -> httpx.Response:
    """As ``curl -T`` sends a file."""
    with server.client() as client:
        return client.put(f"/predictions/{model}", content=body)


def refusal(server: Server, model: str, *data: Any, verb: str = "predict") -> str:
    """What is wrong with the instances, by the server's answer."""
    response = post(
        server, f"/v1/models/{model}:{verb}", {"instances": [{"data": one} for one in data]}
    )
    assert response.status_code == 400, response.text
    return response.json()["error"]


def sample(server: Server, name: str, path: str) -> Any:
    """The answer to a request of ``kf_request_json``."""
    response = post(server, path, json.loads((SAMPLES / name).read_bytes()))
    assert response.status_code == 200, response.text
    return response.json()
