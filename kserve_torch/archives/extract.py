"""Unpack zip and tar files that may be hostile, into a fresh folder.

Only regular files and folders below the target are made: links inside the archive become copies of
what they point to, everything else is refused (CONTRACT A7, T-45). Sizes are counted while
unpacking; those in headers are not trusted.
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from kserve_torch.errors import InvalidArchive, LoadFailed

#: Most files and folders; a model with its tokenizer and a packaged library has thousands.
MAX_ENTRIES = 200_000

#: Most bytes unpacked.
MAX_BYTES = 1 << 40

#: Most bytes unpacked per byte of the file, checked from FREE_BYTES on. Weights compress to a third
#: at best; the limit of deflate is about 1000.
MAX_RATIO = 100

#: Unpacked bytes up to which the ratio does not matter: a small model of zeros is not a bomb.
FREE_BYTES = 1 << 30

_CHUNK = 1 << 16

#: The flag of zip entries whose names are UTF-8.
_UTF8 = 0x800

#: System errors that say that the machine ran out of something.
_SCARCE = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def extract(source: Path, target: Path) -> None:
    """Unpack the file ``source`` into the empty folder ``target``.

    Raises:
        InvalidArchive: neither zip nor tar, damaged, or hostile.
        LoadFailed: the disk is full, or too many files are open.
    """
    budget = _Budget(source.stat().st_size)
    with _translated(source.name):
        if zipfile.is_zipfile(source):
            _extract_zip(source, target, budget)
        else:
            _extract_tar(source, target, budget)


class _Budget:
    """How much of an archive may still be unpacked."""

    def __init__(self, packed: int) -> None:
        self._packed = packed
        self._entries = 0
        self._bytes = 0

    def entry(self) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise InvalidArchive(f"more than {MAX_ENTRIES} entries")

    def spend(self, count: int) -> None:
        self._bytes += count
        if self._bytes > MAX_BYTES:
            raise InvalidArchive(f"unpacks to more than {MAX_BYTES} bytes")
        if self._bytes > FREE_BYTES and self._bytes > MAX_RATIO * self._packed:
            raise InvalidArchive(f"unpacks to more than {MAX_RATIO} times its size")


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Turn what the standard library raises on bad files into one error that names the file."""
    try:
        yield
    except InvalidArchive as error:
        raise InvalidArchive(f"{name}: {error.message}") from error.__cause__
    except OSError as error:
        # gzip.BadGzipFile is an OSError without errno.
        reason = error.strerror or str(error)
        raise blamed(error)(f"{name}: cannot be unpacked: {reason}") from error
    except MemoryError:
        raise  # it says nothing about the file
    except Exception as error:  # damaged files, and encrypted ones, raise nearly anything
        reason = str(error).partition("\n")[0]
        raise InvalidArchive(f"{name}: damaged, or neither zip nor tar: {reason}") from error


def blamed(error: OSError) -> type[InvalidArchive] | type[LoadFailed]:
    """What to raise instead: the archive is to blame, unless the machine ran out of something."""
    return LoadFailed if error.errno in _SCARCE else InvalidArchive


def _place(target: Path, name: str) -> Path:
    """Where the entry ``name`` goes below ``target``."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise InvalidArchive(f"the entry {name!r} points outside the archive")
    return target.joinpath(*path.parts)


def _write(place: Path, content: IO[bytes], budget: _Budget) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        while chunk := content.read(_CHUNK):
            budget.spend(len(chunk))
            file.write(chunk)


# --- zip ------------------------------------------------------------------------------------------


def _extract_zip(source: Path, target: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            budget.entry()
            name = _name(info)
            place = _place(target, name)
            if name.endswith(("/", "\\")):
                place.mkdir(parents=True, exist_ok=True)
                continue
            _refuse_special(info)
            with archive.open(info) as content:
                _write(place, content, budget)


def _name(info: zipfile.ZipInfo) -> str:
    """The entry's name, as UTF-8 where it can be that.

    ``zip`` on Linux and others write UTF-8 without the flag that says so; Java reads it all the
    same, `zipfile` takes it for cp437.
    """
    if info.flag_bits & _UTF8:
        return info.filename
    try:
        return info.filename.encode("cp437").decode()
    except UnicodeError:
        return info.filename


def _refuse_special(info: zipfile.ZipInfo) -> None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        what = "a link" if kind == stat.S_IFLNK else "a device or pipe"
        raise InvalidArchive(f"the entry {info.filename!r} is {what}")


# --- tar ------------------------------------------------------------------------------------------


class _Guarded:
    """A file whose single reads are small: `tarfile` reads a whole extended header at once.

    It may also take a time that grows with the square of a header's length (CVE-2024-6232).
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _CHUNK:
            raise InvalidArchive(f"has a header of {size} bytes")
        return self._file.read(size)


def _extract_tar(source: Path, target: Path, budget: _Budget) -> None:
    links: dict[Path, tuple[Path, str]] = {}  # of entries with one name, the last counts
    with (
        _opened(source) as file,
        tarfile.open(fileobj=cast("IO[bytes]", file), mode="r:") as archive,
    ):
        for member in iter(archive.next, None):
            budget.entry()
            place = _place(target, member.name)
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif member.isreg():
                content = archive.extractfile(member)
                assert content is not None
                _write(place, content, budget)
            elif member.islnk() or member.issym():
                links[place] = (_link_target(target, member), member.name)
            else:
                raise InvalidArchive(f"the entry {member.name!r} is a device or pipe")
        while rest := file.read(_CHUNK):  # gzip's checksum is behind it
            budget.spend(len(rest))
    _copy_links(links, budget)


@contextmanager
def _opened(source: Path) -> Iterator[_Guarded]:
    with source.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not zipped:
            yield _Guarded(raw)
            return
        with gzip.GzipFile(fileobj=raw) as file:
            yield _Guarded(cast("IO[bytes]", file))


def _link_target(target: Path, member: tarfile.TarInfo) -> Path:
    """Where a link points to, worked out on names alone: nothing on disk is followed."""
    folder = "" if member.islnk() else os.path.dirname(member.name)
    name = os.path.normpath(os.path.join(folder, member.linkname))
    if os.path.isabs(member.linkname) or name.startswith(".."):
        raise InvalidArchive(f"the link {member.name!r} points outside the archive")
    return target / name


def _copy_links(links: dict[Path, tuple[Path, str]], budget: _Budget) -> None:
    """Copy each link's target; a link to a link waits until that one is there."""
    waiting: dict[Path, list[tuple[Path, str]]] = {}
    for place, (origin, name) in links.items():
        waiting.setdefault(origin, []).append((place, name))
    there = [origin for origin in waiting if origin.is_file()]
    for origin in there:
        for place, _ in waiting.pop(origin, ()):
            with origin.open("rb") as content:
                _write(place, content, budget)
            there.append(place)  # for the links to this one
    for [(_, name), *_] in waiting.values():
        raise InvalidArchive(f"the link {name!r} points to no file of the archive")
