"""Rows as a batch, and where a handler's inputs go before its model gets them."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from kserve_torch.errors import BadRow, InvalidInput
from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.tensors import as_batch, as_tensor, is_cuda, stack, to_device

META = torch.device("meta")
Pair = namedtuple("Pair", "ids mask")


def handler(device, model=lambda given: given):
    """As a subclass leaves it that has an `initialize` of its own."""
    made = BaseHandler()
    made.model, made.device = model, device
    return made


@pytest.mark.parametrize("device", ["cpu", None, torch.device("cpu")])
def test_a_handlers_device_in_every_way_it_is_written(device):
    data = torch.ones(1, 2)
    assert handler(device).inference(data).equal(data)
    assert handler(device).preprocess([[1.0, 2.0]]).equal(torch.tensor([[1.0, 2.0]]))


@pytest.mark.parametrize("device", ["meta", META])
def test_tensors_and_collections_of_them(device):
    tensor = torch.zeros(2)
    assert to_device(tensor, device).is_meta
    found = to_device([tensor, (tensor, "word")], device)
    assert found[0].is_meta
    assert found[1][0].is_meta
    assert found[1][1] == "word"


def test_named_tuples_stay_what_they_are():
    found = to_device(Pair(torch.zeros(2), torch.ones(2)), META)
    assert type(found) is Pair
    assert found.mask.is_meta


def test_objects_that_move_themselves():
    class Batch(dict):
        """Like the BatchEncoding of transformers, or a batch of graphs."""

        def to(self, device):
            return Batch({name: tensor.to(device) for name, tensor in self.items()})

    batch = Batch(ids=torch.zeros(2))
    assert handler(META).inference(batch)["ids"].is_meta


def test_packed_sequences_reach_a_recurrent_model():
    packed = pack_padded_sequence(torch.zeros(2, 3, 2), torch.tensor([3, 2]), batch_first=True)
    moved = to_device(packed, META)
    assert type(moved) is PackedSequence
    assert moved.data.is_meta
    output, _ = handler("cpu", torch.nn.GRU(2, 3, batch_first=True)).inference(packed)
    assert type(output) is PackedSequence


def test_what_counts_as_cuda():
    devices = [0, "cuda", "cuda:1", torch.device("cuda", 0), "cpu", None, META]
    assert [is_cuda(device) for device in devices] == [True] * 4 + [False] * 3


ROWS = [np.array([1, 2], dtype) for dtype in ("<f4", "<f8", "<f2", "<i4", "u1", "?")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.dtype.str)
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_rows_alike_become_what_they_would_one_by_one(row, dtype):
    rows = [row, row + row]
    alone = torch.stack([as_tensor(i, value, dtype) for i, value in enumerate(rows)])
    together = as_batch(rows, dtype)
    assert together.dtype is alone.dtype
    assert together.equal(alone)


LISTS = [
    *([1, 2], [1.5, 2], [True, False], [True, 2], [True, 0.5], [[1, 2], [0.5, 4]], [[[1]], [[2]]]),
    *(
        [],
        [[], []],
        [1e39],
        [2**62, 2**53 + 1],
        [0.1, 2**53 + 1],
        [float("nan"), 1],
        (1, 2),
        3,
        0.5,
    ),
]


@pytest.mark.parametrize("value", LISTS, ids=str)
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_lists_become_what_torch_makes_of_them(value, dtype):
    expected = torch.as_tensor(value, dtype=dtype)
    for made in (as_tensor(0, value, dtype), as_batch([value], dtype)[0]):
        assert made.dtype is expected.dtype
        torch.testing.assert_close(made, expected, rtol=0, atol=0, equal_nan=True)
    other = torch.as_tensor(value, dtype=dtype)
    torch.testing.assert_close(
        as_batch([value] * 3, dtype), torch.stack([other] * 3), rtol=0, atol=0, equal_nan=True
    )


def test_numpy_reads_lists(monkeypatch):
    """It takes a fifth of the time, and for many short rows a twentieth."""
    monkeypatch.setattr(torch, "as_tensor", None)
    assert as_tensor(0, [[1, 2.5]]).tolist() == [[1, 2.5]]
    assert as_batch([[1, 2], [3, 4.5]]).tolist() == [[1, 2], [3, 4.5]]


@pytest.mark.parametrize("kind", [list, np.array])
def test_rows_of_several_requests_are_of_one_kind(kind):
    context = SimpleNamespace(has_one_request=False)
    assert as_batch([kind([1]), kind([2])], context=context).dtype is torch.int64
    assert as_batch([kind([1]), kind([2.5])], torch.float32, context).tolist() == [[1], [2.5]]
    with pytest.raises(InvalidInput, match="several requests have different dtypes"):
        as_batch([kind([1]), kind([2.5])], context=context)


@pytest.mark.parametrize(
    "value", [["1"], [1, "2"], [1, None], [[1], [2, 3]], [1, [2]], [-1, 2**63]]
)
def test_lists_that_are_no_tensor(value):
    with pytest.raises(BadRow, match="row 1"):
        as_batch([[1, 2], value])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u8"])
def test_integers_of_an_array_become_those_of_a_list(dtype):
    for array in (np.ones(1, dtype), np.zeros(0, dtype)):
        assert as_tensor(0, array).dtype is torch.int64


def test_a_single_row_has_the_strides_of_a_batch():
    row = torch.zeros(3, 2).T
    assert stack([row]).stride() == stack([row, row]).stride()


def test_a_batch_has_memory_of_its_own():
    row = np.zeros(2, "f4")
    row.flags.writeable = False
    for rows in ([row], [row, row]):
        as_batch(rows).add_(1)
        assert not row.any()


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([np.zeros(2), np.zeros(3)], InvalidInput),
        ([np.zeros(2), np.zeros((1, 2))], InvalidInput),
        ([np.zeros(2), None], BadRow),
        ([None, np.zeros(2)], BadRow),
        ([np.array(["a"], object)] * 2, BadRow),
        ([np.zeros(2, ">f4")] * 2, BadRow),
    ],
)
def test_rows_that_are_no_batch(rows, error):
    with pytest.raises(error):
        as_batch(rows)


@pytest.mark.parametrize("value", [[2**63], np.array([2**63], "u8"), np.array(2**64 - 1, "u8")])
def test_a_number_too_large_is_refused_as_an_array_too(value):
    for rows in ([value], [value, value]):
        with pytest.raises(BadRow, match="row 0: data: a number is too large for INT64"):
            as_batch(rows)
    assert as_batch([value], torch.float32).min() >= 2**63
    assert as_batch([np.array([2**63 - 1], "u8")]).item() == 2**63 - 1


def test_rows_of_several_kinds():
    rows = [np.array([1, 2]), np.array([0.5, 1]), [3, 4], torch.ones(2)]
    assert as_batch(rows, torch.float32).tolist() == [[1, 2], [0.5, 1], [3, 4], [1, 1]]
    assert as_batch(rows).tolist() == [[1, 2], [0.5, 1], [3, 4], [1, 1]]
    assert as_batch([]).shape == (0,)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_read_as_json(kind):
    assert as_tensor(0, kind(b"[[1, 2.5], [3, 4]]")).tolist() == [[1, 2.5], [3, 4]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "data: missing or empty"),
        (b"[1, NaN]", "data: expected numbers or lists of numbers as JSON, got 8 other bytes"),
        (b"\xff\xd8", "data: expected numbers or lists of numbers as JSON, got 2 other bytes"),
        (b"[" * 2000, "data: expected numbers or lists of numbers as JSON, got 2000 other bytes"),
        (b"[[1], 2]", "data: expected numbers in a list of regular shape"),
        (b'{"a": 1}', "data: expected numbers or lists of numbers, got dict"),
    ],
)
def test_bytes_that_are_no_numbers(text, reason):
    with pytest.raises(BadRow) as caught:
        as_tensor(3, text)
    assert (caught.value.index, caught.value.reason) == (3, reason)
