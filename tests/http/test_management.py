"""Transcripts of TorchServe 0.12's management API, and what is done better on purpose."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.events import WorkerChanged
from kserve_torch.http.api import whole_api
from kserve_torch.http.call import Answer
from kserve_torch.http.management import Management
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.tokens import Tokens

from ..hosts import hosting_files
from ..makers import make_archive
from .conftest import call, routed, settled

NOT_ALLOWED = {
    "code": 405,
    "type": "MethodNotAllowedException",
    "message": "Requested method is not allowed, please refer to API document.",
}
#: More than any float.
HUGE = 10**400
API = whole_api(management=True)
DESCRIBED = API["components"]["schemas"]["Versions"]["items"]["properties"]
NO_WORKERS = (
    'Model "echo" Version: 2.0 registered with 0 initial workers. '
    "Use scale workers API to add workers for the model."
)


@pytest.fixture
def management(registry: Registry, settings: Settings) -> Management:
    return Management(registry, settings, tokens=None)


async def ask(
    management: Management, method: str, target: str, body: bytes = b"", **headers: str
) -> tuple[int, Any]:
    called = call(method, target, body, management=True, **headers)
    answer = await routed(management.route, called)
    assert isinstance(answer.body, bytes)
    return answer.status, json.loads(answer.body)


def status(text: str) -> dict[str, str]:
    return {"status": text}


def fault(code: int, kind: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"code": code, "type": kind, "message": message}


# --- describe and list ---


async def test_list(management: Management) -> None:
    models = {"models": [{"modelName": "echo", "modelUrl": "echo_1.0.mar"}]}
    for target in ("/models", "/models/", "/models?limit=1001", "/models?limit=x"):
        assert await ask(management, "GET", target) == (200, models)
    for target in ("/models?limit=-1", "/models?next_page_token=-5", "/models?next_page_token=x"):
        assert await ask(management, "GET", target) == (200, models)
    assert await ask(management, "GET", "/models?next_page_token=5") == (200, {"models": []})


async def test_pages(management: Management, registry: Registry) -> None:
    await registry.register("echo_2.0.mar", name="another", workers=0)
    code, page = await ask(management, "GET", "/models?limit=1")
    assert [model["modelName"] for model in page["models"]] == ["another"]
    assert (code, page["nextPageToken"]) == (200, "1")
    code, page = await ask(management, "GET", "/models?limit=1&next_page_token=1")
    assert [model["modelName"] for model in page["models"]] == ["echo"]
    assert "nextPageToken" not in page


async def test_describe(management: Management) -> None:
    code, [described] = await ask(management, "GET", "/models/echo")
    worker = described["workers"][0]
    assert code == 200
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", worker.pop("startTime"))
    assert re.fullmatch(r"9\d{3}", worker.pop("id"))
    assert worker.pop("memoryUsage") > 0
    assert worker.pop("pid") > 0
    assert list(described.items()) == [
        ("modelName", "echo"),
        ("modelVersion", "1.0"),
        ("modelUrl", "echo_1.0.mar"),
        ("runtime", "python"),
        ("minWorkers", 1),
        ("maxWorkers", 1),
        ("batchSize", 1),
        ("maxBatchDelay", 100),
        ("responseTimeout", 120),
        ("startupTimeout", 120),
        ("maxRetryTimeoutInSec", 300),
        ("clientTimeoutInMills", 0),
        ("parallelType", ""),
        ("parallelLevel", 0),
        ("deviceType", "cpu"),
        ("continuousBatching", False),
        ("useJobTicket", False),
        ("useVenv", False),
        ("stateful", False),
        ("sequenceMaxIdleMSec", 0),
        ("sequenceTimeoutMSec", 0),
        ("maxNumSequence", 0),
        ("maxSequenceJobQueueSize", 0),
        ("loadedAtStartup", True),
        ("workers", [{"status": "READY", "gpu": False, "gpuUsage": "N/A"}]),
        ("jobQueueStatus", {"remainingCapacity": 100, "pendingRequests": 0}),
    ]


async def test_describe_which(management: Management, registry: Registry) -> None:
    await registry.register("echo_2.0.mar", workers=0)
    for target, versions in (
        ("/models/echo", ["1.0"]),
        ("/models/echo/2.0", ["2.0"]),
        ("/models/echo/all", ["1.0", "2.0"]),
    ):
        code, described = await ask(management, "GET", target)
        assert (code, [one["modelVersion"] for one in described]) == (200, versions)


async def test_describe_as_the_handler_does(management: Management) -> None:
    for target in ("/models/echo", "/models/echo/1.0", "/models/echo/all"):
        code, [described] = await ask(management, "GET", target + "?customized=true")
        assert (code, list(described)[-1]) == (200, "customizedMetadata")
        assert described["customizedMetadata"] == {"about": "echo"}
        # Generated clients in Go refuse answers with members that the document lacks.
        assert described.keys() <= DESCRIBED.keys()
    _, [described] = await ask(management, "GET", "/models/echo?customized=no")
    assert "customizedMetadata" not in described


async def test_a_handler_that_cannot_describe_itself(
    management: Management, registry: Registry, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = "def handle(data, context):\n    return data and [[1]] * len(data)\n"
    make_archive(store / "plain.mar", {"plain.py": source}, modelName="plain", handler="plain.py")
    await registry.register("plain.mar")
    code, [described] = await ask(management, "GET", "/models/plain?customized=true")
    assert (code, described["customizedMetadata"]) == (200, {})
    assert "plain 1.0: the handler describes itself with list" in caplog.text


async def test_what_a_handler_says_of_itself_may_be_anything_but_an_object(
    management: Management, registry: Registry, store: Path
) -> None:
    source = (
        "import numpy\n"
        "said = [{1: 'cat'}, {'size': numpy.int64(3), 'of': numpy.ones(2)}, {'of': object()}]\n"
        "def handle(data, context):\n    return data and [said.pop(0)]\n"
    )
    make_archive(store / "odd.mar", {"odd.py": source}, modelName="odd", handler="odd.py")
    await registry.register("odd.mar")
    for expected in ({"1": "cat"}, {"size": 3, "of": [1.0, 1.0]}):
        code, [described] = await ask(management, "GET", "/models/odd?customized=true")
        assert (code, described["customizedMetadata"]) == (200, expected)
    text = "the handler's description of itself: object has no JSON form"
    refused = fault(503, "InternalServerException", text)
    assert await ask(management, "GET", "/models/odd?customized=true") == refused
    assert "503" in API["paths"]["/models/{model_name}"]["get"]["responses"]


async def test_describe_numbers_of_any_size(management: Management, registry: Registry) -> None:
    await registry.register("echo_1.0.mar", name="huge", overrides={"batch_size": 10**30})
    code, [described] = await ask(management, "GET", "/models/huge")
    assert (code, described["batchSize"]) == (200, 10**30)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/models/nope"),
        ("GET", "/models/nope/all"),
        ("GET", "/models/nope/1.0"),
        ("PUT", "/models/nope?min_worker=1"),
        ("PUT", "/models/nope/9.0/set-default"),
        ("DELETE", "/models/nope"),
        ("OPTIONS", "/models/nope"),
    ],
)
async def test_unknown_model(management: Management, method: str, target: str) -> None:
    expected = fault(404, "ModelNotFoundException", "Model not found: nope")
    assert await ask(management, method, target) == expected


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/models/echo/9"),
        ("PUT", "/models/echo/9?min_worker=1"),
        ("PUT", "/models/echo/9/set-default"),
        ("DELETE", "/models/echo/9"),
    ],
)
async def test_unknown_version(management: Management, method: str, target: str) -> None:
    message = "Model version: 9 does not exist for model: echo"
    expected = fault(404, "ModelVersionNotFoundException", message)
    assert await ask(management, method, target) == expected


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("OPTIONS", "/models", "GET, POST"),
        ("PATCH", "/models/echo", "GET, PUT, DELETE, OPTIONS"),
        ("POST", "/models/echo/1.0", "GET, PUT, DELETE, OPTIONS"),
        ("POST", "/models/echo/1.0/set-default", "PUT"),
    ],
)
async def test_wrong_method(management: Management, method: str, target: str, allowed: str) -> None:
    answer = await routed(management.route, call(method, target, management=True))
    assert isinstance(answer.body, bytes)
    assert (answer.status, json.loads(answer.body)) == (405, NOT_ALLOWED)
    assert dict(answer.headers)["allow"] == allowed


@pytest.mark.parametrize(
    "target",
    [
        *("/", "/ping", "/modelsx", "/models/echo/invoke", "/token"),
        *("/models/echo/1.0/x", "/models/echo/1.0/set-default/x"),
    ],
)
async def test_paths_of_others(management: Management, target: str) -> None:
    assert await management.route(call("GET", target, management=True)) is None


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
async def test_nothing_answers_on_another_socket(management: Management, method: str) -> None:
    for target in ("/models", "/models/echo", "/models/echo/1.0/set-default"):
        assert await management.route(call(method, target)) is None


# --- register ---


async def test_register_without_workers_then_scale(management: Management) -> None:
    answer = await ask(management, "POST", "/models?url=echo_2.0.mar&initial_workers=0")
    assert answer == (200, status(NO_WORKERS))
    _, [described] = await ask(management, "GET", "/models/echo/2.0")
    assert [described[key] for key in ("minWorkers", "maxWorkers", "workers")] == [0, 0, []]
    assert described["loadedAtStartup"] is False
    answer = await ask(management, "PUT", "/models/echo/2.0?min_worker=2&synchronous=true")
    assert answer == (200, status("Workers scaled to 2 for model: echo, version: 2.0"))
    _, [described] = await ask(management, "GET", "/models/echo/2.0")
    assert (described["minWorkers"], len(described["workers"])) == (2, 2)


async def test_register_and_wait(management: Management) -> None:
    answer = await ask(management, "POST", "/models?url=echo_2.0.mar&initial_workers=1")
    text = 'Model "echo" Version: 2.0 registered with 1 initial workers'
    assert answer == (200, status(text))
    _, [described] = await ask(management, "GET", "/models/echo")
    assert described["modelVersion"] == "1.0"


async def test_register_and_do_not_wait(management: Management, registry: Registry) -> None:
    answer = await ask(management, "POST", "/models?url=echo_2.0.mar&synchronous=false")
    assert answer == (202, status("Processing worker updates..."))
    await settled()
    assert registry.is_ready("echo", "2.0")


@pytest.mark.parametrize(
    "target",
    [
        "/models?url=echo_2.0.mar&batch_size=x&max_batch_delay=y&initial_workers=q",
        "/models?url=echo_2.0.mar&batch_size=0&max_batch_delay=-1&initial_workers=-1",
        f"/models?url=echo_2.0.mar&batch_size={HUGE}&max_batch_delay={HUGE}",
    ],
)
async def test_register_passes_over_what_is_no_number(management: Management, target: str) -> None:
    text = 'Model "echo" Version: 2.0 registered with 1 initial workers'
    assert await ask(management, "POST", target) == (200, status(text))
    _, [described] = await ask(management, "GET", "/models/echo/2.0")
    assert (described["batchSize"], described["maxBatchDelay"]) == (1, 100)
    assert described["runtime"] == "python"


async def test_register_with_limits(management: Management) -> None:
    target = (
        "/models?url=echo_2.0.mar&model_name=mine&batch_size=4&max_batch_delay=20"
        "&response_timeout=7&startup_timeout=8&runtime=PYTHON3&s3_sse_kms=true"
    )
    assert (await ask(management, "POST", target))[0] == 200
    _, [described] = await ask(management, "GET", "/models/mine")
    limits = ("batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout")
    assert str([described[limit] for limit in limits]) == "[4, 20, 7, 8]"
    assert described["runtime"] == "python3"


async def test_register_by_json_body(management: Management) -> None:
    body = json.dumps({"url": "echo_2.0.mar", "initial_workers": 0, "batch_size": "3"}).encode()
    kind = "application/json; charset=utf-8"
    answer = await ask(management, "POST", "/models", body, content_type=kind)
    assert answer == (200, status(NO_WORKERS))
    _, [described] = await ask(management, "GET", "/models/echo/2.0")
    assert (described["batchSize"], described["maxBatchDelay"]) == (3, 100)


@pytest.mark.parametrize("body", [b"", b'{"url":', b"[]", b"{}", b'{"url": 3}'])
async def test_register_by_a_body_that_says_nothing(management: Management, body: bytes) -> None:
    code, answer = await ask(management, "POST", "/models", body, content_type="application/json")
    assert (code, answer["type"]) == (400, "BadRequestException")


async def test_the_archive_says_how_many_workers(
    management: Management, store: Path, settings: Settings
) -> None:
    files = {"two.py": "def handle(data, context):\n    return data\n", "c.yaml": "minWorkers: 2\n"}
    make_archive(store / "two.mar", files, modelName="two", handler="two.py", configFile="c.yaml")
    answer = await ask(management, "POST", "/models?url=two.mar")
    assert answer == (200, status('Model "two" Version: 1.0 registered with 2 initial workers'))
    answer = await ask(management, "POST", "/models?url=two.mar&model_name=b&initial_workers=1")
    assert answer == (200, status('Model "b" Version: 1.0 registered with 1 initial workers'))


async def test_register_with_another_handler(management: Management) -> None:
    target = "/models?url=echo_2.0.mar&handler=elsewhere"
    code, answer = await ask(management, "POST", target)
    assert (code, answer["type"]) == (500, "InternalServerException")
    assert "elsewhere" in answer["message"]


@pytest.mark.parametrize(
    ("query", "code", "kind", "message"),
    [
        ("", 400, "BadRequestException", "Parameter url is required."),
        ("?url=", 404, "ModelNotFoundException", "empty url"),
        ("?url=nope.mar", 404, "ModelNotFoundException", "Model not found at: nope.mar"),
        (
            "?url=file:///tmp/no/nope.mar",
            *(400, "DownloadArchiveException"),
            "Failed to download archive from: file:///tmp/no/nope.mar",
        ),
        (
            "?url=echo_1.0.mar",
            *(409, "ConflictStatusException"),
            "Model version 1.0 is already registered for model echo",
        ),
        (
            "?url=echo_2.0.mar&runtime=ruby",
            *(400, "BadRequestException"),
            "Invalid RuntimeType value: ruby",
        ),
    ],
)
@pytest.mark.parametrize("synchronous", ["true", "false"])
async def test_register_what_cannot_be(
    management: Management, query: str, code: int, kind: str, message: str, synchronous: str
) -> None:
    target = f"/models{query}{'&' if query else '?'}synchronous={synchronous}"
    assert await ask(management, "POST", target) == fault(code, kind, message)


async def test_a_version_that_does_not_start_is_removed(
    management: Management, store: Path
) -> None:
    make_archive(store / "bad.mar", {"bad.py": "import nowhere"}, modelName="bad", handler="bad")
    code, answer = await ask(management, "POST", "/models?url=bad.mar")
    assert code == 500
    assert answer["type"] == "InternalServerException"
    assert answer["message"].startswith("Failed to start workers for model bad version: 1.0")
    assert "nowhere" in answer["message"]
    assert (await ask(management, "GET", "/models/bad"))[0] == 404


async def test_packages_that_cannot_be_installed(
    settings: Settings, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"bad.py": "", "requirements.txt": "./absent"}
    members = {"handler": "bad", "requirementsFile": "requirements.txt"}
    make_archive(store / "bad.mar", files, modelName="bad", **members)
    registry = Registry(replace(settings, install_py_dep_per_model=True))
    management = Management(registry, registry.settings, tokens=None)
    code, answer = await ask(management, "POST", "/models?url=bad.mar")
    assert (code, answer["type"]) == (400, "ModelException")
    text = "Custom pip package installation failed for model bad: packages cannot be installed: "
    assert answer["message"].startswith(text)
    assert "absent" in answer["message"]
    assert registry.all() == []
    caplog.clear()
    assert (await ask(management, "POST", "/models?url=bad.mar&synchronous=false"))[0] == 202
    await settled()
    assert f"loading or unloading a model failed: {text}" in caplog.text
    assert not any(record.exc_info for record in caplog.records)  # the message says all
    await registry.close()


async def test_a_version_that_does_not_fit(management: Management, store: Path) -> None:
    handler = {"big.py": "def handle(data, context):\n    raise MemoryError"}
    make_archive(store / "big.mar", handler, modelName="big", handler="big")
    code, answer = await ask(management, "POST", "/models?url=big.mar")
    assert (code, answer["type"]) == (507, "InternalServerException")
    assert answer["message"].startswith("Failed to start workers for model big version: 1.0")
    assert (await ask(management, "GET", "/models/big"))[0] == 404


async def test_a_failure_after_202_is_in_the_log(
    management: Management, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_archive(store / "bad.mar", {"bad.py": "import nowhere"}, modelName="bad", handler="bad")
    code, _ = await ask(management, "POST", "/models?url=bad.mar&synchronous=false")
    await settled()
    assert code == 202
    assert (
        "loading or unloading a model failed: Failed to start workers for model bad" in caplog.text
    )
    assert (await ask(management, "GET", "/models/bad"))[0] == 404


@pytest.mark.parametrize(
    ("raises", "code"), [("MemoryError", 507), ("ValueError('no weights')", 500)]
)
async def test_a_version_without_workers_that_does_not_start(
    management: Management, store: Path, raises: str, code: int
) -> None:
    handler = {"late.py": f"def handle(data, context):\n    raise {raises}"}
    make_archive(store / "late.mar", handler, modelName="late", handler="late")
    assert (await ask(management, "POST", "/models?url=late.mar&initial_workers=0"))[0] == 200
    for _ in range(2):
        answer = await ask(management, "PUT", "/models/late?min_worker=1&synchronous=true")
        assert (answer[0], answer[1]["type"]) == (code, "InternalServerException")
        text = answer[1]["message"]
        assert text.startswith("Failed to start workers for model late version: 1.0: ")
        assert raises.partition("(")[0] in text
    assert (await ask(management, "GET", "/models/late"))[0] == 200


@pytest.mark.parametrize("synchronous", ["true", "false"])
async def test_more_workers_than_can_be_had_are_refused_at_once(
    management: Management, synchronous: str
) -> None:
    refusal = fault(400, "BadRequestException", "257 workers are asked for, at most 256 can be had")
    for method, target in (
        ("POST", "/models?url=echo_2.0.mar&initial_workers=257"),
        ("PUT", "/models/echo?min_worker=257"),
    ):
        assert await ask(management, method, f"{target}&synchronous={synchronous}") == refusal


async def test_the_log_tells_of_each_change(
    management: Management, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kserve_torch")
    for method, target in (
        ("POST", "/models?url=echo_2.0.mar&initial_workers=0"),
        ("PUT", "/models/echo/2.0?min_worker=2&synchronous=true"),
        ("PUT", "/models/echo/2.0/set-default"),
        ("DELETE", "/models/echo/1.0"),
    ):
        assert (await ask(management, method, target))[0] == 200
    await registry.load("echo")
    await registry.unload("echo")
    assert caplog.messages == [
        "model echo 2.0 is registered, without workers",
        "model echo 2.0: workers ready: 0",
        "model echo 2.0: workers ready: 2",
        "model echo answers with version 2.0 by default",
        "model echo 1.0 is unregistered",
        "model echo 2.0 is loading",
        "model echo 2.0 is ready",
        "model echo is unloaded",
    ]


async def test_a_damaged_archive(management: Management, store: Path) -> None:
    (store / "damaged.mar").write_bytes(b"PK\x03\x04 not really")
    code, answer = await ask(management, "POST", "/models?url=damaged.mar")
    assert (code, answer["type"]) == (400, "InvalidModelException")
    assert str(store) not in answer["message"]


# --- register from elsewhere ---


@pytest.fixture
async def archive_host(store: Path) -> AsyncIterator[str]:
    """The address of an HTTP server with the store's archives."""
    with hosting_files(store) as url:
        yield url


@pytest.fixture
async def fetching(settings: Settings, archive_host: str) -> AsyncIterator[Registry]:
    """A registry that may load what the host has."""
    allowed = replace(
        settings,
        allowed_urls=(re.compile(re.escape(archive_host) + "/.*"),),
        sources={"allowed_urls": "test"},
    )
    registry = Registry(allowed)
    yield registry
    await registry.close()


@pytest.mark.parametrize(("name", "code"), [("echo_1.0.mar", 200), ("torn.mar", 400)])
async def test_downloads_are_not_kept(
    fetching: Registry, archive_host: str, store: Path, name: str, code: int
) -> None:
    management = Management(fetching, fetching.settings, None)
    (store / "torn.mar").write_bytes(b"no zip")
    url = f"{archive_host}/{name}"
    assert (await ask(management, "POST", f"/models?url={url}&initial_workers=0"))[0] == code
    assert list((fetching.workdir / "downloads").iterdir()) == []


# --- scale ---


async def test_scale(management: Management) -> None:
    answer = await ask(management, "PUT", "/models/echo?min_worker=2&synchronous=true")
    assert answer == (200, status("Workers scaled to 2 for model: echo"))
    answer = await ask(management, "PUT", "/models/echo?min_worker=0&max_worker=0&synchronous=true")
    assert answer == (200, status("Workers scaled to 0 for model: echo"))
    answer = await ask(management, "PUT", "/models/echo?min_worker=x")
    assert answer == (202, status("Processing worker updates..."))
    await settled()
    _, [described] = await ask(management, "GET", "/models/echo")
    assert [described["minWorkers"], described["maxWorkers"]] == [1, 1]


async def test_a_minimum_of_0_keeps_workers_up_to_the_maximum(management: Management) -> None:
    for before, after in (2, 1), (1, 1), (0, 0):
        query = f"min_worker={before}&max_worker={before}&synchronous=true"
        await ask(management, "PUT", f"/models/echo?{query}")
        query = "min_worker=0&max_worker=1&synchronous=true"
        answer = await ask(management, "PUT", f"/models/echo?{query}")
        assert answer == (200, status("Workers scaled to 0 for model: echo"))
        _, [described] = await ask(management, "GET", "/models/echo")
        assert [described["minWorkers"], described["maxWorkers"]] == [after, 1]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("min_worker=3&max_worker=2", "max_worker cannot be less than min_worker."),
        ("min_worker=-1", "min_worker: -1 is negative"),
    ],
)
async def test_scale_to_what_cannot_be(management: Management, query: str, message: str) -> None:
    answer = await ask(management, "PUT", f"/models/echo?{query}")
    assert answer == fault(400, "BadRequestException", message)


async def test_scaling_goes_on_when_the_client_has_left(
    management: Management, registry: Registry
) -> None:
    target = "/models/echo?min_worker=2&synchronous=true"
    leaving = asyncio.ensure_future(ask(management, "PUT", target))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await settled()
    assert len(registry.find("echo").workers) == 2


# --- default version, unregister ---


async def test_set_default(management: Management, registry: Registry) -> None:
    await registry.register("echo_2.0.mar")
    answer = await ask(management, "PUT", "/models/echo/2.0/set-default/")
    text = 'Default version successfully updated for model "echo" to "2.0"'
    assert answer == (200, status(text))
    _, [described] = await ask(management, "GET", "/models/echo")
    assert described["modelVersion"] == "2.0"
    _, listed = await ask(management, "GET", "/models")
    assert listed["models"] == [{"modelName": "echo", "modelUrl": "echo_2.0.mar"}]


async def test_unregister(management: Management, registry: Registry) -> None:
    await registry.register("echo_2.0.mar")
    for target in ("/models/echo", "/models/echo/1.0"):
        code, answer = await ask(management, "DELETE", target)
        message = "Cannot remove default version for model echo"
        assert (code, answer) == fault(403, "InvalidModelVersionException", message)
    for target in ("/models/echo/2.0", "/models/echo"):
        answer = await ask(management, "DELETE", target)
        assert answer == (200, status('Model "echo" unregistered'))
    assert await ask(management, "GET", "/models") == (200, {"models": []})


async def test_unregister_waits_only_so_long(registry: Registry, settings: Settings) -> None:
    management = Management(registry, replace(settings, unregister_model_timeout=0.01), None)
    version = registry.find("echo")
    assert version.archive is not None
    gate = asyncio.Event()
    version.drain = gate.wait  # type: ignore[method-assign,assignment]
    code, answer = await ask(management, "DELETE", "/models/echo")
    assert (code, answer["type"]) == (408, "RequestTimeoutException")
    gate.set()
    await settled()
    assert registry.names() == []
    assert not version.archive.root.exists()  # it has left for good


@pytest.mark.parametrize(
    ("method", "target", "others"),
    [
        ("POST", "/models?url=echo_2.0.mar", "GET"),
        ("POST", "/models", "GET"),
        ("DELETE", "/models/nope", "GET, PUT, OPTIONS"),
    ],
)
async def test_without_the_model_api(
    registry: Registry, settings: Settings, method: str, target: str, others: str
) -> None:
    management = Management(registry, replace(settings, enable_model_api=False), None)
    hint = " Registering and unregistering need enable_model_api=true."
    answer = {**NOT_ALLOWED, "message": NOT_ALLOWED["message"] + hint}
    assert await ask(management, method, target) == (405, answer)
    refused = await routed(management.route, call(method, target, management=True))
    assert dict(refused.headers)["allow"] == others
    assert (await ask(management, "PUT", "/models/echo?min_worker=1"))[0] == 202
    await settled()


# --- description, tokens ---


async def test_description_of_a_model(management: Management) -> None:
    code, described = await ask(management, "OPTIONS", "/models/echo")
    assert (code, described["openapi"]) == (200, "3.0.1")
    assert set(described["paths"]) == {
        "/models/echo",
        "/models/echo/{model_version}",
        "/models/echo/{model_version}/set-default",
    }


async def bare(management: Management, target: str, key: str) -> Answer:
    called = call("GET", target, management=True, authorization=f"Bearer {key}")
    return await routed(management.route, called)


async def test_tokens(registry: Registry, settings: Settings, tmp_path: Path) -> None:
    management = Management(registry, settings, Tokens(tmp_path, lifetime=60))
    keys = json.loads((tmp_path / "key_file.json").read_text())
    old = keys["management"]["key"]
    assert (await bare(management, "/models", old)).status == 200
    for key in (keys["inference"]["key"], keys["API"]["key"], ""):
        assert (await bare(management, "/models", key)).status == 400
    assert await management.route(call("GET", "/v2/health/live", management=True)) is None
    assert (await bare(management, "/token?type=management", old)).status == 400
    renewed = await bare(management, "/token?type=management", keys["API"]["key"])
    assert (renewed.status, renewed.body) == (200, b"\n")
    assert (await bare(management, "/models", old)).status == 400
    new = json.loads((tmp_path / "key_file.json").read_text())["management"]["key"]
    assert (await bare(management, "/models", new)).status == 200


async def test_a_registration_goes_on_when_its_client_leaves(
    management: Management, registry: Registry
) -> None:
    worker, loop = asyncio.Event(), asyncio.get_running_loop()
    registry.observers.add(lambda _: loop.call_soon_threadsafe(worker.set), [WorkerChanged])
    target = "/models?url=echo_2.0.mar&model_name=another"
    leaving = asyncio.create_task(ask(management, "POST", target))
    await asyncio.sleep(0)  # the archive is being unpacked
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await asyncio.wait_for(worker.wait(), 10)
    assert registry.is_ready("another")
