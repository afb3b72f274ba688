import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from kserve_torch.namespace.loader import Namespace

from ..forks import ROOT
from ..makers import write

HANDLER = """
import atexit
from atexit import register

class Model:
    pass

model, ended, named = Model(), [], {}
atexit.register(ended.append, "first")
atexit.register(named.update, a=1)

@register
def late():
    import other
    ended.append((other.NAME, model is not None))

atexit.register(print)
atexit.unregister(print)
"""


def test_what_is_registered_is_done_once_the_instance_is_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = Namespace(write(tmp_path, {"handler.py": HANDLER, "other.py": "NAME = 1"}))
    handler = namespace.import_module("handler")
    ended, left = handler.ended, [weakref.ref(each) for each in (handler.model, namespace.exits)]
    assert ended == []
    namespace.close()
    assert (ended, handler.named) == ([(1, True), "first"], {"a": 1})
    assert capsys.readouterr().out == ""
    del handler, namespace
    gc.collect()
    assert [each() for each in left] == [None, None]


def test_what_it_raises_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "import atexit, sys\natexit.register(sys.exit, 'the end')"
    namespace = Namespace(write(tmp_path, {"handler.py": text}))
    namespace.import_module("handler")
    namespace.close()
    assert "SystemExit: the end" in caplog.text


def test_it_is_done_at_the_end_of_the_process_if_that_comes_first(tmp_path: Path) -> None:
    write(tmp_path, {"handler.py": "import atexit\natexit.register(print, 'the end')"})
    code = (
        "import sys, pathlib\n"
        "from kserve_torch.namespace.loader import Namespace\n"
        "Namespace(pathlib.Path(sys.argv[1])).import_module('handler')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, text=True)
    assert run.stdout == "the end\n"
