"""Processes that an archive's code spawns."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kserve_torch.namespace import spawned
from kserve_torch.namespace.loader import Namespace

from ..makers import write

HANDLER = """
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import demo
from helper import Item
from ts.metrics.unit import Units


def squared(x):
    from late import one
    return Item(x * x + one - 1)


def about(_):
    from pickle import loads
    return os.getcwd(), demo.NAME, loads(b"chelper\\nItem\\n.").__name__


def map_in_pool(method, work, values, **options):
    with multiprocessing.get_context(method).Pool(1, **options) as pool:
        return pool.map(work, values, chunksize=1)


def squares(method, **options):
    items = map_in_pool(method, squared, range(3), **options)
    return [(type(item) is Item, item.value) for item in items]


def names(method):
    return map_in_pool(method, about, range(1))[0]


def of_package(method):
    return map_in_pool(method, demo.name, [0])


def executed():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(squared, 3).result().value
"""
HELPER = """
class Item:
    def __init__(self, value):
        self.value = value
"""
DEMO = "NAME = 'installed'\ndef name(_): return NAME\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {"handler.py": HANDLER, "helper.py": HELPER, "late.py": "one = 1"}
    return write(tmp_path / "a", files)


@pytest.fixture
def namespace(root: Path, tmp_path: Path) -> Iterator[Namespace]:
    spawned.install()
    other = Namespace(write(tmp_path / "b", {"handler.py": "", "helper.py": ""}))
    packages = Namespace(write(tmp_path / "packages", {"demo.py": DEMO}))
    namespace = Namespace(root, packages=packages)
    yield namespace
    for one in (namespace, packages, other):
        one.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_it_runs_the_archives_code_and_sends_back_its_objects(
    namespace: Namespace, method: str
) -> None:
    squares = namespace.import_module("handler").squares
    assert squares(method) == [(True, 0), (True, 1), (True, 4)]


def test_it_has_the_archives_folder_and_packages(namespace: Namespace, root: Path) -> None:
    handler = namespace.import_module("handler")
    with namespace.loading():
        assert handler.names("spawn") == (str(root), "installed", "Item")
        assert handler.of_package("spawn") == ["installed"]


def test_threads_that_work_for_nobody_may_start_it(namespace: Namespace) -> None:
    """A pool replaces its processes on a thread of its own."""
    squares = namespace.import_module("handler").squares
    assert squares("spawn", maxtasksperchild=1) == [(True, 0), (True, 1), (True, 4)]
    assert namespace.import_module("handler").executed() == 9
