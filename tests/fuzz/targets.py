"""What is fuzzed: everything that reads bytes of a client's, with the errors that it may raise."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from kserve_torch.archives.archive import close_archive, open_archive
from kserve_torch.codec import content, multipart, native, v1, v2
from kserve_torch.errors import ClientError, LoadFailed
from kserve_torch.messages import Tensor

Target = Callable[[bytes], object]

LIMIT = 1_000_000


def read_v1(data: bytes) -> None:
    with suppress(ClientError):
        v1.decode(data, "application/json")


def read_v1_as(data: bytes) -> None:
    """The first line is the content type."""
    content_type, _, body = data.partition(b"\n")
    with suppress(ClientError):
        v1.decode(body, content_type.decode("latin-1"))


def read_v2(data: bytes) -> None:
    with suppress(ClientError):
        check(v2.decode(data, None).inputs)


def read_v2_binary(data: bytes) -> None:
    """The first line is the header's length."""
    length, _, body = data.partition(b"\n")
    with suppress(ClientError):
        check(v2.decode(body, length.decode("latin-1")).inputs)


def check(inputs: list[Tensor]) -> None:
    for tensor in inputs:
        assert tensor.array.shape == tensor.shape


def read_native(data: bytes) -> None:
    content_type, _, body = data.partition(b"\n")
    with suppress(ClientError):
        decoded = native.decode(body, content_type.decode("latin-1"), {})
        assert decoded.row.keys() == decoded.content_types.keys()


def read_multipart(data: bytes) -> None:
    with suppress(ClientError):
        multipart.parse_multipart(data, "b")


def inflate(data: bytes) -> None:
    coding, _, body = data.partition(b"\n")
    with suppress(ClientError):
        assert len(content.decode_body(body, coding.decode("latin-1"), LIMIT)) <= LIMIT


def read_archive(data: bytes) -> None:
    """Whatever an archive holds, nothing is written beside its own folder."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        file = root / "in" / "a.mar"
        file.parent.mkdir()
        file.write_bytes(data)
        work = root / "work"
        work.mkdir()
        with suppress(ClientError, LoadFailed):
            close_archive(open_archive(file, work))
        assert sorted(path.name for path in root.iterdir()) == ["in", "work"]
        assert [path.name for path in file.parent.iterdir()] == ["a.mar"]
        assert not any(path.is_symlink() for path in work.rglob("*"))
        assert not list(work.glob("models/*")), "something was left behind"


TARGETS: Mapping[str, Target] = {
    target.__name__: target
    for target in (
        *(read_v1, read_v1_as, read_v2, read_v2_binary, read_native),
        *(read_multipart, inflate, read_archive),
    )
}
