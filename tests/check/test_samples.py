from pathlib import Path
from typing import Any

import pytest

from kserve_torch.archives.archive import Archive, close_archive, open_archive
from kserve_torch.check.samples import Sample, find_samples, warm_up_sample
from kserve_torch.codec.document import JSON
from kserve_torch.errors import SettingError
from kserve_torch.settings import Settings

from ..makers import ECHO, make_archive, write

FILES = {
    "m.json": '{"instances": [1]}',
    "m.answer.json": '{"predictions": [1]}',
    "m.png": "picture",
    "m.2.gif": "picture",
    "m.2/c.png": "picture",
    "m.2/c.answer.json": "7",
    "m.2/a.txt": "text",
    "m.2/a.answer": "answer",
    "m.2/b.bin": "\0",
    "m.2/.hidden": "",
    "m.2/folder/deep.json": "{}",
    "other.json": "{}",
    "strangers/a.json": "{}",
    ".DS_Store": "",
}


def test_files_find_their_model_and_their_answer(tmp_path: Path) -> None:
    found, strange = find_samples(write(tmp_path, FILES), ["m", "m.2"])
    assert found == {
        "m": [
            Sample(
                name="m.json",
                body=b'{"instances": [1]}',
                content_type="application/json",
                answer=b'{"predictions": [1]}',
            ),
            Sample(name="m.png", body=b"picture", content_type="image/png"),
        ],
        "m.2": [
            Sample(name="m.2/a.txt", body=b"text", content_type="text/plain", answer=b"answer"),
            Sample(name="m.2/b.bin", body=b"\0", content_type="application/octet-stream"),
            Sample(name="m.2/c.png", body=b"picture", content_type="image/png", answer=b"7"),
            Sample(name="m.2.gif", body=b"picture", content_type="image/gif"),
        ],
    }
    assert strange == ["other.json", "strangers"]


def test_without_such_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--check: .*/absent: No such file"):
        find_samples(tmp_path / "absent", ["m"])


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"instances": []}', "/v1/models/m:predict"),
        (b'{"inputs": []}', "/v1/models/m:predict"),
        (b'{"text": "a"}', "/predictions/m"),
        (b'{"inputs": "a"}', "/predictions/m"),
        (b"[1]", "/predictions/m"),
        (b"\x89PNG", "/predictions/m"),
        (b"[" * 100_000, "/predictions/m"),
    ],
)
def test_where_a_body_is_sent(body: bytes, path: str) -> None:
    sample = Sample(name="x", body=body, content_type="")
    assert sample.path("m", None) == path
    assert sample.path("m", "kserve") == "/v1/models/m:predict"


def test_only_what_should_be_json_may_be_none() -> None:
    for body in (b"{", b"[" * 100_000):
        assert Sample(name="x", body=body, content_type=JSON).fault.startswith("not valid JSON: ")
        assert Sample(name="x", body=body, content_type="image/png").fault == ""


@pytest.mark.parametrize(
    ("sample", "settings", "bodies"),
    [
        (None, {}, []),
        ('{"instances": [1]}', {"service_envelope": "kserve"}, [b'{"instances": [1]}']),
        ('{"text": "a"}', {}, [b'{"text": "a"}']),
        ('{"text": "a"}', {"service_envelope": "kserve"}, []),
    ],
)
def test_the_archives_own_sample(
    tmp_path: Path, sample: str | None, settings: dict[str, Any], bodies: list[bytes]
) -> None:
    files = {"handler.py": ECHO, **({"warmup.json": sample} if sample else {})}
    archive: Archive = open_archive(make_archive(tmp_path / "m", files), tmp_path)
    try:
        found = warm_up_sample(archive, Settings(**settings))
        assert [each.body for each in found] == bodies
    finally:
        close_archive(archive)
