"""`defer_compiler` keeps torch's compiler out of imports of torchvision, and breaks nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ..forks import Forks
from ..makers import write

DEFER = """
import sys
from kserve_torch.runtime.compiler import defer_compiler
defer_compiler()
defer_compiler()
"""


Run = Callable[..., str]


@pytest.fixture
def run(forks: Forks) -> Run:
    """Runs code in a process that defers the compiler, with a folder before all others."""
    return lambda code, path=Path(): forks.run(f"{DEFER}sys.path.insert(0, {str(path)!r})\n{code}")


def test_our_image_handlers_need_no_compiler(run: Run) -> None:
    run("""
from kserve_torch.handler.image_classifier import ImageClassifier
from kserve_torch.handler.object_detector import ObjectDetector
assert "torchvision.ops" in sys.modules
assert not [name for name in sys.modules if name.startswith(("torch._dynamo", "sympy"))]
""")


def test_the_compiler_is_there_when_it_is_wanted(run: Run) -> None:
    run("""
import torch, torchvision
from torchvision.ops.roi_align import is_compile_supported
import torch._dynamo.utils as utils
assert is_compile_supported("cpu") == utils.is_compile_supported("cpu")
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2
assert torch._dynamo is sys.modules["torch._dynamo"]
assert type(torch._dynamo).__name__ == "module"
""")


def test_torchvision_looks_as_ever(run: Run) -> None:
    run("""
import importlib, inspect, torchvision
from importlib.resources import files
assert not type(torchvision.__spec__.loader).__module__.startswith("kserve_torch")
assert torchvision.__loader__ is torchvision.__spec__.loader
assert "def set_image_backend" in inspect.getsource(torchvision)
assert files(torchvision).joinpath("ops").is_dir()
importlib.reload(torchvision)
""")


@pytest.mark.parametrize(
    "line",
    [
        "from torch._dynamo.utils import is_compile_supported, counters; found = counters",
        "import torch._dynamo.utils; found = torch._dynamo.utils.counters",
    ],
)
def test_whoever_wants_more_gets_the_real_modules(run: Run, tmp_path: Path, line: str) -> None:
    write(tmp_path, {"torchvision/__init__.py": line})
    run(
        """
import torchvision
import torch._dynamo.utils
assert torchvision.found is torch._dynamo.utils.counters
assert type(sys.modules["torch._dynamo"]).__name__ == "module"
""",
        tmp_path,
    )


def test_an_absent_torchvision_is_absent(run: Run, tmp_path: Path) -> None:
    run(
        """
sys.path[:] = [sys.path[0], *(p for p in sys.path if "site-packages" not in p)]
sys.path_importer_cache.clear()
try:
    import torchvision
except ModuleNotFoundError as error:
    assert error.name == "torchvision"
else:
    raise AssertionError
""",
        tmp_path,
    )


def test_a_compiler_that_is_there_already_is_left_alone(run: Run) -> None:
    run("""
import torch._dynamo
before = torch._dynamo
import torchvision
assert sys.modules["torch._dynamo"] is torch._dynamo is before
""")


def test_a_torchvision_that_an_archive_brings_needs_none_either(run: Run, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "handler.py": "import torchvision",
            "torchvision/__init__.py": "from torch._dynamo.utils import is_compile_supported",
        },
    )
    run(f"""
from pathlib import Path
from kserve_torch.namespace.loader import Namespace
torchvision = Namespace(Path({str(tmp_path)!r})).import_module("handler").torchvision
assert torchvision.__file__.startswith({str(tmp_path)!r})
assert "torch._dynamo" not in sys.modules
""")
