"""Write a v2 request with a tensor of each file: an image's pixels in 0..1, or a text's bytes.

An image becomes FP32 [channels, height, width], a text INT64 [bytes].
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import requestfile
import tensorscript

if __name__ == "__main__":
    requestfile.run(lambda: tensorscript.main(__doc__, mean=0.0, std=1.0))
