"""Write a v2 request with image files as BYTES: base64 in JSON, as they are in the other forms."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import openinference
import requestfile


def main() -> None:
    """Write one input for each image named on the command line."""
    parser = requestfile.parser(__doc__)
    parser.add_argument("images", nargs="+", type=Path, metavar="image", help="image files")
    openinference.add_options(parser, "mnist")
    options = parser.parse_args()
    images = [requestfile.read_image(path) for path in options.images]
    inputs = [
        openinference.bytes_input(f"input-{i}", image, text=False) for i, image in enumerate(images)
    ]
    openinference.write(options.output, inputs, options.form, options.model)


if __name__ == "__main__":
    requestfile.run(main)
