"""Full garbage collections are kept apart."""

import gc
from types import SimpleNamespace

import pytest

from kserve_torch import garbage
from kserve_torch.garbage import REST, Throttle


class Collections:
    """Collections that take some seconds of a clock that stands still otherwise."""

    def __init__(self):
        self.now = 100.0
        self.throttle = Throttle()

    def collect(self, generation, seconds=0.0):
        self.throttle("start", {"generation": generation})
        self.now += seconds
        self.throttle("stop", {"generation": generation})


@pytest.fixture
def collections(monkeypatch):
    made = Collections()
    monkeypatch.setattr(garbage, "time", SimpleNamespace(monotonic=lambda: made.now))
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield made
    gc.set_threshold(*before)


def test_after_a_full_collection_python_begins_none_for_a_while(collections):
    collections.collect(1, seconds=9)
    assert gc.get_threshold() == (700, 10, 10)
    collections.collect(2, seconds=0.25)
    collections.now += REST * 0.25 - 0.01
    collections.collect(0)
    assert gc.get_threshold()[:2] == (700, 10)
    assert gc.get_threshold()[2] > 1e9
    collections.now += 0.01
    collections.collect(0)
    assert gc.get_threshold() == (700, 10, 10)


def test_a_full_collection_meanwhile_counts_as_well(collections):
    collections.collect(2, seconds=0.25)
    collections.collect(2, seconds=0.5)
    collections.now += REST * 0.5 - 0.01
    collections.collect(1)
    assert gc.get_threshold()[2] > 1e9
    collections.now += 0.01
    collections.collect(1)
    assert gc.get_threshold() == (700, 10, 10)


def test_what_a_handler_sets_is_kept(collections):
    collections.collect(2, seconds=0.25)
    gc.set_threshold(5000, 20, 30)
    collections.collect(0)
    assert gc.get_threshold() == (5000, 20, 30)
    collections.collect(2)
    collections.collect(0)
    assert gc.get_threshold() == (5000, 20, 30)
