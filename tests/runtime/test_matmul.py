"""Matrix products through oneDNN: torch's answers, and torch itself for all but ordinary ones."""

import copy
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kserve_torch.errors import InvalidInput
from kserve_torch.handler.blame import blame_input
from kserve_torch.runtime import matmul
from kserve_torch.runtime.reasons import brief

CPUINFO = "processor\t: 0\nvendor_id\t: {}\ncpu family\t: 26\n"
MODES = {"inference": torch.inference_mode, "none": torch.no_grad, "gradients": nullcontext}


@pytest.fixture
def computed(monkeypatch):
    """What went through oneDNN, on a CPU of any kind."""
    given = []
    product = matmul._product

    def noted(left, *args):
        given.append(left)
        return product(left, *args)

    monkeypatch.setattr(matmul, "_product", noted)
    library = matmul.replace()
    yield given
    library._destroy()


def layer(bias=True):
    torch.manual_seed(0)
    return nn.Linear(512, 256, bias=bias)


def rows(*shape):
    numbers = torch.arange(torch.Size(shape).numel() * 512, dtype=torch.float32)
    return numbers.sin().view(*shape, 512)


def assert_answers(output, module, given):
    exact = copy.deepcopy(module).double()(given.double())
    torch.testing.assert_close(output.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(16,), (2, 8), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_linear_layers(computed, bias, shape, mode):
    module = layer(bias)
    with MODES[mode]():
        output = module(rows(*shape))
        assert_answers(output, module, rows(*shape))
    assert len(computed) == 1
    assert output.requires_grad == (mode == "gradients")


def test_gradients(computed):
    module, given = layer(), rows(16).requires_grad_()
    module(given).square().sum().backward()
    exact, same = copy.deepcopy(module).double(), given.detach().double().requires_grad_()
    exact.zero_grad()
    exact(same).square().sum().backward()
    torch.testing.assert_close(given.grad.double(), same.grad, rtol=1e-5, atol=1e-4)
    for one, other in zip(module.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-5, atol=1e-4)
    assert len(computed) == 2  # forward, and the input's gradient


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformers(computed, activation):
    torch.manual_seed(0)
    kind = nn.TransformerEncoderLayer(256, 4, 512, activation=activation, batch_first=True)
    model = nn.TransformerEncoder(kind, 1).eval()
    given = rows(2, 8).view(2, 16, 256)
    with torch.inference_mode():
        assert_answers(model(given), model, given)
    assert len(computed) == 4  # attention in and out, and two layers


def test_products_of_matrices(computed):
    left, right = rows(16), rows(256).T
    for one in (right, right.contiguous()):
        torch.testing.assert_close(left @ one, (left.double() @ one.double()).float())
    assert len(computed) == 2


def with_a_slice(module):
    module.weight = nn.Parameter(rows(512).view(256, 1024)[:, ::2])


def with_one_bias_for_all(module):
    module.bias = nn.Parameter(torch.ones(1))


def in_double(module):
    module.double()


def in_bfloat16(module):
    module.bfloat16()


@pytest.mark.parametrize("change", [with_a_slice, with_one_bias_for_all, in_double, in_bfloat16])
def test_layers_that_are_left_to_torch(computed, change):
    module = layer()
    change(module)
    given = rows(16).to(module.weight.dtype)
    output = module(given)
    assert not computed
    assert output.dtype is given.dtype
    torch.testing.assert_close(output, given @ module.weight.t() + module.bias, rtol=0.02, atol=0.1)


def test_sums_with_factors_are_left_to_torch(computed):
    left, right, one = rows(16), rows(256).T, torch.ones(16, 256)
    for bias, factors in ((one, {}), (one[0], {"beta": 2}), (one[0], {"alpha": 0.5})):
        exact = torch.addmm(bias.double(), left.double(), right.double(), **factors)
        torch.testing.assert_close(torch.addmm(bias, left, right, **factors), exact.float())
    assert not computed


@pytest.mark.parametrize("given", [rows(3), rows(1), rows(0), rows(16)[0], rows(512).T])
def test_inputs_that_are_left_to_torch(computed, given):
    module = layer()
    assert_answers(module(given), module, given)
    assert not computed


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (rows(16)[:, :511].contiguous(), "shapes cannot be multiplied"),
        (rows(16).double(), "dtype"),
        (torch.tensor(1.0), "at least 1D"),
    ],
)
def test_errors_are_torchs(computed, given, error):
    for bias in (True, False):
        with pytest.raises(RuntimeError, match=error):
            layer(bias)(given)
    with pytest.raises(RuntimeError, match="must be a matrix"):
        torch.mm(rows(16)[0], rows(256).T)
    assert not computed


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("bias", [True, False])
def test_errors_of_torchscript(computed, bias):
    module, given = layer(bias), rows(16)[:, :511]
    script = torch.jit.script(module)
    with pytest.raises(RuntimeError) as plain:
        module(given)
    with pytest.raises(RuntimeError, match="TorchScript") as caught:
        script(given)
    assert brief(caught.value) == brief(plain.value)
    with pytest.raises(InvalidInput) as refused, blame_input(given):
        script(given)
    assert refused.value.message == f"the model does not take [16, 511] float32: {plain.value}"


def test_few_rows_or_columns(computed):
    large = nn.Linear(512, 2048)
    large(rows(3))
    nn.Linear(512, 7)(rows(512))
    assert not computed
    large(rows(4))
    nn.Linear(512, 8)(rows(512))
    assert len(computed) == 2


def test_autocast(computed):
    with torch.autocast("cpu", torch.bfloat16):
        assert layer()(rows(16)).dtype is torch.bfloat16
    assert not computed


def test_without_onednn(computed):
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        assert_answers(layer()(rows(16)), layer(), rows(16))
    finally:
        torch._C._set_mkldnn_enabled(before)
    assert not computed


class Functions(TorchFunctionMode):
    """Notes the functions that are called."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.called.append(func)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.called.append(func)
        return func(*args, **(kwargs or {}))


def test_who_watches_functions_or_operators_sees_torchs(computed):
    for given in (rows(16), rows(1)):
        with Functions() as functions:
            layer()(given)
        assert nn.functional.linear in functions.called
        assert torch.addmm not in functions.called
        with torch.no_grad(), Operators() as operators:
            layer()(given)
        assert operators.called.count(torch.ops.aten.addmm.default) == 1
        assert torch.ops.aten.addmm.out not in operators.called
    assert len(computed) == 2


def test_what_counts_or_fakes_operators(computed):
    with FlopCounterMode(display=False) as flops:
        layer()(rows(16))
    assert flops.get_total_flops() == 2 * 16 * 512 * 256
    computed.clear()
    with FakeTensorMode():
        assert layer()(torch.empty(16, 512)).shape == (16, 256)
    assert not computed


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_functions_of_functions(computed):
    module = layer()
    with torch.no_grad():
        assert_answers(torch.func.vmap(module)(rows(2, 16)), module, rows(2, 16))
        _, tangent = torch.func.jvp(module, (rows(16),), (rows(16),))
    torch.testing.assert_close(tangent, module(rows(16)) - module.bias)
    assert computed


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_graphs(computed):
    model = nn.Sequential(layer(), nn.ReLU())
    with torch.no_grad():
        answer = model(rows(16))
        traced = torch.jit.trace(model, rows(16), check_trace=False)
        frozen = torch.jit.freeze(torch.jit.script(model.eval()))
        symbolic = torch.fx.symbolic_trace(model)
        exported = torch.export.export(model, (rows(16),)).module()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for graph in (traced, frozen, symbolic, exported, compiled):
            computed.clear()
            torch.testing.assert_close(graph(rows(16)), answer)
            assert len(computed) == 1
            assert "mkldnn" not in str(getattr(graph, "inlined_graph", graph))


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_the_interpreters_lock_is_free_meanwhile(computed):
    """Also for a product that is left to torch, in TorchScript: the server must go on."""
    given = torch.ones(1024, 2048).double()
    scripted = torch.jit.trace(nn.Linear(2048, 2048).double(), given[:1])
    done = threading.Event()

    def run():
        scripted(given)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    turns = 0
    while not done.wait(0.0005):
        turns += 1
    thread.join()
    assert turns > 3
    assert not computed


def test_weights_are_read_in_every_call(computed):
    module = layer()
    with torch.inference_mode():
        before = module(rows(16))
        module.weight.data.mul_(2)
        module.bias.data.mul_(2)
        torch.testing.assert_close(module(rows(16)), 2 * before)
    assert len(computed) == 2


@pytest.mark.parametrize(
    ("cpu", "wanted"),
    [("AuthenticAMD", True), ("GenuineIntel", False), (None, False)],
)
def test_which_cpus_use_it(cpu, wanted, tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    if cpu:
        cpuinfo.write_text(CPUINFO.format(cpu))
    monkeypatch.setattr(matmul, "_CPUINFO", cpuinfo)
    assert matmul._is_mkl_slow.__wrapped__() == (wanted and torch.backends.mkl.is_available())
    installed = []
    monkeypatch.setattr(matmul, "_kernels", lambda: installed.append(True))
    monkeypatch.setattr(matmul, "_is_mkl_slow", matmul._is_mkl_slow.__wrapped__)
    (tmp_path / "weights.pt").write_bytes(bytes(2**24))
    matmul.install(tmp_path)
    assert bool(installed) == (wanted and torch.backends.mkl.is_available())


@pytest.mark.parametrize(("mib", "wanted"), [(0, False), (7, False), (8, True)])
def test_they_are_for_large_models(mib, wanted, tmp_path, monkeypatch):
    """The files count together, those in folders too; a link to nothing counts for nothing."""
    installed = []
    monkeypatch.setattr(matmul, "_is_mkl_slow", lambda: True)
    monkeypatch.setattr(matmul, "_kernels", lambda: installed.append(True))
    (tmp_path / "nowhere").symlink_to("absent")
    (tmp_path / "shards").mkdir()
    for path in (tmp_path / "weights.pt", tmp_path / "shards/weights.pt"):
        with path.open("wb") as file:
            file.truncate(mib * 2**20)
    matmul.install(tmp_path)
    assert bool(installed) is wanted
