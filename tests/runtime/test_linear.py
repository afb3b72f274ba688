"""Linear layers through oneDNN: torch's answers, and torch itself for all but ordinary calls."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kserve_torch.handler.trial import is_compiled
from kserve_torch.runtime import linear

CPUINFO = "processor\t: 0\nvendor_id\t: {}\ncpu family\t: 26\n"


@pytest.fixture
def computed(monkeypatch):
    """The inputs that went through oneDNN, on a CPU of any kind."""
    inputs = []
    compute = linear._linear

    def noted(given, *args):
        inputs.append(given)
        return compute(given, *args)

    monkeypatch.setattr(linear, "_linear", noted)
    monkeypatch.setattr(nn.Linear, "_compiled_call_impl", linear.call)
    return inputs


def layer(bias=True, kind=nn.Linear):
    torch.manual_seed(0)
    return kind(512, 256, bias=bias)


def rows(*shape):
    return (
        torch.arange(torch.Size(shape).numel() * 512, dtype=torch.float32).sin().view(*shape, 512)
    )


def assert_answers(output, module, given):
    exact = copy.deepcopy(module).double()(given.double())
    torch.testing.assert_close(output.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "given",
    [rows(16), rows(2, 8), rows(2, 3, 4), rows(512)[:, ::2].repeat(1, 2), rows(512).T],
    ids=lambda given: str(tuple(given.shape)),
)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_the_answers_are_torchs(computed, bias, given, mode):
    module = layer(bias)
    with mode():
        output = module(given)
        assert_answers(output, module, given)
    assert len(computed) == 1
    assert not output.requires_grad


class Doubled(nn.Linear):
    def forward(self, given):
        return 2 * super().forward(given)


class Renamed(nn.Linear):
    """What libraries call a linear layer of theirs."""


def test_subclasses(computed):
    with torch.inference_mode():
        one, two = layer(kind=Renamed), layer(kind=Doubled)
        torch.testing.assert_close(2 * one(rows(16)), two(rows(16)))
    assert len(computed) == 1


def hooked(module):
    module.register_forward_hook(lambda module, args, output: output + 1)


def with_a_hook_before(module):
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def with_another_forward(module):
    module.forward = lambda given: given + 1


def with_a_computed_weight(module):
    nn.utils.parametrizations.weight_norm(module)


def with_a_bias_of_its_own(module):
    del module.bias
    module.bias = torch.ones(256)


def in_double(module):
    module.double()


def flat(module):
    module.weight = nn.Parameter(module.weight.detach()[0])
    module.bias = None


@pytest.mark.parametrize(
    "change",
    [
        hooked,
        with_a_hook_before,
        with_another_forward,
        with_a_computed_weight,
        with_a_bias_of_its_own,
        in_double,
        flat,
    ],
)
def test_layers_that_are_left_to_torch(computed, change, monkeypatch):
    module = layer()
    change(module)
    given = rows(16).to(module.weight.dtype)
    with torch.no_grad():
        output = module(given)
        monkeypatch.setattr(nn.Linear, "_compiled_call_impl", None)
        torch.testing.assert_close(output, module(given))
    assert not computed


def test_a_hook_on_all_modules(computed):
    seen = []
    hook = nn.modules.module.register_module_forward_hook(lambda *args: seen.append(args))
    try:
        with torch.no_grad():
            layer()(rows(16))
    finally:
        hook.remove()
    assert len(seen) == 1
    assert not computed


def test_gradients(computed):
    given = rows(16).requires_grad_()
    module = layer()
    module(given).sum().backward()
    assert given.grad is not None
    assert module.weight.grad is not None
    assert not computed


@pytest.mark.parametrize("given", [rows(3), rows(1), rows(0), rows(16).bfloat16(), rows(16)[0]])
def test_inputs_that_are_left_to_torch(computed, given):
    module = layer().to(given.dtype)
    with torch.inference_mode():
        assert module(given).shape == (*given.shape[:-1], 256)
    assert not computed


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (rows(16)[:, :511], "shapes cannot be multiplied"),
        (rows(16).double(), "dtype"),
        (torch.tensor(1.0), "at least 1D"),
    ],
)
def test_errors_are_torchs(computed, given, error):
    with torch.inference_mode(), pytest.raises(RuntimeError, match=error):
        layer()(given)
    with torch.inference_mode(), pytest.raises(TypeError):
        layer()(rows(16), rows(16))
    with torch.inference_mode(), pytest.raises(TypeError):
        layer()(rows(16), other=1)
    assert not computed


def test_a_weight_of_another_type(computed):
    with torch.inference_mode(), pytest.raises(RuntimeError, match="dtype"):
        layer().double()(rows(16))
    assert not computed


def test_few_rows_of_a_large_layer(computed):
    large = nn.Linear(512, 2048)
    with torch.inference_mode():
        large(rows(3))
        assert not computed
        large(rows(4))
    assert len(computed) == 1


def test_an_input_by_name(computed):
    with torch.inference_mode():
        assert layer()(input=rows(16)).shape == (16, 256)
    assert not computed


def test_autocast(computed):
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert layer()(rows(16)).dtype is torch.bfloat16
    assert not computed


def test_without_onednn(computed):
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.inference_mode():
            layer()(rows(16))
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
    with torch.inference_mode():
        with Functions() as functions:
            layer()(rows(16))
        assert nn.functional.linear in functions.called
    with torch.no_grad():
        with Operators() as operators:
            layer()(rows(16))
        assert torch.ops.aten.addmm.default in operators.called
    assert not computed


def test_what_counts_or_fakes_operators(computed):
    with torch.inference_mode():
        with FlopCounterMode(display=False) as flops:
            layer()(rows(16))
        assert flops.get_total_flops() == 2 * 16 * 512 * 256
        with FakeTensorMode():
            assert layer()(torch.empty(16, 512)).shape == (16, 256)
    assert not computed


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_functions_of_functions(computed):
    module = layer()
    with torch.no_grad():
        mapped = torch.func.vmap(module)(rows(2, 16))
        assert_answers(mapped, module, rows(2, 16))
        _, tangent = torch.func.jvp(module, (rows(16),), (rows(16),))
        assert tangent.abs().sum() > 0
    assert not computed
    with torch.no_grad():
        other = {"weight": torch.zeros(256, 512), "bias": torch.ones(256)}
        assert torch.func.functional_call(module, other, (rows(16),)).eq(1).all()
    assert len(computed) == 1


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_graphs_have_torchs_operator(computed):
    model = nn.Sequential(layer(), nn.ReLU())
    with torch.no_grad():
        answer = model(rows(16))
        computed.clear()
        traced = torch.jit.trace(model, rows(16), check_trace=False)
        scripted = torch.jit.script(model)
        symbolic = torch.fx.symbolic_trace(model)
        exported = torch.export.export(model, (rows(16),)).module()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(rows(16)), answer)
        assert not computed
        for graph in (traced, scripted, symbolic, exported):
            torch.testing.assert_close(graph(rows(16)), answer)
            assert "mkldnn" not in str(getattr(graph, "inlined_graph", graph))


def test_a_compiled_model_with_a_hook(computed):
    torch._dynamo.reset()  # it would use the code of another model, without hooks
    model = nn.Sequential(layer(), nn.ReLU())
    hooked(model[0])
    with torch.no_grad():
        answer = model(rows(16))
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(rows(16)), answer)
    assert not computed


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_quantized_layers(computed):
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer()))
    with torch.inference_mode():
        assert model(rows(16)).shape == (16, 256)
    assert not computed


def test_weights_are_read_in_every_call(computed):
    module = layer()
    with torch.inference_mode():
        before = module(rows(16))
        module.weight.data.mul_(2)
        module.bias.data.mul_(2)
        torch.testing.assert_close(module(rows(16)), 2 * before)
    assert len(computed) == 2


def test_layers_are_no_compiled_ones(computed):
    module = layer()
    assert not is_compiled(module)
    for same in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert vars(same).keys() == vars(module).keys()
        assert torch.equal(same.weight, module.weight)


@pytest.mark.parametrize(
    ("cpu", "wanted"),
    [("AuthenticAMD", True), ("GenuineIntel", False), (None, False)],
)
def test_which_cpus_use_it(cpu, wanted, tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    if cpu:
        cpuinfo.write_text(CPUINFO.format(cpu))
    monkeypatch.setattr(linear, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(nn.Linear, "_compiled_call_impl", None)
    linear.install.__wrapped__()
    used = nn.Linear._compiled_call_impl is linear.call
    assert used is (wanted and torch.backends.mkl.is_available())
