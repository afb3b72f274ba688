"""The wheel: what pip would install, and under which names; and the source distribution."""

import configparser
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib import import_module
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import kserve_torch

ROOT = Path(__file__).resolve().parent.parent


def built(kind: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (file,) = (item for item in wheel.namelist() if item.endswith(f".dist-info/{name}"))
    return wheel.read(file).decode()


def test_console_scripts_lead_to_functions(wheel: zipfile.ZipFile) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(metadata(wheel, "entry_points.txt"))
    scripts = dict(parser["console_scripts"])
    assert scripts.keys() == {"kserve-torch", "torchserve"}
    for target in scripts.values():
        module, function = target.split(":")
        assert callable(getattr(import_module(module), function))


def test_the_whole_package_is_in_it_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "kserve_torch").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    installed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert installed == package
    assert "kserve_torch/py.typed" in installed


def test_the_source_distribution_has_what_its_tests_and_pages_need(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    needed = {"benchmarks", "deploy", "docs", "handlers", "kf_request_json", "scripts", "tests"}
    assert needed | {"Makefile", "build_image.sh", "constraints.txt", "mkdocs.yml"} <= tops


def test_versions(wheel: zipfile.ZipFile) -> None:
    info: Message = Parser().parsestr(metadata(wheel, "METADATA"))
    assert info["Version"] == kserve_torch.__version__
    assert {*info["Requires-Python"].split(",")} == {">=3.11", "<3.14"}
    needs = [line for line in info.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert "kserve==0.21.*" in needs


def test_every_requirement_has_an_exact_version_that_it_allows() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    code = "import runpy; print(*runpy.run_path('scripts/venv.py')['requirements']())"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for need in map(Requirement, run.stdout.split()):
        assert need.specifier.contains(pinned[need.name]), need
    assert all("==" in line or line.startswith("#") for line in lines)
