from pathlib import Path

from ..forks import Forks
from ..makers import write

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
