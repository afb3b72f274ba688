"""What is told of handlers that fail, and of archives that cannot be loaded."""

import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import torch

from kserve_torch.errors import (
    HandlerError,
    InvalidInput,
    LoadFailed,
    OutOfMemory,
    PredictionError,
    ServingError,
    Unsupported,
)
from kserve_torch.runtime.fault import RequestFault
from kserve_torch.runtime.reasons import forget_frames

from ..makers import ECHO
from .loaded import BAD_ROW, Load, function, request, results

FAULTS = {
    "raise ValueError('bad')": "ValueError: bad",
    "context.request_processor.clear(); return data": "ValueError: zip()",
    "class E(Exception):\n    def __str__(self): return 1 / 0\nraise E": "E",
    "class E(Exception):\n    def __str__(self): raise SystemExit(7)\nraise E": "E",
    "class C:\n    def __repr__(self): raise SystemExit(7)\nraise SystemExit(C())": (
        "the handler called sys.exit()"
    ),
    "import os; os.stat(__file__ + 'x')": "'handler.pyx'",
    "raise ValueError('see /opt/x/y.txt, https://h.org/a/b and 1/2')": (
        "ValueError: see y.txt, https://h.org/a/b and 1/2"
    ),
    "open('/no such folder/of mine/y.txt')": (
        "FileNotFoundError: [Errno 2] No such file or directory: 'y.txt'"
    ),
    "raise ValueError('no /a b/c d/y.txt here')": "ValueError: no y.txt here",
    "raise ValueError('file:///a/b/y.txt: gone')": "ValueError: y.txt: gone",
    "raise ValueError('x' * 9999)": "xxx...",
    "import sys; sys.exit(3)": "the handler called sys.exit(3)",
    "import sys; sys.exit('no file /work/a/b.txt')": "called sys.exit('no file b.txt')",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "import torch; torch.ones(2) @ torch.ones(3)": "RuntimeError: ",
}
NO_MEMORY = {
    "raise MemoryError": "out of memory: MemoryError",
    "a, b = MemoryError(), KeyError(); a.__cause__, b.__cause__ = b, a; raise a": "MemoryError",
    "raise RuntimeError('CUDA out of memory. Tried')": "CUDA out of memory",
    "raise RuntimeError('CUDA error: out of memory')": "error: out of memory",
    "import torch; raise torch.OutOfMemoryError('x')": "OutOfMemoryError: x",
    "import torch; torch.empty(1 << 60, dtype=torch.uint8)": "can't allocate memory",
}


@pytest.mark.parametrize(
    ("statement", "kind", "text"),
    [
        *((statement, HandlerError, text) for statement, text in FAULTS.items()),
        *((statement, OutOfMemory, text) for statement, text in NO_MEMORY.items()),
    ],
)
def test_exceptions(load: Load, statement: str, kind: type[ServingError], text: str) -> None:
    with pytest.raises(kind) as caught:
        results(load(function(statement)), 1)
    assert type(caught.value) is kind
    assert text in caught.value.message
    assert "/work" not in caught.value.message
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("code", "status"), [("200", 200), ("599", 599), ("199", 500), ("600", 500), ("None", 500)]
)
def test_the_status_of_a_prediction_exception(load: Load, code: str, status: int) -> None:
    text = f"from ts.service import PredictionException as P; raise P('no', {code})"
    with pytest.raises(PredictionError) as caught:
        results(load(function(text)), 1)
    assert (caught.value.http, caught.value.native) == (status, status)
    assert caught.value.message == "no"


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_torchscript_errors_without_their_traceback(load: Load, tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.ones(3)

    path = str(tmp_path / "net.pt")
    torch.jit.save(torch.jit.script(Net()), path)
    body = "return torch.jit.load(PATH)(torch.ones(2))"
    handler = f"import torch\nPATH = {path!r}\n" + function(body)
    with pytest.raises(HandlerError) as caught:
        results(load(handler), 1)
    assert "Traceback" not in caught.value.message
    assert "size" in caught.value.message


def test_a_bad_row_belongs_to_one_request(load: Load) -> None:
    instance = load(function(BAD_ROW))
    good = request(1, 2)
    guilty = request(3, "bad", element="instances[{}]")
    with pytest.raises(RequestFault) as caught:
        instance.run([good, guilty, request("bad")])
    assert caught.value.index == 1
    assert type(caught.value.error) is InvalidInput
    assert caught.value.error.message == "instances[1].data: not valid base64"
    with pytest.raises(RequestFault, match=r"^row 0\.data: not valid base64$") as caught:
        instance.run([good, request("bad", 3)])
    assert caught.value.index == 1
    assert instance.run([good])[0].results == [1, 2]
    with pytest.raises(RequestFault, match=r"^row 0: nothing to read$"):
        instance.run([request("worse")])


def test_a_bad_row_that_does_not_exist(load: Load) -> None:
    text = "from kserve_torch.errors import BadRow\nraise BadRow(5, 'data: x')"
    with pytest.raises(HandlerError, match=r"^the handler refused row 5 of 1: data: x$"):
        results(load(function(text)), 1)


def test_errors_of_ours_pass_as_they_are(load: Load) -> None:
    text = "from kserve_torch.errors import Unsupported\nraise Unsupported('no')"
    with pytest.raises(Unsupported, match=r"^no$"):
        results(load(function(text)), 1)


@pytest.mark.parametrize(
    ("files", "model", "reason"),
    [
        ({}, {}, "the handler 'handler' is neither a file of the archive nor one of"),
        (
            {"handler.py": "def handle(:"},
            {},
            "handler.py, line 1: SyntaxError: invalid syntax",
        ),
        (
            {"handler.py": "import model", "model.py": "if x:\npass"},
            {},
            "model.py, line 2: IndentationError: expected an indented block",
        ),
        (
            {"handler.py": "import model", "model.py": "\nimport absent_thing.x"},
            {},
            "model.py, line 2: the package 'absent_thing' is neither in the archive nor installed",
        ),
        (
            {"handler.py": "import absent_thing", "requirements.txt": "absent-thing"},
            {},
            "handler.py, line 1: the package 'absent_thing' is neither in the archive nor "
            "installed; the manifest does not name requirements.txt",
        ),
        (
            {"handler.py": "from model import gone", "model.py": ""},
            {},
            "handler.py, line 1: ImportError: cannot import name 'gone' from 'model' (model.py)",
        ),
        (
            {"handler.py": "def handle(data, context):\n    open('/no/such/file.txt')"},
            {},
            "handler.py, line 2: file not found: file.txt",
        ),
        (
            {"handler.py": "raise FileNotFoundError('no labels')"},
            {},
            "handler.py, line 1: FileNotFoundError: no labels",
        ),
        (
            {"handler.py": "def handle(data, context):\n    open('x.pt')"},
            {"serializedFile": "x.pt"},
            "x.pt: named in the manifest, not in the archive",
        ),
        (
            {"handler.py": "import sys\nsys.exit('bye, /work/a')"},
            {},
            "handler.py, line 2: called sys.exit('bye, a')",
        ),
        (
            {"handler.py": "raise ModuleNotFoundError('Could not import module X.')"},
            {},
            "handler.py, line 1: ModuleNotFoundError: Could not import module X.",
        ),
        ({"handler.py": "x = {}['k']"}, {}, "handler.py, line 1: KeyError: 'k'"),
        (
            {"handler.py": "raise ImportError('numpy.core.multiarray failed to import')"},
            {},
            "handler.py, line 1: ImportError: numpy.core.multiarray failed to import: a package "
            f"was compiled for another NumPy than the server's, {numpy.__version__}; require a",
        ),
        (
            {"handler.py": "raise ValueError('numpy.dtype size changed, may indicate binary')"},
            {},
            "handler.py, line 1: ValueError: numpy.dtype size changed, may indicate binary: a pack",
        ),
        (
            {"handler.py": ECHO, "c.yaml": "parallelLevel: 4"},
            {"configFile": "c.yaml"},
            "model-config.yaml: parallelLevel or torchrun.nproc-per-node above 1",
        ),
        (
            {"handler.py": ECHO, "c.yaml": "torchrun: {nproc-per-node: 4}"},
            {"configFile": "c.yaml"},
            "model-config.yaml: parallelLevel or torchrun.nproc-per-node above 1",
        ),
        (
            {"handler.py": ECHO, "c.yaml": "continuousBatching: true"},
            {"configFile": "c.yaml"},
            "model-config.yaml: continuousBatching needs a server that calls the handler again",
        ),
    ],
)
def test_one_clear_reason(
    load: Load, files: dict[str, str | bytes], model: dict[str, str], reason: str
) -> None:
    before = set(sys.modules)
    with pytest.raises(LoadFailed) as caught:
        load(None, files, **model)
    assert caught.value.message.startswith(reason)
    assert "/" not in caught.value.message
    assert ("requirements" in caught.value.message) == ("requirements.txt" in files)
    assert "install_py_dep_per_model" not in caught.value.message  # it would not help
    assert "kserve_torch_archive" not in caught.value.message
    assert not [name for name in set(sys.modules) - before if "archive_" in name]


def test_a_handler_that_sets_a_signal_handler_is_told_what_to_do(load: Load) -> None:
    with ThreadPoolExecutor(1) as worker:
        loading = worker.submit(load, "import signal\nsignal.signal(signal.SIGUSR1, print)")
    with pytest.raises(LoadFailed) as caught:
        loading.result()
    assert caught.value.message == (
        "handler.py, line 2: handlers run on threads, and signal.signal works in the main thread "
        "only: leave it out, or catch its ValueError"
    )


def test_what_a_failed_load_held_is_let_go() -> None:
    kept: list[weakref.ref[object]] = []

    def fail(error: Exception) -> None:
        held = torch.ones(1)
        kept.append(weakref.ref(held))
        raise error

    def fail_twice() -> None:
        try:
            fail(KeyError("before"))
        except KeyError:
            fail(ValueError("after"))

    with pytest.raises(ValueError, match="after") as caught:
        fail_twice()
    forget_frames(caught.value)
    assert [one() for one in kept] == [None, None]


def test_no_memory_for_the_weights(load: Load) -> None:
    with pytest.raises(OutOfMemory):
        load("raise MemoryError")


RAISES = r"raise ValueError(f'\x1b[1mno image\x1b[0m: {io.BytesIO()}')"


def test_errors_tell_clients_no_addresses_and_no_colours(load: Load) -> None:
    instance = load("import io\n" + function(RAISES))
    with pytest.raises(HandlerError) as caught:
        results(instance, 1)
    assert caught.value.message == "ValueError: no image: <_io.BytesIO object>"


@pytest.mark.parametrize(
    "body",
    [
        "class Odd(PredictionException):\n    def __init__(self): pass\nraise Odd",
        "class Odd(NotReady):\n    def __init__(self): pass\nraise Odd",
        "class Odd(PredictionException):\n    message = property(id)\nraise Odd('a')",
        "raise BadRow('0', 'data: odd')",
        "raise BadRow(None, None)",
    ],
)
def test_an_exception_that_lacks_what_its_base_promises(load: Load, body: str) -> None:
    imports = "from ts.utils.util import PredictionException\n"
    imports += "from kserve_torch.errors import BadRow, NotReady\n"
    with pytest.raises(HandlerError):
        results(load(imports + function(body)), 1)
