import gc
import io
import json
import os
import sys
import textwrap
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kserve_torch.archives.archive import open_archive
from kserve_torch.codec.rows import split_batch
from kserve_torch.errors import (
    HandlerError,
    InvalidArchive,
    InvalidInput,
    LoadFailed,
    OutOfMemory,
    PredictionError,
    ServingError,
    Unsupported,
)
from kserve_torch.events import Measured
from kserve_torch.messages import Request, Row, RowReply, Tensor, Verb
from kserve_torch.namespace.scopes import scopes
from kserve_torch.runtime import products
from kserve_torch.runtime.fault import RequestFault
from kserve_torch.runtime.instance import Instance
from kserve_torch.runtime.loading import LoadOptions, load_instance
from kserve_torch.runtime.tying import tie

from ..makers import ECHO, make_archive

Load = Callable[..., Instance]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Loads an archive with the given ``handler.py``; all instances are closed at the end."""
    loaded: list[Instance] = []

    def load_one(
        handler: str | None = ECHO,
        files: dict[str, str | bytes] | None = None,
        *,
        first: Instance | None = None,
        measured: Callable[[Measured], None] = lambda event: None,
        v2_rows: str = "tensor",
        **model: Any,
    ) -> Instance:
        own = {} if handler is None else {"handler.py": textwrap.dedent(handler)}
        model = {"modelVersion": "7", **model}
        source = make_archive(tmp_path / f"{len(loaded)}.mar", {**own, **(files or {})}, **model)
        archive = open_archive(source, tmp_path / "work")
        options = LoadOptions(workdir=tmp_path)
        instance = load_instance(
            archive,
            name="reg",
            v2_rows=v2_rows,
            measure=measured,
            options=options,
            first=first,
        )
        loaded.append(instance)
        return instance

    yield load_one
    for instance in loaded:
        instance.close()


def function(body: str) -> str:
    """A function handler that does ``body`` with ``data`` and ``context``."""
    lines = textwrap.indent(textwrap.dedent(body), "    ")
    return f"def handle(data, context):\n    if data is None:\n        return None\n{lines}\n"


def request(*rows: Row, **more: Any) -> Request:
    return Request(id=more.pop("id", "r"), model="reg", rows=rows, **more)


def results(instance: Instance, *rows: Row, **more: Any) -> list[Any]:
    return instance.run([request(*rows, **more)])[0].results


# --- rows and replies -----------------------------------------------------------------------------


def test_rows_of_several_requests_go_in_one_call(load: Load) -> None:
    instance = load(function("return [[len(data), row] for row in data]"))
    replies = instance.run([request(1, 2), request(), request(3)])
    assert [reply.results for reply in replies] == [[[3, 1], [3, 2]], [], [[3, 3]]]
    assert {(reply.model, reply.version) for reply in replies} == {("reg", "7")}


def test_no_rows_never_reach_the_handler(load: Load) -> None:
    instance = load(function("raise RuntimeError('called')"))
    assert [reply.rows for reply in instance.run([request(), request()])] == [[], []]


def test_each_row_has_its_requests_context(load: Load) -> None:
    instance = load(
        function("""
        context.set_response_status(207, "half", idx=1)
        context.set_response_header(0, "x-a", "b")
        return [
            [context.get_request_id(i), context.get_request_header(i, "K"),
             context.get_request_header(i, "explain")] for i in range(len(data))
        ]""")
    )
    explain = {"verb": Verb.EXPLAIN, "headers": {"k": "v"}}
    one, two = instance.run([request(1, id="a", **explain), request(2, id="b", **explain)])
    assert one.rows == [RowReply(result=["a", "v", "True"], headers={"x-a": "b"})]
    assert two.rows == [RowReply(result=["b", "v", "True"], status=207, phrase="half")]
    assert results(instance, 1, 2)[0][2] == "False"


def test_describing_is_one_empty_row(load: Load) -> None:
    instance = load(function("return [[data, context.get_request_header(0, 'describe')]]"))
    assert results(instance, verb=Verb.DESCRIBE) == [[[{}], "True"]]


def tensor(datatype: str, array: Any, **parameters: Any) -> Tensor:
    return Tensor(name="x", datatype=datatype, array=np.asarray(array), parameters=parameters)


def objects(*values: Any) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    "answer", ["own", "list(torch.full((1,), number, out=buffer))", "[{'all': [own[0]]}]"]
)
def test_a_reply_does_not_change_with_the_next_call(load: Load, answer: str) -> None:
    text = f"""
import torch
own, buffer = [{{}}], torch.zeros(1)
def handle(data, context):
    if data is None: return None
    own[0]["number"] = number = data[0]
    return {answer}
"""
    instance = load(text)
    first = instance.run([request(1)])[0].results
    told = repr(first)
    instance.run([request(2)])
    assert repr(first) == told


@pytest.mark.parametrize(
    ("given", "row"),
    [
        (
            tensor("FP32", np.float32([[1, 2]]), a=1),
            {
                "name": "x",
                "shape": [1, 2],
                "datatype": "FP32",
                "data": [[1.0, 2.0]],
                "parameters": {"a": 1},
            },
        ),
        (
            tensor("BYTES", objects(b"a")),
            {"name": "x", "shape": [1], "datatype": "BYTES", "data": bytearray(b"a")},
        ),
    ],
)
def test_tensors_become_row_dicts(load: Load, given: Tensor, row: dict[str, Any]) -> None:
    instance = load(function("return [dict(row) for row in data]"))
    (seen,) = results(instance, given)
    assert seen == row
    assert type(seen["data"]) is type(row["data"])


def test_handlers_may_ask_for_arrays(load: Load) -> None:
    instance = load(
        "class H:\n    accepts_arrays = True\n    def handle(self, data, context):\n"
        "        return [row['data'] for row in data]\n"
    )
    (seen,) = results(instance, tensor("FP32", np.float32([1])))
    assert isinstance(seen, np.ndarray)


@pytest.mark.parametrize("where", ["__init__(self)", "initialize(self, context)"])
def test_rows_are_lists_for_a_reader_that_only_the_instance_has(load: Load, where: str) -> None:
    instance = load(f"""
        from ts.torch_handler.base_handler import BaseHandler
        class H(BaseHandler):
            def initialize(self, context): pass
            def {where}:
                self.preprocess = self.read
            def read(self, data):
                return [type(row.get("data") or row.get("body")).__name__ for row in data]
            def inference(self, data): return data
            def postprocess(self, data): return data
    """)
    assert results(instance, tensor("FP32", np.float32([1, 2]))) == ["list"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("[1]", "the handler answered 1 results for 2 rows"),
        ("[1, 2, 3]", "the handler answered 3 results for 2 rows"),
        ("None", "the handler answered a NoneType, a list of 2 results is wanted"),
        ("{0: 1, 1: 2}", "the handler answered a dict, a list of 2 results is wanted"),
        ("(1,)", "the handler answered 1 results for 2 rows"),
    ],
)
def test_wrong_numbers_of_results(load: Load, answer: str, text: str) -> None:
    with pytest.raises(HandlerError) as caught:
        results(load(function(f"return {answer}")), 1, 2)
    assert caught.value.message == text


def test_results_may_be_a_tuple(load: Load) -> None:
    assert results(load(function("return tuple(data)")), 1, 2) == [1, 2]


SUM = function(
    """
    named = {row["name"]: row["data"] for row in data}
    return [[a + b for a, b in zip(named["a"], named["b"], strict=True)]]"""
)


def inputs(*numbers: float) -> list[Tensor]:
    return [Tensor(name=n, datatype="FP32", array=np.float32([*numbers])) for n in ("a", "b")]


def test_inputs_of_one_request_may_have_one_output_together(load: Load) -> None:
    assert results(load(SUM), *inputs(1, 2)) == [[2, 4]]


def test_inputs_of_two_requests_have_none_together(load: Load) -> None:
    with pytest.raises(HandlerError, match="1 results for 4 rows"):
        load(SUM).run([request(*inputs(1)), request(*inputs(2))])


def test_elements_of_a_batch_have_a_result_each(load: Load) -> None:
    instance = load(function("return [1]"), v2_rows="batch")
    with pytest.raises(HandlerError, match="1 results for 2 rows"):
        results(instance, *split_batch([tensor("FP32", [[1], [2]])]))


@pytest.mark.parametrize("answer", ["[]", "[1, 2, 3]"])
def test_inputs_have_at_least_one_output_and_no_more_than_one_each(load: Load, answer: str) -> None:
    with pytest.raises(HandlerError, match="results for 2 rows"):
        results(load(function(f"return {answer}")), *inputs(1))


WRITES = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class Writes(BaseHandler):
    def handle(self, data, context):
        if data[0] is not None:
            weight = torch.tensor([[float(data[0])]])
            self.model.load_state_dict({"weight": weight}, strict=False)
        return [self.model(torch.ones(1, 1)).item()]
"""
SCALE = """
import torch

class Scale(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)
"""


def test_weights_are_shared_until_a_handler_writes_to_them(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    one = load(WRITES, {"model.py": SCALE}, modelFile="model.py")
    two, three = (
        load(WRITES, {"model.py": SCALE}, modelFile="model.py", first=one) for _ in range(2)
    )
    places = {i._entry.service.model.weight.data_ptr() for i in (one, two, three)}
    assert len(places) == 1
    told: list[str] = []
    two.on_write = lambda: told.append("two")
    assert (results(two, 2), told) == ([2], ["two"])
    (said,) = [record.getMessage() for record in caplog.records if "writes" in record.message]
    assert said.startswith("reg: the handler writes to the weights")
    assert [each.weights.are_outdated for each in (one, two, three)] == [True, False, True]
    for first in (one, two):
        late = load(WRITES, {"model.py": SCALE}, modelFile="model.py", first=first)
        assert not late.weights.are_outdated
        assert (results(late, None), results(late, 6), results(two, None)) == ([1], [6], [2])
    assert (results(two, 3), told) == ([3], ["two"])


class Turns:
    """A lock that counts who has asked for it."""

    def __init__(self) -> None:
        self.asked = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_instances_that_load_at_once_share_their_weights_with_each_other(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_one() -> Instance:
        return load(WRITES, {"model.py": SCALE}, modelFile="model.py", first=one)

    def tie_while_another_loads(*services: Any) -> int:
        if not loading:
            loading.append(threading.Thread(target=lambda: others.append(next_one())))
            loading[0].start()
            while turns.asked < 2 and loading[0].is_alive():
                loading[0].join(0.001)
        return tie(*services)

    one = load(WRITES, {"model.py": SCALE}, modelFile="model.py")
    one.weights._tying = turns = Turns()  # type: ignore[assignment]
    loading: list[threading.Thread] = []
    others: list[Instance] = []
    monkeypatch.setattr("kserve_torch.runtime.sharing.tie", tie_while_another_loads)
    two = next_one()
    loading[0].join()
    assert results(two, 2) == [2]
    assert [each.weights.are_outdated for each in (one, two, *others)] == [True, False, True]


USES_A_PART = """
from ts.torch_handler.base_handler import BaseHandler

class UsesAPart(BaseHandler):
    calls = 0
    def handle(self, data, context):
        self.calls += 1
        inputs = self.preprocess([row.pop("data") for row in data])
        hidden = self.model.conv(inputs)
        return hidden.view(len(hidden), -1).sum(1).add(self.inference(inputs)).tolist()
"""
CONVOLUTION = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
    def forward(self, inputs):
        return self.conv(inputs).sum((1, 2, 3))
"""


def test_a_handlers_own_code_gets_the_memory_format_that_it_needs(load: Load) -> None:
    """Its model is in another one since the first call."""
    instance = load(USES_A_PART, {"model.py": CONVOLUTION}, modelFile="model.py")
    picture = torch.arange(75.0).view(3, 5, 5).tolist()
    answers = []
    for again in range(3):
        sent = request({"data": picture}, again=lambda: [{"data": picture}])
        answers.append(instance.run([sent])[0].results)
        assert instance._entry.service.calls == (1, 3, 4)[again]
    for (answer,) in answers:
        assert answer == pytest.approx(answers[0][0], rel=1e-5)


# --- faults ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("code", "status"), [("513", 513), ("None", 500), ("99999", 500)])
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


BAD_ROW = """
    from kserve_torch.errors import BadRow
    for index, row in enumerate(data):
        if row == "bad":
            raise BadRow(index, "data: not valid base64")
        if row == "worse":
            raise BadRow(index, "nothing to read")
    return data
"""


def test_a_bad_row_belongs_to_one_request(load: Load) -> None:
    instance = load(function(BAD_ROW))
    good = request(1, 2)
    guilty = request(3, "bad", element="instances[{}]")
    with pytest.raises(RequestFault) as caught:
        instance.run([good, guilty, request("bad")])
    assert caught.value.index == 1
    assert type(caught.value.error) is InvalidInput
    assert caught.value.error.message == "instances[1].data: not valid base64"
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


# --- handlers of every kind -----------------------------------------------------------------------


def test_asynchronous_handlers(load: Load) -> None:
    instance = load("""
        import asyncio
        class H:
            async def initialize(self, context):
                self.lock = asyncio.Lock()
                self.loop = asyncio.get_running_loop()
            async def handle(self, data, context):
                async with self.lock:
                    await asyncio.sleep(0)
                return [asyncio.get_running_loop() is self.loop for row in data]
        """)
    assert results(instance, 1, 2) == [True, True]
    assert results(instance, 1) == [True]


def test_a_function_is_initialised_by_a_call_without_data(load: Load) -> None:
    instance = load("""
        seen = []
        def handle(data, context):
            seen.append(data)
            context.cache = seen
            return None if data is None else [list(context.cache)]
        """)
    assert results(instance, 1) == [[None, [1]]]


def test_metrics_of_the_handler(load: Load) -> None:
    events: list[Measured] = []
    text = function("context.metrics.add_counter('Seen', len(data))\nreturn data")
    results(load(text, measured=events.append), 1, 2)
    assert [(event.name, event.value) for event in events] == [("Seen", 2)]


def test_metrics_of_a_handler_that_is_initialised_are_no_errors(load: Load) -> None:
    events: list[Measured] = []
    text = """
        class Handler:
            def initialize(self, context):
                context.metrics.add_time("Loaded", 1.5)
            def handle(self, data, context):
                return data
        """
    load(text, measured=events.append)
    (event,) = events
    assert event.dimensions == (("ModelName", "reg"), ("Level", "Model"))
    assert event.request_id


def test_the_handlers_view_of_the_archive(load: Load) -> None:
    text = function("""
        context.model_yaml_config["new"] = context.manifest["model"]["modelName"]
        return [[context.model_yaml_config, context.model_name, context.system_properties]]
    """)
    files = {"c.yaml": "batchSize: wrong\nhandler: {deep: [1]}"}
    config, name, properties = results(load(text, files, configFile="c.yaml"), 1)[0]
    assert config == {"batchSize": "wrong", "handler": {"deep": [1]}, "new": "m"}
    assert name == "reg"
    assert Path(properties["model_dir"], "handler.py").is_file()
    assert (properties["gpu_id"], properties["batch_size"]) == (None, 1)


def test_a_handler_may_copy_its_context(load: Load) -> None:
    copies = "import copy; other = copy.deepcopy(context); "
    instance = load(function(copies + "return [other.get_request_id(0)]"))
    assert results(instance, 1) == ["r"]


# --- isolation ------------------------------------------------------------------------------------


def test_what_a_handler_turns_stays_its_own(load: Load) -> None:
    text = """
        import torch
        class H:
            def initialize(self, context):
                torch.set_default_dtype(torch.float64)
            def handle(self, data, context):
                torch.set_default_dtype({})
                return [str(torch.ones(1).dtype)]
        """
    half, plain = load(text.format("torch.float16")), load(text.replace("float64", "float32"))
    keeps = load(text.replace("torch.set_default_dtype({})", "pass"))
    assert results(half, 1) == ["torch.float16"]
    assert torch.get_default_dtype() is torch.float32
    assert results(keeps, 1) == ["torch.float64"]
    assert torch.get_default_dtype() is torch.float32
    assert plain is not half


@pytest.mark.parametrize("data", ["data is None", "data is not None"])
def test_garbage_is_collected_after_what_a_handler_does(load: Load, data: str) -> None:
    """All models' garbage would stay."""
    body = f"import gc\nif {data}:\n    gc.disable()\nreturn [1] * len(data or [])"
    assert results(load(f"def handle(data, context):\n{textwrap.indent(body, '    ')}"), 1) == [1]
    assert gc.isenabled()


def test_a_workers_thread_is_the_handlers_own(load: Load) -> None:
    text = """
        import os, torch
        class H:
            def initialize(self, context):
                torch.set_num_threads(3)
                torch.set_grad_enabled(False)
                with open("words.txt") as file:
                    self.words = file.read()
            def handle(self, data, context):
                return [[os.path.exists("words.txt"), self.words, torch.get_num_threads(),
                         torch.is_grad_enabled()]]
        """
    before = os.getcwd(), torch.get_num_threads()
    seen: list[Any] = []

    def work(expected: str) -> None:
        seen.append(results(load(text, {"words.txt": expected}), 1)[0])

    for word in ("one", "two"):
        thread = threading.Thread(target=work, args=[word])
        thread.start()
        thread.join()
    assert seen == [[True, "one", 3, False], [True, "two", 3, False]]
    assert (os.getcwd(), torch.get_num_threads()) == before
    assert torch.is_grad_enabled()


RUNS_ITS_LOOP = """
import asyncio, threading
class H:
    def initialize(self, context):
        self.loop = asyncio.get_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
    def handle(self, data, context):
        answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "answer"), self.loop)
        return [answer.result()]
"""
HAS_A_TASK = """
import asyncio
class H:
    async def initialize(self, context):
        self.task = asyncio.ensure_future(self.wait())
    async def wait(self):
        try:
            await asyncio.sleep(100)
        finally:
            raise SystemExit
    async def handle(self, data, context):
        return ["answer"]
"""


def test_a_handler_may_run_its_loop_in_a_thread(load: Load) -> None:
    def work() -> None:
        instance = load(RUNS_ITS_LOOP)
        assert results(instance, 1) == ["answer"]
        instance.close()
        assert not is_open(instance)
        assert instance._loop is not None
        instance._loop.call_soon_threadsafe(instance._loop.stop)
        instance._entry.service.thread.join()
        instance._loop.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def test_an_instance_is_forgotten_also_if_its_loop_ends_badly(load: Load) -> None:
    instance = load(HAS_A_TASK)
    assert results(instance, 1) == ["answer"]
    task = instance._entry.service.task
    with pytest.raises(SystemExit):
        instance.close()
    assert not is_open(instance)
    # Else asyncio complains of it when the task is garbage, in the midst of another test.
    assert isinstance(task.exception(), SystemExit)


def is_open(instance: Instance) -> bool:
    return instance._namespace.name in scopes


# --- loading --------------------------------------------------------------------------------------

NET = "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self): super().__init__(4, 2)\n"
USES_NET = """
import torch
from ts.torch_handler.base_handler import BaseHandler
class H(BaseHandler):
    def preprocess(self, data):
        return torch.tensor(data)
"""


def weights(**tensors: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


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
            {"handler.py": USES_NET, "net.py": NET, "net.pt": weights(bias=torch.ones(3))},
            {"modelFile": "net.py", "serializedFile": "net.pt"},
            "net.pt",
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
    assert "/" not in caught.value.message.replace("(4, 2)", "")
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


def test_no_memory_for_the_weights(load: Load) -> None:
    with pytest.raises(OutOfMemory):
        load("raise MemoryError")


def test_a_base_handler_with_its_model(load: Load) -> None:
    state = {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}
    files = {"net.py": NET, "net.pt": weights(**state)}
    instance = load(USES_NET, files, modelFile="net.py", serializedFile="net.pt")
    assert results(instance, [1.0, 2.0, 3.0, 4.0]) == [[10.0, 10.0]]
    assert instance.device == "cpu"


# --- weights held once ----------------------------------------------------------------------------

PIPELINE = """
import torch
class Pipeline:
    def __init__(self):
        self.model = torch.nn.Linear(3, 3)
        torch.nn.init.ones_(self.model.weight)
        torch.nn.init.ones_(self.model.bias)
"""
TIED = """
import torch
from pipeline import Pipeline
class H:
    def initialize(self, context):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).eval()
        torch.manual_seed(torch.seed())
        self.other = torch.nn.Linear(2, 2)
        self.pipeline = [Pipeline()]
    def handle(self, data, context):
        return [self]
"""


def pointers(module: torch.nn.Module) -> dict[str, int]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.data_ptr() for name, tensor in tensors}


def test_instances_share_equal_weights(load: Load) -> None:
    first = load(TIED, {"pipeline.py": PIPELINE})
    second = load(TIED, {"pipeline.py": PIPELINE}, first=first)
    (one,), (two,) = results(first, 1), results(second, 1)
    assert pointers(one.model) == pointers(two.model)
    assert pointers(one.pipeline[0].model) == pointers(two.pipeline[0].model)
    assert not pointers(one.other).items() & pointers(two.other).items()
    assert torch.equal(one.model(torch.ones(1, 8)), two.model(torch.ones(1, 8)))


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_scripted_models_of_function_handlers_share_too(load: Load) -> None:
    text = """
        import torch
        net = None
        def handle(data, context):
            global net
            if data is None:
                net = torch.jit.script(torch.nn.Linear(4, 4))
                torch.nn.init.ones_(net.weight)
                return None
            return [net.weight.data_ptr() for row in data]
        """
    first = load(text)
    assert results(first, 1) == results(load(text, first=first), 1)


SCRIPTED_TUPLE = """
import torch
from typing import NamedTuple

class Scaled(NamedTuple):
    x: torch.Tensor
    factor: float = FACTOR

@torch.jit.script
def scale(x: torch.Tensor):
    scaled = Scaled(x)
    return scaled.x * scaled.factor

def handle(data, context):
    return data and [float(scale(torch.ones(1))) for row in data]
"""


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_scripted_classes_are_not_those_of_an_instance_that_is_gone(load: Load) -> None:
    first = load(SCRIPTED_TUPLE.replace("FACTOR", "10.0"))
    assert results(first, 1) == [10.0]
    first.close()
    assert results(load(SCRIPTED_TUPLE.replace("FACTOR", "99.0")), 1) == [99.0]


# --- operators ------------------------------------------------------------------------------------

OPERATOR = """
import torch

FACTOR = 2.0

@torch.library.custom_op("NAME::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR

@scale.register_fake
def _(x):
    return torch.empty_like(x)

scale.register_autograd(lambda context, grad: grad * FACTOR)

def handle(data, context):
    x = torch.ones(1, requires_grad=True)
    y = scale(x)
    y.backward()
    return data and [[y.item(), x.grad.item(), torch.ops.NAME.scale(x).item()]] * len(data)
"""


def test_instances_share_an_operator(load: Load) -> None:
    text = OPERATOR.replace("NAME", "shared")
    first = load(text)
    second = load(text)
    assert results(first, 1) == results(second, 1) == [[2.0, 2.0, 2.0]]
    first.close()
    third = load(text)
    assert results(second, 1) == results(third, 1) == [[2.0, 2.0, 2.0]]


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("FACTOR = 2.0", "FACTOR = 3.0", [3.0, 3.0, 3.0]),
        ("x * FACTOR", "x + FACTOR", [3.0, 2.0, 3.0]),
    ],
)
def test_an_operator_does_what_its_own_archive_says(
    load: Load, old: str, new: str, answer: list[float]
) -> None:
    text = OPERATOR.replace("NAME", f"own{len(old)}")
    first, second = load(text), load(text.replace(old, new))
    for _ in range(2):
        assert results(first, 1) == [[2.0, 2.0, 2.0]]
        assert results(second, 1) == [answer]
    first.close()
    assert results(second, 1) == [answer]


def test_an_operator_has_one_form_as_long_as_it_is_used(load: Load) -> None:
    text = OPERATOR.replace("NAME", "form")
    other = text.replace("Tensor) -> torch", "Tensor, by: float = 1.0) -> torch")
    first = load(text)
    with pytest.raises(LoadFailed, match="has an operator form::scale with other arguments"):
        load(other)
    assert results(first, 1) == [[2.0, 2.0, 2.0]]
    first.close()
    assert results(load(other), 1) == [[2.0, 2.0, 2.0]]


def test_operators_of_others_are_torchs_affair(load: Load) -> None:
    load()

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    define = torch.library.custom_op("others::twice", mutates_args=())
    for _ in range(2):
        assert float(define(twice)(torch.ones(1))) == 2.0


# --- warm-up --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "rows"),
    [
        ({"instances": [1, {"data": 2}]}, [1, {"data": 2}]),
        ({"data": "x"}, [{"data": "x"}]),
        (
            {"inputs": [{"name": "a", "shape": [2], "datatype": "INT64", "data": [1, 2]}]},
            [{"name": "a", "shape": [2], "datatype": "INT64", "data": [1, 2]}],
        ),
    ],
)
def test_warm_up(load: Load, sample: Any, rows: list[Any]) -> None:
    text = "seen = []\n" + function("seen.append(list(data))\nreturn [list(seen)] * len(data)")
    for files, model in (
        ({"warmup.json": json.dumps(sample)}, {}),
        ({"c.yaml": json.dumps({"warmup": sample})}, {"configFile": "c.yaml"}),
    ):
        instance = load(text, files, **model)
        instance.warm_up()
        assert results(instance, 0) == [[rows, [0]]]


def test_each_warm_up_has_a_sample_of_its_own(load: Load) -> None:
    sample = {"warmup": {"instances": [{"deep": [1]}]}}
    text = function("return [row['deep'].pop() for row in data]")
    instance = load(text, {"c.yaml": json.dumps(sample)}, configFile="c.yaml")
    instance.warm_up()
    instance.warm_up()


@pytest.mark.parametrize(
    ("mode", "shape", "answered"),
    [("tensor", [2, 3], [2]), ("batch", [-1, 3], [-1, 1])],
)
def test_warm_up_shows_the_signature(
    load: Load, mode: str, shape: list[int], answered: list[int]
) -> None:
    sample = {"name": "a", "shape": [2, 3], "datatype": "INT64", "data": [1, 2, 3, 4, 5, 6]}
    body = "return [row['shape'] for row in data]"
    files = {"warmup.json": json.dumps({"inputs": [sample]})}
    instance = load(function(body), files, v2_rows=mode)
    assert instance.signature == {}
    instance.warm_up()
    assert instance.signature["inputs"] == [{"name": "a", "datatype": "INT64", "shape": shape}]
    expected = [{"name": "a", "datatype": "INT64", "shape": answered}]
    assert instance.signature["outputs"] == expected


def test_without_a_sample_there_is_no_warm_up(load: Load) -> None:
    load(function("raise ValueError")).warm_up()


@pytest.mark.parametrize(
    ("body", "sample", "reason"),
    [
        ("raise ValueError('cold')", "{}", "warm-up sample: ValueError: cold"),
        (BAD_ROW, '{"instances": ["bad"]}', "warm-up sample: instances[0].data: not valid base64"),
        ("return data", "{", "warmup.json: cannot be read as JSON"),
        ("return data", '{"inputs": [{}]}', "inputs[0]: name, shape, datatype and data are wanted"),
        (
            "return data",
            '{"inputs": [{"name": "a", "shape": [1], "datatype": "X", "data": []}]}',
            "warm-up sample: inputs[0].datatype: 'X' is not one of",
        ),
    ],
)
def test_failing_warm_ups(load: Load, body: str, sample: str, reason: str) -> None:
    instance = load(function(body), {"warmup.json": sample})
    with pytest.raises(LoadFailed) as caught:
        instance.warm_up()
    assert caught.value.message.startswith(reason)


def test_a_warm_up_without_memory(load: Load) -> None:
    with pytest.raises(OutOfMemory):
        load(function("raise MemoryError"), {"warmup.json": "{}"}).warm_up()


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArchive):
        open_archive(make_archive(tmp_path / "a.mar", {}, handler=None), tmp_path / "work")


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
            return [torch.load(data[0]["body"])]
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


RAISES = r"raise ValueError(f'\x1b[1mno image\x1b[0m: {io.BytesIO()}')"


def test_errors_tell_clients_no_addresses_and_no_colours(load: Load) -> None:
    instance = load("import io\n" + function(RAISES))
    with pytest.raises(HandlerError) as caught:
        results(instance, 1)
    assert caught.value.message == "ValueError: no image: <_io.BytesIO object>"


# --- handlers' own exceptions ---------------------------------------------------------------------


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


@pytest.mark.parametrize("body", ["return [1]", "raise ValueError"])
def test_nothing_of_a_request_is_kept_after_it(load: Load, body: str) -> None:
    class Large(dict[str, Any]):
        pass

    instance, row = load(function(body)), Large()
    alive = weakref.ref(row)
    with suppress(HandlerError):
        results(instance, [row])
    del row
    gc.collect()  # errors and their tracebacks hold each other
    assert alive() is None


def test_a_bad_row_may_be_named_by_a_number_of_numpys(load: Load) -> None:
    text = "import numpy as np\nfrom kserve_torch.errors import BadRow\n"
    with pytest.raises(RequestFault, match="row 1"):
        results(load(text + function("raise BadRow(np.int64(1), 'data: odd')")), 1, 2)


def test_parameters_are_each_calls_own(load: Load) -> None:
    instance = load(function("return [context.get_request_header(0, 'deep')['k'].pop()]"))
    asked = request(1, parameters={"deep": {"k": [1, 2]}})
    assert [instance.run([asked])[0].results for _ in range(2)] == [[2], [2]]


def test_request_ids_are_text_for_all(load: Load) -> None:
    body = "import pickle\nids = [context.get_request_id(0), context.request_ids[0]]\n"
    body += "return [[type(ids[0]).__name__, type(pickle.loads(pickle.dumps(ids[1]))).__name__]]"
    assert results(load(function(body)), 1) == [["str", "str"]]


def test_matrix_products_are_for_large_models(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[bool] = []
    monkeypatch.setattr(products, "_is_mkl_slow", lambda: True)
    monkeypatch.setattr(products, "_kernels", lambda: installed.append(True))
    load(ECHO, {"weights.bin": bytes(2**20)})
    assert not installed
    load(ECHO, {"weights.bin": bytes(2**24)})
    assert installed
