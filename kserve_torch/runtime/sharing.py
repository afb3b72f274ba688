"""Weight sharing: instances hold their weights together until one of them writes to them.

It may train, or load other weights for a request::

    two.tie_to(one) -> both hold one's weights
    call -> look() -> were they written to? -> the other instances are loaded anew, with their own
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import nn

from kserve_torch.runtime import paramdata
from kserve_torch.runtime.tying import modules_of, tie, untie, weights_of


class Weights:
    """The weights of one handler instance, which others of the same archive may hold too.

    Args:
        service: the instance's handler, initialised.
    """

    def __init__(self, service: Any) -> None:
        self._service = service
        #: Held while another one is tied to this one: several may load at once, and all that hold
        #: the same weights must have the same list.
        self._tying = threading.Lock()
        #: Those that have written to the weights, one list for all that hold them; None as long as
        #: they are held by this instance alone.
        self._written: list[weakref.ref[Weights]] | None = None
        # Weak, because a handler may take another model in place of this one.
        self._modules: list[weakref.ref[nn.Module]] = []
        self._versions: list[tuple[weakref.ref[torch.Tensor], int]] = []

    def tie_to(self, first: Weights) -> None:
        """Hold those of ``first`` in the place of equal ones, unless those were written to."""
        with first._tying:
            if first.were_written:
                return
            if first._written is None:
                first._remember()
            self._remember()
            if tie(self._service, first._service):
                if first._written is None:
                    first._written = []
                self._written = first._written

    def _remember(self) -> None:
        modules = [module for _, module in modules_of(self._service)]
        weights = [
            tensor
            for module in modules
            for tensor in weights_of(module).values()
            if not tensor.is_inference()
        ]
        for tensor in weights:
            paramdata.count(tensor, True)
        self._modules = list(map(weakref.ref, modules))
        self._versions = [(weakref.ref(tensor), tensor._version) for tensor in weights]

    def look(self) -> bool:
        """After a call: whether this instance is the first to have written to shared weights.

        Then no other is tied to it from now on.
        """
        if self._written is None or self._written:
            return False
        for reference, version in self._versions:  # a plain loop: there are hundreds
            tensor = reference()
            if tensor is not None and tensor._version != version:
                self._written.append(weakref.ref(self))
                self._end()
                return not self.are_outdated  # another may have looked at the same time
        return False

    @property
    def were_written(self) -> bool:
        """Whether somebody who holds them has written to them."""
        return bool(self._written)

    @property
    def are_outdated(self) -> bool:
        """Whether another instance was the first to write to them: they are not this one's now."""
        first = self._written[0]() if self._written else self
        return first is not self

    def _end(self) -> None:
        for model in self._modules:
            if (module := model()) is not None:
                untie(module)
        for reference, _ in self._versions:
            if (tensor := reference()) is not None:
                paramdata.count(tensor, False)
