"""Which function or class of an archive, or of the stock ones, is its handler."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kserve_torch.errors import LoadFailed
from kserve_torch.runtime.entry import load_entry

from ..makers import ECHO
from .made import Make

CLASS = """
class Handler:
    def initialize(self, context):
        self.context = context
    def handle(self, data, context):
        return data
"""


@pytest.mark.parametrize("handler", ["handler", "handler.py", "some/dir/handler.py"])
def test_a_function(make: Make, handler: str) -> None:
    entry = load_entry(make(handler=ECHO), handler)
    assert entry.initialize("context") is None
    assert entry.handle([{"data": 1}], None) == [1]


def test_a_named_function(make: Make) -> None:
    namespace = make(service="def run(data, context):\n    return [context]\n" + ECHO)
    assert load_entry(namespace, "service:run").initialize("context") == ["context"]
    assert load_entry(namespace, "service.py:run").handle([1], 2) == [2]


def test_the_function_goes_before_a_class(make: Make) -> None:
    entry = load_entry(make(handler=CLASS + ECHO), "handler")
    assert entry.handle([{"data": 1}], None) == [1]


def test_a_class(make: Make) -> None:
    text = f"from abc import ABC\nimport collections\n{CLASS}"
    entry = load_entry(make(handler=text), "handler:absent")
    entry.initialize("context")
    assert entry.service.context == "context"
    assert entry.handle([1], None) == [1]


def test_a_callable_attribute(make: Make) -> None:
    text = (
        "class H:\n    def __init__(self):\n        self.handle = Echo()\n    initialize = print\n"
    )
    other = "class Echo:\n    def __call__(self, data, context):\n        return data\n"
    namespace = make(handler="from other import Echo\n" + text, other=other)
    assert load_entry(namespace, "handler").handle([1], None) == [1]


TWO = """
class Base:
    def handle(self, data, context):
        return ["base"]

class Helper:
    pass
"""


@pytest.mark.parametrize(
    ("more", "handler", "result"),
    [
        ("", "handler.py", "base"),
        ("class Mine(Base):\n    def handle(self, *_): return ['mine']", "handler.py:Mine", "mine"),
        ("class Mine(Base):\n    def handle(self, *_): return ['mine']", "handler:Base", "base"),
    ],
)
def test_one_of_several_classes(make: Make, more: str, handler: str, result: str) -> None:
    assert load_entry(make(handler=TWO + more), handler).handle([1], None) == [result]


WANTED = (
    "handler.py: one function 'handle', exactly one class or a manifest that names one is wanted"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", f"{WANTED}, got none"),
        (
            "class A: pass\nclass B: pass",
            f"{WANTED}, got A, B",
        ),
        ("class A: pass", "the handler class A has no method 'handle'"),
        (
            "handle = 3",
            f"{WANTED}, got none",
        ),
    ],
)
def test_unclear_handlers(make: Make, text: str, reason: str) -> None:
    with pytest.raises(LoadFailed) as caught:
        load_entry(make(handler=text), "handler.py")
    assert caught.value.message == reason


@pytest.mark.parametrize(
    ("text", "found"),
    [("def predict(data, context): pass", "none"), ("class A: pass\nclass B: pass", "A, B")],
)
def test_what_a_manifest_names_and_the_file_lacks(make: Make, text: str, found: str) -> None:
    with pytest.raises(LoadFailed) as caught:
        load_entry(make(handler=text), "handler.py:infer")
    assert caught.value.message == (
        "handler.py: the manifest names 'infer', which it lacks; without it, exactly one class is "
        f"wanted, got {found}"
    )


@pytest.mark.parametrize("name", ["no_such_handler", "../x", "", "json.tool.x"])
def test_no_such_handler(make: Make, name: str) -> None:
    with pytest.raises(
        LoadFailed, match="is neither a file of the archive nor one of base_handler"
    ):
        load_entry(make(handler=""), name)


@pytest.mark.parametrize(
    ("name", "kind"), [("image_classifier", "ImageClassifier"), ("vision_handler", "VisionHandler")]
)
def test_stock_handlers(make: Make, name: str, kind: str) -> None:
    assert type(load_entry(make(other=""), name).service).__name__ == kind


def test_a_stock_handler_by_its_full_name(make: Make) -> None:
    entry = load_entry(make(other=""), "ts.torch_handler.image_classifier")
    assert type(entry.service).__name__ == "ImageClassifier"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package as if installed, with the module ``hnd``, and ``broken`` that lacks something."""
    package = tmp_path / "site" / "kt_installed"
    for name, text in {"__init__": "", "hnd": ECHO, "broken/__init__": "import absent_one"}.items():
        file = package / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("def handle", "def answer"))
    monkeypatch.syspath_prepend(package.parent)
    yield
    for name in [name for name in sys.modules.copy() if name.startswith("kt_installed")]:
        del sys.modules[name]


@pytest.mark.usefixtures("installed")
def test_a_handler_in_an_installed_package(make: Make) -> None:
    entry = load_entry(make(other=""), "kt_installed.hnd:answer")
    assert entry.handle([{"data": 1}], None) == [1]
    for absent in ("kt_installed.absent", "kt_installed.hnd.absent", "kt_installed.no.absent"):
        with pytest.raises(LoadFailed, match="is neither a file of the archive nor one of"):
            load_entry(make(other=""), absent)
    with pytest.raises(ModuleNotFoundError, match="absent_one"):
        load_entry(make(other=""), "kt_installed.broken.hnd")


def test_the_archives_file_goes_before_a_stock_handler(make: Make) -> None:
    entry = load_entry(make(image_classifier=ECHO), "image_classifier")
    assert entry.handle([{"data": 1}], None) == [1]


def test_a_missing_package_is_not_masked(make: Make) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'absent_package'$"):
        load_entry(make(image_classifier="import absent_package"), "image_classifier")


def test_subclasses_of_stock_handlers(make: Make) -> None:
    text = "from ts.torch_handler.base_handler import BaseHandler\nclass H(BaseHandler): pass"
    assert type(load_entry(make(handler=text), "handler").service).__name__ == "H"
