"""Matrix products on AMD's CPUs: the same answers in half of the time.

torch computes them with MKL, which uses the widest vectors on Intel's CPUs only. oneDNN, with which
torch computes convolutions, uses them everywhere: BERT, with 128 tokens, answers twice as many
requests a second.

These are other kernels for the operators of torch to which linear layers, attention's projections
and ``@`` come down, also in TorchScript, with gradients or without: all that watches or changes
operators is above them.

They are for large models. A small one's thread would wait for the interpreter's lock longer than
it saves: MNIST at 16 connections takes a tenth longer with them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import accumulate
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")
#: With fewer rows, columns or multiplications, MKL is as fast.
_FEWEST_ROWS = 4
_FEWEST_COLUMNS = 8
_FEWEST_PRODUCTS = 1 << 20

#: Bytes of a model that is large.
_LARGE = 16 * 2**20

Scalar = int | float | complex


def install(model: Path) -> None:
    """From now on products use oneDNN where that is faster, if there is a large model.

    Args:
        model: the folder with all files of a model that is about to be loaded.
    """
    if _is_mkl_slow() and any(total >= _LARGE for total in accumulate(_sizes(model))):
        with _lock:  # models are loaded in parallel, and torch may not run what is being replaced
            _kernels()


_lock = threading.Lock()


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        with suppress(OSError):  # a link to nothing, or removed meanwhile
            yield path.stat().st_size


@cache
def _kernels() -> torch.library.Library:
    return replace()


@cache
def _is_mkl_slow() -> bool:
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(has_mkl and has_onednn and _is_amd())


def _is_amd() -> bool:
    try:
        return bool(re.search(r"^vendor_id\s*: AuthenticAMD$", _CPUINFO.read_text(), re.MULTILINE))
    except OSError:  # macOS
        return False


def replace() -> torch.library.Library:
    """Put the kernels below in the place of torch's, as long as the result is kept."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for kernel in (mm, addmm, _addmm_activation):
        library.impl(kernel.__name__, kernel, "CPU")  # type: ignore[no-untyped-call]
    return library


# The operator itself would end here again, but not its variant with ``out``.


def mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``left @ right``, ``[rows, columns]``."""
    if _suits(left, right):
        return _product(left, right, None)
    return torch.mm(left, right, out=left.new_empty(0))


def addmm(
    bias: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
) -> torch.Tensor:
    """``beta * bias + alpha * left @ right``, ``[rows, columns]``."""
    if _suits(left, right) and beta == alpha == 1 and _is_bias(bias, right):
        return _product(left, right, bias)
    return torch.addmm(bias, left, right, beta=beta, alpha=alpha, out=left.new_empty(0))


def _addmm_activation(
    bias: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    use_gelu: bool = False,
) -> torch.Tensor:
    """The same, and then ReLU or GELU: what `nn.TransformerEncoder` uses."""
    product = addmm(bias, left, right, beta=beta, alpha=alpha)
    return torch.nn.functional.gelu(product) if use_gelu else product.relu_()


def _suits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether oneDNN gives what torch would, and sooner."""
    return (
        left.dim() == right.dim() == 2
        and left.numel() * right.shape[1] >= _FEWEST_PRODUCTS
        and left.shape[0] >= _FEWEST_ROWS
        and right.shape[1] >= _FEWEST_COLUMNS
        and left.shape[1] == right.shape[0]
        and left.dtype is right.dtype is torch.float32
        and left.is_contiguous()
        # With other strides oneDNN takes a thousand times as long.
        and (right.t().is_contiguous() or right.is_contiguous())
        and torch._C._get_mkldnn_enabled()
    )


def _is_bias(bias: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether it has a number per column."""
    return bias.shape == right.shape[1:] and bias.dtype is torch.float32 and bias.is_contiguous()


def _product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
        left, right.t(), bias, "none", [], ""
    )
    return product
