import copy
import logging
import pickle
import sys
import types
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from kserve_torch.errors import InvalidInput, LoadFailed, Unsupported
from kserve_torch.handler import base, weights
from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.classes import list_classes_from_module
from kserve_torch.handler.eager import fill, load_eager
from kserve_torch.namespace.loader import Namespace

CPU = torch.device("cpu")


def module_of(folder, source, name="net"):
    (folder / f"{name}.py").write_text(source)
    return Namespace(folder).import_module(name)


def reason(call, *args):
    with pytest.raises(LoadFailed) as caught:
        call(*args)
    return caught.value.message


def test_the_state_dict_fills_the_one_class(folder, load, caplog):
    state = torch.load(folder / "weights.pt")
    model = load(BaseHandler(), folder).handler.model
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not caplog.messages


def test_weights_are_on_the_device_once(folder, load, monkeypatch):
    """They get there with the model: a GPU that has room for one copy will do."""
    monkeypatch.setattr(base, "device_for", lambda _: torch.device("meta"))
    model = load(BaseHandler(), folder).handler.model
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_model_file_without_weights(folder, load, caplog):
    model = load(BaseHandler(), folder, {"modelFile": "net.py"}).handler.model
    assert type(model).__name__ == "Net"
    assert caplog.messages == [
        "net.py: no weights file (serializedFile) comes with it: the weights are random, unless "
        "code of the archive loads them"
    ]


@pytest.mark.parametrize(
    ("source", "found"),
    [("x = 1", "none"), ("class A: pass\nclass B: pass", "A, B"), ("from torch import nn", "none")],
)
def test_not_exactly_one_class(tmp_path, source, found):
    assert (
        wanted(tmp_path, source) == f"net.py: exactly one class is wanted as the model, got {found}"
    )


def wanted(folder, source):
    return reason(load_eager, module_of(folder, source), None)


PARTS = """
from torch import nn
class Config: pass
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
class Net(nn.Module):
    def __init__(self, width=2, *more, **options):
        super().__init__()
"""


def test_the_parts_of_a_model_may_be_in_its_file(tmp_path, caplog):
    model = load_eager(module_of(tmp_path, PARTS), None)
    assert type(model).__name__ == "Net"
    assert not caplog.messages  # it has no weights
    both = PARTS.replace("self, width)", "self, width=3)")
    message = "net.py: exactly one class is wanted as the model, got Block, Net"
    assert wanted(tmp_path, both) == message


def test_only_subclasses_of_a_parent():
    module = types.ModuleType("m")
    module.A = type("A", (nn.Module,), {"__module__": "m"})
    module.B = type("B", (), {"__module__": "m"})
    assert list_classes_from_module(module) == [module.A, module.B]
    assert list_classes_from_module(module, nn.Module) == [module.A]


@pytest.mark.parametrize(
    "read", [weights.load_state, lambda path: weights.load_serialized(path, CPU)]
)
def test_a_pointer_of_git_lfs_is_called_that(tmp_path, read):
    path = tmp_path / "model.pt"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    assert reason(read, path).startswith("model.pt: a pointer of Git LFS ")


def test_what_does_not_fit_is_named_shortly():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    state = {"0.weight": torch.zeros(4, 2), "0.bias": torch.zeros(3), "other": torch.zeros(1)}
    assert reason(fill, model, state, "w.pt") == (
        "w.pt does not fit Sequential: missing 1.weight, 1.bias, 2.weight and 1 more; "
        "unexpected other; 0.weight is [4, 2], the model has [3, 2]"
    )
    state = {**nn.Linear(1, 1).state_dict(), 0: torch.zeros(1)}
    assert reason(fill, nn.Linear(1, 1), state, "w.pt").endswith(" Linear: unexpected 0")
    state["weight"] = [[1.0]]
    del state[0]
    assert reason(fill, nn.Linear(1, 1), state, "w.pt").endswith(" received <class 'list'>")


#: A model that is no module but has what TorchServe calls of one.
PLAIN = """
class Scale:
    def load_state_dict(self, state):
        self.factor = state["factor"]

    def to(self, device):
        self.factor = self.factor.to(device)

    def eval(self):
        pass

    def __call__(self, x):
        return x * self.factor
"""


def test_a_class_that_is_no_module_takes_its_weights_itself(folder, load):
    (folder / "net.py").write_text(PLAIN)
    torch.save({"factor": torch.tensor(3.0)}, folder / "weights.pt")
    loaded = load(BaseHandler(), folder)
    assert loaded.ask([1.0, 2.0], [3.0, 4.0]) == [[3, 6], [9, 12]]
    torch.save({"scale": torch.tensor(3.0)}, folder / "weights.pt")
    with pytest.raises(KeyError, match="factor"):
        loaded.initialize()
    (folder / "net.py").write_text("class Scale: pass")
    assert reason(load, BaseHandler(), folder) == (
        "weights.pt does not fit Scale: 'Scale' object has no attribute 'load_state_dict'"
    )


def test_a_whole_pickled_model_is_no_state_dict(tmp_path, caplog):
    torch.save(nn.Linear(1, 1), tmp_path / "w.pt")
    message = reason(weights.load_state, tmp_path / "w.pt")
    assert message == "w.pt: expected a state_dict, found Linear"


def test_full_pickle_warns_once_and_names_the_file(tmp_path, caplog):
    torch.save({"w": torch.ones(1), "extra": types.SimpleNamespace(a=1)}, tmp_path / "w.pt")
    state = weights.load_state(tmp_path / "w.pt")
    assert state["extra"].a == 1
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.getMessage().startswith("w.pt: more than weights")


def test_weights_alone_do_not_warn(folder, caplog):
    weights.load_state(folder / "weights.pt")
    assert not caplog.records


def test_full_pickle_can_be_forbidden(tmp_path, monkeypatch):
    torch.save({"extra": types.SimpleNamespace()}, tmp_path / "w.pt")
    monkeypatch.setenv("KSERVE_TORCH_FORBID_PICKLE", "1")
    message = reason(weights.load_state, tmp_path / "w.pt")
    assert message == "w.pt: needs full unpickling, and KSERVE_TORCH_FORBID_PICKLE=1 forbids it"


@pytest.mark.filterwarnings("ignore:.torch.jit.(save|script)")
def test_what_was_saved_on_a_gpu_is_read_without_one(tmp_path):
    model, path = nn.Linear(2, 2), tmp_path / "w.pt"
    torch.save(model.state_dict(), path)
    move_to_gpu(path)
    assert torch.equal(weights.load_state(path)["weight"], model.weight)
    torch.save({**model.state_dict(), "extra": types.SimpleNamespace()}, path)
    move_to_gpu(path)
    assert torch.equal(weights.load_state(path)["weight"], model.weight)
    torch.jit.script(model).save(path)
    move_to_gpu(path)
    assert torch.equal(weights.load_serialized(path, CPU).weight, model.weight)


def move_to_gpu(path):
    """Make a file what torch writes of tensors on a GPU."""
    with zipfile.ZipFile(path) as file:
        content = {name: file.read(name) for name in file.namelist()}
    cpu, gpu = (pickle.dumps(device, 2)[2:-3] for device in ("cpu", "cuda:0"))
    with zipfile.ZipFile(path, "w") as file:
        for name, data in content.items():
            file.writestr(name, data.replace(cpu, gpu) if name.endswith(".pkl") else data)


def test_the_old_format_without_zip(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(tmp_path / "w.pt")
    assert torch.equal(weights.load_state(tmp_path / "w.pt")["w"], torch.ones(2))


def test_the_archives_own_classes_are_found_by_its_unpickler(tmp_path):
    module = module_of(tmp_path, "class Extra:\n    a = 1\n", "helpers")
    sys.modules["helpers"] = module
    module.Extra.__module__ = "helpers"
    torch.save({"extra": module.Extra()}, tmp_path / "w.pt")
    del sys.modules["helpers"]
    with Namespace(tmp_path).activate():
        state = weights.load_state(tmp_path / "w.pt")
    assert state["extra"].a == 1
    assert "cannot be read" in reason(weights.load_state, tmp_path / "w.pt")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"\x80\x04garbage", b"text"])
def test_damaged_files(tmp_path, content):
    (tmp_path / "w.pt").write_bytes(content)
    assert reason(weights.load_state, tmp_path / "w.pt").startswith("w.pt: ")


def test_a_truncated_file(folder):
    path = folder / "weights.pt"
    path.write_bytes(path.read_bytes()[:-200])
    assert reason(weights.load_state, path).startswith("weights.pt: ")


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|save|script)")
def test_torchscript(folder, load):
    rows = [torch.ones(1, 8, 8).tolist()]
    eager = load(BaseHandler(), folder)
    script = torch.jit.trace(eager.handler.model, torch.zeros(1, 1, 8, 8))
    script.save(folder / "script.pt")
    loaded = load(BaseHandler(), folder, {"serializedFile": "script.pt"})
    np.testing.assert_allclose(loaded.ask(*rows), eager.ask(*rows), rtol=1e-5)
    assert not loaded.handler.model.training


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|save|script)")
def test_a_handler_may_load_torchscript_from_a_file_of_any_name(folder, load):
    class Handler(BaseHandler):
        def initialize(self, context):
            super().initialize(context)
            self.model = self._load_torchscript_model(str(folder / "traced.pth"))

    eager = load(BaseHandler(), folder)
    torch.jit.trace(eager.handler.model, torch.zeros(1, 1, 8, 8)).save(folder / "traced.pth")
    row = torch.ones(1, 8, 8).tolist()
    np.testing.assert_allclose(load(Handler(), folder).ask(row), eager.ask(row), rtol=1e-5)
    (folder / "traced.pth").write_bytes(b"damaged")
    assert "traced.pth: cannot be read" in reason(load, Handler(), folder)


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|save|script|load)")
def test_torchscript_that_a_handler_loads_is_for_evaluation_too(folder, load):
    class Handler(BaseHandler):
        def _load_torchscript_model(self, model_pt_path):
            self.read = model_pt_path
            return torch.jit.load(model_pt_path)

    torch.jit.script(torch.nn.Dropout(0.9)).train().save(folder / "dropout.pt")
    loaded = load(Handler(), folder, {"serializedFile": "dropout.pt"})
    assert loaded.handler.read == str(folder / "dropout.pt")
    assert loaded.ask([1.0, 2.0]) == [[1, 2]]


#: A module whose import registers an operator of torch.
OPERATORS = """
import torch

library = torch.library.Library("kt_ops", "DEF")
library.define("double(Tensor x) -> Tensor")
library.impl("double", lambda x: 2 * x, "CompositeExplicitAutograd")
"""


@pytest.mark.filterwarnings("ignore:.torch.jit.(save|script)")
def test_torchscript_with_unknown_operators_names_them(tmp_path):
    """torch's error begins with an empty line."""
    package = module_of(tmp_path, OPERATORS, "registers")

    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.kt_ops.double(x)

    torch.jit.script(Own()).save(tmp_path / "own.pt")
    package.library._destroy()
    assert reason(weights.load_serialized, tmp_path / "own.pt", CPU) == (
        "own.pt: cannot be read: Unknown builtin op: kt_ops::double."
    )


@pytest.mark.filterwarnings("ignore:.torch.jit.(save|script)")
def test_torchscript_with_engines_of_tensorrt(tmp_path, load):
    tensorrt = OPERATORS.replace("kt_ops", "tensorrt")  # as the import of torch_tensorrt does
    (tmp_path / "torch_tensorrt.py").write_text(tensorrt)
    files = {"serializedFile": "engine.pt"}
    package = module_of(tmp_path, tensorrt, "registers")

    class Engine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.tensorrt.double(x)

    torch.jit.script(Engine()).save(tmp_path / "engine.pt")
    package.library._destroy()
    loaded = load(BaseHandler(), tmp_path, files)
    assert loaded.ask([1.0, 2.0]) == [[2, 4]]
    loaded.namespace.import_module("torch_tensorrt").library._destroy()
    (tmp_path / "torch_tensorrt.py").unlink()
    assert reason(load, BaseHandler(), tmp_path, files) == (
        "engine.pt: cannot be read: No module named 'torch_tensorrt'"
    )


def test_a_model_whose_methods_return_nothing(folder, load):
    (folder / "net.py").write_text("""
import torch

class Net(torch.nn.Dropout):
    def to(self, device):
        super().to(device)

    def train(self, mode=True):
        super().train(mode)
""")
    loaded = load(BaseHandler(), folder, {"modelFile": "net.py"})
    assert loaded.ask([1.0, 2.0]) == [[1, 2]]


def test_an_exported_program(folder, load):
    rows = [torch.ones(1, 8, 8).tolist()]
    eager = load(BaseHandler(), folder)
    program = torch.export.export(eager.handler.model, (torch.zeros(1, 1, 8, 8),))
    torch.export.save(program, folder / "program.pt2")
    loaded = load(BaseHandler(), folder, {"serializedFile": "program.pt2"})
    assert np.allclose(loaded.ask(*rows), eager.ask(*rows), atol=1e-6)
    for shape, said in [((1, 9, 9), r"Guard failed: x\.size"), ((), "tuple index out of range")]:
        with pytest.raises(InvalidInput, match=rf"does not take .* float32: {said}"):
            loaded.ask(torch.ones(shape).tolist())


def test_an_exported_program_makes_its_tensors_on_the_device(folder, load, monkeypatch):
    monkeypatch.setattr(base, "device_for", lambda _: torch.device("meta"))
    program = torch.export.export(Numbered(), (torch.zeros(2, 3),))
    torch.export.save(program, folder / "program.pt2")
    handler = load(BaseHandler(), folder, {"serializedFile": "program.pt2"}).handler
    assert handler.model(torch.zeros(2, 3, device="meta")).device.type == "meta"


class Numbered(nn.Module):
    """As the positions of a text model."""

    def forward(self, x):
        return x + torch.arange(x.shape[1], device=x.device)


def test_a_suffix_that_needs_a_model_file(folder):
    (folder / "w.pth").write_bytes(b"")
    message = "w.pth: without a model file, weights must be one of .pt, .pt2, .onnx, .so"
    assert reason(weights.load_serialized, folder / "w.pth", CPU) == message


@pytest.mark.parametrize("file", ["m.pt", "m.pt2", "m.so"])
def test_damaged_model_files_are_named(tmp_path, file):
    (tmp_path / file).write_bytes(b"not a model")
    message = reason(weights.load_serialized, tmp_path / file, CPU)
    assert message.startswith(f"{file}: ")
    assert str(tmp_path) not in message


def test_safetensors_without_its_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "w.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    message = reason(weights.load_state, tmp_path / "w.safetensors")
    assert message == "w.safetensors: reading it needs the package safetensors"


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_file_for_which_there_is_no_memory_is_not_damaged(tmp_path, error):
    with pytest.raises(error), weights.reading(tmp_path / "w.pt"):
        raise error


class Tied(torch.nn.Module):
    """Its output has the weights of its input."""

    def __init__(self, tie=True):
        super().__init__()
        self.words = torch.nn.Embedding(3, 2)
        self.head = torch.nn.Linear(2, 3, bias=False)
        if tie:
            self.head.weight = self.words.weight


class Odd(torch.nn.Module):
    """Some of what it holds has no memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("links", torch.eye(3).to_sparse())
        self.later = torch.nn.LazyLinear(2)


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    assert torch.equal(weights.load_state(tmp_path / "w.safetensors")["w"], torch.ones(2))
    net = Tied()
    safetensors.save_model(net, tmp_path / "w.safetensors")
    other = Tied()
    fill(other, weights.load_state(tmp_path / "w.safetensors"), "w.safetensors")
    assert torch.equal(other.head.weight, net.words.weight)
    assert other.head.weight is other.words.weight
    with pytest.raises(LoadFailed, match=r"missing head\.weight$"):
        fill(Tied(tie=False), {"words.weight": torch.ones(3, 2)}, "w.safetensors")
    odd = Odd()
    fill(odd, dict(odd.state_dict()), "w.safetensors")
    state = net.state_dict()
    del state["head.weight"]
    with pytest.raises(LoadFailed, match="missing head"):
        fill(Tied(), state, "w.pth")
    (tmp_path / "w.safetensors").write_bytes(b"damaged")
    assert "cannot be read" in reason(weights.load_state, tmp_path / "w.safetensors")


def test_onnx_without_its_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = reason(weights.load_serialized, tmp_path / "m.onnx", CPU)
    assert message == "m.onnx: serving it needs the package onnxruntime"


def test_a_package_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libcudart.so.13: no such file')")
    (tmp_path / "m.onnx").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    message = reason(weights.load_serialized, tmp_path / "m.onnx", CPU)
    assert message == "m.onnx: cannot be read: libcudart.so.13: no such file"


def test_pickles_that_run_code_are_not_run_when_weights_would_do(tmp_path, monkeypatch):
    class Bomb:
        def __reduce__(self):
            return (pickle.loads, (b"garbage",))

    torch.save({"w": Bomb()}, tmp_path / "w.pt")
    monkeypatch.setenv("KSERVE_TORCH_FORBID_PICKLE", "1")
    assert "forbids it" in reason(weights.load_state, tmp_path / "w.pt")


def write_onnx(path, kind):
    """A model that sums numbers ``[n, 2]`` of an ONNX datatype."""
    import onnx

    node = onnx.helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0, noop_with_empty_axes=0)
    kind = getattr(onnx.TensorProto, kind)
    graph = onnx.helper.make_graph(
        [node],
        "sum",
        [onnx.helper.make_tensor_value_info("x", kind, ["n", 2])],
        [onnx.helper.make_tensor_value_info("y", kind, [])],
    )
    opset = [onnx.helper.make_opsetid("", 13)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx_without_cuda_on_a_gpu_is_said(tmp_path):
    write_onnx(tmp_path / "sum.onnx", "FLOAT")
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider"):
        model = weights.load_serialized(tmp_path / "sum.onnx", torch.device("cuda", 0))
    assert model(torch.ones(1, 2)).tolist() == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx_of_integers(folder, load):
    write_onnx(folder / "sum.onnx", "INT64")
    handler = load(BaseHandler(), folder, {"serializedFile": "sum.onnx"}).handler
    assert handler.inference(torch.tensor([[1, 2]])).item() == 3
    with pytest.raises(InvalidInput, match=r"\[1, 3\] int64: Got invalid dimensions"):
        handler.inference(torch.tensor([[1, 2, 3]]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx(folder, load):
    write_onnx(folder / "sum.onnx", "FLOAT")
    handler = load(BaseHandler(), folder, {"serializedFile": "sum.onnx"}).handler
    assert handler.inference(torch.ones(3, 2)).item() == 6
    assert handler.model.run(None, {"x": np.ones((1, 2), np.float32)})[0] == 2
    assert copy.copy(handler.model).session is handler.model.session
    options = handler.model.get_session_options()
    assert options.intra_op_num_threads == torch.get_num_threads()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    wanting = torch.ones(3, 2, requires_grad=True)
    assert handler.inference(wanting).item() == 6
    with pytest.raises(Unsupported, match="an ONNX model has no gradients"):
        handler.model(wanting)
    for data, said in [
        (torch.ones(3, 3), r"\[3, 3\] float32: Got invalid dimensions"),
        (torch.ones(3), r"\[3\] float32: Invalid rank"),
        (torch.ones(3, 2, dtype=torch.int32), r"\[3, 2\] int32: Unexpected input data type"),
    ]:
        with pytest.raises(InvalidInput, match=f"^the model does not take {said}"):
            handler.inference(data)


class Labels(BaseHandler):
    def postprocess(self, data):
        return list(zip(*data, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx_of_a_classifier_of_scikit_learn(folder, load):
    """As its converter writes it: a label, and a map of label to probability, per row."""
    from onnx import TensorProto, helper

    names = {"classlabels_strings": ["cat", "dog"]}
    classify = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=[1.0, 0.0, 0.0, 1.0],
        intercepts=[0.0, 0.0],
        **names,
    )
    zipped = helper.make_node("ZipMap", ["scores"], ["map"], domain="ai.onnx.ml", **names)
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, scores))
    graph = helper.make_graph(
        [classify, zipped],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [
            helper.make_tensor_value_info("label", TensorProto.STRING, ["n"]),
            helper.make_value_info("map", maps),
        ],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (folder / "c.onnx").write_bytes(model.SerializeToString())
    loaded = load(Labels(), folder, {"serializedFile": "c.onnx"})
    assert loaded.ask([1.0, 2.0], [3.0, 0.0]) == [
        ("dog", {"cat": 1.0, "dog": 2.0}),
        ("cat", {"cat": 3.0, "dog": 0.0}),
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (nn.Conv2d(3, 1, 1), (1, 4, 2, 2), r"Input channels C is not equal to kernel channels"),
        (nn.Linear(3, 1, bias=False), (1, 2, 4), r"matmul_helper\.h:\d+ .* dimension mismatch$"),
        (nn.Linear(3, 1), (2, 4), r"GEMM: Dimension mismatch"),
        (nn.PReLU(3), (1, 4), r"Attempting to broadcast an axis"),
        (nn.Unflatten(1, (-1, 3)), (1, 4), r"The input tensor cannot be reshaped"),
    ],
    ids=["Conv", "MatMul", "Gemm", "broadcast", "Reshape"],
)
def test_onnx_with_sizes_that_only_its_nodes_know(tmp_path, model, shape, said):
    sizes = {size: f"size{size}" for size in range(len(shape))}
    right = (shape[0], 3, *shape[2:]) if len(shape) != 3 else (*shape[:2], 3)
    torch.onnx.export(
        model,
        (torch.zeros(right),),
        tmp_path / "m.onnx",
        input_names=["x"],
        dynamic_axes={"x": sizes},
        dynamo=False,
    )
    model = weights.load_serialized(tmp_path / "m.onnx", CPU)
    model(torch.zeros(right))
    with pytest.raises(InvalidInput, match=rf"^the model does not take .* float32: {said}"):
        model(torch.zeros(shape))


@pytest.mark.parametrize("saved", [nn.Linear(2, 2).state_dict(), nn.Linear(2, 2)])
def test_a_state_dict_without_a_model_file_is_told_from_torchscript(tmp_path, saved):
    torch.save(saved, tmp_path / "w.pt")
    assert reason(weights.load_serialized, tmp_path / "w.pt", CPU) == (
        "w.pt: torch.save wrote it, not torch.jit.save: a state_dict needs a model file "
        "(modelFile in the manifest)"
    )
