"""What layers and operators say when the input does not fit is the client's fault."""

import pytest
import torch
from torch import nn

from kserve_torch.errors import InvalidInput
from kserve_torch.handler.blame import blame_input


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
    ],
)
def test_shapes_that_models_do_not_take(model, shape):
    data = torch.zeros(shape)
    with pytest.raises(InvalidInput, match=r"^the model does not take "), blame_input(data):
        model(data)
