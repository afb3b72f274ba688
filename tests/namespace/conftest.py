"""Fixtures for the tests of what archives see of the standard modules."""

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from kserve_torch.namespace.loader import Namespace

from ..makers import write

NET = "class Net: pass\n"
READ = "import pickle, torch, model\nread, load = pickle.load, torch.load\n"


@pytest.fixture
def two(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[types.ModuleType]]:
    """The handler modules of two archives, both imported before either reads anything."""
    text = READ + getattr(request, "param", "")
    files = {"handler.py": text, "model.py": NET, "shared.py": "import model as m"}
    made = [Namespace(write(tmp_path / name, files)) for name in ("a", "b")]
    handlers = [namespace.import_module("handler") for namespace in made]
    for handler, namespace in zip(handlers, made, strict=True):
        handler.namespace = namespace
    yield handlers
    for namespace in made:
        namespace.close()


@pytest.fixture
def remote_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers runs code of repositories, from a folder of the test."""
    utils = importlib.import_module("transformers.dynamic_module_utils")
    monkeypatch.setattr(utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]
