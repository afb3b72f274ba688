"""Train ``Net`` on scikit-learn's handwritten digits and write ``mnist_cnn.pt``.

Nothing is downloaded: scikit-learn brings the digits along. Takes about two minutes on two cores.
Beside the weights it writes the held-out digits as pictures into ``test_data/``: ``0.png`` to
``9.png``, and all of them in ``held_out.png``, where row *d* holds the digits *d*.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from digits import HELD_OUT_PER_DIGIT, Digits, load, normalised, pictures, varied
from mnist import Net
from PIL import Image
from torch import Tensor

HERE = Path(__file__).resolve().parent
BATCH = 64
PEAK_LEARNING_RATE = 2e-3
BAR = 24


def main() -> int:
    """Train, judge by the held-out digits, save; 2 if scikit-learn is missing."""
    options = _options()
    try:
        learnt, held_out = load()
    except ImportError:
        print("train: scikit-learn is not installed: pip install scikit-learn", file=sys.stderr)
        return 2
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(options.threads)
    seen = pictures(held_out)
    net = train(learnt, options.epochs)
    right = accuracy(net, seen, held_out.labels)
    print(f"held-out accuracy: {right:.4f} ({len(seen)} digits)")
    options.output.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), options.output / "mnist_cnn.pt")
    save_pictures(seen, options.output / "test_data")
    print(f"written: {options.output / 'mnist_cnn.pt'}")
    return 0


def train(digits: Digits, epochs: int) -> Net:
    """Teach a new network; every epoch sees every digit once, drawn differently each time."""
    net = Net()
    batches = -(-len(digits.labels) // BATCH)
    optimiser = torch.optim.AdamW(net.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, PEAK_LEARNING_RATE, total_steps=epochs * batches
    )
    started = time.monotonic()
    for epoch in range(1, epochs + 1):
        loss = 0.0
        for chosen in torch.randperm(len(digits.labels)).split(BATCH):
            batch = Digits(digits.reliefs[chosen], digits.labels[chosen])
            wrong = F.nll_loss(net(varied(batch)), batch.labels)
            optimiser.zero_grad()
            wrong.backward()
            optimiser.step()
            schedule.step()
            loss += wrong.item() / batches
        _report(epoch, epochs, loss, time.monotonic() - started)
    return net.eval()


@torch.inference_mode()
def accuracy(net: Net, greys: Tensor, labels: Tensor) -> float:
    """The share of digits, uint8 ``[n, 28, 28]``, that the network reads right."""
    return float((net(normalised(greys)).argmax(1) == labels).float().mean())


def save_pictures(greys: Tensor, folder: Path) -> None:
    """Write held-out digits, uint8 ``[360, 28, 28]`` in the order of their labels, as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = greys.view(10, HELD_OUT_PER_DIGIT, 28, 28)
    for digit, row in enumerate(rows):
        Image.fromarray(row[0].numpy()).save(folder / f"{digit}.png")
    sheet = rows.permute(0, 2, 1, 3).reshape(10 * 28, HELD_OUT_PER_DIGIT * 28)
    Image.fromarray(sheet.numpy()).save(folder / "held_out.png", optimize=True)


def _report(epoch: int, epochs: int, loss: float, seconds: float) -> None:
    done = BAR * epoch // epochs
    bar = "#" * done + "." * (BAR - done)
    print(f"epoch {epoch:3}/{epochs} [{bar}] loss {loss:.4f}  {seconds:5.1f} s", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=70, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=HERE, help="default: this script's folder")
    options = parser.parse_args()
    for name in ("epochs", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"argument --{name}: {getattr(options, name)} given; 1 or more expected")
    return options


if __name__ == "__main__":
    sys.exit(main())
