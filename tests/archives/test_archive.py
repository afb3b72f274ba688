import gzip
import os
import resource
import tarfile
from pathlib import Path

import pytest

from kserve_torch.archives.archive import close_archive, open_archive
from kserve_torch.archives.text import read_text
from kserve_torch.errors import InvalidArchive, LoadFailed, ModelNotFound

from ..makers import ECHO, make_archive, manifest, write, write_tar
from ..unprivileged import locked_folder, unprivileged
from .opening import FILES, refusal

# --- the four forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.mar", "a.tar.gz", "a.tgz", "folder"])
def test_every_form_opens(tmp_path: Path, work: Path, name: str) -> None:
    source = make_archive(tmp_path / name, FILES, modelVersion="2.5")
    archive = open_archive(source, work)
    assert (archive.name, archive.manifest.version, archive.source.name) == ("m", "2.5", name)
    assert (archive.root / "data/words.txt").read_text() == "a b"
    assert archive.manifest.raw["archiverVersion"] == "0.12.0"


@pytest.mark.parametrize("name", ["a.mar", "a.tar.gz"])
def test_closing_removes_what_was_unpacked(tmp_path: Path, work: Path, name: str) -> None:
    archive = open_archive(make_archive(tmp_path / name, FILES), work)
    assert archive.extracted is not None
    assert archive.root.is_relative_to(work)
    close_archive(archive)
    assert list((work / "models").iterdir()) == []
    assert (tmp_path / name).is_file()
    close_archive(archive)  # as where something else has removed the files


def test_a_folder_is_served_in_place_and_stays(tmp_path: Path, work: Path) -> None:
    archive = open_archive(make_archive(tmp_path / "folder", FILES), work)
    assert archive.root == tmp_path / "folder"
    assert archive.extracted is None
    close_archive(archive)
    assert (tmp_path / "folder/handler.py").is_file()
    assert not work.exists()


@pytest.mark.parametrize(
    ("names", "platform"),
    [
        ({"serializedFile": "m.pt"}, "pytorch_torchscript"),
        ({"serializedFile": "m.pt", "modelFile": "model.py"}, "pytorch_eager"),
        ({"serializedFile": "m.pth"}, "pytorch_eager"),
        ({"serializedFile": "m.pt2"}, "pytorch_export"),
        ({"serializedFile": "m.v1.onnx"}, "onnx_onnxv1"),
        ({}, "pytorch_eager"),
    ],
)
def test_the_platform_is_that_of_the_weights(
    tmp_path: Path, work: Path, names: dict[str, str], platform: str
) -> None:
    files = {**FILES, **dict.fromkeys(names.values(), "")}
    archive = open_archive(make_archive(tmp_path / "a.mar", files, **names), work)
    assert archive.platform == platform


def test_one_archive_opened_twice_has_two_folders(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", FILES)
    assert open_archive(source, work).root != open_archive(source, work).root


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.mar", "a.mar-"), ("a:b c.mar", "a_b_c.mar-"), ("a" * 250 + ".mar", "a" * 50 + "-")],
)
def test_the_folder_of_an_archive_has_its_name(
    tmp_path: Path, work: Path, name: str, begins: str
) -> None:
    """A traceback's handler.py is told from those of other archives by it."""
    assert open_archive(make_archive(tmp_path / name, FILES), work).root.name.startswith(begins)


def test_a_single_subfolder_is_descended_into(tmp_path: Path, work: Path) -> None:
    make_archive(tmp_path / "sage/model/m", FILES)
    (tmp_path / "sage/.hidden").touch()
    (tmp_path / "sage/__MACOSX/._model").mkdir(parents=True)
    assert open_archive(tmp_path / "sage", work).root == tmp_path / "sage/model/m"


def test_a_folder_that_holds_an_archive_alone_is_that_archive(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "downloaded/a.mar", FILES)
    assert open_archive(tmp_path / "downloaded", work).source == source


def test_a_tar_without_a_common_folder(tmp_path: Path, work: Path) -> None:
    contents = {"./MAR-INF/MANIFEST.json": manifest().encode(), "./handler.py": b"x"}
    top = tarfile.TarInfo(".")
    top.type = tarfile.DIRTYPE
    archive = open_archive(write_tar(tmp_path / "a.tar.gz", contents, top), work)
    assert (archive.root / "handler.py").read_bytes() == b"x"


def test_any_other_file_is_tried_as_a_tar(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.tar.gz", FILES).rename(tmp_path / "blob")
    assert open_archive(source, work).name == "m"
    (tmp_path / "plain").write_bytes(gzip.decompress(source.read_bytes()))
    assert open_archive(tmp_path / "plain", work).name == "m"


def test_a_missing_file(tmp_path: Path, work: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"^Model not found at: no\.mar$"):
        open_archive(tmp_path / "no.mar", work)


def test_a_pipe_is_refused(tmp_path: Path, work: Path) -> None:
    os.mkfifo(tmp_path / "a.mar")
    assert refusal(tmp_path / "a.mar", work) == "a.mar: neither a file nor a folder"


def test_a_work_folder_that_cannot_be_made(tmp_path: Path) -> None:
    source = make_archive(tmp_path / "a.mar", FILES)
    with pytest.raises(LoadFailed, match=r"^the work folder cannot be written to: "):
        open_archive(source, source)


def test_a_relative_path_holds_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m", {"handler.py": ECHO})
    monkeypatch.chdir(tmp_path)
    archive = open_archive(Path("m"), tmp_path / "work")
    assert archive.root == tmp_path / "m"
    monkeypatch.chdir("m")
    assert open_archive(Path(), tmp_path / "work").name == "m"


def test_a_folder_that_cannot_be_read(work: Path) -> None:
    with locked_folder() as folder, unprivileged(), pytest.raises(InvalidArchive) as caught:
        open_archive(folder, work)
    assert caught.value.message == f"{folder.name}: Permission denied"


def test_too_many_open_files_are_not_the_archives_fault(tmp_path: Path, work: Path) -> None:
    folder = write(tmp_path / "a", FILES)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(LoadFailed) as opened:
            open_archive(folder, work)
        with pytest.raises(LoadFailed) as read:
            read_text(folder, "handler.py")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert opened.value.message == "a: Too many open files"
    assert read.value.message == "handler.py: Too many open files"


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "in_manifest", "given", "name"),
    [
        ("my-net.mar", "net", "other", "other"),
        ("my-net.mar", "net", None, "net"),
        ("my-net.v2.mar", None, None, "my_net_v2"),
        ("my-net.tar.gz", None, None, "my_net"),
        ("_x.mar", None, None, "_x"),
        ("modèle.mar", None, None, "mod_le"),
        ("my-net", None, None, "my_net"),
    ],
)
def test_names(
    tmp_path: Path, work: Path, file: str, in_manifest: str | None, given: str | None, name: str
) -> None:
    source = make_archive(tmp_path / file, FILES, modelName=in_manifest)
    assert open_archive(source, work, name=given).name == name


@pytest.mark.parametrize(
    ("file", "name"), [("my-net", "my-net"), ("my net", "my_net"), ("my-net.mar", "my_net")]
)
def test_names_without_a_manifest(tmp_path: Path, work: Path, file: str, name: str) -> None:
    """Only a folder keeps its own, if a model may have it."""
    assert open_archive(write(tmp_path / file, FILES), work).name == name


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b", "-x", "x\n", ".."])
def test_names_that_are_paths_are_refused(tmp_path: Path, work: Path, name: str) -> None:
    source = make_archive(tmp_path / "a.mar", FILES, modelName=name or " ")
    assert "letters, digits" in refusal(source, work)
