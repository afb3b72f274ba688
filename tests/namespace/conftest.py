"""Fixtures for the tests of what archives see of the standard modules."""

import importlib
import sys
import textwrap
import types
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path

import pytest

from kserve_torch.namespace.loader import Namespace

from ..makers import write
from .made import NET, Make

READ = "import pickle, torch, model\nread, load = pickle.load, torch.load\n"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a namespace of a folder with the given files; all are closed at the end."""
    made: list[Namespace] = []

    def make_one(name: str = "a", /, packages: Namespace | None = None, **files: str) -> Namespace:
        contents = {
            key.replace("__slash__", "/") + ".py": textwrap.dedent(text)
            for key, text in files.items()
        }
        made.append(Namespace(write(tmp_path / name, contents), packages=packages))
        return made[-1]

    yield make_one
    for namespace in made:
        namespace.close()
    ours = {namespace.name for namespace in made}
    assert not [name for name in sys.modules.copy() if name.partition(".")[0] in ours]


@pytest.fixture
def as_cython(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of compiled modules hold Python here, and enter themselves by their bare names."""
    create, run = ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module

    def is_here(loader: ExtensionFileLoader) -> bool:
        return Path(loader.path).is_relative_to(tmp_path)

    def create_here(loader: ExtensionFileLoader, spec: ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name) if is_here(loader) else create(loader, spec)

    def run_here(loader: ExtensionFileLoader, module: types.ModuleType) -> None:
        if not is_here(loader):
            run(loader, module)
            return
        sys.modules.setdefault(loader.name.partition(".")[2], module)
        exec(Path(loader.path).read_text(), vars(module))

    monkeypatch.setattr(ExtensionFileLoader, "create_module", create_here)
    monkeypatch.setattr(ExtensionFileLoader, "exec_module", run_here)


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
