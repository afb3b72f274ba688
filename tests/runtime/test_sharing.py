"""How it is found that somebody has written to weights that several instances hold together."""

import gc
import weakref
from types import SimpleNamespace

import torch

from kserve_torch.runtime import paramdata
from kserve_torch.runtime.sharing import Weights
from kserve_torch.runtime.tying import are_tied


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
