import importlib
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest

from kserve_torch.namespace import pyplot
from kserve_torch.namespace.loader import Namespace
from kserve_torch.namespace.pyplot import Figures

from ..makers import write
from .test_loader import in_thread

HELPERS = "matplotlib._pylab_helpers"
DRAW = """
import matplotlib.pyplot as plt

def begin(lines):
    plt.figure()
    for _ in range(lines):
        plt.plot([1, 2])

def end():
    lines = len(plt.gca().lines)
    plt.close()
    return lines, plt.get_fignums()
"""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[ModuleType]]:
    """The handler modules of two instances of one archive."""
    folder = write(tmp_path / "a", {"handler.py": DRAW})
    made = [Namespace(folder) for _ in range(2)]
    yield [namespace.import_module("handler") for namespace in made]
    for namespace in made:
        namespace.close()


def test_instances_draw_into_figures_of_their_own(two: list[ModuleType]) -> None:
    for lines, handler in enumerate(two, 1):
        handler.begin(lines)
    assert [handler.end() for handler in two] == [(1, []), (2, [])]


def test_a_thread_of_a_handler_draws_into_its_figures(two: list[ModuleType]) -> None:
    for lines, handler in enumerate(two, 1):
        handler.begin(lines)
    assert [in_thread(handler.end) for handler in two] == [(1, []), (2, [])]


def test_a_thread_that_may_be_anybodys_draws_into_the_only_figures(two: list[ModuleType]) -> None:
    for lines, handler in enumerate(two, 1):
        handler.begin(lines)
        assert len(in_thread(handler.plt.gca).lines) == lines
        handler.plt.close()


def test_it_is_so_when_pyplot_is_imported_later(
    two: list[ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matplotlib, "_pylab_helpers", None, raising=False)
    monkeypatch.delitem(sys.modules, HELPERS, raising=False)
    assert isinstance(vars(importlib.import_module(HELPERS).Gcf)["figs"], Figures)


def test_figures_of_the_program_that_serves_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    plt = importlib.import_module("matplotlib.pyplot")
    monkeypatch.setattr(plt._pylab_helpers.Gcf, "figs", OrderedDict())
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    figure = plt.figure()
    pyplot.install()
    assert isinstance(vars(plt._pylab_helpers.Gcf)["figs"], Figures)
    assert plt.gcf() is figure
