"""A plain kserve.ModelServer with one `TorchModel` per archive of the folder in ``STORE``."""

import os
from pathlib import Path

import kserve

from kserve_torch import TorchModel

if __name__ == "__main__":
    models = [TorchModel(path.stem, path) for path in Path(os.environ["STORE"]).iterdir()]
    for model in models:
        model.load()
    kserve.ModelServer().start(models)
