"""All archives of ``handlers/`` in one store, built as a user would."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ..server import ROOT

HANDLERS = ROOT / "handlers"
TORCHVISION = ("image_classifier", "object_detector", "image_segmenter")
BERT = "bert_sequence_classification"


def has_transformers() -> bool:
    return importlib.util.find_spec("transformers") is not None


def build_store(folder: Path) -> Path:
    """A model store with the archive of every handler whose packages are here.

    Args:
        folder: gets the handlers' folders too, with the weights that were made.
    """
    shutil.copytree(HANDLERS, folder, dirs_exist_ok=True)
    names = ["mnist", *TORCHVISION, "text_classifier", "streaming"]
    making = [_start(HANDLERS / "make_weights.py", *TORCHVISION, "--output", folder)]
    if has_transformers():
        script, checkpoint = HANDLERS / BERT / "make_checkpoint.py", folder / BERT / "checkpoint"
        making.append(_start(script, "--output", checkpoint))
        names.append(BERT)
    assert [script.wait() for script in making] == [0] * len(making)
    recipes = [folder / name for name in names]
    store = folder / "model-store"
    assert _start(HANDLERS / "build_archive.py", *recipes, "--output", store).wait() == 0
    return store


def _start(*command: object) -> subprocess.Popen[bytes]:
    # Other tests run meanwhile: a second thread of operators would mostly wait for its core.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, *map(str, command)]
    return subprocess.Popen(arguments, env=env, stdout=subprocess.DEVNULL)
