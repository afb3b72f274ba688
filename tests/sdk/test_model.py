"""`TorchModel`, and what the SDK does where it does otherwise (DESIGN, law 8).

A test called ``test_sdk_...`` fails when the SDK changes what we override.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kserve
import numpy as np
import pytest
from kserve import InferInput, InferRequest, InferResponse
from kserve import errors as kserve_errors
from kserve.model import InferenceVerb
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.infer_type import RequestedOutput
from kserve.protocol.rest.server import RESTServer

from kserve_torch import TorchModel
from kserve_torch.errors import (
    InvalidArchive,
    LoadFailed,
    OutOfMemory,
    Overloaded,
    PredictionError,
)

from ..makers import ECHO, make_archive, write


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return make_archive(tmp_path / "m.mar", {"handler.py": ECHO})


@pytest.fixture
def model(archive: Path) -> Iterator[TorchModel]:
    model = TorchModel("m", archive)
    model.load()
    yield model
    model.stop()


class Plain(kserve.Model):  # type: ignore[misc]  # kserve is untyped
    """A model as the SDK has it."""

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        return payload


def test_it_is_a_kserve_model(model: TorchModel) -> None:
    assert isinstance(model, kserve.Model)
    assert (model.name, model.ready) == ("m", True)


def test_it_needs_an_archive_or_a_registry() -> None:
    with pytest.raises(ValueError, match="either a model_dir or a registry"):
        TorchModel("m")


# --- life ---


def test_it_is_ready_when_loaded_and_not_after_its_stop(archive: Path) -> None:
    model = TorchModel("m", archive)
    assert not model.ready
    assert model.load() is True
    assert model.ready
    model.stop()
    assert not model.ready
    model.stop()


async def test_loading_twice_loads_once(model: TorchModel) -> None:
    """The SDK's gRPC calls ``load`` again from its event loop (CONTRACT K24)."""
    registry = model._registry
    assert model.load() is True
    assert model._registry is registry


async def test_it_loads_within_a_running_loop(archive: Path) -> None:
    model = TorchModel("m", archive)
    assert model.load() is True
    model.stop()


CONFIG = """
models={"m": {"1.0": {"batchSize": 7, "maxBatchDelay": 5}}}
"""


@pytest.mark.parametrize("layout", ["kserve", "store", "agent", "folder", "bare"])
def test_it_takes_the_layouts_that_the_server_takes(tmp_path: Path, layout: str) -> None:
    places = {
        "kserve": "model-store/x.mar",
        "store": "x.mar",
        "agent": "x/x.mar",
        "folder": "",
        "bare": "",
    }
    folder = tmp_path / "model"
    if layout == "bare":
        write(folder, {"handler.py": ECHO})
    else:
        make_archive(folder / places[layout], {"handler.py": ECHO})
    if layout == "kserve":
        write(folder, {"config/config.properties": CONFIG})
    model = TorchModel("m", folder)
    assert model.load() is True
    assert model._registry is not None
    limits = model._registry.find("m").limits
    model.stop()
    assert limits.batch_size == (7 if layout == "kserve" else 1)


@pytest.mark.parametrize(
    ("names", "told"), [(["a.mar", "b.mar"], r"got a\.mar, b\.mar"), ([], "got none")]
)
def test_a_store_with_other_than_one_archive_is_refused(
    tmp_path: Path, names: list[str], told: str
) -> None:
    (tmp_path / "model-store").mkdir()
    for name in names:
        make_archive(tmp_path / "model-store" / name, {"handler.py": ECHO})
    with pytest.raises(InvalidArchive, match=f"one archive is wanted in model-store, {told}"):
        TorchModel("m", tmp_path).load()


def test_an_archive_that_cannot_be_served(tmp_path: Path) -> None:
    source = make_archive(tmp_path / "bad.mar", {"handler.py": "raise ImportError('no such')"})
    model = TorchModel("bad", source)
    with pytest.raises(LoadFailed, match="no such"):
        model.load()
    assert not model.ready


async def test_each_process_that_is_sent_it_loads_its_own(archive: Path) -> None:
    model = TorchModel("m", archive)
    assert not pickle.loads(pickle.dumps(model)).ready
    model.load()
    sent = pickle.loads(pickle.dumps(model))
    model.stop()
    assert await sent({"instances": [1]}) == ({"predictions": [1]}, {})
    sent.stop()


def test_sdk_start_declares_the_model_ready() -> None:
    plain = Plain("p")
    plain.ready = False
    plain.start()
    assert plain.ready


def test_start_declares_nothing(archive: Path) -> None:
    model = TorchModel("m", archive)
    model.start()
    model.ready = True
    assert not model.ready


async def test_sdk_healthy_is_the_flag() -> None:
    plain = Plain("p")
    plain.ready = True
    assert await plain.healthy() is True


async def test_healthy_follows_the_workers(model: TorchModel) -> None:
    assert await model.healthy() is True
    model.stop()
    assert await model.healthy() is False


def test_sdk_calls_what_is_overridden() -> None:
    own = ("start", "stop", "load", "__call__", "validate", "predict", "explain")
    for name in (*own, "get_input_types", "get_output_types"):
        assert callable(getattr(kserve.Model, name))
    assert list(inspect.signature(kserve.Model.__call__).parameters) == [
        "self",
        "body",
        "headers",
        "verb",
    ]


async def test_sdk_loads_again_what_is_not_ready() -> None:
    """K24: the data plane calls ``load`` on its event loop, so ours must be cheap."""
    loaded = []

    class Slow(Plain):
        def load(self) -> bool:
            loaded.append(self.name)
            return True

    repository = kserve.ModelRepository()
    slow = Slow("s")
    slow.ready = False
    repository.update(slow)
    await DataPlane(model_registry=repository).get_model("s")
    assert loaded == ["s"]


# --- requests ---


async def test_v1(model: TorchModel) -> None:
    assert await model({"instances": [1, {"data": "x"}]}) == ({"predictions": [1, "x"]}, {})


@pytest.mark.parametrize("result", [2**64, -(2**63) - 1, "\ud800"])
async def test_v1_results_that_orjson_cannot_read(model: TorchModel, result: Any) -> None:
    assert await model({"instances": [result]}) == ({"predictions": [result]}, {})


@pytest.mark.parametrize("body", [b'{"instances": [1]}', b' {"instances": [1]}'])
async def test_v1_unparsed(model: TorchModel, body: bytes) -> None:
    """The SDK hands over ``application/json; charset=utf-8`` as bytes (CONTRACT T-07)."""
    headers = {"content-type": "application/json; charset=utf-8"}
    assert await model(body, headers) == ({"predictions": [1]}, {})


async def test_v1_run_again(tmp_path: Path) -> None:
    """What the handler does to the rows reaches neither the next run nor the caller."""
    handler = """
class Takes:
    def handle(self, data, context):
        taken = [row.pop() for row in data]
        if len(taken) > 1:
            raise ValueError
        return taken
"""
    yaml = {"model-config.yaml": "batchSize: 2\nmaxBatchDelay: 20000"}
    archive = make_archive(
        tmp_path / "m.mar", {"handler.py": handler, **yaml}, configFile="model-config.yaml"
    )
    model = TorchModel("m", archive)
    model.load()
    bodies = [{"instances": [[i]]} for i in range(2)]
    answers = await asyncio.gather(*map(model, bodies))
    model.stop()
    assert answers == [({"predictions": [i]}, {}) for i in range(2)]
    assert bodies == [{"instances": [[i]]} for i in range(2)]


#: Each row is a path; a pipe's call ends when somebody writes to it.
OPENS = """
def handle(data, context):
    for path in data or ():
        open(path).close()
    return data
"""


def test_calls_that_hang_are_given_up_on_every_loop(tmp_path: Path) -> None:
    """The first loop no longer runs when the call on the second one hangs."""
    archive = make_archive(
        tmp_path / "m.mar",
        {"handler.py": OPENS, "model-config.yaml": "responseTimeout: 0.2"},
        configFile="model-config.yaml",
    )
    os.mkfifo(tmp_path / "pipe")
    model = TorchModel("m", archive)
    model.load()
    with asyncio.Runner() as first:
        assert first.run(model({"instances": [os.devnull]}))
        with pytest.raises(Exception, match="did not answer within"):
            asyncio.run(asyncio.wait_for(model({"instances": [str(tmp_path / "pipe")]}), 10))
    (tmp_path / "pipe").open("w").close()
    model.stop()


def test_stopping_it_on_another_thread_answers_what_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    model = TorchModel("m", make_archive(tmp_path / "m.mar", {"handler.py": OPENS}))
    model.load()
    statistics = model._registry.find("m").statistics
    refused = threading.Event()

    async def call() -> None:
        try:
            await model({"instances": [str(tmp_path / "pipe")]})
        except kserve_errors.ModelNotReady:
            refused.set()

    async def calls() -> None:
        await asyncio.gather(call(), call())

    client = threading.Thread(target=asyncio.run, args=[calls()], daemon=True)
    client.start()
    ends = time.monotonic() + 10
    while not (statistics().running and statistics().queued):
        assert time.monotonic() < ends
        time.sleep(0.001)
    model.stop()
    assert refused.wait(10)
    (tmp_path / "pipe").open("w").close()
    client.join()


class Doubling(TorchModel):
    """What the SDK's models are subclassed for, with the signatures that its pages have."""

    async def preprocess(self, payload: Any, headers: Any = None) -> Any:
        return {"instances": [2 * value for value in payload["instances"]]}

    def postprocess(self, result: Any, headers: Any = None) -> Any:
        return {key: [value + 1 for value in values] for key, values in result.items()}


@pytest.mark.parametrize("verb", InferenceVerb)
async def test_a_subclass_may_process_what_comes_and_goes(
    archive: Path, verb: InferenceVerb
) -> None:
    model = Doubling("m", archive)
    model.load()
    answer, _ = await model({"instances": [1, 2]}, {}, verb)
    assert list(answer.values()) == [[3, 5]]
    assert await model.predict({"instances": [1, 2]}) == {"predictions": [1, 2]}
    model.stop()


async def test_what_the_data_plane_tells_of_it(archive: Path, tmp_path: Path) -> None:
    signature = "signature:\n  inputs:\n  - {name: x, datatype: FP32, shape: [-1]}\n"
    files = {"handler.py": ECHO, "c.yaml": signature}
    model = TorchModel("m", make_archive(tmp_path / "s.mar", files, configFile="c.yaml"))
    assert (await plane_of(model).model_metadata("m"))["inputs"] == []
    model.load()
    told = await plane_of(model).model_metadata("m")
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    assert told["outputs"] == []
    model.stop()


async def test_v1_explain(model: TorchModel) -> None:
    answer, _ = await model({"instances": [1]}, verb=InferenceVerb.EXPLAIN)
    assert answer == {"explanations": [1]}


def tensor(*shape: int, datatype: str = "FP32", dtype: Any = np.float32) -> InferInput:
    made = InferInput("x", list(shape), datatype)
    made.set_data_from_numpy(np.ones(shape, dtype), binary_data=False)
    return made


async def test_v2(model: TorchModel) -> None:
    request = InferRequest("m", [tensor(2, 3)], request_id="7")
    answer, _ = await model(request)
    assert isinstance(answer, InferResponse)
    assert (answer.id, answer.model_name, answer.model_version) == ("7", "m", "1.0")
    (output,) = answer.outputs
    assert (output.name, output.shape) == ("x", [2, 3])


async def test_v2_data_in_the_shape_of_its_tensor(model: TorchModel) -> None:
    """`InferInput` takes arrays of any shape, as its own `set_data_from_numpy` leaves none."""
    given = InferInput("x", [2, 2], "INT64", np.array([[1, 2], [3, 4]]))
    answer, _ = await model(InferRequest("m", [given]))
    assert isinstance(answer, InferResponse)
    (output,) = answer.outputs
    assert (output.shape, output.as_numpy().tolist()) == ([2, 2], [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "x", "parameters": {"binary_data": True}}]},
    ],
)
async def test_v2_under_v1(model: TorchModel, more: dict[str, Any]) -> None:
    """KServe's v1 routes send JSON only."""
    inputs = [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}]
    answer, _ = await model({"inputs": inputs, "id": "7", **more})
    assert isinstance(answer, dict)
    assert (answer["id"], answer["outputs"][0]["data"]) == ("7", [1])


async def test_sdk_forgets_the_default_of_binary_outputs() -> None:
    """O42: an output that does not say otherwise should follow ``binary_data_output``."""
    assert RequestedOutput("x", {}).binary_data is None


@pytest.mark.parametrize("parameters", [None, {}])
async def test_outputs_inherit_the_default(
    model: TorchModel, parameters: dict[str, Any] | None
) -> None:
    request = InferRequest(
        "m",
        [tensor(2)],
        parameters={"binary_data_output": True},
        request_outputs=[RequestedOutput("x", parameters)],
    )
    answer, _ = await model(request)
    assert isinstance(answer, InferResponse)
    body, length = answer.to_rest()
    assert isinstance(body, bytes)
    assert len(body) - (length or 0) == 16


ONE = InferInput("x", [1], "INT8", [1])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"instances": 1}, "instances"),
        ({"inputs": 1}, "inputs"),
        (b"\xff{", "Unrecognized request format"),
        (InferRequest("m", []), "inputs: expected at least one tensor"),
        (InferRequest("m", [ONE] * 2), r'inputs\[1\] "x": duplicate name'),
        (
            InferRequest("m", [ONE], request_outputs=[RequestedOutput("x")] * 2),
            r'outputs\[1\] "x": duplicate name',
        ),
    ],
)
async def test_bad_bodies(model: TorchModel, body: Any, text: str) -> None:
    with pytest.raises(kserve_errors.InvalidInput, match=text):
        await model(body, {"content-type": "application/json"})


async def test_an_unloaded_model_is_not_ready(archive: Path) -> None:
    with pytest.raises(kserve_errors.ModelNotReady):
        await TorchModel("m", archive)({"instances": [1]})


async def test_an_unknown_version(model: TorchModel) -> None:
    from starlette.exceptions import HTTPException

    with pytest.raises(HTTPException) as caught:
        await model(InferRequest("m", [tensor(1)], model_version="9"))
    assert caught.value.status_code == 404


async def test_what_a_handler_raises(tmp_path: Path) -> None:
    make_archive(
        tmp_path / "m.mar",
        {"handler.py": "def handle(data, context):\n    return data and 1 / 0\n"},
    )
    model = TorchModel("m", tmp_path / "m.mar")
    model.load()
    with pytest.raises(kserve_errors.InferenceError, match="ZeroDivisionError"):
        await model({"instances": [1]})
    model.stop()


# --- headers of explanations ---

HEADERS = {"authorization": "Bearer secret", "cookie": "a=b", "content-type": "application/json"}


def plane_of(model: Any) -> DataPlane:
    repository = kserve.ModelRepository()
    repository.update(model)
    return DataPlane(model_registry=repository)


async def test_sdk_explain_answers_with_the_headers_of_the_request() -> None:
    class Explains(Plain):
        async def explain(self, payload: Any, headers: Any = None) -> Any:
            return payload

    plain = Explains("p")
    plain.ready = True
    _, headers = await plane_of(plain).explain("p", {"instances": [1]}, dict(HEADERS))
    assert headers.items() >= HEADERS.items()


async def test_explain_sends_no_header_of_the_request_back(tmp_path: Path) -> None:
    handler = """
def handle(data, context):
    if data:
        context.set_response_header(0, "x-own", "1")
        return [context.get_request_header(0, "authorization")]
"""
    model = TorchModel("m", make_archive(tmp_path / "m.mar", {"handler.py": handler}))
    model.load()
    answer = await plane_of(model).explain("m", {"instances": [1]}, dict(HEADERS))
    told: dict[str, str] = {}
    await model.predict({"instances": [1]}, response_headers=told)
    model.stop()
    assert answer == ({"explanations": ["Bearer secret"]}, {"x-own": "1"})
    assert told == {"x-own": "1"}


async def test_explain_answers_an_event_with_an_event(model: TorchModel) -> None:
    plane = plane_of(model)
    event = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0"}
    headers = {**HEADERS, **event}
    body, attributes = plane.decode(b'{"instances": [1]}', headers)
    response, headers = await plane.explain("m", body, headers)
    assert headers == event
    _, encoded = plane.encode("m", response, headers, attributes)
    assert encoded["ce-type"] == "io.kserve.inference.response"


# --- statuses that the SDK has no word for ---


async def test_sdk_serves_one_application_that_others_can_reach() -> None:
    server = inspect.getsource(RESTServer.create_application)
    assert 'import_from_string("kserve.model_server:app")' in server


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (Overloaded("the queue is full"), 503, {"retry-after": "1"}),
        (OutOfMemory("no room"), 507, {}),
        (PredictionError("teapot", 418), 418, {}),
    ],
)
async def test_errors_of_any_status_have_kserves_form(
    model: TorchModel,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    headers: dict[str, str],
) -> None:
    from kserve.model_server import app

    async def fails(request: Any) -> Any:
        raise error

    monkeypatch.setattr(model._registry, "submit", fails)
    with pytest.raises(Exception, match=str(error)) as caught:
        await model({"instances": [1]})
    answered = app.exception_handlers[type(caught.value)]
    answer = await answered(None, caught.value)
    assert (answer.status_code, answer.body) == (status, b'{"error":"%b"}' % str(error).encode())
    assert headers.items() <= dict(answer.headers).items()
