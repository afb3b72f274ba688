import errno
import gzip
import os
import stat
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from kserve_torch.archives import extract
from kserve_torch.archives.archive import open_archive
from kserve_torch.errors import LoadFailed

from ..makers import make_archive, manifest, write_tar
from .opening import FILES, refusal


@pytest.mark.parametrize("entry", ["../x.py", "/tmp/x.py", "a/../../x.py", "..\\x.py", "\\x.py"])
def test_zip_entries_outside_the_archive(tmp_path: Path, work: Path, entry: str) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, entry: "boo"})
    assert refusal(source, work) == f"a.mar: the entry {entry!r} points outside the archive"
    assert not (tmp_path / "x.py").exists()


def test_two_dots_in_a_name_are_no_way_up(tmp_path: Path, work: Path) -> None:
    archive = open_archive(make_archive(tmp_path / "a..b.mar", {**FILES, "x..y": "1"}), work)
    assert (archive.root / "x..y").is_file()


def test_folders_as_windows_writes_them(tmp_path: Path, work: Path) -> None:
    manifest_path = "MAR-INF\\MANIFEST.json"
    files = {"MAR-INF\\": "", manifest_path: manifest(), "handler.py": "", "a\\b\\c.txt": "c"}
    with zipfile.ZipFile(tmp_path / "a.mar", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    root = open_archive(tmp_path / "a.mar", work).root
    assert (root / "a/b/c.txt").read_text() == "c"


class Unflagged(zipfile.ZipInfo):
    """An entry whose name does not say that it is UTF-8."""

    encoding = "utf-8"

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:
        return self.filename.encode(self.encoding), self.flag_bits & ~0x800


class Dos(Unflagged):
    encoding = "cp437"


@pytest.mark.parametrize("kind", [zipfile.ZipInfo, Unflagged, Dos])
def test_names_that_are_not_ascii(tmp_path: Path, work: Path, kind: type[zipfile.ZipInfo]) -> None:
    source = make_archive(tmp_path / "a.mar", FILES)
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr(kind("größe/éa.txt"), "x")
    assert (open_archive(source, work).root / "größe/éa.txt").read_text() == "x"


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


def test_folders_may_come_after_their_files(tmp_path: Path, work: Path) -> None:
    contents = {"m/MAR-INF/MANIFEST.json": manifest().encode(), "m/handler.py": b""}
    folders = [entry(name, tarfile.DIRTYPE) for name in ("m", "m/empty", ".")]
    tar = write_tar(tmp_path / "a.tar.gz", contents, *folders)
    files = {**FILES, "MAR-INF/": "", "empty/": "", "./": ""}
    for source in (tar, make_archive(tmp_path / "a.mar", files)):
        root = open_archive(source, work).root
        assert (root / "handler.py").is_file()
        assert (root / "empty").is_dir()


def test_tar_links_inside_become_copies(tmp_path: Path, work: Path) -> None:
    contents = {"m/MAR-INF/MANIFEST.json": manifest().encode(), "m/data/x": b"x"}
    links = [
        entry("m/two", tarfile.SYMTYPE, "one"),
        entry("m/one", tarfile.SYMTYPE, "data/x"),
        entry("m/three", tarfile.SYMTYPE, "MAR-INF/MANIFEST.json"),
        entry("m/three", tarfile.LNKTYPE, "m/data/x"),
    ]
    root = open_archive(write_tar(tmp_path / "a.tar.gz", contents, *links), work).root
    for name in ("one", "two", "three"):
        assert (root / name).read_bytes() == b"x"
        assert not (root / name).is_symlink()


def test_a_chain_of_tar_links_takes_one_look_at_each(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = Counter[str]()
    is_file = Path.is_file

    def counted(path: Path) -> bool:
        looked_at[path.name] += 1
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", counted)
    contents = {"m/MAR-INF/MANIFEST.json": manifest().encode(), "m/99": b"x"}
    links = [entry(f"m/{i}", tarfile.SYMTYPE, str(i + 1)) for i in range(99)]
    root = open_archive(write_tar(tmp_path / "a.tar.gz", contents, *links), work).root
    assert (root / "0").read_bytes() == b"x"
    assert max(looked_at[str(i)] for i in range(100)) == 1


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


def test_large_models_are_no_bombs(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "FREE_BYTES", 1024)
    source = make_archive(tmp_path / "a.mar", {**FILES, "noise": os.urandom(4096)})
    assert (open_archive(source, work).root / "noise").stat().st_size == 4096


def test_small_models_of_zeros_are_no_bombs(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, "zeros": bytes(8 << 20)})
    assert (open_archive(source, work).root / "zeros").stat().st_size == 8 << 20


@pytest.mark.parametrize("size", [1 << 32, 1 << 17])
def test_a_tar_header_that_would_take_too_much(tmp_path: Path, work: Path, size: int) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, size
    source = tmp_path / "a.tar.gz"
    source.write_bytes(gzip.compress(info.tobuf() + bytes(1 << 20)))
    assert refusal(source, work) == f"a.tar.gz: has a header of {size} bytes"


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


@pytest.mark.parametrize(("name", "before"), [("a.mar", b"handler.py"), ("a.tar.gz", b"a.tar\0")])
def test_damaged_content(tmp_path: Path, work: Path, name: str, before: bytes) -> None:
    source = make_archive(tmp_path / name, FILES)
    data = bytearray(source.read_bytes())
    data[data.index(before) + len(before)] ^= 0xFF  # where the compressed data begin
    source.write_bytes(data)
    assert "damaged" in refusal(source, work)


def test_a_wrong_checksum(tmp_path: Path, work: Path) -> None:
    """Weights hardly compress: as other bytes, most of them are no damage to gzip's format."""
    source = make_archive(tmp_path / "a.tar.gz", FILES)
    data = bytearray(source.read_bytes())
    data[-5] ^= 0xFF  # of the checksum at its end
    source.write_bytes(data)
    assert "cannot be unpacked: CRC check failed" in refusal(source, work)


@pytest.mark.parametrize("name", ["a.mar", "a.tar.gz"])
def test_truncated_files(tmp_path: Path, work: Path, name: str) -> None:
    whole = make_archive(tmp_path / name, {**FILES, "noise": os.urandom(4096)}).read_bytes()
    for length in (*range(0, len(whole), 97), len(whole) - 1):
        (tmp_path / name).write_bytes(whole[:length])
        assert refusal(tmp_path / name, work)


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "/secret"),
            LoadFailed,
            "a.mar: cannot be unpacked: No space left",
        ),
        (
            OSError(errno.EMFILE, "Too many", "/secret"),
            LoadFailed,
            "a.mar: cannot be unpacked: Too many",
        ),
        (MemoryError("all used"), MemoryError, "all used"),
    ],
)
def test_a_machine_that_runs_out_of_something_is_not_the_archives_fault(
    tmp_path: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: type[Exception],
    text: str,
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(extract, "_write", fail)
    with pytest.raises(expected, match=f"^{text}$"):
        open_archive(make_archive(tmp_path / "a.mar", FILES), work)
    assert list((work / "models").iterdir()) == []
