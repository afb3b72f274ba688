from pathlib import Path

import pytest

from kserve_torch.archives.archive import open_archive

from ..makers import write
from .opening import refusal


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
