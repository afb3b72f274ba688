"""Libraries of operators, of which torch takes each only once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kserve_torch.archives.archive import open_archive
from kserve_torch.runtime import oplibraries
from kserve_torch.runtime.loading import LoadOptions, load_instance

from ..makers import make_archive, write


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Instead of C++, a library's text names the operators that it registers."""
    made: list[torch.library.Library] = []

    def load(ops: Any, path: Path) -> None:
        for namespace, name in (line.split("\0") for line in Path(path).read_text().splitlines()):
            made.append(torch.library.Library(namespace, "DEF"))
            made[-1].define(f"{name}(Tensor x) -> Tensor")

    monkeypatch.setattr(oplibraries, "_load", load)
    monkeypatch.setattr(oplibraries, "_loaded", {})
    monkeypatch.setattr(type(torch.ops), "load_library", load)
    oplibraries.install()
    yield
    for library in made:
        library._destroy()


def library(tmp_path: Path, file: str, text: str) -> Path:
    return write(tmp_path, {file: text}) / file


HANDLER = """
import torch

def handle(data, context):
    if data is None:
        torch.ops.load_library("ops.so")
"""


def test_archives_with_equal_files_load_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(torch.ops), "load_library", None)
    for model in "ab":
        files = {"handler.py": HANDLER, "ops.so": "kt_ops\0one"}
        archive = open_archive(make_archive(tmp_path / f"{model}.mar", files), tmp_path / "work")
        options = LoadOptions(workdir=tmp_path)
        load_instance(archive, name="m", measure=lambda event: None, options=options).close()
    assert hasattr(torch.ops.kt_ops, "one")


def test_another_version_is_refused(tmp_path: Path) -> None:
    torch.ops.load_library(library(tmp_path, "a/ops.so", "kt_ops\0one"))
    with pytest.raises(RuntimeError, match=r"has loaded another ops\.so"):
        torch.ops.load_library(library(tmp_path, "b/ops.so", "kt_ops\0one\nkt_ops\0two"))


def test_other_libraries_of_the_name_are_loaded(tmp_path: Path) -> None:
    torch.ops.load_library(library(tmp_path, "a/ops.so", "kt_ops\0one"))
    torch.ops.load_library(library(tmp_path, "b/ops.so", "kt_more\0one"))
    assert hasattr(torch.ops.kt_more, "one")


def test_a_library_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    file = library(tmp_path, "ops.so", "none")
    for _ in range(2):
        with pytest.raises(ValueError, match="not enough values"):
            torch.ops.load_library(file)
