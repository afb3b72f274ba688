import os
import tempfile
from pathlib import Path

import pytest

from kserve_torch.archives.folders import find_archives, is_one_model

from ..makers import ECHO, make_archive, write
from ..unprivileged import unprivileged
from .opening import FILES


def test_finding_archives(tmp_path: Path) -> None:
    for name in ("b.mar", "a.tar.gz", "c.tgz", "d.model", "notes.txt", ".hidden.mar"):
        (tmp_path / name).touch()
    make_archive(tmp_path / "unpacked", FILES)
    make_archive(tmp_path / "nested/inner", FILES)
    make_archive(tmp_path / "stock", {}, handler="image_classifier")
    (tmp_path / "downloaded").mkdir()
    (tmp_path / "downloaded/a.mar").touch()
    write(tmp_path / "bare", {"handler.py": ECHO})
    (tmp_path / "lost+found/folder.py").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe.mar")
    names = [path.name for path in find_archives(tmp_path)]
    packed, folders = ["a.tar.gz", "b.mar", "c.tgz", "d.model"], ["bare", "downloaded", "nested"]
    assert names == sorted([*packed, *folders, "stock", "unpacked"])


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"model_handler.py": "class ModelHandler(BaseHandler): ..."}, True),
        ({"serve.py": "def handle(data, context): ..."}, True),
        ({"model.py": "class Net: ...", "model.pt": ""}, True),  # for default_service_handler
        ({"train.py": "class Net: ...", "utils.py": ""}, False),
        ({"test_net.py": b"# \xff\ndef test_net(): ..."}, False),
    ],
)
def test_python_files_beside_the_archives_are_not_all_models(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, files: dict[str, str | bytes], found: bool
) -> None:
    (tmp_path / "a.mar").touch()
    write(tmp_path / "src", files)
    names = [path.name for path in find_archives(tmp_path)]
    assert names == ["a.mar", *(["src"] if found else [])]
    assert ("src: no handler and no weights" in caplog.text) is not found


def test_a_handler_that_cannot_be_read_is_a_model_that_fails_to_load() -> None:
    # Not pytest's own folder: others than its user cannot come near that one.
    with tempfile.TemporaryDirectory() as name:
        store = Path(name)
        store.chmod(0o755)
        (write(store / "locked", {"handler.py": ECHO}) / "handler.py").chmod(0)
        with unprivileged():
            assert [path.name for path in find_archives(store)] == ["locked"]


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "gone.mar").symlink_to("nowhere.mar")
    (tmp_path / "loop.mar").symlink_to("loop.mar")
    (tmp_path / "notes.txt").symlink_to("nowhere.txt")
    assert [path.name for path in find_archives(tmp_path)] == ["gone.mar", "loop.mar"]


@pytest.mark.parametrize(
    ("files", "one"),
    [
        (["MAR-INF/MANIFEST.json", "handler.py"], True),
        (["MAR-INF/MANIFEST.json", "model.pt"], True),
        (["handler.py", "model.pt"], True),
        (["handler.py", "m.mar"], False),
        (["m.tar.gz"], False),
        (["m/MAR-INF/MANIFEST.json"], False),
    ],
)
def test_a_folder_is_one_model_or_a_store(tmp_path: Path, files: list[str], one: bool) -> None:
    assert is_one_model(write(tmp_path / "dir", dict.fromkeys(files, ""))) is one
