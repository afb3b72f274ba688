"""The network of PyTorch's MNIST example, so that anyone's ``mnist_cnn.pt`` of it loads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """Two convolutions and two linear layers; reads one digit of 28x28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, digits: Tensor) -> Tensor:
        """Score digits.

        Args:
            digits: float32 ``[n, 1, 28, 28]``, white on black, normalised by MNIST's mean 0.1307
                and standard deviation 0.3081.

        Returns:
            float32 ``[n, 10]``: the logarithm of each digit's probability.
        """
        hidden = F.relu(self.conv1(digits))
        hidden = F.relu(self.conv2(hidden))
        hidden = self.dropout1(F.max_pool2d(hidden, 2))
        hidden = F.relu(self.fc1(torch.flatten(hidden, 1)))
        hidden = self.dropout2(hidden)
        return F.log_softmax(self.fc2(hidden), dim=1)
