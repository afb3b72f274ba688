"""What the server says of itself and its models, as values."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kserve_torch.engine.worker import WorkerState
from kserve_torch.models import describe
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.settings.models import StartupModel

from ..makers import ECHO, make_archive

YAML = """
minWorkers: 1
maxWorkers: 2
batchSize: 8
maxBatchDelay: 25
responseTimeout: 30
startupTimeout: 40
maxRetryTimeoutInSec: 50
clientTimeoutInMills: 1500
jobQueueSize: 7
deviceType: cpu
useJobTicket: true
sequenceBatching: true
sequenceMaxIdleMSec: 60
maxNumSequence: "4"
maxSequenceJobQueueSize: true
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        files = {"handler.py": ECHO, "c.yaml": YAML}
        make_archive(tmp_path / f"{name}.mar", files, modelName=name, configFile="c.yaml")
    return tmp_path


@pytest.fixture
async def registry(store: Path) -> AsyncIterator[Registry]:
    registry = Registry(Settings(model_store=store))
    yield registry
    await registry.close()


async def test_limits_and_the_archives_own_settings(registry: Registry) -> None:
    version = await registry.register("a.mar", workers=0)
    described = describe.model_version(version)
    expected = {
        "modelName": "a",
        "modelUrl": "a.mar",
        "batchSize": 8,
        "maxBatchDelay": 25,
        "responseTimeout": 30,
        "startupTimeout": 40,
        "maxRetryTimeoutInSec": 50,
        "clientTimeoutInMills": 1500,
        "deviceType": "cpu",
        "useJobTicket": True,
        "continuousBatching": False,
        "stateful": True,
        "sequenceMaxIdleMSec": 60,
        "maxNumSequence": 0,
        "maxSequenceJobQueueSize": 0,
        "loadedAtStartup": False,
        "workers": [],
        "jobQueueStatus": {"remainingCapacity": 7, "pendingRequests": 0},
    }
    assert {key: described[key] for key in expected} == expected
    assert "deviceIds" not in described


async def test_devices(registry: Registry) -> None:
    version = await registry.register("a.mar")
    version.limits = replace(version.limits, device_type=None, device_ids=(0, 1))
    instance = version.workers[0].instance
    assert instance is not None
    instance.device = "cuda:1"
    described = describe.model_version(version)
    assert (described["deviceType"], described["deviceIds"]) == ("gpu", [0, 1])
    assert (described["workers"][0]["gpu"], described["workers"][0]["gpuUsage"]) == (True, "cuda:1")


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (WorkerState.READY, "READY"),
        (WorkerState.LOADING, "LOADING"),
        (WorkerState.STOPPED, "UNLOADING"),
        (WorkerState.FAILED, "UNLOADING"),
        (WorkerState.HUNG, "UNLOADING"),
    ],
)
async def test_states_of_workers(registry: Registry, state: WorkerState, word: str) -> None:
    version = await registry.register("a.mar")
    version.workers[0].state = state
    assert describe.model_version(version)["workers"][0]["status"] == word


async def test_a_model_that_could_not_be_read(registry: Registry, store: Path) -> None:
    (store / "bad.mar").write_bytes(b"nothing")
    await registry.start([StartupModel(name="bad", file="bad.mar")])
    described = describe.model_version(registry.find("bad"))
    assert (described["modelUrl"], described["runtime"]) == ("bad.mar", "python")
    assert describe.list_models(registry)["models"] == [{"modelName": "bad", "modelUrl": "bad.mar"}]


async def test_the_url_is_shown_without_secrets(registry: Registry, store: Path) -> None:
    url = f"file://{store}/a.mar"
    here = await registry.register(f"{url}?token=secret", workers=0)
    absent = StartupModel(name="absent", file="s3://me:secret@bucket/a.mar")
    await registry.start([absent])
    assert describe.model_version(here)["modelUrl"] == url
    listed = {
        each["modelName"]: each["modelUrl"] for each in describe.list_models(registry)["models"]
    }
    assert listed == {"a": url, "absent": "s3://bucket/a.mar"}


@pytest.mark.parametrize(
    ("limit", "token", "names", "next_token"),
    [
        (100, 0, "abc", None),
        (3, 0, "abc", None),
        (2, 0, "ab", "2"),
        (2, 2, "c", None),
        (1, 1, "b", "2"),
        (0, 0, "", "0"),
        (-1, 0, "abc", None),
        (101, 0, "abc", None),
        (100, -5, "abc", None),
        (100, 3, "", None),
        (100, 99, "", None),
    ],
)
async def test_pages(
    registry: Registry, limit: int, token: int, names: str, next_token: str | None
) -> None:
    for name in "bca":
        await registry.register(f"{name}.mar", workers=0)
    page = describe.list_models(registry, limit, token)
    assert [model["modelName"] for model in page["models"]] == list(names)
    assert page.get("nextPageToken") == next_token
    assert list(page)[-1] == "models"
