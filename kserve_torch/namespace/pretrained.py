"""transformers' models: made one after the other, whatever archive they are of.

While ``from_pretrained`` makes a model, it changes functions that all threads use, so that weights
are not tied or initialised yet. Two threads in it at once would leave random weights in the place
of tied ones, such as the language head of GPT-2, and each would put back the other's change: from
then on no model would be tied. Nothing fails, the answers are wrong.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from kserve_torch.namespace.around import after_import

_turn = threading.RLock()


@functools.cache
def install() -> None:
    """Have models made one after the other, now or once transformers is imported."""
    after_import("transformers.modeling_utils", _take_turns)


def _take_turns(modeling: Any) -> None:
    model = modeling.PreTrainedModel
    model.from_pretrained = classmethod(_alone(model.from_pretrained.__func__))
    model.init_weights = _alone(model.init_weights)  # the end of making one without a checkpoint


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with _turn:
            return function(*args, **kwargs)

    return alone
