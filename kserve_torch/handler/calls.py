"""How a handler's model is called: without gradients, in the format and dtype that suit it.

What suits it is found out in its calls, and kept with the handler.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.handler.blame import blame_input, is_about_dtype
from kserve_torch.handler.compile import compiling_failed, uncompiled
from kserve_torch.handler.folding import FoldedNorms
from kserve_torch.handler.layout import ChannelsLast

log = logging.getLogger(__name__)

#: The attribute of handlers that holds their `ModelCalls`.
_NAME = "_kserve_torch_calls"
#: Models of a handler that are tried in another memory format; it may change its model.
_TRIED = 4


class ModelCalls:
    """The calls of a handler's model.

    Attributes:
        takes_floats: whether the model has refused integers and taken them as floats.
    """

    __slots__ = ("_folded", "_ordered", "_to_try", "takes_floats")

    def __init__(self) -> None:
        self.takes_floats = False
        self._ordered: ChannelsLast | None = None
        self._folded: FoldedNorms | None = None
        self._to_try = _TRIED

    def infer(self, handler: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The model's output for ``inputs``, on its device; see `BaseHandler.inference`."""
        if handler.model is None:
            raise HandlerError(
                f"{type(handler).__name__} has no model: its initialize() must call "
                "super().initialize(context) or set self.model"
            )
        try:
            return self._infer(handler, inputs, *args, **kwargs)
        except InvalidInput as refused:
            if not isinstance(inputs, torch.Tensor) or inputs.dtype is not torch.int64:
                raise
            if isinstance(refused, IndexError):  # these are indices, which the model takes
                raise
            floats = inputs.to(torch.get_default_dtype())
            try:
                output = self._infer(handler, floats, *args, **kwargs)
            except InvalidInput as error:
                if is_about_dtype(error):
                    raise refused from refused.__cause__
                raise
            self.takes_floats = True
            return output

    def _infer(self, handler: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Not inference_mode: the handler's code may write to what the model returns.
        with torch.no_grad(), blame_input(inputs):
            return self._forward(handler, inputs, *args, **kwargs)

    def _forward(self, handler: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model; if it turns out not to compile, its eager form replaces it."""
        try:
            return self._run(handler.model, *args, **kwargs)
        except RuntimeError as error:
            eager = uncompiled(handler.model)
            if eager is handler.model or not compiling_failed(error):
                raise
            output = eager(*args, **kwargs)  # raises if the input is at fault after all
            log.warning("compiling the model failed, it stays eager: %s", error)
            handler.model = eager
            return output

    def _run(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        if self._folded is None or self._folded.model is not model:
            if not self._to_try:
                return model(*args, **kwargs)
            self._to_try -= 1
            self._ordered = ChannelsLast(model)
            self._folded = FoldedNorms(self._ordered)
        return self._folded(*args, **kwargs)

    def give_up_format(self, error: BaseException | None) -> bool:
        """Whether the model returned to the default memory format, because of ``error``."""
        return self._ordered is not None and self._ordered.give_up(error)


def calls_of(handler: Any) -> ModelCalls:
    """The calls of a handler's model.

    Not made in its ``__init__``, which archives' handlers may not call, and once for all threads.
    """
    found: ModelCalls | None = vars(handler).get(_NAME)
    return found or vars(handler).setdefault(_NAME, ModelCalls())


def adapts_format(handler: Any, error: BaseException | None) -> bool:
    """Whether a handler's model returned to the default memory format because of ``error``.

    Archives' code may use parts of the model, and their outputs, by itself.
    """
    calls = getattr(handler, _NAME, None)
    return isinstance(calls, ModelCalls) and calls.give_up_format(error)
