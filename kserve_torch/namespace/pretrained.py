"""transformers' and accelerate's models: made one after the other, whatever archive they are of.

While ``from_pretrained`` makes a model, it changes functions that all threads use, so that weights
are not tied or initialised yet. Two threads in it at once would leave random weights in the place
of tied ones, such as the language head of GPT-2, and each would put back the other's change: from
then on no model would be tied. Nothing fails, the answers are wrong.

To download weights and to read them may take minutes, and others would not load within their
``startupTimeout``: they do not wait for that.

accelerate, with which diffusers and transformers 4 make models, has modules of all threads put
their parameters on another device, mostly one that holds no data.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kserve_torch.namespace.importhooks import after_import

_turn = threading.RLock()
#: What an early transformers 5, or 4, does in ``from_pretrained`` that takes long, and changes
#: nothing that others use.
_LONG = (
    "_get_resolved_checkpoint_files",
    "load_state_dict",
    "_load_state_dict_into_meta_model",
)


def install() -> None:
    """Have models made one after the other, now or once the libraries are imported."""
    after_import("transformers.modeling_utils", _take_turns)
    for module in ("accelerate.big_modeling", "transformers.integrations.accelerate"):
        after_import(module, _stay_on_thread)


def _take_turns(modeling: Any) -> None:
    model = modeling.PreTrainedModel
    model.init_weights = _alone()(model.init_weights)  # the end of making one without a checkpoint
    if initialize := getattr(model, "initialize_weights", None):  # transformers 4.51 has none
        model.initialize_weights = _with_own_methods(initialize, modeling.torch.nn.Module)
    finalize = getattr(model, "_finalize_model_loading", None)
    if finalize is None:  # an early transformers 5, or 4
        model.from_pretrained = classmethod(_alone()(model.from_pretrained.__func__))
        for name in _LONG:
            if function := getattr(modeling, name, None):
                setattr(modeling, name, _beside_others(function))
        return
    contexts = model.get_init_context.__func__

    @functools.wraps(contexts)
    def get_init_context(*args: Any, **kwargs: Any) -> list[Any]:
        return [_turn, *contexts(*args, **kwargs)]

    model.get_init_context = classmethod(get_init_context)
    model._finalize_model_loading = staticmethod(_alone()(finalize))


@contextmanager
def _alone() -> Iterator[None]:
    with _turn:
        yield


def _with_own_methods(initialize: Callable[..., Any], modules: Any) -> Callable[..., Any]:
    """Have it give torch's modules its methods anew: another version's take other arguments."""

    @functools.wraps(initialize)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _turn:
            if hasattr(modules, "smart_apply"):
                del modules.smart_apply
            return initialize(*args, **kwargs)

    return call


def _beside_others(function: Callable[..., Any]) -> Callable[..., Any]:
    """Leave the turn to others meanwhile, unless a model is made of which this is a part."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            _turn.release()
        except RuntimeError:  # not within `from_pretrained`, or on a thread that it has started
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            _turn.acquire()

    return call


def _stay_on_thread(making: Any) -> None:
    init_on_device = getattr(making, "init_on_device", None)  # transformers 5 has none
    if init_on_device is None:
        return
    modules = making.nn.Module

    @contextmanager
    @functools.wraps(init_on_device)
    def alone(*args: Any, **kwargs: Any) -> Iterator[None]:
        with _turn:
            usual = modules.register_parameter
            with init_on_device(*args, **kwargs):
                changed, here = modules.register_parameter, threading.get_ident()

                def register_parameter(*args: Any, **kwargs: Any) -> None:
                    register = changed if threading.get_ident() == here else usual
                    register(*args, **kwargs)

                modules.register_parameter = register_parameter
                yield

    making.init_on_device = alone
