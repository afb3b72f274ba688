"""Linear layers on AMD's CPUs: the same answers in half of the time.

torch computes them with MKL, which uses the widest vectors on Intel's CPUs only. oneDNN, with which
torch computes convolutions, uses them everywhere: BERT, with 128 tokens, answers twice as many
requests a second.

It is in the place where torch has a module's compiled form, on the class, and reads weight and bias
in every call; whatever is not an ordinary call of an ordinary layer is left to torch.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules

_CPUINFO = Path("/proc/cpuinfo")
#: With fewer rows, or fewer multiplications, MKL is as fast.
_FEWEST_ROWS = 4
_FEWEST_PRODUCTS = 1 << 20
_PLAIN = (torch.Tensor, nn.Parameter)
_forward = nn.Linear.forward


@cache
def install() -> None:
    """From now on layers use oneDNN where that is faster."""
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if has_mkl and has_onednn and _is_amd():
        nn.Linear._compiled_call_impl = call


def _is_amd() -> bool:
    try:
        return bool(re.search(r"^vendor_id\s*: AuthenticAMD$", _CPUINFO.read_text(), re.MULTILINE))
    except OSError:  # macOS
        return False


def call(layer: nn.Linear, *args: Any, **kwargs: Any) -> Any:
    """The output of a layer, ``[..., out features]``."""
    if torch.compiler.is_compiling() or len(args) != 1 or kwargs or not _suits(layer, args[0]):
        return layer._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    return _linear(args[0], layer._parameters["weight"], layer._parameters["bias"])


def _linear(given: torch.Tensor, weight: Any, bias: Any) -> Any:
    return torch.ops.mkldnn._linear_pointwise.default(given, weight, bias, "none", [], "")


def _suits(layer: nn.Linear, given: Any) -> bool:
    """Whether oneDNN gives what torch would, and sooner."""
    if torch.is_grad_enabled() or _is_watched():
        return False
    table: dict[str, Any] = layer._parameters
    if "weight" not in table or "bias" not in table:  # they are computed, as by a parametrization
        return False
    weight, bias = table["weight"], table["bias"]
    if not _is_plain(given) or not _is_plain(weight) or not (bias is None or _is_plain(bias)):
        return False
    if given.shape[-1:] != weight.shape[1:]:
        return False
    outputs, inputs = weight.shape
    enough = given.numel() >= _FEWEST_ROWS * inputs and given.numel() * outputs >= _FEWEST_PRODUCTS
    return enough and _is_torchs(layer)


def _is_torchs(layer: nn.Linear) -> bool:
    """Whether a layer's forward pass is torch's, and no hooks see it."""
    if type(layer).forward is not _forward or "forward" in layer.__dict__:
        return False
    return not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
    )


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) in _PLAIN
        and tensor.dtype is torch.float32
        and tensor.is_cpu
        and tensor.layout is torch.strided
    )


def _is_watched() -> bool:
    """Whether somebody sees, or changes, what torch's operators do on this thread."""
    return bool(
        torch.is_autocast_enabled("cpu")
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or not torch._C._get_mkldnn_enabled()
    )
