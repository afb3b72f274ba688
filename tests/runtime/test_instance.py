import asyncio
import gc
import io
import os
import textwrap
import threading
import weakref
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
)
from kserve_torch.events import Measured
from kserve_torch.messages import RowReply, Tensor, Verb
from kserve_torch.namespace.scopes import scopes
from kserve_torch.runtime import matmul
from kserve_torch.runtime.fault import RequestFault
from kserve_torch.runtime.instance import Instance

from ..makers import ECHO, make_archive
from .loaded import Load, function, request, results

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


def test_a_handler_may_keep_things_on_the_context_under_any_name(load: Load) -> None:
    instance = load(
        function("""
        context.begin = context.end = context.row_replies = 1
        return data""")
    )
    assert results(instance, "x") == ["x"]
    assert results(instance, "y") == ["y"]


def test_parts_of_a_stream_are_told_of(load: Load) -> None:
    instance = load(
        function("""
        context.emit(data, context.request_ids)
        context.emit(data, context.request_ids)
        return data""")
    )
    told: list[bool] = []
    instance.on_part = lambda: told.append(True)
    assert results(instance, "x") == ["x"]
    assert told == [True, True]


def test_a_handler_may_change_the_list_of_its_rows(load: Load) -> None:
    pads = load(
        function("""
        data += [data[-1]] * (4 - len(data))
        return [[row, len(data)] for row in data]""")
    )
    replies = pads.run([request(1), request(2, 3)])
    assert [reply.results for reply in replies] == [[[1, 4]], [[2, 4], [3, 4]]]
    takes = load(function("return [data.pop(0) for _ in range(len(data))]"))
    assert results(takes, 1, 2) == [1, 2]
    wrong = load(
        function("""
        data.append(0)
        return [1, 2, 3, 4]""")
    )
    with pytest.raises(HandlerError, match="4 results for 2 rows"):
        results(wrong, 1, 2)


def test_a_handler_is_told_that_it_is_to_describe(load: Load) -> None:
    instance = load(function("return [[data, context.get_request_header(0, 'describe')]]"))
    assert results(instance, {}, verb=Verb.DESCRIBE) == [[[{}], "True"]]


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


# --- handlers of every kind -----------------------------------------------------------------------


def test_calls_at_once_of_an_asynchronous_handler(load: Load) -> None:
    text = """
        import asyncio, torch
        torch.set_default_dtype(torch.float64)
        async def handle(data, context):
            await asyncio.sleep(0)  # the other call begins
            own = context.metrics.request_ids
            return None if data is None else [[own[0], str(torch.ones(1).dtype)]]
        """
    instance, replies = load(text), []

    async def ask() -> None:
        calls = [instance.answer(request(1, id=name), lambda: None) for name in ("a", "b")]
        calls.append(instance.answer(request(), lambda: None))
        replies.extend(await asyncio.gather(*calls))

    instance.host(ask())
    own = [[["a", "torch.float64"]], [["b", "torch.float64"]], []]
    assert [reply.results for reply in replies] == own


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


def test_metrics_of_the_handler(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ts.metrics")
    events: list[Measured] = []
    text = function("context.metrics.add_counter('Seen', len(data))\nreturn data")
    results(load(text, measured=events.append), 1, 2)
    assert [(e.name, e.value) for e in events] == [("Seen", 2)]
    (record,) = (each for each in caplog.records if "Seen" in each.getMessage())
    assert record.getMessage().endswith(",r,r")


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


def test_a_base_handler_with_its_model(load: Load) -> None:
    state = {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}
    files = {"net.py": NET, "net.pt": weights(**state)}
    instance = load(USES_NET, files, modelFile="net.py", serializedFile="net.pt")
    assert results(instance, [1.0, 2.0, 3.0, 4.0]) == [[10.0, 10.0]]
    assert instance.device == "cpu"


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArchive):
        open_archive(make_archive(tmp_path / "a.mar", {}, handler=None), tmp_path / "work")


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


def test_a_refusal_of_v2_inputs_says_that_each_is_one_row(load: Load) -> None:
    """Clients of servers whose rows are the elements of dimension 0 send batches as one input."""
    text = "from kserve_torch.errors import InvalidInput\n"
    instance = load(text + function("raise InvalidInput(f'{len(data)} refused')"))
    tensor = Tensor(name="x", datatype="FP32", array=np.zeros((8, 1), np.float32))
    hint = "; each input is one row without v2_rows: batch"
    for requests, expected in [
        ([request(tensor)], f"1 refused{hint}"),
        ([request(tensor, tensor)], f"2 refused{hint}"),
        ([request(1)], "1 refused"),
        ([request(tensor), request(tensor)], "2 refused"),  # they are run again separately
    ]:
        with pytest.raises(InvalidInput) as refused:
            instance.run(requests)
        assert refused.value.message == expected


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
    monkeypatch.setattr(matmul, "_is_mkl_slow", lambda: True)
    monkeypatch.setattr(matmul, "_kernels", lambda: installed.append(True))
    load(ECHO, {"weights.bin": bytes(2**20)})
    assert not installed
    load(ECHO, {"weights.bin": bytes(2**24)})
    assert installed


SPAWNS = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    import helper
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return [*pool.map(helper.double, data)]
"""


def test_a_handler_may_spawn_processes_that_run_its_code(load: Load) -> None:
    instance = load(function(SPAWNS), {"helper.py": "def double(x): return 2 * x"})
    assert results(instance, 1, 2) == [2, 4]
