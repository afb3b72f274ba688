import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kserve_torch.grpc import management
from kserve_torch.grpc.protos import management_pb2 as pb

from ..makers import make_archive
from .serving import Serving, refused, write_archive


@pytest.fixture
async def models(tmp_path: Path) -> AsyncIterator[Serving]:
    """A server whose models may change, with two versions of ``m`` in its store."""
    for version in ("1.0", "2.0"):
        write_archive(tmp_path / version, "m", "mirror", version)
        (tmp_path / version / "m").rename(tmp_path / f"m-{version}")
    serving = Serving(tmp_path, enable_model_api=True)
    await serving.start([])
    yield serving
    await serving.stop()


def manage(serving: Serving) -> Any:
    return serving.stub(management.SERVICE, serving.settings.grpc_management_port)


def register(version: str, **members: Any) -> pb.RegisterModelRequest:
    return pb.RegisterModelRequest(url=f"m-{version}", initial_workers=1, **members)


async def test_the_life_of_a_model(models: Serving) -> None:
    stub = manage(models)
    said = await stub.RegisterModel(register("1.0", synchronous=True, batch_size=4))
    assert said.msg == 'Model "m" Version: 1.0 registered with 1 initial workers'
    await stub.RegisterModel(register("2.0", synchronous=True))

    described = json.loads((await stub.DescribeModel(pb.DescribeModelRequest(model_name="m"))).msg)
    assert [(d["modelVersion"], d["batchSize"]) for d in described] == [("1.0", 4)]
    everything = pb.DescribeModelRequest(model_name="m", model_version="all")
    described = json.loads((await stub.DescribeModel(everything)).msg)
    assert [d["modelVersion"] for d in described] == ["1.0", "2.0"]
    listed = json.loads((await stub.ListModels(pb.ListModelsRequest())).msg)
    assert [model["modelName"] for model in listed["models"]] == ["m"]

    scale = pb.ScaleWorkerRequest(model_name="m", min_worker=2, max_worker=2, synchronous=True)
    assert (await stub.ScaleWorker(scale)).msg == "Workers scaled to 2 for model: m"

    code, text = await refused(stub.UnregisterModel(pb.UnregisterModelRequest(model_name="m")))
    assert (code, text) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "Cannot remove default version for model m",
    )
    said = await stub.SetDefault(pb.SetDefaultRequest(model_name="m", model_version="2.0"))
    assert said.msg == 'Default version successfully updated for model "m" to "2.0"'
    old = pb.UnregisterModelRequest(model_name="m", model_version="1.0")
    assert (await stub.UnregisterModel(old)).msg == 'Model "m" unregistered'
    assert [v.version for v in models.registry.versions("m")] == ["2.0"]


async def test_the_limits_of_a_registration(models: Serving) -> None:
    stub = manage(models)
    limits = {"max_batch_delay": 20, "response_timeout": 30, "startup_timeout": 600}
    await stub.RegisterModel(register("1.0", synchronous=True, **limits))
    (described,) = json.loads(
        (await stub.DescribeModel(pb.DescribeModelRequest(model_name="m"))).msg
    )
    of_rest = ("maxBatchDelay", "responseTimeout", "startupTimeout")
    assert [described[name] for name in of_rest] == [20, 30, 600]


async def test_registration_does_not_wait_unless_asked_to(models: Serving) -> None:
    said = await manage(models).RegisterModel(register("1.0"))
    assert said.msg == "Processing worker updates..."


async def test_refusals(models: Serving) -> None:
    stub = manage(models)
    await stub.RegisterModel(register("1.0", synchronous=True))
    await stub.RegisterModel(pb.RegisterModelRequest(url="m-2.0"))
    idle = pb.DescribeModelRequest(model_name="m", model_version="2.0", customized=True)
    cases = [
        (stub.RegisterModel(pb.RegisterModelRequest()), "INVALID_ARGUMENT"),
        (stub.RegisterModel(pb.RegisterModelRequest(url="none.mar")), "NOT_FOUND"),
        (stub.RegisterModel(pb.RegisterModelRequest(url="../m-1.0")), "NOT_FOUND"),
        (stub.RegisterModel(register("2.0", runtime="perl")), "INVALID_ARGUMENT"),
        (stub.RegisterModel(register("1.0")), "ALREADY_EXISTS"),
        (stub.DescribeModel(pb.DescribeModelRequest()), "INVALID_ARGUMENT"),
        (stub.DescribeModel(pb.DescribeModelRequest(model_name="x")), "NOT_FOUND"),
        (stub.DescribeModel(idle), "UNAVAILABLE"),
        (stub.DescribeModel(pb.DescribeModelRequest(model_name="m/all")), "INVALID_ARGUMENT"),
        (stub.ScaleWorker(pb.ScaleWorkerRequest(model_name="x")), "NOT_FOUND"),
        (stub.SetDefault(pb.SetDefaultRequest(model_name="m")), "INVALID_ARGUMENT"),
        (
            stub.SetDefault(pb.SetDefaultRequest(model_name="m", model_version="9")),
            "NOT_FOUND",
        ),
        (stub.UnregisterModel(pb.UnregisterModelRequest(model_name="x")), "NOT_FOUND"),
        (
            stub.DescribeModel(pb.DescribeModelRequest(model_name="m", model_version="invoke")),
            "NOT_FOUND",
        ),
        (
            stub.ScaleWorker(pb.ScaleWorkerRequest(model_name="m", min_worker=2, max_worker=1)),
            "INVALID_ARGUMENT",
        ),
    ]
    got = [(await refused(call))[0].name for call, _ in cases]
    assert got == [code for _, code in cases]


async def test_workers_that_do_not_start_are_no_reason_to_try_again(
    models: Serving, tmp_path: Path
) -> None:
    make_archive(tmp_path / "bad", {"handler.py": "import nowhere"}, modelName="bad")
    stub = manage(models)
    register = pb.RegisterModelRequest(url="bad", initial_workers=1, synchronous=True)
    registering = await refused(stub.RegisterModel(register))
    await stub.RegisterModel(pb.RegisterModelRequest(url="bad"))
    scale = pb.ScaleWorkerRequest(model_name="bad", min_worker=1, synchronous=True)
    scaling = await refused(stub.ScaleWorker(scale))
    assert registering == scaling
    assert scaling[0] is grpc.StatusCode.INTERNAL


async def test_changes_need_the_model_api(serving: Serving) -> None:
    stub = manage(serving)
    for call in (
        stub.RegisterModel(pb.RegisterModelRequest(url="echo")),
        stub.UnregisterModel(pb.UnregisterModelRequest(model_name="echo")),
    ):
        assert (await refused(call))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert json.loads((await stub.ListModels(pb.ListModelsRequest(limit=2))).msg) == {
        "nextPageToken": "2",
        "models": [
            {"modelName": "base64", "modelUrl": "base64"},
            {"modelName": "batch", "modelUrl": "batch"},
        ],
    }
