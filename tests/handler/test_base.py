import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients
from torch import nn

from kserve_torch.errors import BadRow, HandlerError, InvalidInput, LoadFailed, Unsupported
from kserve_torch.handler import STOCK, stock_handler
from kserve_torch.handler.base import BaseHandler, takes_arrays
from kserve_torch.handler.vision import VisionHandler
from kserve_torch.messages import Verb

ZEROS = torch.zeros(1, 8, 8).tolist()


def test_attributes_after_initialize(folder, load):
    (folder / "index_to_name.json").write_text('{"0": "a", "1": "b", "2": "c"}')
    handler = load(BaseHandler(), folder, yaml={"handler": {"x": 1}}).handler
    assert handler.initialized
    assert not handler.model.training
    assert handler.mapping == {"0": "a", "1": "b", "2": "c"}
    assert handler.device == handler.get_device() == torch.device("cpu")
    assert handler.map_location == "cpu"
    assert handler.model_pt_path == str(folder / "weights.pt")
    assert handler.manifest["model"]["modelFile"] == "net.py"
    assert handler.model_yaml_config == {"handler": {"x": 1}}
    assert handler.target == 0
    assert handler.profiler_args == {}


#: The underscored names of TorchServe's stock handlers, which its subclasses know and override.
THEIRS = {
    *("_load_torchscript_model", "_load_pickled_model", "_load_torch_export_aot_compile"),
    *("_use_torch_export_aot_compile", "_infer_with_profiler", "_is_explain", "_is_describe"),
    *("_expand_contractions", "_remove_accented_characters", "_remove_html_tags", "_tokenize"),
    *("_remove_punctuation", "_remove_puncutation"),
}


@pytest.mark.parametrize("name", STOCK)
def test_subclasses_may_have_any_names_of_their_own(name):
    classes = [cls for cls in stock_handler(name).__mro__ if cls is not object]
    names = {name: cls for cls in classes for name in vars(cls) if name.startswith("_")}
    mangled = {name for name, cls in names.items() if name.startswith(f"_{cls.__name__}__")}
    assert {name for name in names if not name.startswith("__")} - mangled <= THEIRS


class OwnNames(VisionHandler):
    """Has helpers with the names that authors like to give them."""

    def initialize(self, context):
        super().initialize(context)
        self.second = self._load_model("second.pt")
        self._batch, self._pool, self._scores = 0, [], {}

    def _load_model(self, name):
        return name

    def _infer(self, inputs):
        return super().inference(inputs)

    def _forward(self):
        raise AssertionError("nobody calls it")

    _run_model = _answer = _compiled = _forward

    def inference(self, data, *args, **kwargs):
        self._batch += 1
        return self._infer(data)


def test_helpers_of_subclasses_are_left_to_them(folder, load):
    loaded = load(OwnNames(), folder)
    assert loaded.ask(ZEROS) == load(BaseHandler(), folder).ask(ZEROS)
    assert (loaded.handler.second, loaded.handler._batch) == ("second.pt", 1)
    assert np.shape(loaded.ask(ZEROS, verb=Verb.EXPLAIN)) == (1, 1, 8, 8)


class WithoutSuper(BaseHandler):
    def initialize(self, context):
        self.initialized = True


def test_an_initialize_that_loads_no_model(folder, load):
    with pytest.raises(HandlerError, match=r"^WithoutSuper has no model: its initialize\(\) must"):
        load(WithoutSuper(), folder).ask(ZEROS)


def test_one_result_per_row_as_lists(folder, load):
    loaded = load(BaseHandler(), folder)
    ones = torch.ones(1, 8, 8)
    results = loaded.ask(ZEROS, ones.tolist())
    with torch.inference_mode():
        expected = loaded.handler.model(torch.stack([torch.zeros(1, 8, 8), ones]))
    # Not to the bit: the handler may have found another memory format to be faster.
    assert results == [pytest.approx(row) for row in expected.tolist()]


@pytest.mark.parametrize(
    "row",
    [
        {"data": ZEROS},
        {"body": ZEROS},
        {"data": None, "body": ZEROS},
        {"data": torch.zeros(1, 8, 8)},
        {"data": np.zeros((1, 8, 8))},
        {"data": np.zeros((1, 8, 8), np.float32)},
    ],
)
def test_rows_of_every_kind_give_the_same_answer(folder, load, row):
    loaded = load(BaseHandler(), folder)
    assert loaded.ask(row) == loaded.ask(ZEROS)


@pytest.mark.parametrize("number", [0, 0.0, False, np.float32(0)])
def test_a_zero_is_not_empty(folder, load, number):
    loaded = load(BaseHandler(), folder)
    loaded.handler.model = lambda data: data
    assert loaded.ask({"data": number}, {"body": number}) == [0, 0]
    for empty in (None, "", b"", bytearray(), [], {}):
        assert loaded.ask({"data": empty, "body": number}) == [0]


def test_read_only_arrays_are_not_written_to(folder, load):
    array = np.frombuffer(bytes(8 * 8 * 4), np.float32).reshape(1, 8, 8)
    loaded = load(BaseHandler(), folder)
    assert loaded.ask({"data": array}) == loaded.ask(ZEROS)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"data": [[1], [1, 2]]}, "data: expected numbers in a list of regular shape"),
        ({"data": ["a"]}, "data: expected numbers in a list of regular shape"),
        ({"data": np.array(["a"])}, "data: expected numbers in a list of regular shape"),
        ({"data": "abc"}, "data: expected numbers or lists of numbers, got str"),
        ({}, "data: missing or empty"),
        ({"data": []}, "data: missing or empty"),
    ],
)
def test_an_unreadable_row_is_named(folder, load, row, reason):
    with pytest.raises(BadRow) as caught:
        load(BaseHandler(), folder).ask(ZEROS, row)
    assert caught.value.index == 1
    assert caught.value.reason == reason


def test_rows_of_different_shapes(folder, load):
    with pytest.raises(InvalidInput, match=r"row 0 \[1, 8, 8\], row 1 \[1, 9, 9\]"):
        load(BaseHandler(), folder).ask(ZEROS, torch.zeros(1, 9, 9).tolist())


def test_only_rows_of_one_request_choose_each_others_dtype(folder, load):
    """16777217 is no float32: it would be another number beside a client who sends floats."""
    loaded = load(BaseHandler(), folder)
    loaded.handler.model = lambda data: data.long()
    whole, broken = {"data": [16777217]}, {"data": [0.5]}
    assert loaded.ask(whole, broken) == [[16777216], [0]]
    assert loaded.ask_apart(whole, {"data": [2]}) == [[16777217], [2]]
    with pytest.raises(InvalidInput, match="different dtypes") as caught:
        loaded.ask_apart(whole, broken)
    assert not isinstance(caught.value, BadRow)


def test_a_model_of_floats_takes_integers_too(folder, load):
    """A client in JavaScript writes 1.0 as 1."""
    loaded = load(BaseHandler(), folder)
    ones = torch.ones(1, 8, 8)
    [expected] = loaded.ask(ones.tolist())
    assert loaded.ask(ones.long().tolist()) == [expected]
    # From now on such rows fit into one batch with other clients' floats.
    assert loaded.ask_apart(ones.long().tolist(), ones.tolist()) == [pytest.approx(expected)] * 2


GRU = nn.GRU(3, 1)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(nn.BatchNorm1d(3).eval(), id="batch norm"),
        pytest.param(nn.LayerNorm(3), id="layer norm"),
        pytest.param(lambda data: GRU(data)[0], id="recurrent"),
        pytest.param(nn.Softmax(dim=1), id="softmax"),
        pytest.param(nn.PReLU(), id="promoting"),
        pytest.param(lambda data: data.mean(dim=1), id="mean"),
        pytest.param(lambda data: torch.cdist(data, data), id="distances"),
    ],
)
def test_functions_of_floats_take_integers_too(folder, load, model):
    loaded = load(BaseHandler(), folder)
    loaded.handler.model = model
    expected = loaded.ask([[1.0, 2.0, 3.0]] * 3)
    assert loaded.ask([[1, 2, 3]] * 3) == expected


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (torch.zeros(3, 8, 8), r"\[1, 3, 8, 8\] float32: Given groups=1"),
        (torch.zeros(1, 9, 9), r"\[1, 1, 9, 9\] float32: .*mat1 and mat2 shapes"),
        (torch.zeros(1, 2, 2), r"\[1, 1, 2, 2\] float32: .*actual input size"),
        (torch.zeros(5), r"\[1, 5\] float32: Expected 3D"),
        (torch.zeros(1, 9, 9, dtype=torch.int64), r"\[1, 1, 9, 9\] float32: .*mat1 and mat2"),
        (torch.zeros(1, 8, 8, dtype=torch.bool), r"\[1, 1, 8, 8\] bool"),
    ],
)
def test_a_shape_that_the_model_does_not_take(folder, load, row, said):
    with pytest.raises(InvalidInput, match=f"the model does not take {said}"):
        load(BaseHandler(), folder).ask(row.tolist())


def test_a_model_of_integers_says_what_is_wrong_with_them(folder, load):
    loaded = load(BaseHandler(), folder)
    loaded.handler.model = nn.Embedding(3, 1)
    with pytest.raises(InvalidInput, match=r"\[1, 1\] int64: index out of range"):
        loaded.ask([7])
    loaded.handler.model = lambda data: nn.Embedding(3, 1)(data).view(-1, 2)
    with pytest.raises(InvalidInput, match=r"\[1, 1\] int64: shape .* is invalid for input"):
        loaded.ask([1])


def test_one_clients_wrong_indices_are_no_floats_and_make_none_of_others_indices(folder, load):
    """The model also takes what it would have looked up."""
    words = nn.Embedding(3, 1)
    loaded = load(BaseHandler(), folder)
    loaded.handler.model = lambda data: data if data.is_floating_point() else words(data)
    expected = [words.weight[2].tolist()]
    assert loaded.ask([2]) == [expected]
    with pytest.raises(InvalidInput, match="index out of range"):
        loaded.ask([7])
    assert loaded.ask([2]) == [expected]


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
@pytest.mark.parametrize(
    ("row", "said"),
    [
        (torch.zeros(3, 8, 8), r"\[1, 3, 8, 8\] float32: Given groups=1"),
        (torch.zeros(1, 9, 9, dtype=torch.int64), r"\[1, 1, 9, 9\] float32: .*mat1 and mat2"),
    ],
)
def test_a_shape_that_a_scripted_model_does_not_take(folder, load, row, said):
    model = load(BaseHandler(), folder).handler.model
    torch.jit.trace(model, torch.zeros(1, 1, 8, 8)).save(folder / "net.pt")
    loaded = load(BaseHandler(), folder, {"serializedFile": "net.pt"})
    with pytest.raises(InvalidInput, match=f"^the model does not take {said}"):
        loaded.ask(row.tolist())


def test_a_handler_may_catch_what_its_model_raised(folder, load):
    class Handler(BaseHandler):
        def inference(self, data, *args, **kwargs):
            try:
                return super().inference(data)
            except self.expected:
                return torch.zeros(len(data), 1)

    loaded = load(Handler(), folder)
    loaded.handler.expected = RuntimeError
    assert loaded.ask(torch.zeros(1, 9, 9).tolist()) == [[0.0]]
    loaded.handler.model = lambda _: torch.zeros(1).sum(dim=7)
    loaded.handler.expected = IndexError
    assert loaded.ask(ZEROS) == [[0.0]]
    loaded.handler.expected = ValueError
    with pytest.raises(InvalidInput, match="Dimension out of range"):
        loaded.ask(ZEROS)


def test_no_rows_and_a_bare_number(folder, load):
    handler = load(BaseHandler(), folder).handler
    assert handler.preprocess([]).tolist() == []
    assert handler.preprocess(3).tolist() == 3


class Reader(BaseHandler):
    """Reads the rows itself, and has `BaseHandler.preprocess` make the tensor."""

    make = staticmethod(np.array)

    def preprocess(self, data):
        return super().preprocess(self.make(data))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, np.float64, np.bool_])
@pytest.mark.parametrize(
    "make",
    [
        np.array,
        lambda rows: list(np.array(rows)),
        lambda rows: torch.from_numpy(np.array(rows)),
        lambda rows: np.array(rows)[0, 0],
    ],
    ids=["array", "arrays", "tensor", "number"],
)
def test_what_a_subclass_passes_on_keeps_its_dtype(folder, load, dtype, make):
    handler = load(Reader(), folder).handler
    handler.make = lambda rows: make(np.array(rows, dtype))
    tensor = handler.preprocess([[1, 0], [0, 1]])
    assert tensor.numpy().dtype == dtype
    assert tensor.tolist() in ([[1, 0], [0, 1]], 1)


@pytest.mark.parametrize("make", [np.asarray, list])
@pytest.mark.filterwarnings("error")
def test_arrays_of_a_subclass_are_not_written_to(folder, load, make):
    rows = np.frombuffer(bytes(8), np.uint8).reshape(1, 8)
    handler = load(Reader(), folder).handler
    handler.make = make
    handler.preprocess(rows).add_(1)
    assert rows.tolist() == [[0] * 8]


def test_arrays_of_a_subclass_that_are_no_rows(folder, load):
    handler = load(Reader(), folder).handler
    handler.make = list
    with pytest.raises(InvalidInput, match="different shapes"):
        handler.preprocess([np.zeros(1), np.zeros(2)])
    with pytest.raises(BadRow, match="expected numbers"):
        handler.preprocess([np.array(["a"])])
    with pytest.raises(BadRow, match="row 0"):
        handler.preprocess(np.array(["a"]))
    assert handler.preprocess([]).tolist() == []


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory",
        "Expected all tensors to be on the same device, but found at least two devices",
    ],
)
def test_the_models_own_fault_stays_its_own(folder, load, text):
    loaded = load(BaseHandler(), folder)
    loaded.handler.model = lambda _: (_ for _ in ()).throw(RuntimeError(text))
    with pytest.raises(RuntimeError, match=text) as caught:
        loaded.ask(ZEROS)
    assert not isinstance(caught.value, InvalidInput)


def test_steps_can_be_overridden_and_get_what_they_need(folder, load):
    class Handler(BaseHandler):
        def preprocess(self, data):
            return torch.stack([torch.tensor(row["data"]) for row in data])

        def inference(self, data, *args, **kwargs):
            return super().inference(data)

        def postprocess(self, data):
            return data.argmax(1).tolist()

    assert load(Handler(), folder).ask({"data": ZEROS})[0] in range(3)


def test_a_model_gets_what_else_an_inference_is_given(folder, load):
    class Scaled(nn.Linear):
        def forward(self, data, factor, *, offset):
            return super().forward(data) * factor + offset

    handler = load(BaseHandler(), folder).handler
    handler.model = Scaled(2, 1, bias=False).requires_grad_(False)
    nn.init.ones_(handler.model.weight)
    for data in (torch.tensor([[1.0, 2.0]]), torch.tensor([[1, 2]])):
        assert handler.inference(data, 10, offset=5).tolist() == [[35]]


def test_images_of_a_list_that_a_model_does_not_take(folder, load):
    handler = load(BaseHandler(), folder).handler
    handler.model = lambda images: torch.stack(images)
    with pytest.raises(InvalidInput, match=r"does not take \[1\] float32, \[2\] float32: "):
        handler.inference([torch.zeros(1), torch.zeros(2)])


def test_a_postprocess_may_write_to_the_models_output(folder, load):
    class Thresholds(BaseHandler):
        def postprocess(self, data):
            data[data > 0] = 1
            return super().postprocess(data.clamp_(0))

    answer = load(Thresholds(), folder).ask({"data": ZEROS})
    assert set(np.ravel(answer)) <= {0, 1}


def test_a_handler_that_does_not_call_init(folder, load):
    class Handler(BaseHandler):
        def __init__(self):
            self.mine = 1

    assert len(load(Handler(), folder).ask(ZEROS)[0]) == 3


@pytest.mark.parametrize("bases", [(BaseHandler, nn.Module), (nn.Module, BaseHandler)])
def test_a_handler_that_is_a_module_too(folder, load, bases):
    class Handler(*bases):
        def __init__(self):
            nn.Module.__init__(self)
            BaseHandler.__init__(self)

    loaded = load(Handler(), folder)
    assert loaded.ask(ZEROS) == load(BaseHandler(), folder).ask(ZEROS)
    assert dict(loaded.handler.named_children()) == {"model": loaded.handler.model}


def test_handler_time_is_measured(folder, load):
    loaded = load(BaseHandler(), folder)
    loaded.ask(ZEROS)
    (measured,) = loaded.measured
    assert (measured.name, measured.kind, measured.unit) == ("HandlerTime", "gauge", "ms")
    assert measured.dimensions == (("ModelName", "m"), ("Level", "Model"))
    assert measured.value > 0


def test_steps_are_measured_where_the_yaml_asks_for_it(folder, load):
    loaded = load(BaseHandler(), folder, yaml={"handler": {"profile": True}})
    loaded.ask(ZEROS)
    assert [measured.name for measured in loaded.measured] == [
        "ts_handler_preprocess",
        "ts_handler_inference",
        "ts_handler_postprocess",
        "HandlerTime",
    ]


@pytest.mark.parametrize("name", [name for name, place in STOCK.items() if "ts." not in place])
def test_steps_of_each_stock_handler_are_measured(name):
    handler = stock_handler(name)
    assert all(hasattr(step, "__wrapped__") for step in (handler.preprocess, handler.postprocess))


def test_describe(folder, load):
    class Handler(BaseHandler):
        def describe_handle(self):
            return {"inputs": [1, 8, 8]}

    assert load(Handler(), folder).ask({}, verb=Verb.DESCRIBE) == [{"inputs": [1, 8, 8]}]
    assert load(BaseHandler(), folder).ask({}, verb=Verb.DESCRIBE) == [None]


def test_a_handler_without_explanations_says_so(folder, load):
    with pytest.raises(Unsupported, match="BaseHandler gives no explanations"):
        load(BaseHandler(), folder).ask(ZEROS, verb=Verb.EXPLAIN)


def test_explain_is_not_sticky(folder, load):
    class Handler(BaseHandler):
        def get_insights(self, tensor_data, _, target=0):
            return [("explained", target)] * len(tensor_data)

    loaded = load(Handler(), folder)
    assert loaded.ask({"data": ZEROS}, verb=Verb.EXPLAIN) == [("explained", 0)]
    assert len(loaded.ask({"data": ZEROS})[0]) == 3
    assert loaded.handler.explain is False


@pytest.mark.parametrize(
    ("targets", "passed"),
    [
        ([2], 2),
        ([None], 0),
        (["2"], 2),
        ([bytearray(b"2")], 2),
        ([[1, 2]], (1, 2)),
        ([np.array([1, 2])], (1, 2)),
        ([1, 2, None], [1, 2, 0]),
        ([[1], 2, (3,), np.array([4])], [1, 2, 3, 4]),
        ([2.0, np.array([]), []], [2, 0, 0]),
        ([True], 1),
        ([2, "2", 2.0], 2),
        ([None, 0], 0),
        ([[1, 2], [1, 2]], (1, 2)),
        (["cat"], "cat"),
        ([bytearray(b"cat")], bytearray(b"cat")),
        ([{"from": 1}, 2], [{"from": 1}, 2]),
    ],
)
def test_each_row_is_explained_for_its_own_target(folder, load, targets, passed):
    seen = []

    class Handler(BaseHandler):
        def get_insights(self, tensor_data, _, target=0):
            seen.append(target)
            return [0] * len(tensor_data)

    rows = [{"data": ZEROS, "target": target} for target in targets]
    load(Handler(), folder).ask(*rows, verb=Verb.EXPLAIN)
    assert seen == [passed]


@pytest.mark.parametrize(
    "target",
    ["x", {"a": 1}, ["x"], bytearray(b"\xff"), 2.7, [0, 0.5], 2**70, -(2**70), 1e300, float("inf")],
)
def test_a_target_that_is_no_class(folder, load, target):
    rows = [{"data": ZEROS}, {"data": ZEROS, "target": target}]
    with pytest.raises(BadRow, match="row 1: target: not a class index"):
        load(BaseHandler(), folder).ask(*rows, verb=Verb.EXPLAIN)


@pytest.mark.parametrize("payload", ["x", {"b64": "eA=="}, {"b64": "no base64"}, [1]])
def test_an_explanation_gets_what_the_client_sent(folder, load, payload):
    class Handler(BaseHandler):
        def preprocess(self, data):
            return torch.zeros(1, 1, 8, 8)

        def get_insights(self, tensor_data, raw, target=0):
            return [raw]

    assert load(Handler(), folder).ask({"data": payload}, verb=Verb.EXPLAIN) == [payload]


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        ([1, 3], "row 1: target: 3 is no class, the model has 3"),
        (["cat", "cat"], "target: cat does not fit"),
        ([["a"], {"b": 1}], r"target: \[\['a'\], {'b': 1}\] does not fit"),
    ],
)
def test_targets_that_the_handlers_own_explanation_refuses(folder, load, targets, text):
    class Handler(BaseHandler):
        def get_insights(self, tensor_data, _, target=0):
            return IntegratedGradients(self.model).attribute(tensor_data, target=target).tolist()

    rows = [{"data": ZEROS, "target": target} for target in targets]
    with pytest.raises(InvalidInput, match=text):
        load(Handler(), folder).ask(*rows, verb=Verb.EXPLAIN)


def test_targets_for_different_outputs(folder, load):
    rows = [{"data": ZEROS, "target": 1}, {"data": ZEROS, "target": [1, 2]}]
    with pytest.raises(InvalidInput, match="target: rows have class indices of different lengths"):
        load(BaseHandler(), folder).ask(*rows, verb=Verb.EXPLAIN)


def test_only_handlers_that_read_rows_as_ours_do_get_arrays():
    class Post(VisionHandler):
        def postprocess(self, data):
            return data

    class Pre(VisionHandler):
        def preprocess(self, data):
            return data

    class Under(Pre):
        pass

    class Says(Pre):
        accepts_arrays = True

    class Inherits(Says):
        pass

    # Of a source that a test runs by itself.
    names = {"VisionHandler": VisionHandler}
    exec("class Ran(VisionHandler):\n def preprocess(self, data): return data", names)
    handlers = (BaseHandler, Post, Pre, Under, Says, Inherits, names["Ran"])
    accepted = [True, True, False, False, True, True, False]
    assert [takes_arrays(handler()) for handler in handlers] == accepted


@pytest.mark.parametrize("name", ["handle", "preprocess", "explain_handle", "get_insights"])
def test_whoever_reads_rows_in_any_step_gets_no_arrays(name):
    reader = type("Reader", (VisionHandler,), {name: lambda self, *given: given})
    assert not takes_arrays(reader())


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ({}, "No model weights could be loaded: a weights file such as model.pt is wanted"),
        ({"serializedFile": "weights.pth"}, "weights.pth: named in the manifest, not in"),
        ({"modelFile": "gone.py"}, "gone.py: named in the manifest, not in the archive"),
        ({"modelFile": "net.py", "serializedFile": "gone.pt"}, "gone.pt: named in the manifest"),
        ({"serializedFile": "model.so"}, "model.so: needs pt2.export.aot_compile: true"),
    ],
)
def test_one_reason_why_a_model_does_not_load(folder, load, manifest, reason):
    with pytest.raises(LoadFailed) as caught:
        load(BaseHandler(), folder, manifest)
    assert reason in caught.value.message
    assert str(folder) not in caught.value.message
