"""Channels last: for models that it changes nothing for, and for no other."""

import io
import logging
import threading
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn

from kserve_torch.handler import layout
from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.layout import ChannelsLast
from kserve_torch.handler.trial import copy_of
from kserve_torch.runtime.sharing import Weights
from kserve_torch.runtime.tying import tie

Scores = namedtuple("Scores", "scores maps")
PICTURES = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8).sin()


class Net(nn.Module):
    """A convolution and what `flat` makes of it; counts its calls."""

    def __init__(self, flat=lambda hidden: torch.flatten(hidden, 1)):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.flat = flat
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, pictures):
        self.calls += 1
        return self.flat(self.conv(pictures))


def is_last(model):
    (weight, *_) = model.parameters()
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


@torch.inference_mode()
def answers(model, *batches):
    """What a model answers, called through `ChannelsLast`; a RuntimeError counts as an answer."""
    call = ChannelsLast(model.eval())
    found = []
    for batch in batches:
        try:
            found.append(call(batch))
        except RuntimeError as error:
            found.append(error)
    return found


def test_the_answers_stay_and_the_weights_move():
    expected = Net().eval()(PICTURES)
    model = Net()
    first, second = answers(model, PICTURES, PICTURES)
    assert is_last(model)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected)
    assert model.calls == 2  # the trial is on a copy


@pytest.mark.parametrize(
    "flat",
    [
        lambda hidden: hidden.view(len(hidden), -1),
        lambda hidden: torch.as_strided(hidden, (2, 5), (144, 1)),
        lambda hidden: torch.tensor(hidden.stride()),
        lambda hidden: hidden.stride(),
        lambda hidden: hidden + torch.rand(()),
    ],
    ids=["view", "as_strided", "strides", "no tensor", "random"],
)
def test_a_model_that_relies_on_the_usual_order_keeps_it(flat):
    model = Net(flat)
    weight = model.conv.weight.data_ptr()
    torch.manual_seed(1)
    first, _ = answers(model, PICTURES, PICTURES)
    torch.manual_seed(1)
    expected = Net(flat).eval()(PICTURES) if "rand" not in flat.__code__.co_names else first
    torch.testing.assert_close(first, expected)
    assert model.conv.weight.data_ptr() == weight
    assert model.calls == 2


def test_an_order_that_only_another_size_needs(caplog):
    """A view of 1 x 1 pixels may have any order, one of more may not."""
    caplog.set_level(logging.INFO)
    pool = nn.MaxPool2d(6)
    model = Net(lambda hidden: pool(hidden).view(len(hidden), -1))
    large = torch.ones(1, 3, 14, 14)
    first, *others, last = answers(model, PICTURES, large, large, PICTURES)
    assert not is_last(model)
    assert caplog.text.count("default memory format") == 1
    assert [other.shape for other in others] == [(1, 16)] * 2
    torch.testing.assert_close(first, last)


def test_a_model_that_relies_on_the_order_of_its_pictures_keeps_it():
    class Raw(Net):
        def forward(self, pictures):
            return super().forward(pictures.as_strided((2, 3, 8, 8), (192, 64, 8, 1)))

    first, second = answers(model := Raw(), PICTURES, PICTURES)
    assert not is_last(model)
    assert torch.equal(first, second)


def test_a_batch_that_the_model_does_not_take_decides_nothing():
    model, wrong = Net(), torch.ones(2, 5, 8, 8)
    first, _, last = answers(model, wrong, PICTURES, wrong)
    assert isinstance(first, RuntimeError)
    assert isinstance(last, RuntimeError)
    assert is_last(model)


def test_only_a_few_batches_may_fail():
    model, wrong = Net(), torch.ones(2, 5, 8, 8)
    *_, right = answers(model, *[wrong] * layout.TRIES, PICTURES)
    torch.testing.assert_close(right, Net().eval()(PICTURES))
    assert not is_last(model)


def test_what_a_model_does_to_its_input_it_does_once():
    class Doubling(Net):
        def forward(self, pictures):
            return super().forward(pictures.mul_(2))

    pictures = PICTURES.clone()
    (output,) = answers(Doubling(), pictures)
    torch.testing.assert_close(output, Net().eval()(2 * PICTURES))
    torch.testing.assert_close(pictures, 2 * PICTURES)


def test_what_a_model_did_to_its_input_is_not_there_when_it_is_called_again():
    """A picture of one channel is in both orders at once."""

    class Shifting(Net):
        def __init__(self):
            super().__init__(lambda hidden: hidden.view(len(hidden), -1))
            self.conv = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3))

        def forward(self, pictures):
            return super().forward(pictures.sub_(0.5))

    small, large = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 8, 8)
    _, answer = answers(model := Shifting(), small, large.clone())
    with torch.inference_mode():
        torch.testing.assert_close(answer, model(large))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda hidden: hidden,
        lambda hidden: [hidden, {"a": (hidden, hidden.argmax(1))}],
        lambda hidden: OrderedDict(out=hidden),
        lambda hidden: Scores(hidden.sum((1, 2, 3)), hidden),
    ],
)
def test_handlers_get_the_usual_order_whatever_the_form(wrap):
    def tensors(output):
        if isinstance(output, torch.Tensor):
            return [output]
        items = output.values() if isinstance(output, dict) else output
        return [tensor for item in items for tensor in tensors(item)]

    model = Net(wrap)
    for output in answers(model, PICTURES, PICTURES):
        assert type(output) is type(wrap(PICTURES))
        assert all(tensor.is_contiguous() for tensor in tensors(output))
    assert is_last(model)


def hooked():
    model = Net().eval()
    model.conv.register_forward_hook(lambda *args: None)
    return model


class Uncopied(Net):
    def __deepcopy__(self, memo):
        raise TypeError("there is only one of me")


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).eval(),
        Net().eval().double(),
        hooked(),
        Uncopied().eval(),
        Net().train(),
    ],
    ids=["no convolution", "float64", "hooks", "no copies", "training"],
)
def test_models_that_are_left_alone(model):
    pictures = PICTURES.to(next(model.parameters()).dtype)
    with torch.no_grad():
        torch.testing.assert_close(ChannelsLast(model)(pictures), model(pictures))
    assert not is_last(model)


class Plain(nn.Sequential):
    """What TorchScript can be made of in both ways."""

    def __init__(self, flat=nn.Flatten):
        torch.manual_seed(0)
        super().__init__(nn.Conv2d(3, 64, 3), nn.ReLU(), flat())


class View(nn.Module):
    def forward(self, hidden):
        return hidden.view(hidden.shape[0], -1)


def scripted(model, how):
    """A model in evaluation mode as TorchScript, as an archive holds it."""
    model.eval()
    made = torch.jit.script(model) if how == "script" else torch.jit.trace(model, PICTURES)
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    return torch.jit.load(file)


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|save|script|load)")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript(how):
    script = scripted(Plain(), how)
    before = [parameter.data_ptr() for parameter in script.parameters()]
    found = answers(script, *[PICTURES] * 4)
    assert is_last(script)
    for answer in found:
        torch.testing.assert_close(answer, Plain()(PICTURES))
    assert before[0] != next(script.parameters()).data_ptr()


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|save|script|load)")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript_that_needs_the_default_format(how):
    script = scripted(Plain(View), how)
    (found,) = answers(script, PICTURES)
    torch.testing.assert_close(found, Plain()(PICTURES))
    assert not is_last(script)


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|save|script|load|freeze)")
def test_frozen_torchscript_is_left_alone():
    script = torch.jit.freeze(scripted(Plain(), "trace"))
    (found,) = answers(script, PICTURES)
    torch.testing.assert_close(found, Plain()(PICTURES))


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|save|script|load)")
def test_the_trial_of_torchscript_is_on_weights_in_the_format():
    script = scripted(Plain(), "script")
    twins = layout._twins(script, torch.channels_last)
    twin = copy_of(script, twins)
    assert is_last(twin)
    assert not is_last(script)
    assert next(twin.parameters()).data_ptr() == next(iter(twins.values())).data_ptr()


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|save|script|load)")
def test_instances_of_torchscript_share_what_was_moved():
    one, two = models = [scripted(Plain(), "trace") for _ in range(2)]
    assert tie([two], [one])
    for model in models:
        answers(model, PICTURES)
    assert is_last(one)
    assert is_last(two)
    assert next(one.parameters()).data_ptr() == next(two.parameters()).data_ptr()


def test_a_large_model_is_left_alone(monkeypatch):
    # 4 * 3 * 3 * 3 numbers of 4 bytes, and one in a buffer
    for limit, moved in ((435, False), (436, True)):
        monkeypatch.setattr(layout, "LARGEST", limit)
        model = Net()
        answers(model, PICTURES)
        assert is_last(model) is moved


class Extension:
    """As of a library in C, to which there are no weak references."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        return args, kwargs


def test_what_is_no_module_is_called_as_it_is():
    assert ChannelsLast(Extension())(1, a=2) == ((1,), {"a": 2})


def test_instances_share_what_was_moved_and_other_models_do_not():
    one, two, other = models = [Net() for _ in range(3)]
    tie([two], [one])
    for model in models:
        answers(model, PICTURES)
    assert one.conv.weight.data_ptr() == two.conv.weight.data_ptr()
    assert one.conv.weight.data_ptr() != other.conv.weight.data_ptr()
    assert all(map(is_last, models))


def test_what_was_moved_is_not_shared_once_one_has_written():
    one, two = Net(), Net()
    first, second = Weights([one]), Weights([two])
    second.tie_to(first)
    with torch.no_grad():
        one.conv.bias.add_(1)
    assert first.look()
    for model in (one, two):
        answers(model, PICTURES)
    assert one.conv.weight.data_ptr() != two.conv.weight.data_ptr()


def test_an_empty_answer_decides_nothing():
    model = Net(lambda hidden: hidden[hidden > 1e9])
    call = ChannelsLast(model.eval())
    with torch.inference_mode():
        assert call(PICTURES).numel() == 0
        assert not is_last(model)
        model.flat = torch.Tensor.flatten
        call(PICTURES)
    assert is_last(model)


def test_the_weights_do_not_move_while_another_thread_reads_them():
    """A handler may keep one model for all its instances."""
    inside, leave = threading.Event(), threading.Event()

    def waiting(hidden):
        if not leave.is_set() and threading.current_thread() is not threading.main_thread():
            inside.set()
            leave.wait(20)
        return hidden

    model = Net(waiting)
    other = threading.Thread(target=answers, args=(model, PICTURES))
    other.start()
    assert inside.wait(20)
    call = ChannelsLast(model.eval())
    with torch.inference_mode():
        call(PICTURES)
        moved = is_last(model)
        leave.set()
        other.join()
        assert not moved
        call(PICTURES)
    assert is_last(model)


def test_a_structure_of_torchs_stays_one():
    model = Net(lambda hidden: hidden.max(1))
    first, second = answers(model, PICTURES, PICTURES)
    assert is_last(model)
    assert torch.equal(first.values, second.values)
    assert second.indices.is_contiguous()


def test_the_moved_model_can_be_explained():
    """Its weights are no inference tensors: gradients flow through them."""
    model = Net()
    answers(model, PICTURES)
    pictures = PICTURES.clone().requires_grad_()
    model(pictures).sum().backward()
    expected = PICTURES.clone().requires_grad_()
    Net().eval()(expected).sum().backward()
    torch.testing.assert_close(pictures.grad, expected.grad)


def test_a_handler_that_gets_another_model(folder, load):
    loaded = load(BaseHandler(), folder)
    row = torch.ones(1, 8, 8).tolist()
    (first,) = loaded.ask({"data": row})
    loaded.handler.model = nn.Sequential(nn.Conv2d(1, 2, 8), nn.Flatten()).eval()
    (second,) = loaded.ask({"data": row})
    assert (len(first), len(second)) == (3, 2)


def test_a_handler_calls_its_model_so(folder, load):
    loaded = load(BaseHandler(), folder)
    loaded.handler.model = Net().eval()
    (answer,) = loaded.ask({"data": PICTURES[0].tolist()})
    assert is_last(loaded.handler.model)
    torch.testing.assert_close(torch.tensor(answer), Net().eval()(PICTURES[:1])[0])
