"""``python -m kserve_torch``."""

import sys

from kserve_torch.cli import main

if __name__ == "__main__":
    sys.exit(main(program="kserve_torch"))
