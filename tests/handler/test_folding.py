"""Folded batch norms: the same answers, and a model that everybody else finds as it was."""

import copy
import gc
import io
import threading
import weakref

import pytest
import torch
from torch import nn

from kserve_torch.handler import folding, layout
from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.folding import FoldedNorms
from kserve_torch.handler.folds import NotAsItWas
from kserve_torch.handler.layout import ChannelsLast
from kserve_torch.handler.trial import TRIES, copy_of
from kserve_torch.runtime import paramdata
from kserve_torch.runtime.tying import tie

PICTURES = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8).sin()


def trained(norm):
    """A batch norm with numbers as training leaves them."""
    for index, tensor in enumerate((norm.running_mean, norm.running_var, norm.weight, norm.bias)):
        if tensor is not None:
            tensor.data.copy_(0.5 + torch.arange(tensor.numel()).add(index).sin().abs())
    return norm


class Net(nn.Module):
    """Two convolutions with their batch norms, and a way from one to the other."""

    def __init__(self, way=nn.functional.relu, **options):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3, **options)
        self.first_norm = trained(nn.BatchNorm2d(4))
        self.second = nn.Conv2d(4, 5, 3, bias=False)
        self.second_norm = trained(nn.BatchNorm2d(5))
        self.way = way
        self.eval()

    def forward(self, pictures):
        hidden = self.way(self.first_norm(self.first(pictures)))
        return self.second_norm(self.second(hidden))


def as_rows(hidden):
    """What only the default memory format allows."""
    return hidden.view(len(hidden), -1).view(hidden.shape)


def folded(model):
    """A model's caller after the batches that it takes to decide; whether it folds."""
    call = FoldedNorms(ChannelsLast(model))
    with torch.inference_mode():
        for _ in range(2):
            call(PICTURES)
    return call, call._folds is not None


def norms_called(model, call):
    """How many batch norms still compute in one call."""
    seen = []
    original = torch.nn.functional.batch_norm

    def counted(*args, **kwargs):
        seen.append(args)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(nn.functional, "batch_norm", counted)
        answer = call(PICTURES)
    return len(seen), answer


def assert_folds(call, model, expected=None):
    count, answer = norms_called(model, call)
    assert count == 0
    torch.testing.assert_close(answer, Net()(PICTURES).detach() if expected is None else expected)


def assert_plain(call, model):
    """It answers as the model does, and computes each batch norm from the second call on."""
    for wanted in ({1, 2}, {2}):
        count, answer = norms_called(model, call)
        assert count in wanted
        with torch.no_grad():
            torch.testing.assert_close(answer, model(PICTURES))


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"padding": 1, "padding_mode": "reflect"}, {"stride": 2, "dilation": 1}],
)
def test_the_answers_stay(options):
    model = Net(**options)
    expected = model(PICTURES).detach()
    call, folds = folded(model)
    assert folds
    assert_folds(call, model, expected)


def test_batch_norms_without_weights():
    model = Net()
    model.first_norm = trained(nn.BatchNorm2d(4, affine=False)).eval()
    expected = model(PICTURES).detach()
    call, folds = folded(model)
    assert folds
    assert_folds(call, model, expected)


def test_pictures_of_another_size():
    model = Net()
    call, _ = folded(model)
    larger = torch.rand(2, 3, 12, 9)
    with torch.inference_mode():
        torch.testing.assert_close(call(larger), model(larger))
    assert_folds(call, model)


@pytest.mark.parametrize(("way", "packs"), [(nn.functional.relu, True), (as_rows, False)])
def test_weights_are_packed_for_models_in_channels_last_format(way, packs):
    model = Net(way)
    call, folds = folded(model)
    assert folds
    assert [kernel._packed is not None for kernel in call._folds.kernels] == [packs, packs]
    assert_folds(call, model, Net(way)(PICTURES).detach())


def test_whoever_else_calls_the_model_gets_what_was_there():
    model = Net()
    call, _ = folded(model)
    outputs = []
    hook = model.first.register_forward_hook(lambda *args: outputs.append(args[-1]))
    pictures = PICTURES.clone().requires_grad_()
    model(pictures).sum().backward()
    hook.remove()
    plain = Net()
    torch.testing.assert_close(outputs[0], plain.first(PICTURES))
    named = model.first_norm(input=model.first(input=PICTURES))
    torch.testing.assert_close(named, plain.first_norm(outputs[0]))
    assert model.first.weight.grad is not None
    assert pictures.grad is not None
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert repr(model) == repr(plain)
    assert_folds(call, model)


def test_a_copy_is_a_model_of_its_own():
    model = Net()
    call, _ = folded(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.first_norm.bias.add_(1)
    assert_folds(call, model)
    again, folds = folded(twin)
    assert folds
    with torch.no_grad():
        assert_folds(again, twin, twin(PICTURES))


def load(model, **options):
    other = {name: tensor * 1.5 for name, tensor in Net().state_dict().items()}
    model.load_state_dict(other, **options)


def through_data(model):
    model.first.weight.data.mul_(2)


def another_weight(model):
    model.first.weight = nn.Parameter(model.first.weight.detach() * 2)


def other_statistics(model):
    model.second_norm.running_mean.add_(1)


def own_forward(module):
    forward = module.forward
    module.forward = lambda hidden: forward(hidden) * 2


def no_bias(model):
    model.second_norm.bias = None


def moved(model):
    model.first.weight.data = model.first.weight.detach() * 2


@pytest.mark.parametrize(
    "change",
    [
        load,
        lambda model: load(model, assign=True),
        through_data,
        another_weight,
        other_statistics,
        no_bias,
        moved,
        lambda model: model.second_norm.train(),
        lambda model: own_forward(model.second),
        lambda model: own_forward(model.second_norm),
    ],
    ids=[
        *("load", "assign", "data", "weight", "statistics", "bias", "moved", "training"),
        *("convolution", "batch norm"),
    ],
)
def test_a_model_that_is_changed_answers_as_it_is_then(change):
    paramdata.install()
    model = Net()
    call, folds = folded(model)
    assert folds
    change(model)
    assert_plain(call, model)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.BatchNorm2d])
def test_modules_whose_class_is_changed(kind, monkeypatch):
    model = Net()
    call, _ = folded(model)
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *args: forward(*args) * 2)
    assert_plain(call, model)


def test_a_weight_that_is_computed_is_not_folded():
    """Its module has only what it is computed from."""
    model = Net()
    nn.utils.parametrizations.weight_norm(model.first)
    call, folds = folded(model)
    assert folds
    with torch.no_grad():
        model.first.parametrizations.weight.original0.mul_(2)
        torch.testing.assert_close(call(PICTURES), model(PICTURES))


class Scaled(Net):
    def forward(self, pictures, factor=1):
        return super().forward(pictures * factor)


def test_a_model_that_is_given_more_than_pictures():
    model, plain = Scaled(), Scaled()
    call = FoldedNorms(ChannelsLast(model))
    with torch.no_grad():
        for _ in range(3):  # one to decide on the format, one to fold
            for args, kwargs in (((2,), {}), ((), {"factor": 3}), ((), {})):
                expected = plain(PICTURES, *args, **kwargs)
                torch.testing.assert_close(call(PICTURES, *args, **kwargs), expected)
        assert call._folds is not None
        another_weight(model)
        expected = model(PICTURES, factor=2)
        torch.testing.assert_close(call(PICTURES, factor=2), expected)


class Adapted(Net):
    """For some pictures it computes with weights that are not its own."""

    def forward(self, pictures):
        if pictures.max() < 2:
            return super().forward(pictures)
        other = {name: tensor * 2 for name, tensor in self.first.named_parameters()}
        return self.first_norm(torch.func.functional_call(self.first, other, (pictures,)))


class Renormed(Net):
    """Likewise, but the batch norm's."""

    def forward(self, pictures):
        if pictures.max() < 2:
            return super().forward(pictures)
        other = {"bias": self.first_norm.bias + 1}
        return torch.func.functional_call(self.first_norm, other, (self.first(pictures),))


class Training(Net):
    """For some pictures it uses their own statistics."""

    def forward(self, pictures):
        self.first_norm.train(bool(pictures.max() > 2))
        answer = super().forward(pictures)
        self.first_norm.eval()
        return answer


class Domains(Net):
    """For some pictures it takes other statistics, between the convolution and its batch norm."""

    def forward(self, pictures):
        hidden = self.first(pictures)
        if pictures.max() > 2:
            self.first_norm.running_mean.fill_(1)
        return self.first_norm(hidden)


class Careful(Net):
    """For some pictures it divides more carefully."""

    def forward(self, pictures):
        self.second_norm.eps = 0.5 if pictures.max() > 2 else 1e-5
        return super().forward(pictures)


class Named(Net):
    """It gives its convolution the picture by name."""

    def forward(self, pictures):
        return self.first_norm(self.first(input=pictures))


class Normed(Net):
    """It has batch norms without a convolution before them, too."""

    def __init__(self):
        super().__init__()
        self.norm = trained(nn.BatchNorm2d(3))
        self.last = trained(nn.BatchNorm2d(5))
        self.eval()

    def forward(self, pictures):
        return self.last(input=super().forward(self.norm(pictures)))


@pytest.mark.parametrize("kind", [Adapted, Renormed, Training, Domains, Careful, Named, Normed])
def test_what_a_forward_pass_changes_for_itself(kind):
    model, plain = kind(), kind()
    call, folds = folded(model)
    assert folds
    for pictures in (PICTURES, PICTURES * 3, PICTURES, PICTURES * 3):
        with torch.no_grad():
            expected = plain(pictures)
            torch.testing.assert_close(call(pictures), expected)


class Counting(Net):
    """It counts its calls in a parameter."""

    def __init__(self):
        super().__init__()
        self.calls = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, pictures):
        self.calls += 1
        return super().forward(pictures)


def test_trials_write_nothing_to_the_model():
    model = Counting()
    call, folds = folded(model)
    assert folds
    assert_folds(call, model)
    assert model.calls.item() == 3


@pytest.mark.parametrize("part", [False, True, None])
def test_what_is_compiled_is_left_alone(part):
    model = Net()
    if part is None:
        given = torch.compile(model, backend="eager")
    else:
        given = model
        (model.first if part else model).compile(backend="eager")
    call, folds = folded(given)
    assert not folds
    assert not model.first.weight.is_contiguous(memory_format=torch.channels_last)
    assert call.model is given


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_tools_find_torchs_own_modules():
    model = Net(way=nn.ReLU())
    call, folds = folded(model)
    assert folds
    file = io.BytesIO()
    torch.save(model.first, file)
    assert b"kserve_torch" not in file.getvalue()
    expected = model(PICTURES).detach()
    for made in (torch.jit.script(model), torch.fx.symbolic_trace(model)):
        torch.testing.assert_close(made(PICTURES), expected)
    assert_folds(call, model, expected)


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ],
)
def test_what_sees_all_modules_sees_these(register):
    model = Net()
    call, _ = folded(model)
    seen = []
    hook = register(lambda *args: seen.append(args[0]))
    try:
        assert_plain(call, model)
    finally:
        hook.remove()
    assert model.first in seen


def test_a_model_that_its_convolution_refers_to_is_freed():
    model = Net()
    model.first.owner = [model]
    call, folds = folded(model)
    assert folds
    gone = weakref.ref(model)
    del model, call
    gc.collect()
    assert gone() is None


def test_one_caller_that_gives_up_leaves_the_others_alone():
    model = Net()
    first, second = folded(model)[0], folded(model)[0]
    first._folds.off()
    assert_folds(second, model)


def test_what_is_not_used_any_more_is_freed():
    model = Net()
    call, _ = folded(model)
    kernel = weakref.ref(call._folds.kernels[0])
    another_weight(model)
    assert_plain(call, model)
    assert kernel() is None


@pytest.mark.parametrize("before", [False, True])
def test_a_hook_sees_what_it_would_have_seen(before):
    model = Net()
    call, _ = folded(model)
    seen = []
    if before:
        model.second_norm.register_forward_pre_hook(lambda norm, given: seen.append(*given))
    else:
        model.second.register_forward_hook(lambda *args: seen.append(args[-1]))
    assert_plain(call, model)
    with torch.no_grad():
        plain = Net()
        hidden = plain.way(plain.first_norm(plain.first(PICTURES)))
        torch.testing.assert_close(seen[0], plain.second(hidden))


class Twice(Net):
    """The first convolution's output goes to two places."""

    def forward(self, pictures):
        hidden = self.first(pictures)
        return self.first_norm(hidden) + hidden


class Listed(Net):
    """It leaves its forward pass with the answer."""

    def forward(self, pictures):
        hidden = self.first(pictures)
        return [self.first_norm(hidden), hidden]


class Again(Net):
    """Its modules are called twice."""

    def forward(self, pictures):
        once = self.first_norm(self.first(pictures))
        return once + self.first_norm(self.first(pictures * 2))


class Doubled(Net):
    """The batch norm is called twice with one tensor."""

    def forward(self, pictures):
        hidden = self.first(pictures)
        return self.first_norm(hidden) + self.first_norm(hidden)


class Between(Net):
    """Something happens between the convolution and its batch norm."""

    def forward(self, pictures):
        return self.first_norm(self.first(pictures).tanh())


class Inside(Net):
    """The output is changed in place before."""

    def forward(self, pictures):
        hidden = self.first(pictures)
        hidden.mul_(2)
        return self.first_norm(hidden)


class Random(Net):
    """It never answers the same."""

    def forward(self, pictures):
        return super().forward(pictures) + torch.rand(())


class Uncopied(Net):
    def __deepcopy__(self, memo):
        raise TypeError("there is only one of me")


@pytest.mark.parametrize("kind", [Twice, Listed, Again, Doubled, Between, Inside, Random, Uncopied])
def test_models_that_are_not_folded(kind):
    model = kind()
    with torch.no_grad():
        expected = kind()(PICTURES)
    call, folds = folded(model)
    assert not folds
    if kind is not Random:
        with torch.inference_mode():
            found = call(PICTURES)
        torch.testing.assert_close(found, expected)


class Choosy(Net):
    """Where the first convolution's output goes depends on the picture."""

    def forward(self, pictures):
        hidden = self.first(pictures)
        normalized = self.first_norm(hidden)
        return normalized if pictures.max() < 2 else self.other(hidden, normalized)

    @staticmethod
    def other(hidden, normalized):
        return hidden + normalized


class Leaving(Choosy):
    """So does whether it is part of the answer."""

    @staticmethod
    def other(hidden, normalized):
        return (hidden, normalized)


class Skipping(Net):
    """So does whether it is normalized."""

    def forward(self, pictures):
        hidden = self.first(pictures)
        return self.first_norm(hidden) if pictures.max() < 2 else (hidden,)


@pytest.mark.parametrize("kind", [Choosy, Leaving, Skipping])
def test_a_model_that_turns_out_to_use_more(kind):
    model = kind()
    call, folds = folded(model)
    assert folds
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(call(PICTURES * 3), kind()(PICTURES * 3))
    torch.testing.assert_close(call(PICTURES), kind()(PICTURES))
    assert call._folds is None


def test_a_batch_that_the_model_refuses_changes_nothing():
    model = Net()
    call, _ = folded(model)
    with pytest.raises(RuntimeError, match="channels"), torch.inference_mode():
        call(torch.ones(1, 5, 8, 8))
    assert_folds(call, model)


def test_only_a_few_batches_may_tell_nothing():
    call = FoldedNorms(ChannelsLast(Net(lambda hidden: hidden)))
    wrong, empty = torch.ones(1, 5, 8, 8), torch.ones(0, 3, 8, 8)
    with torch.inference_mode():
        for _ in range(2):
            with pytest.raises(RuntimeError, match="channels"):
                call(wrong)
        call(PICTURES)
        call(empty)
        assert call._folds is None
        call(PICTURES)
    assert call._folds is not None


@pytest.mark.parametrize(("batches", "folds"), [(TRIES - 1, True), (TRIES, False)])
def test_a_few_empty_answers_decide_nothing(batches, folds):
    model = Net()
    call = FoldedNorms(ChannelsLast(model))
    with torch.inference_mode():
        call(PICTURES)
        model.way = lambda hidden: hidden[:0]
        for _ in range(batches):
            assert len(call(PICTURES)) == 0
            assert call._folds is None
        model.way = nn.functional.relu
        call(PICTURES)
    (assert_folds if folds else assert_plain)(call, model)


def test_a_model_within_another_ones_call_is_not_folded():
    outer, inner = Net(), Net()
    call, _ = folded(outer)
    folded(inner)
    count, _ = norms_called(inner, lambda pictures: call._folds.run(inner, pictures))
    assert count == 2


def test_a_large_model_is_left_alone(monkeypatch):
    # 3 x 4 and 4 x 5 times 3 x 3 numbers of 4 bytes
    for limit, wanted in ((1151, False), (1152, True)):
        monkeypatch.setattr(folding, "LARGEST", limit)
        _, folds = folded(Net())
        assert folds is wanted


def test_instances_share_what_is_folded_and_other_models_do_not():
    models = [Net() for _ in range(3)]
    tie([models[1]], [models[0]])
    calls = [folded(model)[0] for model in models]
    kernels = [call._folds.kernels[0] for call in calls]
    assert kernels[0] is kernels[1] is not kernels[2]
    for call, model in zip(calls, models, strict=True):
        assert_folds(call, model)


def other_eps(model):
    model.first_norm.eps = 0.5


@pytest.mark.parametrize("change", [lambda model: model.first_norm.running_mean.add_(1), other_eps])
def test_instances_with_another_batch_norm_do_not_share(change):
    one, two = Net(), Net()
    tie([two], [one])
    change(two)
    first, second = folded(one)[0], folded(two)[0]
    assert_folds(first, one)
    assert_folds(second, two, two(PICTURES).detach())


def test_a_model_that_several_threads_call_while_it_is_folded():
    """As handlers do that keep their model in a global variable."""
    expected = Net()(PICTURES).detach()
    for _ in range(10):
        model = Net()
        calls = [FoldedNorms(ChannelsLast(model)) for _ in range(4)]
        found, start = [], threading.Barrier(4)

        def serve(call, found=found, start=start):
            start.wait()
            with torch.inference_mode():
                found.extend(call(PICTURES) for _ in range(10))

        threads = [threading.Thread(target=serve, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 40
        for answer in found:
            torch.testing.assert_close(answer, expected)


def test_a_batch_norm_of_another_convolution_says_so():
    model = Net()
    call, _ = folded(model)
    model.second_norm = model.first_norm  # which the second convolution knows nothing of
    with pytest.raises(NotAsItWas), torch.inference_mode():
        call._folds.run(lambda: model.second_norm(model.second(torch.ones(1, 4, 8, 8))))


def test_a_handler_calls_its_model_so(folder, load):
    loaded = load(BaseHandler(), folder)
    loaded.handler.model = Net()
    answers = [loaded.ask({"data": PICTURES[0].tolist()})[0] for _ in range(3)]
    assert loaded.handler.model.first._compiled_call_impl is not None
    for answer in answers:
        torch.testing.assert_close(torch.tensor(answer), Net()(PICTURES[:1])[0].detach())


def test_a_handler_that_changes_its_model_with_each_batch_pays_for_few_trials(
    folder, load, monkeypatch
):
    trials = []
    monkeypatch.setattr(layout, "copy_of", lambda *args: trials.append(args) or copy_of(*args))
    loaded = load(BaseHandler(), folder)
    for _ in range(4):
        for model in (Net(), Net()):
            loaded.handler.model = model
            answer = loaded.ask({"data": PICTURES[0].tolist()})[0]
            torch.testing.assert_close(torch.tensor(answer), Net()(PICTURES[:1])[0].detach())
    assert len(trials) == 4
