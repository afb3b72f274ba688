"""Where instances are put; the answers on a GPU are those of the CPU."""

import asyncio
import threading
from collections import defaultdict
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from kserve_torch.archives.archive import Archive
from kserve_torch.engine import queues
from kserve_torch.errors import DeviceLost, HandlerError, NotReady
from kserve_torch.messages import Verb
from kserve_torch.models import factory
from kserve_torch.models.describe import model_version
from kserve_torch.runtime import devices, embeddings
from kserve_torch.runtime.devices import gpu_for, stream_on
from kserve_torch.settings.models import StartupModel

from ..makers import make_archive
from ..models.test_registry import gather, request, serving
from ..waiting import until


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, as far as `gpu_for` can see."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("device_type", "device_ids", "allowed", "placed"),
    [
        (None, (), None, [0, 1, 0]),
        ("gpu", (), None, [0, 1, 0]),
        ("gpu", (), 1, [0, 0, 0]),
        ("gpu", (), 0, [None, None, None]),
        ("gpu", (1,), None, [1, 1, 1]),
        ("gpu", (1, 7), None, [0, 1, 0]),
        ("cpu", (1,), None, [None, None, None]),
    ],
)
def test_workers_are_placed_in_turn(
    device_type: str | None,
    device_ids: tuple[int, ...],
    allowed: int | None,
    placed: list[int | None],
) -> None:
    assert [gpu_for(i, 0, device_type, device_ids, allowed) for i in range(3)] == placed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_cpu_is_used(caplog: pytest.LogCaptureFixture) -> None:
    assert gpu_for(0, 0, "gpu", (0,), None) is None
    assert caplog.messages == [
        "deviceType is gpu, but no GPU is available: the model runs on the CPU"
    ]
    with devices.stream_on(0):
        devices.settle(0)
        devices.free_cache()


@pytest.mark.usefixtures("gpu")
async def test_models_that_are_opened_in_any_order_are_placed_in_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two large ones might be on one GPU, at some starts."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    opened = threading.Event()
    open_archive = factory.open_archive

    def last_first(path: Path, *args: Any, **options: Any) -> Archive:
        if path.name == "a.mar":
            opened.wait(10)
        archive = open_archive(path, *args, **options)
        opened.set()
        return archive

    monkeypatch.setattr(factory, "open_archive", last_first)
    files = {"handler.py": ECHOES, "model-config.yaml": "minWorkers: 1"}
    for name in "ab":
        archive = tmp_path / f"{name}.mar"
        make_archive(archive, files, modelName=name, configFile="model-config.yaml")
    async with serving(tmp_path) as registry:
        await registry.start([StartupModel(name=None, file=f"{name}.mar") for name in "ab"])
        instances = [registry.find(name).workers[0].instance for name in "ab"]
    assert [instance and instance.gpu_id for instance in instances] == [0, 1]


@pytest.mark.usefixtures("gpu")
async def test_a_model_is_on_all_gpus_unless_a_client_says_how_many_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    make_archive(tmp_path / "m.mar", {"handler.py": ECHOES})
    async with serving(tmp_path) as registry:
        await registry.start([StartupModel(name=None, file="m.mar")])
        instances = [worker.instance for worker in registry.find("m").workers]
        assert [instance and instance.gpu_id for instance in instances] == [0, 1]
        one = await registry.register("m.mar", name="one", workers=1)
        assert (len(one.workers), one.scaled_to) == (1, (1, 1))


ASSERTS = """
def handle(data, context):
    if data is None:
        return
    words = [row["data"] for row in data]
    if "bad" in words:
        raise RuntimeError("CUDA error: device-side assert triggered")
    return words
"""
BATCHES = "batchSize: 4\nmaxBatchDelay: 10000\n"


class Gpu:
    """What torch says of the only GPU when it is asked to finish its work."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.for_ever = False
        self.emptied = 0
        self.capability = (7, 5)
        self.checks_embeddings = False

    def synchronize(self, _: int) -> None:
        if self.errors:
            raise RuntimeError(self.errors[0] if self.for_ever else self.errors.pop())

    def check_embeddings(self) -> None:
        self.checks_embeddings = True

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """In the place of one that can be broken; nothing else can end a CUDA context here."""
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: gpu.capability)
    devices.use_tensor_cores.cache_clear()
    monkeypatch.setattr(embeddings, "install", gpu.check_embeddings)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", gpu.empty_cache)
    monkeypatch.setattr(devices, "stream_on", lambda gpu_id: nullcontext())
    monkeypatch.setattr(devices, "_lost", set())
    return gpu


async def test_a_lost_gpu_ends_readiness_and_liveness(
    tmp_path: Path, gpu: Gpu, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"model-config.yaml": BATCHES}
    make_archive(
        tmp_path / "m.mar", {"handler.py": ASSERTS, **config}, configFile="model-config.yaml"
    )
    make_archive(
        tmp_path / "other.mar",
        {"handler.py": ASSERTS, "model-config.yaml": "deviceType: cpu"},
        configFile="model-config.yaml",
        modelName="other",
    )
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        await registry.register("other.mar")
        assert (await registry.submit(request("good", "good", "good", "good"))).results
        assert (registry.ready(), registry.live()) == (True, True)
        gpu.errors, gpu.for_ever = ["device-side assert triggered"], True
        outcomes = await gather(registry, *(request(row) for row in ("a", "bad", "c", "d")))
        assert {type(outcome) for outcome in outcomes} == {DeviceLost}
        assert [line for line in caplog.messages if line.startswith("GPU 0 is lost")] == [
            "GPU 0 is lost, liveness fails from now on: only a new process can use it again: "
            "device-side assert triggered"
        ]
        assert (registry.ready(), registry.live()) == (False, False)
        await until(lambda: not version.ready)
        with pytest.raises(NotReady, match="GPU 0 is lost until the server is restarted"):
            await registry.submit(request("good"))
        assert (await registry.submit(request("good", name="other"))).results == ["good"]
        gpu.emptied = 0
        await registry.unregister("other")
        assert not gpu.emptied  # torch would raise


async def test_whose_call_loses_a_gpu_is_not_told_to_try_again(tmp_path: Path, gpu: Gpu) -> None:
    """It would lose the next replica's."""
    make_archive(tmp_path / "m.mar", {"handler.py": ASSERTS})
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        gpu.errors, gpu.for_ever = ["device-side assert triggered"], True
        with pytest.raises(HandlerError, match="device-side assert"):
            await registry.submit(request("bad"))
        assert (registry.ready(), registry.live()) == (False, False)
        with pytest.raises(DeviceLost):
            await registry.submit(request("good"))


async def test_a_gpu_that_works_again_is_not_lost(tmp_path: Path, gpu: Gpu) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ASSERTS})
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        gpu.errors = ["left behind by an earlier call"]
        with pytest.raises(HandlerError):
            await registry.submit(request("bad"))
        assert (await registry.submit(request("good"))).results == ["good"]
        assert registry.live()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
async def test_embeddings_are_checked_on_gpus(tmp_path: Path, gpu: Gpu, device: str) -> None:
    files = {"handler.py": ASSERTS, "model-config.yaml": f"deviceType: {device}"}
    make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        assert gpu.checks_embeddings == (device == "gpu")


@pytest.mark.usefixtures("gpu")
async def test_models_that_load_at_once_change_torch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch refuses to replace a kernel twice: one of the models would fail to load."""
    replaced = []
    both = threading.Barrier(2)

    def replace(device: str) -> None:
        replaced.append(device)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)

    monkeypatch.setattr(embeddings, "install", cache(lambda: embeddings.replace("CUDA")))
    monkeypatch.setattr(embeddings, "replace", replace)
    for name in "ab":
        make_archive(tmp_path / f"{name}.mar", {"handler.py": ECHOES}, modelName=name)
    async with serving(tmp_path) as registry:
        await asyncio.gather(*(registry.register(f"{name}.mar") for name in "ab"))
    assert replaced == ["CUDA"]


async def test_a_workers_own_copy_of_the_weights_is_released(tmp_path: Path, gpu: Gpu) -> None:
    files = {"handler.py": ASSERTS, "model-config.yaml": "minWorkers: 3\nmaxWorkers: 3"}
    make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        assert gpu.emptied == 2


async def test_memory_of_an_unregistered_model_is_released(tmp_path: Path, gpu: Gpu) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ASSERTS})
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        assert gpu.emptied == 0
        await registry.unregister("m")
        assert gpu.emptied == 1


class Within(nullcontext[None]):
    """In the place of torch's context of a stream."""

    def __init__(self, stream: object) -> None:
        super().__init__()
        self.stream = stream


@pytest.mark.usefixtures("gpu")
async def test_a_worker_has_the_stream_of_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(devices, "_new_stream", lambda gpu_id: made.append(gpu_id) or object())
    for name in ("stream", "StreamContext"):
        monkeypatch.setattr(torch.cuda, name, Within)
    monkeypatch.setattr(devices, "stream_on", stream_on)
    monkeypatch.setattr(devices, "_streams", free := defaultdict[int, list[object]](list))
    make_archive(tmp_path / "m.mar", {"handler.py": ASSERTS})
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        for _ in range(3):
            await registry.scale(version, 3, 3)
            await registry.scale(version, 1, 1)
            await until(lambda: len(free[0]) == 2)
    assert made == [0, 0, 0]


SAYS_WHERE = """
import time
from pathlib import Path
class Handler:
    def initialize(self, context):
        with open({file!r}, "a") as file:
            file.write(str(context.system_properties["gpu_id"]))
    def handle(self, data, context):
        while data[0]["data"] == "stay" and len(Path({file!r}).read_text()) < 3:
            time.sleep(0.001)
        return data
"""


@pytest.mark.usefixtures("gpu")
async def test_explanations_are_where_predictions_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another GPU would hold the weights for them alone."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(queues, "cores", lambda: 2)
    loaded = tmp_path / "loaded"
    make_archive(tmp_path / "m.mar", {"handler.py": SAYS_WHERE.format(file=str(loaded))})
    async with serving(tmp_path) as registry:
        await registry.register("m.mar", workers=1)
        await registry.submit(request("go", verb=Verb.EXPLAIN))
        await gather(registry, *(request("stay", verb=Verb.EXPLAIN) for _ in "12"))
    assert loaded.read_text() == "000"


NAMES_NO_GPU = """
import torch
class Handler:
    def initialize(self, context):
        self.at = torch.cuda.current_device()
    def handle(self, data, context):
        return [[self.at, torch.cuda.current_device()]] * len(data)
"""


class Stream:
    """In the place of a stream on a GPU: within it that GPU is the current one."""

    current = 0

    def __init__(self, gpu_id: int) -> None:
        self.gpu_id = gpu_id

    def __enter__(self) -> None:
        Stream.current = self.gpu_id

    def __exit__(self, *error: object) -> None:
        Stream.current = 0


EXACT = """
import torch
def handle(data, context):
    if data is None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        context.seen = before
        return
    return [context.seen] * len(data)
"""


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "highest"), ((8, 0), "high")])
async def test_float32_products_are_as_precise_as_on_torchserve(
    tmp_path: Path, gpu: Gpu, capability: tuple[int, int], precision: str
) -> None:
    """And the precision that a handler chooses stays."""
    gpu.capability = capability
    for name in "ab":
        make_archive(tmp_path / f"{name}.mar", {"handler.py": EXACT}, modelName=name)
    async with serving(tmp_path) as registry:
        for name, seen in (("a", precision), ("b", "highest")):
            await registry.register(f"{name}.mar")
            assert (await registry.submit(request({}, name=name))).results == [seen]


ECHOES = "def handle(data, context): return data"


@pytest.mark.usefixtures("gpu")
async def test_models_are_placed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on TorchServe: other GPUs than the first are used also if each model has one worker."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    one, two = "minWorkers: 1", "minWorkers: 2"
    configs = (one, two, "deviceIds: [0]", "deviceType: cpu", one)
    placed = []
    async with serving(tmp_path) as registry:
        for name, config in zip("abcde", configs, strict=True):
            files = {"handler.py": ECHOES, "model-config.yaml": config}
            make_archive(
                tmp_path / f"{name}.mar", files, configFile="model-config.yaml", modelName=name
            )
            version = await registry.register(f"{name}.mar")
            placed.append([worker.instance.gpu_id for worker in version.workers if worker.instance])
    assert placed == [[0], [1, 2], [0], [None], [0]]


@pytest.mark.usefixtures("gpu")
async def test_the_workers_gpu_is_the_current_one_in_its_load_and_in_its_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that says ``cuda()`` has its model and its inputs on the same GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: Stream.current)
    monkeypatch.setattr(devices, "stream_on", Stream)
    files = {"handler.py": NAMES_NO_GPU, "model-config.yaml": "deviceIds: [1]"}
    make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        assert [worker["gpuUsage"] for worker in model_version(version)["workers"]] == ["cuda:1"]
        assert (await registry.submit(request({}))).results == [[1, 1]]


MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(64, 8)
    def forward(self, x):
        return self.layer(x).softmax(1)
"""


@pytest.mark.gpu
async def test_a_gpu_answers_as_the_cpu_does(tmp_path: Path) -> None:
    answers = []
    for device in ("cpu", "gpu"):
        files = {
            "model.py": MODEL,
            "model-config.yaml": f"deviceType: {device}\nminWorkers: 2\nmaxWorkers: 2",
        }
        members = {"handler": "base_handler", "modelFile": "model.py"}
        path = tmp_path / f"{device}.mar"
        make_archive(path, files, **members, configFile="model-config.yaml", modelName=device)
    async with serving(tmp_path) as registry:
        for device in ("cpu", "gpu"):
            version = await registry.register(f"{device}.mar")
            assert [
                worker.instance.device[:3] for worker in version.workers if worker.instance
            ] == [{"cpu": "cpu", "gpu": "cud"}[device]] * 2
            rows = [[i / 64 for i in range(64)], [1.0] * 64]
            answers.append((await registry.submit(request(*rows, name=device))).results)
    assert torch.allclose(torch.tensor(answers[0]), torch.tensor(answers[1]), atol=1e-3)


SLOW_TO_LOAD = """
import torch
class Handler:
    def initialize(self, context):
        self.sum = torch.zeros(2**26, device=f"cuda:{context.system_properties['gpu_id']}")
        for _ in range(2000):
            self.sum += 1
    def handle(self, data, context):
        return [self.sum.min().item()] * len(data)
"""


@pytest.mark.gpu
async def test_the_first_answer_waits_for_what_the_load_has_begun(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": SLOW_TO_LOAD})
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        assert (await registry.submit(request({}))).results == [2000]
