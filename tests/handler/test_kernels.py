"""Kernels: the output of a convolution and its batch norm, whatever the pictures' size."""

import itertools

import pytest
import torch
from torch import nn

from kserve_torch.handler import kernels
from kserve_torch.handler.kernels import Kernel
from kserve_torch.runtime.torchstate import THREADS

SIZE = torch.Size((8, 10, 12))
PLAIN = [{"padding": "same"}, {"padding": 1, "padding_mode": "circular"}]
PACKED = [{}, {"bias": False, "stride": 2}, {"padding": (1, 0)}, {"dilation": 2}, {"groups": 4}]


@pytest.fixture
def modules():
    def make(**options):
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(16)
        for tensor in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
            tensor.data.uniform_(0.5, 2)
        return nn.Conv2d(8, 16, 3, **options).eval(), norm.eval()

    return make


def pictures(rows, size=SIZE):
    return torch.rand(rows, *size).to(memory_format=torch.channels_last)


def assert_right(kernel, conv, norm, images):
    with torch.inference_mode():
        torch.testing.assert_close(kernel.convolve(conv, norm, images), norm(conv(images)))


@pytest.mark.parametrize("options", PACKED + PLAIN, ids=str)
def test_pictures_of_any_size_and_number(modules, options):
    conv, norm = modules(**options)
    kernel = Kernel(conv, norm, SIZE)
    for rows in (0, 1, 3, 20):
        for size in (SIZE, (8, 12, 10), (8, 7, 7), SIZE):
            assert_right(kernel, conv, norm, pictures(rows, size))


@pytest.mark.parametrize("options", PACKED, ids=str)
def test_a_packed_weight_is_the_only_one_until_another_size_comes(modules, options):
    conv, norm = modules(**options)
    kernel = Kernel(conv, norm, SIZE)
    assert_right(kernel, conv, norm, pictures(2))
    assert kernel._packed is not None
    assert kernel._weight is None
    conv.weight.data.zero_()  # it is not read again
    assert kernel.convolve(conv, norm, pictures(2)).std() > 0.1
    kernel.convolve(conv, norm, pictures(2, (8, 7, 7)))
    assert kernel._weight is not None


@pytest.mark.parametrize("options", PLAIN, ids=str)
def test_what_onednn_does_not_pad_is_not_packed(modules, options):
    assert Kernel(*modules(**options), SIZE)._packed is None


def test_nothing_is_packed_without_a_size(modules):
    conv, norm = modules()
    kernel = Kernel(conv, norm, None)
    assert kernel._packed is None
    images = torch.rand(2, *SIZE)
    assert_right(kernel, conv, norm, images)
    assert kernel.convolve(conv, norm, images).is_contiguous()


def test_a_layout_for_some_batches_only_is_not_used(modules, monkeypatch):
    layouts = itertools.cycle([b"of a row", b"of many rows"])
    monkeypatch.setattr(kernels, "_layout", lambda arranged: next(layouts))
    conv, norm = modules()
    kernel = Kernel(conv, norm, SIZE)
    assert kernel._packed is None
    assert_right(kernel, conv, norm, pictures(2))


def test_onednn_is_asked_for_one_thread_and_for_all(modules, monkeypatch):
    torch.set_num_threads(1)
    asked = set()
    options = kernels._options

    def noted(conv):
        asked.add(torch.get_num_threads())
        return options(conv)

    monkeypatch.setattr(kernels, "_options", noted)
    Kernel(*modules(), SIZE)
    assert asked == {1, THREADS}
    assert torch.get_num_threads() == 1


def test_pictures_that_the_convolution_refuses(modules):
    conv, norm = modules()
    kernel = Kernel(conv, norm, SIZE)
    for images in (torch.rand(2, 9, 10, 12), torch.rand(2, *SIZE).double(), torch.rand(2, 8)):
        with pytest.raises(RuntimeError):
            kernel.convolve(conv, norm, images)
    assert_right(kernel, conv, norm, pictures(2))
