import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kserve_torch.namespace.loader import Namespace

from ..forks import Forks
from ..makers import write
from .made import Make

HANDLER = """
import helper
from helper import Item
from joblib.externals.loky import get_reusable_executor

def squared(x):
    return Item(helper.square(x))

def handle():
    with get_reusable_executor(max_workers=1) as executor:
        found = [*executor.map(squared, range(3))]
    return [(type(item) is Item, item.value) for item in found]
"""
HELPER = """
import sys

def square(x):
    return x * x

class Item:
    def __init__(self, value):
        super().__init__()
        self.value = value
"""


def test_joblibs_processes_run_an_archives_code(forks: Forks, tmp_path: Path) -> None:
    write(tmp_path, {"handler.py": HANDLER, "helper.py": HELPER})
    printed = forks.run(f"""
import pathlib
from kserve_torch.namespace.loader import Namespace
print(Namespace(pathlib.Path({str(tmp_path)!r})).import_module("handler").handle())
""")
    assert printed == "[(True, 0), (True, 1), (True, 4)]\n"


@pytest.mark.parametrize("module", ["cloudpickle/cloudpickle", "imp"])
def test_modules_of_the_archives_own_with_such_a_name_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.delitem(sys.modules, "imp", raising=False)
    files = {f"{module}.py": "def load_source():\n    return 7\n"}
    files |= {"cloudpickle/__init__.py": ""} if "/" in module else {}
    namespace = Namespace(write(tmp_path, files))
    try:
        assert namespace.import_module(module.replace("/", ".")).load_source() == 7
    finally:
        namespace.close()


STARTS = """
import subprocess, sys
def start(**options):
    command = [sys.executable, "-c", "import helper, demo; print(helper.__file__, demo.__file__)"]
    return subprocess.check_output(command, text=True, **options)
"""


@pytest.mark.parametrize("before", ["", "elsewhere"])
def test_programs_find_the_archives_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", before)
    packages = Namespace(write(tmp_path / "packages", {"demo.py": ""}))
    root = write(tmp_path / "a", {"handler.py": STARTS, "helper.py": HELPER})
    namespace = Namespace(root, packages=packages)
    try:
        start = namespace.import_module("handler").start
        assert start(cwd="/") == f"{root}/helper.py {tmp_path}/packages/demo.py\n"
        with pytest.raises(subprocess.CalledProcessError):
            start(cwd="/", env={}, stderr=subprocess.DEVNULL)
    finally:
        namespace.close()
        packages.close()
    assert os.environ["PYTHONPATH"] == before


def test_programs_of_others_get_the_environment_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    Namespace(write(tmp_path, {})).close()
    command = [sys.executable, "-c", "import os; print('PYTHONPATH' in os.environ)"]
    assert subprocess.check_output(command, text=True) == "False\n"


METHODS = """
import torch.multiprocessing as processes
def set_and_get(method):
    processes.set_start_method(method)
    return processes.get_start_method()
def get():
    return processes.get_start_method()
"""


def test_each_archive_sets_a_start_method_of_its_own(make: Make) -> None:
    others = multiprocessing.get_start_method(allow_none=True)
    archives = [make(name, handler=METHODS) for name in "abc"]
    spawning, again, other = (archive.import_module("handler") for archive in archives)
    assert [spawning.set_and_get("spawn"), again.set_and_get("spawn")] == ["spawn", "spawn"]
    assert [spawning.get(), other.get()] == ["spawn", multiprocessing.get_all_start_methods()[0]]
    with pytest.raises(RuntimeError, match="already been set"):
        spawning.set_and_get("fork")
    assert multiprocessing.get_start_method(allow_none=True) == others
