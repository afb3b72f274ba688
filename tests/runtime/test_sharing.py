"""How it is found that somebody has written to weights that several instances hold together."""

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kserve_torch.runtime import paramdata
from kserve_torch.runtime.instance import Instance
from kserve_torch.runtime.sharing import Weights
from kserve_torch.runtime.tying import are_tied, tie

from .loaded import Load, results


def handler() -> SimpleNamespace:
    """A handler whose model has the same weights each time."""
    model = torch.nn.Linear(4, 4).eval()
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    return SimpleNamespace(model=model)


def test_once_one_instance_has_written_no_other_is_tied_to_it() -> None:
    one, two = (handler() for _ in range(2))
    first, second = Weights(one), Weights(two)
    second.tie_to(first)
    weight = two.model.weight
    assert are_tied(one.model, two.model)
    assert (first.look(), second.look(), first.were_written) == (False, False, False)
    with torch.no_grad():
        weight.fill_(2.0)
    assert (first.look(), second.look(), first.look(), second.look()) == (False, True, False, False)
    assert (first.were_written, second.were_written) == (True, True)
    assert (first.are_outdated, second.are_outdated) == (True, False)
    assert not are_tied(one.model, two.model)


def test_of_two_that_have_written_at_once_one_is_the_first() -> None:
    one, two = (handler() for _ in range(2))
    first, second = Weights(one), Weights(two)
    second.tie_to(first)
    with torch.no_grad():
        one.model.weight.fill_(2.0)
        two.model.weight.fill_(3.0)
    looked: list[bool] = []

    def the_other_looks() -> torch.Tensor:
        looked.append(first.look())
        return two.model.weight

    second._versions[0] = (the_other_looks, second._versions[0][1])  # type: ignore[assignment]
    assert (second.look(), looked[0]) == (False, True)


def test_a_model_that_a_handler_replaced_is_forgotten() -> None:
    service = handler()
    first, second = Weights(service), Weights(handler())
    second.tie_to(first)
    weight = weakref.ref(service.model.weight)
    service.model = None
    gc.collect()
    assert weight() is None
    assert not first.look()


def test_what_is_written_through_a_parameters_data_counts_while_it_is_shared() -> None:
    paramdata.install()
    one, two = (handler() for _ in range(2))
    first, second = Weights(one), Weights(two)
    second.tie_to(first)
    weight = two.model.weight
    with torch.inference_mode():
        weight.data += 1  # as adapters are merged
    assert (first.look(), second.look()) == (False, True)
    version = weight._version
    weight.data += 1
    assert (weight._version, weight[0, 0].item()) == (version, 3)
    weight.data = torch.zeros(4, 4)
    assert weight.sum() == 0


WRITES = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class Writes(BaseHandler):
    def handle(self, data, context):
        if data[0] is not None:
            weight = torch.tensor([[float(data[0])]])
            self.model.load_state_dict({"weight": weight}, strict=False)
        return [self.model(torch.ones(1, 1)).item()]
"""
SCALE = """
import torch

class Scale(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)
"""


def test_weights_are_shared_until_a_handler_writes_to_them(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    one = load(WRITES, {"model.py": SCALE}, modelFile="model.py")
    two, three = (
        load(WRITES, {"model.py": SCALE}, modelFile="model.py", first=one) for _ in range(2)
    )
    places = {i._entry.service.model.weight.data_ptr() for i in (one, two, three)}
    assert len(places) == 1
    told: list[str] = []
    two.on_write = lambda: told.append("two")
    assert (results(two, 2), told) == ([2], ["two"])
    (said,) = [record.getMessage() for record in caplog.records if "writes" in record.message]
    assert said.startswith("reg: the handler writes to the weights")
    assert [each.weights.are_outdated for each in (one, two, three)] == [True, False, True]
    for first in (one, two):
        late = load(WRITES, {"model.py": SCALE}, modelFile="model.py", first=first)
        assert not late.weights.are_outdated
        assert (results(late, None), results(late, 6), results(two, None)) == ([1], [6], [2])
    assert (results(two, 3), told) == ([3], ["two"])


class Turns:
    """A lock that counts who has asked for it."""

    def __init__(self) -> None:
        self.asked = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_instances_that_load_at_once_share_their_weights_with_each_other(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_one() -> Instance:
        return load(WRITES, {"model.py": SCALE}, modelFile="model.py", first=one)

    def tie_while_another_loads(*services: Any) -> int:
        if not loading:
            loading.append(threading.Thread(target=lambda: others.append(next_one())))
            loading[0].start()
            while turns.asked < 2 and loading[0].is_alive():
                loading[0].join(0.001)
        return tie(*services)

    one = load(WRITES, {"model.py": SCALE}, modelFile="model.py")
    one.weights._tying = turns = Turns()  # type: ignore[assignment]
    loading: list[threading.Thread] = []
    others: list[Instance] = []
    monkeypatch.setattr("kserve_torch.runtime.sharing.tie", tie_while_another_loads)
    two = next_one()
    loading[0].join()
    assert results(two, 2) == [2]
    assert [each.weights.are_outdated for each in (one, two, *others)] == [True, False, True]


PIPELINE = """
import torch
class Pipeline:
    def __init__(self):
        self.model = torch.nn.Linear(3, 3)
        torch.nn.init.ones_(self.model.weight)
        torch.nn.init.ones_(self.model.bias)
"""
TIED = """
import torch
from pipeline import Pipeline
class H:
    def initialize(self, context):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).eval()
        torch.manual_seed(torch.seed())
        self.other = torch.nn.Linear(2, 2)
        self.pipeline = [Pipeline()]
    def handle(self, data, context):
        return [self]
"""


def pointers(module: torch.nn.Module) -> dict[str, int]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.data_ptr() for name, tensor in tensors}


def test_instances_share_equal_weights(load: Load) -> None:
    first = load(TIED, {"pipeline.py": PIPELINE})
    second = load(TIED, {"pipeline.py": PIPELINE}, first=first)
    (one,), (two,) = results(first, 1), results(second, 1)
    assert pointers(one.model) == pointers(two.model)
    assert pointers(one.pipeline[0].model) == pointers(two.pipeline[0].model)
    assert not pointers(one.other).items() & pointers(two.other).items()
    assert torch.equal(one.model(torch.ones(1, 8)), two.model(torch.ones(1, 8)))


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_scripted_models_of_function_handlers_share_too(load: Load) -> None:
    text = """
        import torch
        net = None
        def handle(data, context):
            global net
            if data is None:
                net = torch.jit.script(torch.nn.Linear(4, 4))
                torch.nn.init.ones_(net.weight)
                return None
            return [net.weight.data_ptr() for row in data]
        """
    first = load(text)
    assert results(first, 1) == results(load(text, first=first), 1)


SCRIPTED_TUPLE = """
import torch
from typing import NamedTuple

class Scaled(NamedTuple):
    x: torch.Tensor
    factor: float = FACTOR

@torch.jit.script
def scale(x: torch.Tensor):
    scaled = Scaled(x)
    return scaled.x * scaled.factor

def handle(data, context):
    return data and [float(scale(torch.ones(1))) for row in data]
"""


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_scripted_classes_are_not_those_of_an_instance_that_is_gone(load: Load) -> None:
    first = load(SCRIPTED_TUPLE.replace("FACTOR", "10.0"))
    assert results(first, 1) == [10.0]
    first.close()
    assert results(load(SCRIPTED_TUPLE.replace("FACTOR", "99.0")), 1) == [99.0]
