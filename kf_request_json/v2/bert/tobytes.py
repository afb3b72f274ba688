"""Write a v2 request with a text as BYTES."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import openinference
import requestfile


def main() -> None:
    """Write one input for each text on the command line."""
    parser = requestfile.parser(__doc__, "bert_v2.json")
    parser.add_argument(
        "--input_text", action="append", required=True, help="may be given several times"
    )
    openinference.add_options(parser, "bert_sequence_classification")
    options = parser.parse_args()
    inputs = [
        openinference.bytes_input(f"input-{i}", text.encode(), text=True)
        for i, text in enumerate(options.input_text)
    ]
    openinference.write(options.output, inputs, options.form, options.model)


if __name__ == "__main__":
    requestfile.run(main)
