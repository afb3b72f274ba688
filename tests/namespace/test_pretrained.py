import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.namespace import pretrained

transformers = pytest.importorskip("transformers")

#: Both threads are in the middle of making their model, if they can be.
both = threading.Barrier(2)


class Model(transformers.GPT2LMHeadModel):  # type: ignore[misc, name-defined]
    def __init__(self, config: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        super().__init__(config)


@pytest.fixture
def config() -> Any:
    pretrained.install()
    both.reset()
    return transformers.GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1)


def make_both(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    """Make two models at the same time, and another later: their heads are tied."""
    with ThreadPoolExecutor(2) as pool:
        models = [made.result() for made in (pool.submit(one), pool.submit(other))]
    for model in (*models, one(), other()):
        assert model.lm_head.weight is model.transformer.wte.weight


def test_models_that_load_at_the_same_time_are_whole(config: Any, tmp_path: Path) -> None:
    Model(config).save_pretrained(tmp_path)
    both.reset()
    make_both(*[lambda: Model.from_pretrained(tmp_path)] * 2)


def test_a_model_is_whole_that_is_made_while_another_loads(config: Any, tmp_path: Path) -> None:
    Model(config).save_pretrained(tmp_path)
    both.reset()
    make_both(lambda: Model.from_pretrained(tmp_path), lambda: Model(config))
