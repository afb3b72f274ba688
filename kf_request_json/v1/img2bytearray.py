"""Write a v1 request with images: {"instances": [{"data": "<base64>"}, ...]}."""

import base64
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import requestfile


def main() -> None:
    """Write one instance for each image named on the command line."""
    parser = requestfile.parser(__doc__)
    parser.add_argument("images", nargs="+", type=Path, metavar="image", help="image files")
    options = parser.parse_args()
    images = [requestfile.read_image(path) for path in options.images]
    instances = [{"data": base64.b64encode(image).decode()} for image in images]
    requestfile.write(options.output, requestfile.pretty({"instances": instances}))


if __name__ == "__main__":
    requestfile.run(main)
