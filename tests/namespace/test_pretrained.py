import importlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from kserve_torch.namespace import pretrained
from kserve_torch.namespace.loader import Namespace

from ..makers import write

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


@pytest.mark.parametrize(
    "step", ["transformers.modeling_utils._add_variant", "torch.load"], ids=["download", "read"]
)
def test_a_checkpoint_that_takes_long_holds_up_no_other_model(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    config.save_pretrained(tmp_path)
    torch.save(Model(config).state_dict(), tmp_path / "pytorch_model.bin")
    module, name = step.rsplit(".", 1)
    usual = getattr(sys.modules[module], name)
    begun, may_end = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        begun.set()
        assert may_end.wait(60)
        return usual(*args, **kwargs)

    monkeypatch.setattr(step, slow)
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(Model.from_pretrained, tmp_path)
        assert begun.wait(60)
        monkeypatch.undo()
        try:
            pool.submit(Model.from_pretrained, tmp_path).result(20)
        finally:
            may_end.set()
        assert late.result().lm_head.weight is late.result().transformer.wte.weight


#: As transformers' from 4.53 on; the method of 4 has one parameter, that of 5 two.
MODELING = """
import torch

class PreTrainedModel(torch.nn.Module):
    def init_weights(self):
        self.initialize_weights()

    @classmethod
    def from_pretrained(cls):
        return cls()

    def initialize_weights(self):
        if not hasattr(torch.nn.Module, "smart_apply"):
            torch.nn.Module.smart_apply = lambda self, {parameters}: None
        self.smart_apply(*{parameters!r}.split())
"""


def test_two_versions_do_not_find_each_others_methods_on_torchs_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "smart_apply", None, raising=False)
    pretrained.install()
    handler = {"handler.py": "from transformers.modeling_utils import PreTrainedModel as Model"}
    with ExitStack() as opened:
        models = []
        for name, parameters in (("four", "fn"), ("five", "fn, is_custom_code")):
            files = {"__init__.py": "", "modeling_utils.py": MODELING.format(parameters=parameters)}
            folder = write(tmp_path / name / "transformers", files).parent
            own = opened.enter_context(closing(Namespace(folder)))
            archive = Namespace(write(tmp_path / f"{name}-archive", handler), packages=own)
            opened.enter_context(closing(archive))
            with archive.loading():
                models.append(archive.import_module("handler").Model())
        for model in models * 2:
            model.init_weights()


#: As accelerate's.
BIG_MODELING = """
from contextlib import contextmanager
import torch
from torch import nn

@contextmanager
def init_on_device(device):
    register = nn.Module.register_parameter
    def register_there(module, name, param):
        register(module, name, param)
        if param is not None:
            module._parameters[name] = nn.Parameter(param.to(device))
    nn.Module.register_parameter = register_there
    try:
        yield
    finally:
        nn.Module.register_parameter = register
"""


def test_parameters_go_to_another_device_on_the_thread_that_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "accelerate", {"__init__.py": "", "big_modeling.py": BIG_MODELING})
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("accelerate", "accelerate.big_modeling"):
        monkeypatch.setitem(sys.modules, name, None)  # is not there in the end either
        monkeypatch.delitem(sys.modules, name)
    pretrained.install()
    big_modeling = importlib.import_module("accelerate.big_modeling")
    both.reset()

    def make() -> str:
        with big_modeling.init_on_device(torch.device("meta")):
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            return str(torch.nn.Linear(1, 1).weight.device)

    usual = torch.nn.Module.register_parameter
    with ThreadPoolExecutor(3) as pool:
        with big_modeling.init_on_device(torch.device("meta")):
            other = pool.submit(torch.nn.Linear, 1, 1).result()
        made = [pool.submit(make), pool.submit(make)]
        assert [one.result() for one in made] == ["meta"] * 2
    assert str(other.weight.device) == "cpu"
    assert torch.nn.Module.register_parameter is usual
