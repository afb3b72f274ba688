"""Embeddings whose indices are checked first; on CPUs here, where torch itself would do it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kserve_torch.runtime import embeddings

WEIGHT = torch.arange(15.0).view(5, 3)


@pytest.fixture
def replaced():
    library = embeddings.replace("CPU")
    yield
    library._destroy()


def looked_up(indices):
    return F.embedding(indices, WEIGHT)


def summed(indices):
    return F.embedding_bag(indices, WEIGHT, torch.tensor([0]), mode="sum")


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("call", [looked_up, summed])
@pytest.mark.parametrize("index", [5, -1, 2**40])
def test_an_index_that_is_too_large(call, index):
    with pytest.raises(IndexError, match=r"^index out of range in self$") as caught:
        call(torch.tensor([1, index]))
    assert caught.traceback[-1].path.name == "embeddings.py"  # not the kernel


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_answers_are_torchs_own(mode):
    bag = nn.EmbeddingBag(5, 3)
    text = (
        torch.tensor([[0, 4], [1, 1]]),
        torch.tensor([2], dtype=torch.int32),
        torch.empty(0).int(),
    )
    calls = [(looked_up, indices) for indices in text]
    calls += [(summed, text[1].long()), (bag, text[0])]
    with mode():
        wanted = [call(indices) for call, indices in calls]
        library = embeddings.replace("CPU")
        try:
            given = [call(indices) for call, indices in calls]
        finally:
            library._destroy()
    assert all(map(torch.equal, given, wanted))


@pytest.mark.usefixtures("replaced")
def test_gradients_and_refusals_are_torchs_own():
    layer = nn.Embedding(5, 3, padding_idx=0)
    layer(torch.tensor([0, 1, 1])).sum().backward()
    assert layer.weight.grad.sum(1).tolist() == [0, 6, 0, 0, 0]
    with pytest.raises(RuntimeError, match="one of the following scalar types: Long, Int"):
        layer(torch.tensor([0.5]))


@pytest.mark.gpu
def test_a_gpu_survives_an_index_that_is_too_large():
    embeddings.install()
    weight = WEIGHT.cuda()
    with pytest.raises(IndexError):
        F.embedding(torch.tensor([9], device="cuda"), weight)
    assert F.embedding(torch.tensor([4], device="cuda"), weight).tolist() == [[12, 13, 14]]
