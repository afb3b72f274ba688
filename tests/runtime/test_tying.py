"""What several instances of a model hold once, and what each holds for itself."""

import weakref
from types import SimpleNamespace

import pytest
import torch

from kserve_torch.runtime.sharing import Weights
from kserve_torch.runtime.tying import tie

LARGE = 1 << 16


def net(*, persistent: bool = True, **buffers: torch.Tensor) -> torch.nn.Module:
    """A module with a weight and the given buffers."""
    module = torch.nn.Linear(4, 4)
    torch.nn.init.ones_(module.weight)
    torch.nn.init.ones_(module.bias)
    for name, buffer in buffers.items():
        module.register_buffer(name, buffer, persistent=persistent)
    return torch.nn.Sequential(module).eval()


def shared(two: torch.nn.Module, one: torch.nn.Module) -> set[str]:
    """Names of the tensors that ``two`` has of ``one`` after it was tied to it."""
    tie(SimpleNamespace(model=two), SimpleNamespace(model=one))
    theirs = {**dict(one.named_parameters()), **dict(one.named_buffers())}
    ours = {**dict(two.named_parameters()), **dict(two.named_buffers())}
    same = {name for name in ours if ours[name].data_ptr() == theirs[name].data_ptr()}
    return {name.removeprefix("0.") for name in same} - {"weight", "bias"}


def watched(one: SimpleNamespace, two: SimpleNamespace) -> Weights:
    """The weights of ``one``, to which those of ``two`` were tied."""
    first = Weights(one)
    Weights(two).tie_to(first)
    return first


def test_parameters_are_held_once_and_so_are_large_buffers_of_the_state() -> None:
    one, two, three = (net(qweight=torch.ones(LARGE, dtype=torch.int8)) for _ in range(3))
    services = [SimpleNamespace(models={"a": module}) for module in (one, two, three)]
    assert tie(services[1], services[0]) == LARGE + 4 * 4 * 4 + 4 * 4
    assert tie(services[2], services[1]) == LARGE + 4 * 4 * 4 + 4 * 4
    assert three[0].weight.data_ptr() == one[0].weight.data_ptr()
    assert tie(services[2], services[0]) == 0


def test_buffers_that_are_no_part_of_the_state_are_each_instances_own() -> None:
    one, two = (net(persistent=False, scratch=torch.ones(LARGE)) for _ in range(2))
    assert shared(two, one) == set()


def test_small_buffers_and_empty_ones_are_each_instances_own() -> None:
    one, two = (net(steps=torch.ones(8), cache=torch.zeros(LARGE)) for _ in range(2))
    assert shared(two, one) == set()


def test_a_buffer_that_a_call_has_written_to_is_each_instances_own() -> None:
    one, two = (net(state=torch.ones(LARGE), table=torch.ones(LARGE)) for _ in range(2))
    with torch.inference_mode():
        one[0].state.fill_(1.0)
    assert shared(two, one) == {"table"}


def test_weights_that_a_call_has_written_to_are_each_instances_own() -> None:
    one, two = net(), net()
    one.load_state_dict(two.state_dict())
    assert tie(SimpleNamespace(model=two), SimpleNamespace(model=one)) == 0
    optimizer = torch.optim.SGD(two[0].parameters(), lr=0.0)
    two(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert tie(SimpleNamespace(model=net()), SimpleNamespace(model=two)) == 0


def test_weak_proxies_are_no_models() -> None:
    """Lightning's trainer has one of the model that it has run."""
    one, two = (SimpleNamespace(model=net()) for _ in range(2))
    one.proxy, one.gone = weakref.proxy(one.model), weakref.proxy(net())
    assert tie(two, one)
    assert not watched(one, two).look()


@pytest.mark.parametrize("training", [(True, True), (True, False), (False, True)])
def test_buffers_of_modules_in_training_are_each_instances_own(training: tuple[bool, ...]) -> None:
    one, two = (net(mean=torch.ones(LARGE)).train(mode) for mode in training)
    assert shared(two, one) == set()


def test_weights_that_the_first_call_will_make() -> None:
    handlers = [SimpleNamespace(model=torch.nn.LazyLinear(2).eval()) for _ in range(2)]
    assert tie(handlers[1], handlers[0]) == 0
    assert not watched(*handlers).look()


@pytest.mark.filterwarnings("ignore:.torch.jit.(script|freeze)")
def test_frozen_programs_which_know_no_training() -> None:
    handlers = [SimpleNamespace(model=torch.jit.freeze(torch.jit.script(net()))) for _ in range(2)]
    assert tie(handlers[1], handlers[0]) == 0
    assert not watched(*handlers).look()


def test_buffers_made_in_inference_mode_are_each_instances_own() -> None:
    with torch.inference_mode():
        one, two = (net(table=torch.ones(LARGE)) for _ in range(2))
    assert shared(two, one) == set()
    assert two[0].weight.data_ptr() == one[0].weight.data_ptr()
    assert not watched(SimpleNamespace(model=one), SimpleNamespace(model=two)).look()


@pytest.mark.parametrize(
    "dtype", ["float4_e2m1fn_x2", "float8_e4m3fn", "uint4", "int4", "quint8", "bits8", "uint16"]
)
def test_types_of_numbers_that_know_no_comparison(dtype: str) -> None:
    one, two, other = (
        net(table=torch.full((LARGE,), fill, dtype=torch.uint8).view(getattr(torch, dtype)))
        for fill in (1, 1, 2)
    )
    assert shared(other, one) == set()
    assert shared(two, one) == ({"table"} if two[0].table.nbytes >= LARGE else set())


def test_complex_numbers_and_views_that_are_not_plain_memory() -> None:
    for table in (torch.ones(LARGE, dtype=torch.complex128), torch.ones(LARGE) * 1j):
        one, two = net(table=table.clone()), net(table=table.clone())
        assert shared(two, one) == {"table"}
    one, two = (net(table=(torch.ones(LARGE) * 1j).conj()) for _ in range(2))
    assert shared(two, one) == set()
