"""Put a checkpoint for sequence classification into ``checkpoint/``.

Without options it creates a tiny BERT with random weights, which shows how the handler is served;
its predictions are meaningless. ``--model`` copies a real one, by its name on the hub or from a
local folder.
"""

import argparse
import string
import sys
from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

HERE = Path(__file__).resolve().parent
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
#: As many tokens as bert-base-uncased knows, so that its token ids fit.
VOCABULARY = 30_522


def main() -> int:
    """Write the checkpoint; 2 if there is none of that name."""
    options = _options()
    try:
        copy(options.model, options.output) if options.model else make(options.output, options.seed)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        print(f"make_checkpoint: {options.model}: {reason}", file=sys.stderr)
        return 2
    print(f"written: {options.output}")
    return 0


def copy(name: str, folder: Path) -> None:
    """Save a checkpoint of the hub, or of another folder, with its tokenizer."""
    AutoTokenizer.from_pretrained(name).save_pretrained(folder)
    AutoModelForSequenceClassification.from_pretrained(name).save_pretrained(folder)


def make(folder: Path, seed: int) -> None:
    """Save a tiny random BERT that reads words letter by letter."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=512,
        initializer_range=0.5,
        id2label={0: "Not accepted", 1: "Accepted"},
        label2id={"Not accepted": 0, "Accepted": 1},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    letters = string.ascii_lowercase + string.digits + string.punctuation
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", "utf-8")
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a checkpoint on the hub, or a folder with one")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of random weights (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=HERE / "checkpoint", help="folder to write to"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
