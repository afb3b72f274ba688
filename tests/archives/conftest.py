from pathlib import Path

import pytest

from kserve_torch.archives.store import ModelStore
from kserve_torch.settings import Settings

from .stores import CONTENT, workdir


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with a file, a folder, a sub-folder and links; beside it a file that is not in it."""
    root = tmp_path / "store"
    (root / "sub").mkdir(parents=True)
    (root / "unpacked").mkdir()
    for name in (
        "a.mar",
        "a..b.mar",
        "c.tar.gz",
        "e.model",
        "sub/d.mar",
        "unpacked.mar",
        "%41.mar",
    ):
        (root / name).write_bytes(CONTENT)
    (tmp_path / "outside.mar").write_bytes(CONTENT)
    (tmp_path / "store-too").mkdir()
    (tmp_path / "store-too/x.mar").write_bytes(CONTENT)
    (root / "link.mar").symlink_to("a.mar")
    (root / "escape.mar").symlink_to("../outside.mar")
    (root / "loop.mar").symlink_to("loop.mar")
    return root


@pytest.fixture
def store(folder: Path) -> ModelStore:
    return ModelStore(Settings(model_store=folder), workdir(folder))
