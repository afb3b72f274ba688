import base64
import io
import pickle
import zipfile

import pytest
import torch

from kserve_torch.errors import BadRow, InvalidInput
from kserve_torch.handler.densenet import DenseNetHandler


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def compressed(file):
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(file)) as plain,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as smaller,
    ):
        for name in plain.namelist():
            smaller.writestr(name, plain.read(name))
    return packed.getvalue()


def test_tensors_in_tensors_out(folder, load):
    loaded = load(DenseNetHandler(), folder)
    one, two = torch.zeros(1, 8, 8), torch.ones(1, 8, 8)
    answers = loaded.ask({"data": saved(one)}, {"body": bytearray(saved(two))})
    with torch.inference_mode():
        expected = loaded.handler.model(torch.stack([one, two]))
    assert [answer.shape for answer in answers] == [(1, 3), (1, 3)]
    assert torch.allclose(torch.cat(answers), expected)


def test_another_clients_dtype_changes_no_tensor(folder, load):
    loaded = load(DenseNetHandler(), folder)
    rows = [{"data": saved(torch.tensor([2**53 + 1]))}, {"data": saved(torch.rand(1))}]
    with pytest.raises(InvalidInput, match="different dtypes"):
        loaded.ask_apart(*rows)


def test_numbers_do_too(folder, load):
    loaded = load(DenseNetHandler(), folder)
    zeros = torch.zeros(1, 8, 8)
    encoded = {"b64": base64.b64encode(saved(zeros)).decode()}
    old = saved(zeros, _use_new_zipfile_serialization=False)
    cpu, gpu = (pickle.dumps(device, 2)[2:-3] for device in ("cpu", "cuda:0"))
    values = (zeros.tolist(), saved(zeros), encoded, old, old.replace(cpu, gpu))
    numbers, *others = (loaded.ask({"data": value})[0] for value in values)
    assert all(torch.equal(numbers, other) for other in others)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"junk", "data: not a tensor saved by torch"),
        (saved({"a": 1}), "data: expected one saved tensor, got dict"),
        (
            saved(torch.zeros(1).expand(3, 60000, 60000)),
            "data: a tensor of 43200000000 bytes with 4 in the file, save a clone",
        ),
        (compressed(saved(torch.zeros(1, 1000, 1000))), "data: not a tensor saved by torch"),
        (saved(io.BytesIO), "data: not a tensor saved by torch"),
        ("text", "data: expected numbers or lists of numbers, got str"),
    ],
    ids=["junk", "dict", "expanded", "compressed", "class", "text"],  # files hold the time
)
def test_what_is_no_tensor(folder, load, value, reason):
    with pytest.raises(BadRow) as caught:
        load(DenseNetHandler(), folder).ask({"data": value})
    assert (caught.value.index, caught.value.reason) == (0, reason)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of torch
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.eye(2).to_sparse_csr(),
        lambda: torch.empty(2, device="meta"),
        lambda: torch.nested.nested_tensor([torch.rand(1), torch.rand(2)]),
        lambda: torch.quantize_per_tensor(torch.rand(2), 0.1, 0, torch.quint8),
    ],
    ids=["sparse", "rows", "meta", "nested", "quantized"],
)
def test_tensors_that_no_batch_can_be_made_of(folder, load, make):
    data = saved(make())
    with pytest.raises(BadRow, match=r"row 1: data: (expected a tensor of plain|not a tensor)"):
        load(DenseNetHandler(), folder).ask({"data": saved(torch.zeros(1, 8, 8))}, {"data": data})


def test_a_shape_that_the_model_does_not_take(folder, load):
    with pytest.raises(InvalidInput, match=r"\[1, 2, 3\]"):
        load(DenseNetHandler(), folder).ask({"data": saved(torch.zeros(2, 3))})
