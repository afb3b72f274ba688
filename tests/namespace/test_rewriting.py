"""Handlers that write files again which others of their workers use."""

import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from .made import Make

WAYS = {
    "zip": "with zipfile.ZipFile('new.zip') as file: file.extractall(FOLDER)",
    "tar": "with tarfile.open('new.tar') as file: file.extractall(FOLDER, filter='data')",
    "copy": "shutil.copy('new', FOLDER + '/weights')",
    "unpack": "shutil.unpack_archive('new.zip', FOLDER)",
    "open": "with open(FOLDER + '/weights', 'wb') as file: file.write(b'new')",
}
HANDLER = """
import io, os, shutil, tarfile, threading, zipfile

FOLDER = os.path.dirname(__file__)

def write():
    {}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the archive ``a``, with a file that what there is beside it has anew."""
    monkeypatch.chdir(tmp_path)
    Path("new").write_bytes(b"new")
    with zipfile.ZipFile("new.zip", "w") as file:
        file.writestr("weights", "new")
    with tarfile.open("new.tar", "w") as archive:
        archive.add("new", "weights")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "weights").write_bytes(b"old")
    return tmp_path / "a"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_who_uses_the_old_file_keeps_it(make: Make, folder: Path, way: str) -> None:
    """Memory that is mapped from a file which is truncated is gone, and with it the process."""
    handler = make(handler=HANDLER.format(way)).import_module("handler")
    with (folder / "weights").open("rb") as used:
        handler.write()
        assert used.read() == b"old"
    assert (folder / "weights").read_bytes() == b"new"
    assert {file.name for file in folder.iterdir()} - {"__pycache__"} == {"handler.py", "weights"}


def test_an_empty_file_stays_itself(make: Make, folder: Path) -> None:
    """Code that locks such a file, as with `fcntl.flock`, must open the one that others have."""
    lock = folder / "weights"
    lock.write_bytes(b"")
    handler = make(handler=HANDLER.format(WAYS["open"].replace("b'new'", "b''")))
    before = lock.stat().st_ino
    with lock.open("rb"):  # else a new file might get the number of the old one
        handler.import_module("handler").write()
        assert lock.stat().st_ino == before


def test_until_it_is_complete_others_find_the_old_file(make: Make, folder: Path) -> None:
    """Workers load at the same time: each finds all of what the other has extracted."""
    found = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            found.append((folder / "weights").read_bytes())
            return super().read(size)

    way = WAYS["tar"].replace("'new.tar'", "fileobj=SOURCE")
    handler = make(handler=HANDLER.format(way)).import_module("handler")
    handler.SOURCE = Watched(Path("new.tar").read_bytes())
    handler.write()
    assert set(found) == {b"old", b"new"}  # and never none of it
    assert (folder / "weights").read_bytes() == b"new"


def test_a_damaged_archive_changes_nothing(make: Make, folder: Path) -> None:
    data = Path("new.zip").read_bytes()
    Path("new.zip").write_bytes(data.replace(b"new", b"bad", 1))
    handler = make(handler=HANDLER.format(WAYS["zip"])).import_module("handler")
    with pytest.raises(zipfile.BadZipFile):
        handler.write()
    assert (folder / "weights").read_bytes() == b"old"
    assert {file.name for file in folder.iterdir()} - {"__pycache__"} == {"handler.py", "weights"}


@pytest.mark.parametrize(
    ("way", "target"),
    [*((way, "a/first") for way in WAYS), ("copy", "elsewhere"), ("open", "elsewhere")],
)
def test_links_are_written_through(make: Make, folder: Path, way: str, target: str) -> None:
    (folder / "weights").rename(target)
    (folder / "weights").symlink_to(Path(target).resolve())
    make(handler=HANDLER.format(WAYS[way])).import_module("handler").write()
    assert (folder / "weights").is_symlink()
    assert Path(target).read_bytes() == b"new"


@pytest.mark.parametrize(
    "opened", ["'weights', 'rb'", "'weights', 'ab'", "os.open('weights', os.O_WRONLY), 'wb'"]
)
def test_a_file_that_is_not_truncated_stays_itself(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    monkeypatch.chdir(folder)
    before = (folder / "weights").stat().st_ino
    make(handler=HANDLER.format(f"open({opened}).close()")).import_module("handler").write()
    assert (folder / "weights").stat().st_ino == before


@pytest.mark.parametrize("way", ["copy", "open"])
def test_temporary_files_are_written_while_they_are_open(
    make: Make, folder: Path, tmp_path: Path, way: str
) -> None:
    handler = make(handler=HANDLER.format(WAYS[way])).import_module("handler")
    handler.FOLDER = str(tmp_path)
    with (tmp_path / "weights").open("wb+", buffering=0) as used:
        used.write(b"old")
        handler.write()
        used.seek(0)
        assert used.read() == b"new"


def test_a_pipe_is_written_to(make: Make, folder: Path) -> None:
    (folder / "weights").unlink()
    os.mkfifo(folder / "weights")
    handler = make(handler=HANDLER.format(WAYS["open"])).import_module("handler")
    reader = os.open(folder / "weights", os.O_RDONLY | os.O_NONBLOCK)
    handler.write()
    assert os.read(reader, 10) == b"new"
    os.close(reader)


def test_other_code_truncates_files_as_ever(make: Make, folder: Path) -> None:
    make(handler="").import_module("handler")
    with (folder / "weights").open("rb") as used:
        shutil.copy("new", folder / "weights")
        assert used.read() == b"new"
        with zipfile.ZipFile("new.zip") as file:
            file.extractall(folder)
        with tarfile.open("new.tar") as archive:
            archive.extractall(folder, filter="data")
        assert os.fstat(used.fileno()).st_ino == (folder / "weights").stat().st_ino
