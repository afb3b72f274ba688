"""Write a v2 request with a tensor of each file, normalised as MNIST models expect it.

An image becomes FP32 [channels, height, width], less --mean, divided by --std; a text becomes
INT64 [bytes]. (The tensors of ../totensor.py are not normalised.)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import requestfile
import tensorscript

if __name__ == "__main__":
    requestfile.run(lambda: tensorscript.main(__doc__, mean=0.1307, std=0.3081))
