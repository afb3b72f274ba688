"""What layers and operators say when the input does not fit is the client's fault."""

import copy

import pytest
import torch
from torch import nn

from kserve_torch.errors import InvalidInput
from kserve_torch.handler.blame import blame_input, is_about_dtype

TRANSFORMER = nn.Transformer(4, 2, 1, 1, batch_first=True)
ENCODER = nn.TransformerEncoderLayer(4, 2, batch_first=True)


def rows_and_columns(data):
    rows, columns = data.shape
    return rows * columns


def vision_transformer(data):
    """What those of timm and of transformers say."""
    raise ValueError(f"Input image size {list(data.shape[2:])} doesn't match model [224, 224].")


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(nn.Linear(3, 1), (2, 4), id="Linear"),
        pytest.param(lambda data: data @ torch.zeros(3), (2, 4), id="matmul"),
        pytest.param(nn.Conv2d(3, 1, 1), (1, 4, 2, 2), id="channels"),
        pytest.param(nn.Conv2d(3, 1, 1), (2, 2), id="dimensions"),
        pytest.param(nn.Conv1d(3, 1, 5), (1, 3, 2), id="kernel"),
        pytest.param(nn.AvgPool2d(5), (1, 1, 2, 2), id="pooling"),
        pytest.param(lambda data: data + torch.zeros(3), (2, 4), id="add"),
        pytest.param(lambda data: torch.cat((data, torch.zeros(1, 3))), (1, 4), id="cat"),
        pytest.param(lambda data: torch.stack((data, torch.zeros(3))), (4,), id="stack"),
        pytest.param(lambda data: data.view(-1, 3), (2, 4), id="view"),
        pytest.param(nn.BatchNorm1d(3).eval(), (2, 4), id="batch norm"),
        pytest.param(nn.LSTM(3, 1), (2, 4), id="recurrent"),
        pytest.param(nn.Flatten(), (), id="flatten"),
        pytest.param(lambda data: data[:, 5], (2, 4), id="indexing"),
        pytest.param(lambda data: data.shape[2], (2, 4), id="shape"),
        pytest.param(rows_and_columns, (2, 4, 3), id="too many"),
        pytest.param(rows_and_columns, (4,), id="not enough"),
        pytest.param(nn.BatchNorm1d(3).eval(), (3,), id="batch norm's dimensions"),
        pytest.param(nn.LSTM(3, 1), (1, 1, 2, 3), id="recurrent's dimensions"),
        pytest.param(nn.LSTMCell(3, 1), (2, 4), id="cell"),
        pytest.param(ENCODER.train(), (1, 2, 3), id="attention in training"),
        pytest.param(copy.deepcopy(ENCODER).eval(), (1, 2, 3), id="attention"),
        pytest.param(lambda data: ENCODER.self_attn(data, data, data), (1, 1, 2, 4), id="4D"),
        pytest.param(lambda data: TRANSFORMER(data, data), (1, 2, 3), id="d_model"),
        pytest.param(lambda data: data.permute(0, 2, 1), (2, 4), id="permute"),
        pytest.param(lambda data: torch.bmm(data, torch.zeros(2, 4, 1)), (2, 4), id="bmm"),
        pytest.param(lambda data: torch.einsum("bi,i", data, torch.zeros(3)), (2, 4), id="einsum"),
        pytest.param(lambda data: data.expand(2, 3), (2, 4), id="expand"),
        pytest.param(nn.ReflectionPad1d(3), (1, 2), id="padding"),
        pytest.param(nn.ReflectionPad2d(3), (1, 4), id="padding's dimensions"),
        pytest.param(nn.GroupNorm(2, 4), (4,), id="group norm"),
        pytest.param(nn.EmbeddingBag(5, 4), (1, 1, 2), id="bag's dimensions"),
        pytest.param(nn.MaxPool2d(2), (1, 1, 0, 2), id="no pixels"),
        pytest.param(nn.Upsample(scale_factor=2), (1, 4), id="upsampling"),
        pytest.param(nn.UpsamplingBilinear2d(4), (1, 2, 2), id="bilinear"),
        pytest.param(nn.Upsample((4, 4)), (1, 1, 2), id="spatial dimensions"),
        pytest.param(nn.PixelUnshuffle(2), (1, 1, 3, 3), id="patches"),
        pytest.param(vision_transformer, (1, 3, 8, 8), id="image size"),
        pytest.param(lambda data: data.mm(torch.zeros(4, 1)), (2, 2, 4), id="mm"),
        pytest.param(lambda data: torch.zeros(1, 3).add_(data), (2, 3), id="in place"),
        pytest.param(lambda data: data[:, :, 0], (2, 4), id="indices"),
    ],
)
def test_shapes_that_models_do_not_take(model, shape):
    data = torch.zeros(shape)
    with pytest.raises(InvalidInput, match=r"^the model does not take "), blame_input(data):
        model(data)


@pytest.mark.parametrize(
    ("model", "shape", "text"),
    [
        (nn.BatchNorm2d(3), (2, 4), "expected 4D input (got 2D input)"),
        (nn.Linear(3, 1), (2, 4), "mat1 and mat2 shapes cannot be multiplied (2x4 and 3x1)"),
        (ENCODER, (1, 2, 3), "was expecting embedding dimension of 4, but got 3"),
    ],
    ids=["raised", "torch's", "asserted"],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_what_torchscript_says_of_them(model, shape, text):
    scripted, data = torch.jit.script(copy.deepcopy(model).eval()), torch.zeros(shape)
    with pytest.raises(InvalidInput) as caught, blame_input(data):
        scripted(data)
    assert caught.value.message == f"the model does not take {list(shape)} float32: {text}"


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_that_models_do_not_take(dtype):
    data = torch.zeros(1, 1, 4, 4, dtype=dtype)
    with pytest.raises(InvalidInput) as caught, blame_input(data):
        nn.AdaptiveAvgPool2d(2)(data)
    assert is_about_dtype(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        nn.Embedding(3, 1),
        lambda data: torch.zeros(3)[data],
        lambda data: torch.zeros(3).gather(0, data),
        lambda data: torch.zeros(3).index_select(0, data),
        lambda data: nn.functional.one_hot(data, 3),
    ],
    ids=["Embedding", "indexing", "gather", "index_select", "one_hot"],
)
def test_floats_that_are_no_indices(model):
    data = torch.zeros(1)
    with pytest.raises(InvalidInput) as caught, blame_input(data):
        model(data)
    assert is_about_dtype(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        nn.Embedding(3, 1),
        nn.EmbeddingBag(3, 1),
        nn.EmbeddingBag(3, 1, mode="max"),
        lambda data: torch.zeros(3)[data],
        lambda data: torch.zeros(1, 3).index_select(1, data[0]),
        lambda data: nn.functional.one_hot(data, 3),
    ],
    ids=["Embedding", "mean", "max", "indexing", "index_select", "one_hot"],
)
def test_integers_that_a_model_does_not_know(model):
    data = torch.tensor([[3]])
    with pytest.raises(InvalidInput, match=r"^the model does not take "), blame_input(data):
        model(data)
