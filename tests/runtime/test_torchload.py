"""Whole objects that an archive's handler reads by ``torch.load``."""

import argparse
import io
import sys
import types
from collections import Counter
from pathlib import Path

import pytest
import torch

from kserve_torch.errors import (
    HandlerError,
    LoadFailed,
)
from kserve_torch.runtime import torchload

from .loaded import Load, results

PICKLED = """
import torch
from net import Net

class Handler:
    def initialize(self, context):
        self.net = torch.load("net.pt", map_location="cpu")
        with open("net.pt", "rb") as file:
            self.again = torch.load(file)

    def handle(self, data, context):
        if "body" in data[0]:
            return [torch.load(data[0]["body"], **data[0].get("options", {}))]
        return [type(self.net) is type(self.again) is Net]
"""
WHOLE = "class Net:\n    pass\n"


def pickled_net() -> bytes:
    """What ``torch.save`` makes of an object whose class is in an archive's ``net.py``."""
    module = types.ModuleType("net")
    exec(WHOLE, vars(module))
    file = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "net", module)
        torch.save(module.Net(), file)
    return file.getvalue()


def test_a_handler_loads_whole_objects_of_its_archive(load: Load) -> None:
    instance = load(PICKLED, {"net.py": WHOLE, "net.pt": pickled_net()})
    assert results(instance, {}) == [True]


def test_a_handlers_own_threads_load_whole_objects_too(load: Load) -> None:
    text = """
        import torch
        from concurrent.futures import ThreadPoolExecutor
        from net import Net
        def read(path):
            return torch.load(path, "cpu", weights_only=False)
        def handle(data, context):
            path = context.system_properties["model_dir"] + "/net.pt"
            with ThreadPoolExecutor(1) as pool:
                return data and [type(pool.submit(read, path).result()) is Net]
        """
    for _ in range(2):
        instance = load(text, {"net.py": WHOLE, "net.pt": pickled_net()})
        assert results(instance, {}) == [True]


def test_objects_that_another_instance_has_saved(load: Load, tmp_path: Path) -> None:
    text = f"""
        import torch
        from net import Net
        def handle(data, context):
            path = {str(tmp_path / "own.pt")!r}
            if data == ["save"]:
                torch.save(Net(), path)
            return data and [type(torch.load(path, weights_only=False)) is Net]
        """
    one, two = (load(text, {"net.py": WHOLE}) for _ in range(2))
    assert results(one, "save") == results(two, {}) == [True]


def test_a_handler_may_ask_for_weights_only(load: Load) -> None:
    instance = load(PICKLED, {"net.py": WHOLE, "net.pt": pickled_net()})
    own = instance.context.system_properties["model_dir"] + "/net.pt"
    assert type(results(instance, {"body": own})[0]).__name__ == "Net"
    with pytest.raises(HandlerError, match="Weights only load failed"):
        results(instance, {"body": own, "options": {"weights_only": True}})


@pytest.mark.parametrize("allowed", ["Net", "(Net, 'net.Net')"])
def test_a_handler_allows_classes_of_its_own(
    load: Load, monkeypatch: pytest.MonkeyPatch, allowed: str
) -> None:
    monkeypatch.setattr(torch._weights_only_unpickler, "_marked_safe_globals_set", set())
    text = f"""
        import torch
        from net import Net
        torch.serialization.add_safe_globals([{allowed}])
        def handle(data, context):
            path = context.system_properties["model_dir"] + "/net.pt"
            return [type(torch.load(path, weights_only=True)) is Net]
        """
    instances = [load(text, {"net.py": WHOLE, "net.pt": pickled_net()}) for _ in range(3)]
    assert [results(instance, {}) for instance in instances] == [[True]] * 3


BLOCK = """
import argparse, torch

allowing = torch.serialization.safe_globals([argparse.Namespace])

def handle(data, context):
    if data == ["enter"]:
        allowing.__enter__()
    elif data == ["exit"]:
        allowing.__exit__(None, None, None)
    elif data == ["for good"]:
        torch.serialization.add_safe_globals([argparse.Namespace])
    elif data:
        path = context.system_properties["model_dir"] + "/options.pt"
        return [torch.load(path, weights_only=True).x]
    return data
"""


@pytest.mark.parametrize("mine", ["enter", "for good"])
@pytest.mark.parametrize("first", [True, False])
def test_a_block_of_another_model_forbids_nothing(
    load: Load, monkeypatch: pytest.MonkeyPatch, mine: str, first: bool
) -> None:
    monkeypatch.setattr(torch._weights_only_unpickler, "_marked_safe_globals_set", set())
    monkeypatch.setattr(torchload, "_lent", Counter())
    file = io.BytesIO()
    torch.save(argparse.Namespace(x=1), file)
    one, other = (load(BLOCK, {"options.pt": file.getvalue()}) for _ in range(2))
    for instance, word in (
        [(one, mine), (other, "enter")] if first else [(other, "enter"), (one, mine)]
    ):
        results(instance, word)
    results(other, "exit")
    assert results(one, "load") == [1]
    if mine == "enter":
        results(one, "exit")
        with pytest.raises(HandlerError, match="Weights only load failed"):
            results(one, "load")


def test_what_is_not_the_archives_is_weights_only(load: Load, tmp_path: Path) -> None:
    instance = load(PICKLED, {"net.py": WHOLE, "net.pt": pickled_net()})
    elsewhere = tmp_path / "sent.pt"
    elsewhere.write_bytes(pickled_net())
    for sent in (io.BytesIO(pickled_net()), str(elsewhere)):
        with pytest.raises(HandlerError, match="Weights only load failed"):
            results(instance, {"body": sent})


def test_full_unpickling_can_be_forbidden(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSERVE_TORCH_FORBID_PICKLE", "1")
    with pytest.raises(LoadFailed, match=r"handler\.py, line 7: .*Weights only load failed"):
        load(PICKLED, {"net.py": WHOLE, "net.pt": pickled_net()})
