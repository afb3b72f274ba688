"""``sequenceBatching``: what a handler keeps of a sequence meets the next request of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kserve_torch.errors import HandlerError
from kserve_torch.http.call import Call
from kserve_torch.http.management import Management
from kserve_torch.messages import Request
from kserve_torch.models.registry import Registry
from kserve_torch.settings import load_settings

from ..makers import make_archive

#: Adds up the numbers of each sequence.
SUMS = """
class Sums:
    def initialize(self, context):
        self.sums = {}

    def handle(self, data, context):
        return [self.add(context.get_sequence_id(i), row["data"]) for i, row in enumerate(data)]

    def add(self, sequence, number):
        self.sums[sequence] = self.sums.get(sequence, 0) + number
        return [sequence, self.sums[sequence]]
"""
YAML = "minWorkers: 2\nmaxWorkers: 4\nbatchSize: 4\nmaxBatchDelay: 1\nsequenceBatching: true\n"


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    """A registry with ``m.mar`` and ``one.mar`` in its store, and nothing loaded."""
    one = YAML.replace("minWorkers: 2\nmaxWorkers: 4\n", "")
    for name, yaml in (("m", YAML), ("one", one)):
        files = {"handler.py": SUMS, "model-config.yaml": yaml}
        make_archive(tmp_path / f"{name}.mar", files, configFile="model-config.yaml")
    settings = load_settings(["--model_store", str(tmp_path)], {}, "kserve_torch")
    registry = Registry(settings)
    yield registry
    await registry.close(5.0)


def request(number: int, **headers: str) -> Request:
    return Request(id="an-id", model="m", rows=[{"data": number}], headers=headers)


async def test_a_sequence_has_all_its_requests_at_one_worker(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    version = await registry.register("m.mar")
    assert version.scaled_to == (1, 1)
    numbers = (registry.submit(request(n, ts_request_sequence_id="s")) for n in range(20))
    await asyncio.gather(*numbers)
    reply = await registry.submit(request(0, ts_request_sequence_id="s"))
    assert reply.results == [["s", sum(range(20))]]
    assert await registry.scale(version, 3, 3) == 1
    assert version.scaled_to == (1, 1)
    warnings = [record.getMessage() for record in caplog.records if "sequenceB" in record.msg]
    assert warnings == [
        "m 1.0: sequenceBatching: using one worker instead of up to 4, because a sequence's state "
        "is in the worker that served its first request"
    ]


async def test_a_bad_request_leaves_what_is_kept_of_others(registry: Registry) -> None:
    await registry.register("m.mar")
    bad = Request(id="bad", model="m", rows=[{"data": None}])
    good = [request(1, ts_request_sequence_id="s") for _ in range(3)]
    replies = await asyncio.gather(
        *(registry.submit(one) for one in (*good, bad)), return_exceptions=True
    )
    assert isinstance(replies.pop(), HandlerError)
    assert [reply.results for reply in replies] == [[["s", number]] for number in (1, 2, 3)]


async def test_nobody_is_warned_of_one_worker_where_one_was_asked_for(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    version = await registry.register("one.mar")
    assert version.scaled_to == (1, 1)
    assert "sequenceBatching" not in caplog.text


async def test_a_request_without_a_sequence_id_is_a_sequence_of_its_own(registry: Registry) -> None:
    await registry.register("m.mar")
    replies = [await registry.submit(request(5)) for _ in range(2)]
    (first, one), (second, two) = (reply.results[0] for reply in replies)
    assert first.startswith("ts-seq-")
    assert second.startswith("ts-seq-")
    assert first != second
    assert (one, two) == (5, 5)
    sent = Request(
        id="an-id",
        model="m",
        rows=[{"data": 1}],
        parameters={"ts_request_sequence_id": "of the body"},
    )
    assert (await registry.submit(sent)).results == [["of the body", 1]]


async def test_scaling_is_done_with_the_one_worker(registry: Registry) -> None:
    await registry.register("m.mar")
    management = Management(registry, registry.settings, tokens=None)
    query = "min_worker=3&max_worker=4&synchronous=true"
    scale = Call(method="PUT", path="/models/m", query=query, management=True)
    answer = await management.route(scale)
    assert answer is not None
    assert isinstance(answer.body, bytes)
    assert json.loads(answer.body) == {"status": "Workers scaled to 1 for model: m"}


async def test_a_model_of_sequences_can_be_scaled_to_zero(registry: Registry) -> None:
    version = await registry.register("m.mar")
    assert await registry.scale(version, 0, 0) == 0
    assert version.scaled_to == (0, 0)


async def test_the_sample_is_a_sequence_too(tmp_path: Path, registry: Registry) -> None:
    handler = (
        "def handle(data, context):\n    return data and [context.get_sequence_id(0).upper()]\n"
    )
    files = {"handler.py": handler, "model-config.yaml": YAML, "warmup.json": "{}"}
    make_archive(tmp_path / "warm.mar", files, configFile="model-config.yaml")
    assert (await registry.register("warm.mar")).ready


async def test_what_sequences_need_ends_with_them(tmp_path: Path, registry: Registry) -> None:
    await registry.register("m.mar")
    yaml = YAML.replace("sequenceBatching: true\n", "")
    files = {"handler.py": SUMS, "model-config.yaml": yaml}
    make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")
    assert (await registry.load("m")).scaled_to == (2, 4)
