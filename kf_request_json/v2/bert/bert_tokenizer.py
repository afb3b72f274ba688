"""Write a v2 request with a text's token ids and attention mask, each INT64 [max_length]."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import openinference
import requestfile


def main() -> None:
    """Tokenize the text on the command line; needs the package transformers."""
    parser = requestfile.parser(__doc__, "bert_v2.json")
    parser.add_argument("--input_text", required=True)
    parser.add_argument(
        "--model_name",
        default="bert-base-uncased",
        help="tokenizer: a hub name or a local folder (default: %(default)s)",
    )
    parser.add_argument("--max_length", type=int, default=150, help="default: %(default)s")
    openinference.add_options(parser, "bert_sequence_classification")
    options = parser.parse_args()
    if options.max_length < 1:
        parser.error(f"argument --max_length: {options.max_length} given; 1 or more expected")
    tokens = _tokenizer(options.model_name)(
        options.input_text, max_length=options.max_length, padding="max_length", truncation=True
    )
    # TorchServe's BERT handlers look for "attention_masks", with an s.
    inputs = [
        openinference.array_input("input_ids", np.array(tokens["input_ids"], np.int64)),
        openinference.array_input("attention_masks", np.array(tokens["attention_mask"], np.int64)),
    ]
    openinference.write(options.output, inputs, options.form, options.model)


def _tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise requestfile.InputError(
            "the package transformers is not installed: pip install transformers"
        ) from None
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise requestfile.InputError(f"--model_name {name}: {reason}") from error


if __name__ == "__main__":
    requestfile.run(main)
