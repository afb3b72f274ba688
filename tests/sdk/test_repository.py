"""`TorchModelRepository`, and what the SDK does where it does otherwise (DESIGN, law 8)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kserve
import pytest
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.model_repository_extension import ModelRepositoryExtension

from kserve_torch import TorchModelRepository
from kserve_torch.engine import tasks
from kserve_torch.errors import LoadFailed, ModelNotFound
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.settings.models import StartupModel

from ..makers import ECHO, make_archive


@pytest.fixture
async def repository(tmp_path: Path) -> AsyncIterator[TorchModelRepository]:
    """``m`` is loaded; ``later`` is in the store, and so is ``broken``."""
    for name, handler in {"m": ECHO, "later": ECHO, "broken": "raise ImportError('no')"}.items():
        make_archive(tmp_path / f"{name}.mar", {"handler.py": handler}, modelName=name)
    registry = Registry(Settings(model_store=tmp_path))
    await registry.start([StartupModel(name=None, file="m.mar")])
    yield TorchModelRepository(registry)
    await registry.close()


async def test_the_models(repository: TorchModelRepository) -> None:
    assert isinstance(repository, kserve.ModelRepository)
    assert list(repository.get_models()) == ["m"]
    model = repository.get_model("m")
    assert model is not None
    assert model is repository.get_model("m")
    assert await model({"instances": [1]}) == ({"predictions": [1]}, {})
    assert repository.get_model("nobody") is None


async def test_readiness(repository: TorchModelRepository) -> None:
    assert await repository.is_model_ready("m")
    assert not await repository.is_model_ready("nobody")


async def test_load_and_unload(repository: TorchModelRepository) -> None:
    assert await repository.load("later")
    assert await repository.load_model("later")
    assert list(repository.get_models()) == ["later", "m"]
    assert repository.get_model("later") is not None
    repository.unload("later")
    assert repository.get_model("later") is None
    assert list(repository.get_models()) == ["m"]


async def test_a_model_that_is_loaded_again_is_the_new_one(
    repository: TorchModelRepository,
) -> None:
    await repository.load("later")
    repository.unload("later")
    await repository.load("later")
    model = repository.get_model("later")
    assert model is not None
    assert model.ready


async def test_what_cannot_be_loaded(repository: TorchModelRepository) -> None:
    with pytest.raises(ModelNotFound):
        await repository.load("nobody")
    with pytest.raises(LoadFailed, match="no"):
        await repository.load("broken")
    assert not await repository.is_model_ready("broken")
    broken = repository.get_model("broken")
    assert broken is not None
    assert not broken.ready


async def test_a_load_that_fails_when_its_caller_has_left(
    repository: TorchModelRepository, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    loading = asyncio.create_task(repository.load("broken"))
    await asyncio.sleep(0)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    while tasks._UNFINISHED:
        await asyncio.wait(tasks._UNFINISHED)
    gc.collect()
    assert told == []
    assert "loading or unloading a model failed: " in caplog.text


async def test_unloading_what_is_not_there(repository: TorchModelRepository) -> None:
    with pytest.raises(KeyError, match="nobody"):
        repository.unload("nobody")


def test_sdk_unload_raises_key_error() -> None:
    with pytest.raises(KeyError):
        kserve.ModelRepository().unload("nobody")


async def test_the_sdks_own_planes_run_on_it(repository: TorchModelRepository) -> None:
    """What kserve's servers do with a repository: names, readiness, load and unload."""
    plane = DataPlane(model_registry=repository)
    extension = ModelRepositoryExtension(model_registry=repository)
    assert await plane.model_ready("m")
    assert (await plane.model_metadata("m"))["name"] == "m"
    answer: Any
    answer, _ = await plane.infer("m", {"instances": [1]})
    assert answer == {"predictions": [1]}
    await extension.load("later")
    assert await plane.model_ready("later")
    await extension.unload("later")
    assert list(repository.get_models()) == ["m"]


async def test_sdk_repository_calls_load_and_unload() -> None:
    """The hooks of the repository extension (CONTRACT O85)."""
    called: list[str] = []

    class Repository(kserve.ModelRepository):  # type: ignore[misc]  # kserve is untyped
        def load(self, name: str) -> bool:
            called.append(f"load {name}")
            return False

        def unload(self, name: str) -> None:
            called.append(f"unload {name}")

    extension = ModelRepositoryExtension(model_registry=Repository())
    with pytest.raises(Exception, match="m"):
        await extension.load("m")
    await extension.unload("m")
    assert called == ["load m", "unload m"]
