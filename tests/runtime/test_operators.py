"""Operators that archives add to torch."""

import threading
from collections import ChainMap
from typing import Any

import pytest
import torch

from kserve_torch.errors import (
    LoadFailed,
)
from kserve_torch.namespace.scopes import scopes
from kserve_torch.runtime import operators

from .loaded import Load, results

OPERATOR = """
import torch

FACTOR = 2.0

@torch.library.custom_op("NAME::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR

@scale.register_fake
def _(x):
    return torch.empty_like(x)

scale.register_autograd(
    lambda context, grad: grad * context.factor,
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", FACTOR),
)

def handle(data, context):
    x = torch.ones(1, requires_grad=True)
    y = scale(x)
    y.backward()
    return data and [[y.item(), x.grad.item(), torch.ops.NAME.scale(x).item()]] * len(data)
"""


def test_instances_share_an_operator(load: Load) -> None:
    text = OPERATOR.replace("NAME", "shared")
    first = load(text)
    second = load(text)
    assert results(first, 1) == results(second, 1) == [[2.0, 2.0, 2.0]]
    first.close()
    third = load(text)
    assert results(second, 1) == results(third, 1) == [[2.0, 2.0, 2.0]]


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("FACTOR = 2.0", "FACTOR = 3.0", [3.0, 3.0, 3.0]),
        ("x * FACTOR", "x + FACTOR", [3.0, 2.0, 3.0]),
    ],
)
def test_an_operator_does_what_its_own_archive_says(
    load: Load, old: str, new: str, answer: list[float]
) -> None:
    text = OPERATOR.replace("NAME", f"own{len(old)}")
    first, second = load(text), load(text.replace(old, new))
    for _ in range(2):
        assert results(first, 1) == [[2.0, 2.0, 2.0]]
        assert results(second, 1) == [answer]
    first.close()
    assert results(second, 1) == [answer]


def test_a_kernel_is_for_its_own_archive(load: Load) -> None:
    plain = OPERATOR.replace("NAME", "kernel").replace("x: torch.Tensor) -> torch.Tensor", "x)")
    plain = plain.replace("mutates_args=()", 'mutates_args=(), schema="(Tensor x) -> Tensor"')
    kernel = '@scale.register_kernel("cpu")\ndef _(x):\n    return x * FACTOR ** 2\n'
    other = plain.replace("2.0", "3.0") + kernel
    first, second, third = load(plain + kernel), load(plain), load(other)
    assert results(first, 1) == [[4.0, 2.0, 4.0]]
    assert results(second, 1) == [[2.0, 2.0, 2.0]]
    assert results(third, 1) == [[9.0, 3.0, 9.0]]
    first.close()
    third.close()
    assert results(load(plain), 1) == results(second, 1) == [[2.0, 2.0, 2.0]]


def test_an_operator_has_one_form_as_long_as_it_is_used(load: Load) -> None:
    text = OPERATOR.replace("NAME", "form")
    other = text.replace("Tensor) -> torch", "Tensor, by: float = 1.0) -> torch")
    first = load(text)
    with pytest.raises(LoadFailed, match="has an operator form::scale with other arguments"):
        load(other)
    assert results(first, 1) == [[2.0, 2.0, 2.0]]
    first.close()
    assert results(load(other), 1) == [[2.0, 2.0, 2.0]]


def test_operators_of_others_are_torchs_affair(load: Load) -> None:
    load()

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    define = torch.library.custom_op("others::twice", mutates_args=())
    for _ in range(2):
        assert float(define(twice)(torch.ones(1))) == 2.0


class Asked:
    """A lock that knows whether another thread has asked for it."""

    def __init__(self) -> None:
        self._lock, self._home = threading.RLock(), threading.get_ident()
        self.asked = threading.Event()

    def __enter__(self) -> None:
        if threading.get_ident() != self._home:
            self.asked.set()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_an_instance_loads_while_another_registers_functions(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, lock = OPERATOR.replace("NAME", "atonce"), Asked()
    first = load(text)
    definition = operators._operators["atonce::scale"].definition

    def register() -> None:
        definition.register_vmap(lambda *args: None)
        lock.asked.set()

    other = threading.Thread(target=register)

    class Looked(ChainMap[str, Any]):
        def keys(self) -> Any:
            if other.ident is None:
                other.start()
                assert lock.asked.wait(30)
            return super().keys()

    monkeypatch.setattr(operators, "_lock", lock)
    monkeypatch.setattr(operators, "scopes", Looked(scopes))
    second = load(text)
    other.join()
    assert results(first, 1) == results(second, 1) == [[2.0, 2.0, 2.0]]
