import gc
import threading
import weakref
from contextlib import closing, contextmanager, suppress

import pytest

from kserve_torch.errors import BadRow
from kserve_torch.messages import Request, Verb
from kserve_torch.namespace.loader import Namespace
from kserve_torch.runtime import devices
from kserve_torch.runtime.context import Context
from kserve_torch.ts.handler_utils.micro_batching import HANDLER_METHODS, MicroBatching
from kserve_torch.ts.handler_utils.timer import timed
from kserve_torch.ts.handler_utils.utils import import_class, send_intermediate_predict_response
from kserve_torch.ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from kserve_torch.ts.torch_handler.base_handler import BaseHandler

from ..makers import write


class Steps(BaseHandler):
    """Doubles numbers in three steps, which note the thread that they ran on."""

    def __init__(self):
        super().__init__()
        self.sizes = []
        self.threads = set()

    def preprocess(self, data):
        self.sizes.append(len(data))
        self.threads.add(("preprocess", threading.get_ident()))
        return [row["data"] for row in data]

    def inference(self, data, *args, **kwargs):
        if "bad" in data:
            raise RuntimeError("a bad row")
        return [value * 2 for value in data]

    def postprocess(self, data):
        return [{"result": value} for value in data]

    def describe_handle(self):
        return {"doubles": True}

    def get_insights(self, tensor_data, _, target=0):
        return ["explained"] * len(tensor_data)


@pytest.fixture
def context():
    metrics = MetricsCacheYamlImpl(model_name="m")
    return Context("m", "/x", {}, 1, None, "0.12.0", metrics=metrics, model_yaml_config={})


def ask(handle, context, values, verb=Verb.PREDICT):
    rows = [{"data": value} for value in values]
    context.begin([Request(id="r", model="m", rows=rows, verb=verb)] * max(1, len(rows)))
    return handle(rows, context)


@pytest.fixture
def micro():
    micro = MicroBatching(Steps(), micro_batch_size=3, parallelism={"preprocess": 2})
    yield micro
    micro.shutdown()


def test_results_come_in_order_whatever_the_batch(micro, context):
    for count in (0, 1, 3, 10):
        results = ask(micro, context, range(count))
        assert results == [{"result": value * 2} for value in range(count)]
    assert max(micro.handler.sizes) == 3


def test_steps_run_on_threads_of_their_own(micro, context):
    ask(micro, context, range(9))
    assert threading.get_ident() not in {thread for _, thread in micro.handler.threads}


def test_steps_work_in_the_cuda_stream_of_their_caller(context, monkeypatch):
    """Who reads the results in that stream waits for no other."""
    entered = threading.local()

    @contextmanager
    def within(stream):
        entered.stream = stream
        yield
        entered.stream = None

    class Streams(Steps):
        def note(self, data):
            return [*data, entered.stream]

        preprocess = inference = postprocess = note

    monkeypatch.setattr(devices, "current_stream", lambda: "the caller's")
    monkeypatch.setattr(devices, "within", within)
    micro = MicroBatching(Streams())
    assert micro.handle([1]) == [1, *["the caller's"] * 3]
    micro.shutdown()


def test_an_error_in_a_step_is_raised_and_the_next_batch_is_well(micro, context):
    with pytest.raises(RuntimeError, match="a bad row"):
        ask(micro, context, [1, 2, 3, "bad", 5])
    assert ask(micro, context, [1]) == [{"result": 2}]


def test_a_step_that_exits_ends_no_thread(context):
    class Exits(Steps):
        def preprocess(self, data):
            raise SystemExit(3)

    micro = MicroBatching(Exits())
    for _ in range(2):
        with pytest.raises(SystemExit):
            ask(micro, context, [1])
    micro.shutdown()


def test_a_refused_row_has_its_index_in_the_batch(context):
    class Picky(Steps):
        def preprocess(self, data):
            for index, row in enumerate(data):
                if row["data"] == "bad":
                    raise BadRow(index, "data: bad")
            return super().preprocess(data)

    micro = MicroBatching(Picky(), 3)
    with pytest.raises(BadRow, match="row 4: data: bad") as caught:
        ask(micro, context, [1, 2, 3, 4, "bad", 6, "bad"])
    assert caught.value.index == 4
    micro.shutdown()


def test_explain_and_describe_go_through_the_handler(micro, context):
    assert ask(micro, context, [1, 2], Verb.EXPLAIN) == ["explained"] * 2
    assert ask(micro, context, [0], Verb.DESCRIBE) == [{"doubles": True}]


def test_parallelism_can_change_and_is_a_copy(micro, context):
    assert micro.parallelism == {"preprocess": 2}
    micro.parallelism = {"preprocess": 1, "inference": 3}
    micro.parallelism["inference"] = 9
    threads = {name: len(micro.thread_groups[name]) for name in HANDLER_METHODS}
    assert threads == {**micro.parallelism, "postprocess": 1}
    assert micro.parallelism["inference"] == 3
    assert ask(micro, context, range(7)) == [{"result": value * 2} for value in range(7)]


def test_a_step_without_threads_runs_again_once_it_has_some(micro, context):
    micro.parallelism = {"inference": 0}
    with pytest.raises(RuntimeError, match="inference: 0; no thread runs this step"):
        ask(micro, context, [1])
    micro.parallelism = {"inference": 1}
    assert ask(micro, context, [1]) == [{"result": 2}]


@pytest.mark.parametrize("parallelism", [{"preprocess": -1}, {"other": 1}])
def test_wrong_parallelism(parallelism):
    with pytest.raises(ValueError, match="parallelism"):
        MicroBatching(Steps(), parallelism=parallelism)


def test_a_step_knows_its_micro_batch(context):
    class Numbered(Steps):
        def inference(self, data, *args, **kwargs):
            return [(value, micro.get_micro_batch_idx()) for value in data]

        def postprocess(self, data):
            return [[*pair, micro.get_micro_batch_idx()] for pair in data]

    micro = MicroBatching(Numbered(), 2)
    assert micro.get_micro_batch_idx() is None
    results = ask(micro, context, range(5))
    assert results == [[value, value // 2, value // 2] for value in range(5)]
    micro.shutdown()


def test_shutdown_ends_the_threads(context):
    micro = MicroBatching(Steps())
    threads = [worker.thread for group in micro.thread_groups.values() for worker in group]
    micro.shutdown()
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("last", [1, "bad"])
def test_a_handler_that_nobody_needs_goes_with_its_threads(context, last):
    handler = Steps()
    handler.handle = MicroBatching(handler)
    groups = handler.handle.thread_groups.values()
    threads = [worker.thread for group in groups for worker in group]
    with suppress(RuntimeError):
        ask(handler.handle, context, [last])
    context.end()
    gone = weakref.ref(handler)
    del handler
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_as_a_handlers_handle_without_its_init(context):
    class Handler(Steps):
        def __init__(self):
            self.sizes, self.threads = [], set()
            self.handle = MicroBatching(self, 2)

    handler = Handler()
    assert ask(handler.handle, context, [1, 2, 3]) == [{"result": 2}, {"result": 4}, {"result": 6}]
    handler.handle.shutdown()


def test_handler_time_of_micro_batches(context):
    measured = []
    context.metrics = MetricsCacheYamlImpl(model_name="m", measure=measured.append)
    micro = MicroBatching(Steps())
    ask(micro, context, [1])
    micro.shutdown()
    assert [event.name for event in measured] == ["HandlerTime"]


def test_timed_measures_only_where_the_yaml_says_so(context):
    measured = []
    context.metrics = MetricsCacheYamlImpl(model_name="m", measure=measured.append)

    class Handler:
        @timed
        def step(self, a, *, b):
            return a + b

    handler = Handler()
    handler.context = None
    assert handler.step(1, b=2) == 3
    handler.context = context
    for config in ({}, {"handler": {}}, {"handler": {"profile": False}}, {"handler": None}):
        context.model_yaml_config = config
        assert handler.step(1, b=2) == 3
    assert measured == []
    context.model_yaml_config = {"handler": {"profile": True}}
    assert handler.step(1, b=2) == 3
    assert [(event.name, event.unit) for event in measured] == [("ts_handler_step", "ms")]


def test_intermediate_results(context):
    sent = []
    context.begin([Request(id="r", model="m", rows=[{}], parts=sent.append)])
    send_intermediate_predict_response(["one"], context.request_ids, "message", 200, context)
    send_intermediate_predict_response(["two"], context.request_ids, "message", 200, context)
    assert [part[0].result for part in sent] == ["one", "two"]


def test_classes_by_name():
    tests = "kserve_torch.ts.torch_handler.unit_tests"
    assert import_class("test_utils.mock_context.MockContext", tests).__name__ == "MockContext"
    assert import_class("threading.Thread") is threading.Thread
    assert import_class(class_name="Thread", module_prefix="threading") is threading.Thread
    with pytest.raises(ImportError, match="threading has no class Nothing"):
        import_class("threading.Nothing")
    for name in ("Thread", ""):
        with pytest.raises(ImportError, match=f"class name '{name}': expected module.Class"):
            import_class(name)


def test_classes_of_the_calling_handlers_archive(tmp_path):
    for name in ("one", "two"):
        files = {"models/net.py": f"class Net:\n    name = {name!r}\n"}
        namespace = Namespace(write(tmp_path / name, files))
        with closing(namespace), namespace.activate():
            assert import_class("net.Net", "models").name == name
            assert import_class("threading.Thread") is threading.Thread
