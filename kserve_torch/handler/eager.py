"""Eager models: the one class of an archive's model file, filled with the weights beside it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kserve_torch.errors import LoadFailed
from kserve_torch.handler.classes import file_of, only_class
from kserve_torch.handler.weights import load_state
from kserve_torch.runtime.tying import is_plain

log = logging.getLogger(__name__)

#: Most keys of one kind that an error names.
_SHOWN = 3


def load_eager(module: ModuleType, weights: Path | None) -> Any:
    """The class of a model file, with the state_dict in ``weights`` if there is one.

    Without one its weights are as its class makes them, as with TorchServe; the log says so,
    because the answers do not show it.

    The file is read into the host's memory, where the model is made: read into that of a GPU, it
    would need twice the space there.

    Raises:
        LoadFailed: not exactly one class, or weights that cannot be read or do not fit.
    """
    model: Any = only_class(module, _is_whole_model, "exactly one class is wanted as the model")()
    if weights is not None:
        fill(model, load_state(weights), weights.name)
    elif isinstance(model, nn.Module) and next(model.parameters(), None) is not None:
        log.warning(
            "%s: no weights file (serializedFile) comes with it: the weights are random, unless "
            "code of the archive loads them",
            file_of(module),
        )
    return model


def _is_whole_model(found: type) -> bool:
    """Whether a class is a module that can be made as it is; parts of one mostly need arguments."""
    if not issubclass(found, nn.Module):
        return False
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):  # ValueError: an extension's class, which says nothing
        return False
    return True


def fill(model: Any, state: Mapping[str, Any], file: str) -> None:
    """Load ``state`` into ``model``; every key must fit.

    Models need not be modules: TorchServe calls ``load_state_dict``, whatever has it.

    Raises:
        LoadFailed: with the first missing, unexpected and misshapen keys.
    """
    try:
        model.load_state_dict(_with_tied(model, state))
    except (RuntimeError, AttributeError) as error:  # AttributeError: keys that are no strings
        text = _mismatch(model.state_dict(), state) if isinstance(model, nn.Module) else ""
        text = text or str(error).splitlines()[-1].strip()
        raise LoadFailed(f"{file} does not fit {type(model).__name__}: {text}") from error


def _with_tied(model: Any, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """``state`` with what it lacks and the model holds under two names: safetensors saves it once.

    Only a plain dict: torch's own state_dicts hold all, and say which versions of the modules they
    are from.
    """
    if type(state) is not dict or not isinstance(model, nn.Module):
        return state
    own = model.state_dict()
    there = {_place(own[key]): value for key, value in state.items() if key in own}
    lacking = ((key, _place(value)) for key, value in own.items() if key not in state)
    return {**state, **{key: there[place] for key, place in lacking if place in there}}


def _place(value: Any) -> Any:
    return (value.data_ptr(), value.shape, value.stride()) if is_plain(value) else id(value)


def _mismatch(own: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    shapes = [
        f"{key} is {list(state[key].shape)}, the model has {list(value.shape)}"
        for key, value in own.items()
        if isinstance(state.get(key), torch.Tensor) and state[key].shape != value.shape
    ]
    parts = [
        _some("missing ", [key for key in own if key not in state]),
        _some("unexpected ", [str(key) for key in state if key not in own]),
        _some("", shapes),
    ]
    return "; ".join(part for part in parts if part)


def _some(label: str, items: list[str]) -> str:
    if not items:
        return ""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return label + ", ".join(items[:_SHOWN]) + more
