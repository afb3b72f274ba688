"""Classes that compiled modules enter in tables of the process."""

import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from ..forks import Forks
from ..makers import write
from .made import Make

#: Stands for a compiled module that enters a class, as pybind11 before 2.12 does.
ENTERS = """
import builtins
table = vars(builtins).setdefault("__pybind11_internals_kt__", {})
if "Net" in table: raise ImportError('generic_type: type "Net" is already registered!')
Net = table["Net"] = type("Net", (), {})
"""
FINDS = 'import builtins\nNet = vars(builtins)["__pybind11_internals_kt__"]["Net"]\n'


def test_two_models_with_the_same_compiled_module(forks: Forks, tmp_path: Path) -> None:
    """Such as two versions of an archive: the second failed to load."""
    contourpy = importlib.util.find_spec("contourpy")
    assert contourpy is not None
    assert contourpy.origin is not None
    (file,) = Path(contourpy.origin).parent.glob("_contourpy.*.so")
    for archive in ("one", "two"):
        for package in ("kt_lib", "contourpy"):
            write(tmp_path / archive / package, {file.name: file.read_bytes(), "__init__.py": ""})
    printed = forks.run(f"""
import pathlib, sys
from kserve_torch.namespace.loader import Namespace
assert "contourpy" not in sys.modules
one, two = (Namespace(pathlib.Path({str(tmp_path)!r}, name)) for name in ("one", "two"))
found = [each.import_module("kt_lib._contourpy") for each in (one, two)]
found += [each.import_module("contourpy._contourpy") for each in (one, two)]
print(len({{each.FillType for each in found}}))
print([str(each.FillType.OuterCode) for each in found] == ["FillType.OuterCode"] * 4)
""")
    assert printed == "4\nTrue\n"


@pytest.mark.usefixtures("as_cython")
def test_compiled_modules_of_one_package_know_each_others_classes(
    make: Make, tmp_path: Path
) -> None:
    suffix = EXTENSION_SUFFIXES[0]
    for archive in ("a", "b"):
        files = {"__init__.py": "", f"first{suffix}": ENTERS, f"second{suffix}": FINDS}
        write(tmp_path / archive / "kt_bound", files)
    one, two = make("a"), make("b")
    nets = [each.import_module("kt_bound.first").Net for each in (one, two)]
    assert nets[0] is not nets[1]
    assert nets == [each.import_module("kt_bound.second").Net for each in (one, two)]
