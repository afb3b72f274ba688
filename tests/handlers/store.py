"""All archives of ``handlers/`` in one store, built as a user would."""

import importlib.util
import shutil
from pathlib import Path

from ..scripts import run_script
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
    _run(HANDLERS / "make_weights.py", *TORCHVISION, "--output", folder)
    if has_transformers():
        script, checkpoint = HANDLERS / BERT / "make_checkpoint.py", folder / BERT / "checkpoint"
        _run(script, "--output", checkpoint)
        names.append(BERT)
    recipes = [folder / name for name in names]
    store = folder / "model-store"
    _run(HANDLERS / "build_archive.py", *recipes, "--output", store)
    return store


def _run(script: Path, *arguments: object) -> None:
    done = run_script(script, *arguments)
    assert done.returncode == 0, done.stderr
