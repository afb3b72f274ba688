import json
from pathlib import Path

import pytest

from kserve_torch.archives.archive import open_archive

from ..makers import make_archive, manifest, write
from .opening import FILES, refusal


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
        ("{}", "MAR-INF/MANIFEST.json: model: got null, an object is wanted"),
        ('{"model": "m"}', "MAR-INF/MANIFEST.json: model: got a string, an object is wanted"),
        ('{"model": {}}', "MAR-INF/MANIFEST.json: model.handler is missing"),
        ('{"model": {"handler": 7.5e9999}}', "MAR-INF/MANIFEST.json: "),
        ('{"model": {"handler": true}}', "model.handler: got a boolean, text is wanted"),
        ('{"model": {"handler": []}}', "model.handler: got a list, text is wanted"),
        ('{"runtime": "LSP", "model": {"handler": "h"}}', "runtime: got 'LSP', python or python3"),
        ('{"runtime": {}, "model": {"handler": "h"}}', "runtime: got {}"),
        (manifest(handler="/"), "model.handler: '' is not a file of the archive"),
        (manifest(handler="../.."), "model.handler: '..' is not a file of the archive"),
        (manifest(handler="h\0.py"), "model.handler: 'h\\x00.py' is not a file of the archive"),
        (manifest(modelFile="a/../../x"), "model.modelFile: 'a/../../x' is not a file"),
        (manifest(serializedFile="/x.pt"), "model.serializedFile: '/x.pt' is not a file"),
        (manifest(serializedFile="x\0.pt"), "model.serializedFile: 'x\\x00.pt' is not a file"),
        (manifest(configFile="no.yaml"), "no.yaml: named by the manifest, but not in the archive"),
        (manifest(modelVersion="\ud800"), "model.modelVersion: holds a lone surrogate"),
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


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/home/me/handler.py", "handler.py"),
        ("../handler.py:handle", "handler.py:handle"),
        ("sub/handler.py:handle", "sub/handler.py:handle"),
    ],
)
def test_a_handlers_path_on_the_packers_machine(
    tmp_path: Path, work: Path, path: str, own: str
) -> None:
    source = make_archive(tmp_path / "a.mar", FILES, handler=path)
    assert open_archive(source, work).manifest.handler == own


@pytest.mark.parametrize("version", [None, ""])
def test_a_model_without_a_version(tmp_path: Path, work: Path, version: str | None) -> None:
    source = make_archive(tmp_path / "a.mar", FILES, modelVersion=version)
    assert open_archive(source, work).manifest.version == "1.0"


def test_files_with_empty_names_are_not_there(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", FILES, serializedFile="", requirementsFile="")
    read = open_archive(source, work).manifest
    assert (read.serialized_file, read.requirements_file) == (None, None)


def test_a_given_handler_goes_first(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", FILES)
    assert open_archive(source, work, handler="x:f").manifest.handler == "x:f"
