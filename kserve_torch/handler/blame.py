"""Blames the input for those of a model's errors that are about its shape or dtype.

torch says so only in the text. Each pattern below is from a message that a layer raises about its
input; any other error counts as the model's own fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kserve_torch.errors import InvalidInput
from kserve_torch.handler.tensors import describe

#: Messages about the dtype; they are among those about the input.
_ABOUT_THE_DTYPE = re.compile(
    r"have the same dtype|should be the same$|expected scalar type|the following scalar types"
    r"|not implemented for '(Long|Int|Short|Char|Byte|Bool)'"  # most functions
    r"|floating.point|promoting not supported"
    r"|share same datatype|RNN input dtype"  # layer norm; recurrent layers
    r"|as indices must be|Expected dtype int|applicable to index tensor"  # [], gather; one_hot
    r"|Unexpected input data type"  # onnxruntime
)
_ABOUT_THE_INPUT = re.compile(
    "|".join(
        (
            _ABOUT_THE_DTYPE.pattern,
            r"shapes cannot be multiplied",  # Linear
            r"size mismatch",  # matmul and friends
            r"[Ee]xpect(ed|ing|s)\b.*\b([Gg]ot|received)\b|values to unpack",  # most layers
            r"number of dimensions|must be a (\dD tensor|matrix)|unbatched",  # permute, mm
            r"actual input size|Output size is too small|non-zero",  # convolutions, pooling
            r"tensor expected for input|has to be (a )?\dD",  # pooling, EmbeddingBag: dimensions
            r"Tensors supported|mode needs \dD|of spatial dimensions",  # interpolate: dimensions
            r"divisible by|doesn't match model",  # image transformers: height and width
            r"must match the (existing )?size|match the broadcast shape",  # +, expand; +=
            r"is invalid for input of size",  # view
            r"should contain \d+ elements",  # batch norm
            r"inconsistent input_size",  # recurrent layers
            r"must be equal to d_model|match last dim of query",  # transformers
            r"^einsum|Padding (size|length)",
            r"index out of range in self|^Class values must be",  # Embedding; one_hot
            r"in the valid range|idx < num_embeddings",  # EmbeddingBag
            r"is out of bounds for dimension|too many indices|out of DATA bounds",  # indexing
            r"^Guard failed: ",  # exported programs: sizes
            r"^tuple index out of range$",  # shape[i], also in their guards: dimensions
        )
    )
)
#: What torch says of tensors that only the model can have put where they are.
_OTHER_DEVICE = "same device"

#: By the exception's class: a handler with ``except RuntimeError`` around its inference must still
#: catch it.
_KINDS: dict[type[Exception], type[InvalidInput]] = {
    kind: type("InvalidInput", (InvalidInput, kind), {})
    for kind in (RuntimeError, ValueError, IndexError, AssertionError, torch.jit.Error)
}
#: What TorchScript puts in front of a text, in a `torch.jit.Error` if Python would have raised it.
_SCRIPTED = re.compile(r"^((RuntimeError|AssertionError|builtins\.\w+): )+")


def last_line(text: str) -> str:
    """The line of an error of TorchScript's that says what is wrong, as ``<Type>: <text>``.

    It follows a traceback. Where a kernel in Python raised it, as those of `matmul` do, that
    kernel's frames follow.
    """
    line = text.partition("\n\nAt:\n")[0].splitlines()[-1]
    return re.sub("^(RuntimeError: )+", "RuntimeError: ", line)


def _said(error: Exception) -> str:
    """The line of an error's text that says what is wrong: the first; the last of TorchScript's."""
    text = str(error).strip()
    if "Traceback of TorchScript" in text:
        return _SCRIPTED.sub("", last_line(text))
    return text.partition("\n")[0]


@contextmanager
def blame_input(inputs: Any) -> Iterator[None]:
    """Run a model on ``inputs``, a tensor or several.

    Raises:
        InvalidInput: instead of a model's error about the input; it is also an instance of that
            error's class, and says what was sent.
    """
    try:
        yield
    except tuple(_KINDS) as error:
        text = _said(error)
        if _OTHER_DEVICE in text or not _ABOUT_THE_INPUT.search(text):
            raise
        refused = next(refused for kind, refused in _KINDS.items() if isinstance(error, kind))
        raise refused(f"the model does not take {describe(inputs)}: {text}") from error


def is_about_dtype(error: InvalidInput) -> bool:
    """Whether an error of `blame_input` says that the dtype is wrong, rather than the shape."""
    return _ABOUT_THE_DTYPE.search(error.message) is not None
