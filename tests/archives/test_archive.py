import contextlib
import errno
import gzip
import io
import json
import os
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kserve_torch.archives import extract
from kserve_torch.archives.archive import close_archive, find_archives, layout_of, open_archive
from kserve_torch.errors import InvalidArchive, LoadFailed, ModelNotFound

from ..makers import ECHO, make_archive, manifest, write, write_tar

FILES = {"handler.py": ECHO, "data/words.txt": "a b"}


def refusal(source: Path, workdir: Path) -> str:
    """The reason why ``source`` is refused; it names no folder, and nothing stays behind."""
    with pytest.raises(InvalidArchive) as caught:
        open_archive(source, workdir)
    assert str(workdir) not in caught.value.message
    assert str(source.parent) not in caught.value.message
    assert not list(workdir.rglob("*.*"))
    return caught.value.message


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


# --- the four forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.mar", "a.tar.gz", "a.tgz", "folder"])
def test_every_form_opens(tmp_path: Path, work: Path, name: str) -> None:
    source = make_archive(tmp_path / name, FILES, modelVersion="2.5")
    archive = open_archive(source, work)
    assert (archive.name, archive.manifest.version, archive.url) == ("m", "2.5", name)
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


def test_a_folder_is_served_in_place_and_stays(tmp_path: Path, work: Path) -> None:
    archive = open_archive(make_archive(tmp_path / "folder", FILES), work)
    assert archive.root == tmp_path / "folder"
    assert archive.extracted is None
    close_archive(archive)
    assert (tmp_path / "folder/handler.py").is_file()
    assert not work.exists()


def test_one_archive_opened_twice_has_two_folders(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", FILES)
    assert open_archive(source, work).root != open_archive(source, work).root


def test_a_single_subfolder_is_descended_into(tmp_path: Path, work: Path) -> None:
    make_archive(tmp_path / "sage/model/m", FILES)
    (tmp_path / "sage/.hidden").touch()
    assert open_archive(tmp_path / "sage", work).root == tmp_path / "sage/model/m"


def test_a_tar_without_a_common_folder(tmp_path: Path, work: Path) -> None:
    contents = {"./MAR-INF/MANIFEST.json": manifest().encode(), "./handler.py": b"x"}
    archive = open_archive(write_tar(tmp_path / "a.tar.gz", contents), work)
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


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "in_manifest", "given", "name"),
    [
        ("my-net.mar", "net", "other", "other"),
        ("my-net.mar", "net", None, "net"),
        ("my-net.v2.mar", None, None, "my_net_v2"),
        ("my-net.tar.gz", None, None, "my_net"),
        ("_x.mar", None, None, "_x"),
    ],
)
def test_names(
    tmp_path: Path, work: Path, file: str, in_manifest: str | None, given: str | None, name: str
) -> None:
    source = make_archive(tmp_path / file, FILES, modelName=in_manifest)
    assert open_archive(source, work, name=given).name == name


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b", "-x", "x\n", ".."])
def test_names_that_are_paths_are_refused(tmp_path: Path, work: Path, name: str) -> None:
    source = make_archive(tmp_path / "a.mar", FILES, modelName=name or " ")
    assert "letters, digits" in refusal(source, work)


# --- manifests ------------------------------------------------------------------------------------


def test_old_manifests_and_unknown_members_pass(tmp_path: Path, work: Path) -> None:
    old = {
        "modelServerVersion": "1.0",
        "model": {"modelName": "m", "handler": "service:handle", "modelVersion": 1.2, "x": []},
    }
    source = write(
        tmp_path / "a.mar", {"MAR-INF/MANIFEST.json": "\ufeff" + json.dumps(old), **FILES}
    )
    read = open_archive(source, work).manifest
    assert (read.version, read.handler, read.runtime) == ("1.2", "service:handle", "python")
    assert read.raw["model"]["x"] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "MAR-INF/MANIFEST.json: not valid JSON: Expecting property name"),
        ("[" * 100_000, "MAR-INF/MANIFEST.json: not valid JSON"),
        ("[]", "MAR-INF/MANIFEST.json: got a list, a JSON object is wanted"),
        ("{}", "MAR-INF/MANIFEST.json: model: got nothing, an object is wanted"),
        ('{"model": "m"}', "MAR-INF/MANIFEST.json: model: got text, an object is wanted"),
        ('{"model": {}}', "MAR-INF/MANIFEST.json: model.handler is missing"),
        ('{"model": {"handler": 7.5e9999}}', "MAR-INF/MANIFEST.json: "),
        ('{"model": {"handler": []}}', "model.handler: got a list, text is wanted"),
        ('{"runtime": "LSP", "model": {"handler": "h"}}', "runtime: got 'LSP', python or python3"),
        ('{"runtime": {}, "model": {"handler": "h"}}', "runtime: got {}"),
        (manifest(handler="/etc/x.py"), "model.handler: '/etc/x.py' is not a file of the archive"),
        (manifest(handler="../x.py:f"), "model.handler: '../x.py' is not a file of the archive"),
        (manifest(modelFile="a/../../x"), "model.modelFile: 'a/../../x' is not a file"),
        (manifest(serializedFile="/x.pt"), "model.serializedFile: '/x.pt' is not a file"),
        (manifest(serializedFile="x\0.pt"), "model.serializedFile: 'x\\x00.pt' is not a file"),
        (manifest(configFile="no.yaml"), "no.yaml: named by the manifest, but not in the archive"),
        (b"\xff\xfe", "MAR-INF/MANIFEST.json: not UTF-8 text"),
        (" " * 300_000, "MAR-INF/MANIFEST.json: larger than 262144 bytes"),
    ],
)
def test_wrong_manifests(tmp_path: Path, work: Path, text: str | bytes, reason: str) -> None:
    source = write(tmp_path / "a.mar", {"MAR-INF/MANIFEST.json": text, **FILES})
    if text == '{"model": {"handler": 7.5e9999}}':
        assert open_archive(source, work).manifest.handler == "inf"
    else:
        assert reason in refusal(source, work)


def test_a_given_handler_goes_first(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", FILES)
    assert open_archive(source, work, handler="x:f").manifest.handler == "x:f"


# --- model-config.yaml ----------------------------------------------------------------------------


def test_the_configuration_is_checked(
    tmp_path: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "batchSize: 4\nparallelLevel: '2'\ntorchrun: tpu\nuseVenv: 1\nhandler: {a: 1}\n"
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": text}, configFile="c.yaml")
    archive = open_archive(source, work)
    assert archive.config == {"batchSize": 4, "handler": {"a": 1}}
    assert archive.yaml["parallelLevel"] == "2"
    assert [record.getMessage() for record in caplog.records] == [
        "c.yaml: parallelLevel: got '2', allowed is a whole number from 0 on; the default stays",
        "c.yaml: torchrun: got 'tpu', allowed is a mapping; the default stays",
        "c.yaml: useVenv: got 1, allowed is true or false; the default stays",
    ]


def test_a_misspelt_key_of_the_configuration_is_guessed(
    tmp_path: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "minWorker: 2\nbatch_size: 4\nhandler: {a: 1}\nbatchLimit: 9\n1: 2\nmaxBatchDelay: 5\n"
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": text}, configFile="c.yaml")
    assert open_archive(source, work).config["minWorker"] == 2
    assert caplog.messages == [
        "c.yaml: minWorker is left to the handler; did you mean minWorkers?",
        "c.yaml: batch_size is left to the handler; did you mean batchSize?",
    ]


def test_an_empty_configuration(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": ""}, configFile="c.yaml")
    assert open_archive(source, work).config == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "c.yaml: not valid YAML"),
        ("a: 1\nb:\n\t- 2\n", "that cannot start any token (line 3)"),
        ("- a", "c.yaml: got a list, a mapping is wanted"),
        ("!!python/object/apply:os.getcwd []", "c.yaml: not valid YAML: could not determine"),
        ("[" * 5000, "c.yaml: not valid YAML"),
        ("a: &a [*a]", "c.yaml: more than 50000 values"),
        (
            "a0: &a0 [1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)),
            "c.yaml: more than 50000 values",
        ),
    ],
)
def test_wrong_configurations(tmp_path: Path, work: Path, text: str, reason: str) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": text}, configFile="c.yaml")
    assert reason in refusal(source, work)


# --- bare folders ---------------------------------------------------------------------------------


def test_a_bare_folder(tmp_path: Path, work: Path) -> None:
    names = ["my_handler.py", "net.py", "net.pt", "model-config.yaml", "__init__.txt"]
    archive = open_archive(write(tmp_path / "my-net", dict.fromkeys(names, "")), work)
    assert archive.name == "my-net"
    assert archive.manifest.handler == "my_handler.py"
    assert archive.manifest.model_file == "net.py"
    assert archive.manifest.serialized_file == "net.pt"
    assert archive.manifest.config_file == "model-config.yaml"
    assert archive.manifest.version == "1.0"


@pytest.mark.parametrize(
    ("names", "handler", "model_file"),
    [
        (["anything.py"], "anything.py", None),
        (["handler.py", "model.py", "utils.py"], "handler.py", "model.py"),
        (["service.py", "net.py"], "service.py", "net.py"),
    ],
)
def test_roles_in_a_bare_folder(
    tmp_path: Path, work: Path, names: list[str], handler: str, model_file: str | None
) -> None:
    archive = open_archive(write(tmp_path / "m", dict.fromkeys(names, "")), work)
    assert (archive.manifest.handler, archive.manifest.model_file) == (handler, model_file)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a.pt"], "one Python file named like handler.py is wanted, got none"),
        (["a.py", "b.py"], "one Python file named like handler.py is wanted, got a.py, b.py"),
        (["handler.py", "a.py", "b.py"], "one model file is allowed beside the handler"),
        (["handler.py", "a.pt", "b.onnx"], "one weights file is allowed, got a.pt, b.onnx"),
    ],
)
def test_unclear_bare_folders(tmp_path: Path, work: Path, names: list[str], reason: str) -> None:
    assert reason in refusal(write(tmp_path / "m", dict.fromkeys(names, "")), work)


def test_a_bare_folder_with_a_handler_from_outside(tmp_path: Path, work: Path) -> None:
    folder = write(tmp_path / "m", {"net.py": "", "net.pt": ""})
    archive = open_archive(folder, work, default_handler="image_classifier")
    assert (archive.manifest.handler, archive.manifest.model_file) == ("net.py", None)
    archive = open_archive(folder, work, handler="image_classifier")
    assert (archive.manifest.handler, archive.manifest.model_file) == ("image_classifier", "net.py")
    weights = write(tmp_path / "w", {"net.pt": ""})
    assert open_archive(weights, work, default_handler="x").manifest.handler == "x"


# --- stores ---------------------------------------------------------------------------------------


def test_finding_archives(tmp_path: Path) -> None:
    for name in ("b.mar", "a.tar.gz", "c.tgz", "d.model", "notes.txt", ".hidden.mar"):
        (tmp_path / name).touch()
    make_archive(tmp_path / "unpacked", FILES)
    make_archive(tmp_path / "nested/inner", FILES)
    write(tmp_path / "bare", {"handler.py": ECHO})
    (tmp_path / "lost+found").mkdir()
    names = [path.name for path in find_archives(tmp_path)]
    assert names == ["a.tar.gz", "b.mar", "bare", "c.tgz", "d.model", "nested", "unpacked"]


@pytest.mark.parametrize(
    ("files", "layout"),
    [
        (["config/config.properties", "model-store/m.mar"], "kserve"),
        (["model-store/m.mar"], "kserve"),
        (["MAR-INF/MANIFEST.json", "handler.py"], "archive"),
        (["handler.py", "model.pt"], "bare"),
        (["handler.py", "m.mar"], "store"),
        (["m.tar.gz"], "store"),
        (["m/MAR-INF/MANIFEST.json"], "store"),
    ],
)
def test_layouts(tmp_path: Path, files: list[str], layout: str) -> None:
    assert layout_of(write(tmp_path / "dir", dict.fromkeys(files, ""))) == layout


# --- hostile files --------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["../x.py", "/tmp/x.py", "a/../../x.py", "..\\x.py", "\\x.py"])
def test_zip_entries_outside_the_archive(tmp_path: Path, work: Path, entry: str) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, entry: "boo"})
    assert refusal(source, work) == f"a.mar: the entry {entry!r} points outside the archive"
    assert not (tmp_path / "x.py").exists()


def test_two_dots_in_a_name_are_no_way_up(tmp_path: Path, work: Path) -> None:
    archive = open_archive(make_archive(tmp_path / "a..b.mar", {**FILES, "x..y": "1"}), work)
    assert (archive.root / "x..y").is_file()


@pytest.mark.parametrize(
    ("mode", "what"), [(stat.S_IFLNK, "a link"), (stat.S_IFCHR, "a device or pipe")]
)
def test_special_zip_entries(tmp_path: Path, work: Path, mode: int, what: str) -> None:
    source = make_archive(tmp_path / "a.mar", FILES)
    with zipfile.ZipFile(source, "a") as archive:
        info = zipfile.ZipInfo("evil")
        info.create_system = 3
        info.external_attr = (mode | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert refusal(source, work) == f"a.mar: the entry 'evil' is {what}"


def entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (entry("../x", tarfile.DIRTYPE), "the entry '../x' points outside"),
        (entry("/x", tarfile.REGTYPE), "the entry '/x' points outside"),
        (entry("m/l", tarfile.SYMTYPE, "/etc/passwd"), "the link 'm/l' points outside"),
        (entry("m/l", tarfile.SYMTYPE, "../../x"), "the link 'm/l' points outside"),
        (entry("m/l", tarfile.LNKTYPE, "../x"), "the link 'm/l' points outside"),
        (entry("m/l", tarfile.SYMTYPE, "data"), "the link 'm/l' points to no file"),
        (entry("m/l", tarfile.SYMTYPE, "l"), "the link 'm/l' points to no file"),
        (entry("m/dev", tarfile.CHRTYPE), "the entry 'm/dev' is a device or pipe"),
        (entry("m/pipe", tarfile.FIFOTYPE), "the entry 'm/pipe' is a device or pipe"),
    ],
)
def test_special_tar_entries(
    tmp_path: Path, work: Path, info: tarfile.TarInfo, reason: str
) -> None:
    contents = {"m/MAR-INF/MANIFEST.json": manifest().encode(), "m/data/x": b"x"}
    assert reason in refusal(write_tar(tmp_path / "a.tar.gz", contents, info), work)


def test_tar_links_inside_become_copies(tmp_path: Path, work: Path) -> None:
    contents = {"m/MAR-INF/MANIFEST.json": manifest().encode(), "m/data/x": b"x"}
    links = [
        entry("m/two", tarfile.SYMTYPE, "one"),
        entry("m/one", tarfile.SYMTYPE, "data/x"),
        entry("m/three", tarfile.LNKTYPE, "m/data/x"),
    ]
    root = open_archive(write_tar(tmp_path / "a.tar.gz", contents, *links), work).root
    for name in ("one", "two", "three"):
        assert (root / name).read_bytes() == b"x"
        assert not (root / name).is_symlink()


def test_a_link_cannot_be_written_through(tmp_path: Path, work: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    link, through = entry("m/l", tarfile.SYMTYPE, str(victim)), tarfile.TarInfo("m/l/x")
    source = write_tar(tmp_path / "a.tar.gz", {"m/x": b""}, link, through)
    assert "points outside the archive" in refusal(source, work)
    assert list(victim.iterdir()) == []


def test_a_file_where_a_folder_is_wanted(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, "x": "1", "x/y": "2"})
    assert "a.mar: cannot be unpacked: " in refusal(source, work)


@pytest.mark.parametrize("name", ["a.mar", "a.tar.gz"])
def test_bombs(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    source = make_archive(tmp_path / name, {**FILES, "zeros": bytes(8 << 20)})
    monkeypatch.setattr(extract, "FREE_BYTES", 1 << 20)
    assert refusal(source, work) == f"{name}: unpacks to more than 100 times its size"
    monkeypatch.setattr(extract, "MAX_BYTES", 1 << 20)
    assert refusal(source, work) == f"{name}: unpacks to more than 1048576 bytes"
    monkeypatch.setattr(extract, "MAX_ENTRIES", 2)
    assert refusal(source, work) == f"{name}: more than 2 entries"


def test_small_models_of_zeros_are_no_bombs(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, "zeros": bytes(8 << 20)})
    assert (open_archive(source, work).root / "zeros").stat().st_size == 8 << 20


def test_a_tar_header_that_would_fill_the_memory(tmp_path: Path, work: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    source = tmp_path / "a.tar.gz"
    source.write_bytes(gzip.compress(info.tobuf() + bytes(1 << 20)))
    assert refusal(source, work) == f"a.tar.gz: has a header of {1 << 32} bytes"


def test_an_encrypted_zip(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", FILES)
    data = bytearray(source.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    source.write_bytes(data)
    assert "is encrypted" in refusal(source, work)


@pytest.mark.parametrize("content", [b"", b"PK", b"not an archive", b"\x1f\x8b\x08", bytes(600)])
def test_files_that_are_no_archives(tmp_path: Path, work: Path, content: bytes) -> None:
    source = tmp_path / "a.mar"
    source.write_bytes(content)
    assert refusal(source, work)


@pytest.mark.parametrize("name", ["a.mar", "a.tar.gz"])
def test_truncated_files(tmp_path: Path, work: Path, name: str) -> None:
    whole = make_archive(tmp_path / name, {**FILES, "noise": os.urandom(4096)}).read_bytes()
    for length in range(0, len(whole) - 40, 97):
        (tmp_path / name).write_bytes(whole[:length])
        assert refusal(tmp_path / name, work)


def in_memory(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return make_archive(Path(folder, name), FILES).read_bytes()


WHOLE = {name: in_memory(name) for name in ("a.mar", "a.tar.gz")}
WHOLE["a.tar"] = gzip.decompress(WHOLE["a.tar.gz"])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(WHOLE)),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(max_size=4))),
)
def test_damaged_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, changes: list[tuple[int, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    data = io.BytesIO(WHOLE[name])
    for offset, patch in changes:
        data.seek(offset % len(WHOLE[name]))
        data.write(patch)
    (folder / name).write_bytes(data.getvalue())
    with contextlib.suppress(InvalidArchive):
        archive = open_archive(folder / name, folder / "work")
        assert archive.root.is_relative_to(folder / "work")
    assert sorted(path.name for path in folder.iterdir()) == sorted({name, "work"})


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "no space left to unpack it"),
        (errno.EMFILE, "cannot be unpacked: Too many open files"),
    ],
)
def test_a_machine_that_runs_out_of_something_is_not_the_archives_fault(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    def fail(*args: object) -> None:
        raise OSError(number, os.strerror(number), "/somewhere/secret")

    monkeypatch.setattr(extract, "_write", fail)
    with pytest.raises(LoadFailed, match=rf"^a\.mar: {text}$"):
        open_archive(make_archive(tmp_path / "a.mar", FILES), work)
    assert list((work / "models").iterdir()) == []


def test_a_relative_path_holds_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m", {"handler.py": ECHO})
    monkeypatch.chdir(tmp_path)
    archive = open_archive(Path("m"), tmp_path / "work")
    assert archive.root == tmp_path / "m"
    monkeypatch.chdir("m")
    assert open_archive(Path(), tmp_path / "work").name == "m"
