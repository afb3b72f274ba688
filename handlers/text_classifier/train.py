"""Train the text classifier on ``learnt.txt`` and write ``weights.pt`` and ``source_vocab.pt``.

Takes a few seconds. The accuracy printed is that on ``held_out.txt``, which training never sees.
"""

import argparse
import json
import string
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from model import BagOfWords
from torch import Tensor

HERE = Path(__file__).resolve().parent
EPOCHS = 150
LEARNING_RATE = 0.01
#: The share of words hidden from each epoch, so that a text is not known by one of them.
HIDDEN = 0.5


def main() -> int:
    """Train, judge by the held-out texts, save."""
    options = _options()
    torch.manual_seed(options.seed)
    topics = {name: int(number) for number, name in _labels().items()}
    texts = read("learnt.txt")
    numbers = vocabulary([grams(text) for _, text in texts])
    model = train([(topics[topic], encoded(text, numbers)) for topic, text in texts])
    held_out = [(topics[topic], encoded(text, numbers)) for topic, text in read("held_out.txt")]
    print(f"held-out accuracy: {right(model, held_out)} of {len(held_out)}")
    options.output.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), options.output / "weights.pt")
    torch.save(numbers, options.output / "source_vocab.pt")
    print(f"written: {options.output / 'weights.pt'}, source_vocab.pt")
    return 0


def read(name: str) -> list[tuple[str, str]]:
    """The texts of a file, each with its topic."""
    lines = (HERE / name).read_text("utf-8").splitlines()
    return [(topic, text) for topic, _, text in (line.partition(": ") for line in lines)]


def grams(text: str) -> list[str]:
    """Words and pairs of neighbours, as the handler makes them of a text in plain English."""
    words = text.lower().translate(str.maketrans("", "", string.punctuation)).split()
    pairs = [f"{first} {second}" for first, second in pairwise(words)]
    return words + pairs


def vocabulary(texts: list[list[str]]) -> Counter[str]:
    """Number what occurs twice or is a word, from 1 on.

    A Counter, because it has 0 for what it does not hold, on any server.
    """
    counts = Counter(gram for text in texts for gram in text)
    known = [gram for gram in counts if " " not in gram or counts[gram] > 1]
    return Counter({gram: number for number, gram in enumerate(known, start=1)})


def encoded(text: str, numbers: Counter[str]) -> Tensor:
    """A text as int64 ``[words and pairs]``."""
    return torch.tensor([numbers[gram] for gram in grams(text)])


def train(texts: list[tuple[int, Tensor]]) -> BagOfWords:
    """Teach a new network."""
    model = BagOfWords()
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.05)
    goals = torch.tensor([topic for topic, _ in texts])
    for _ in range(EPOCHS):
        seen = [words.where(torch.rand(len(words)) > HIDDEN, 0) for _, words in texts]
        loss = F.cross_entropy(model(*joined(seen)), goals)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def joined(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Several texts as the network takes them: all words, and where each text begins."""
    starts = torch.tensor([0, *map(len, texts[:-1])]).cumsum(0)
    return torch.cat(texts), starts


@torch.inference_mode()
def right(model: BagOfWords, texts: list[tuple[int, Tensor]]) -> int:
    """How many texts the network puts under their topic."""
    goals = torch.tensor([topic for topic, _ in texts])
    said = model(*joined([words for _, words in texts])).argmax(1)
    return int((said == goals).sum())


def _labels() -> dict[str, str]:
    labels: dict[str, str] = json.loads((HERE / "index_to_name.json").read_text("utf-8"))
    return labels


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=HERE, help="default: this script's folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
