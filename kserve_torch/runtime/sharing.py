"""Weight sharing: instances hold their weights together until one of them writes to them.

It may train, or load other weights for a request::

    two.tie_to(one) -> both hold one's weights
    call -> look() -> were they written to? -> the other instances are loaded anew, with their own
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from kserve_torch.runtime import paramdata
from kserve_torch.runtime.tying import modules_of, tie, untie, weights_of


class Weights:
    """The weights of one handler instance, which others of the same archive may hold too.

    Args:
        service: the instance's handler, initialised.
    """

    def __init__(self, service: Any) -> None:
        self._service = service
        self._share: Share | None = None
        #: Several that load at once are tied to this one, which must not get a share with each.
        self._tying = threading.Lock()

    def tie_to(self, first: Weights) -> None:
        """Hold those of ``first`` in the place of equal ones, unless those were written to."""
        with first._tying:
            share = first._share or Share(first._service)
            if share.is_over:
                return
            own = Share(self._service, share)
            if tie(self._service, first._service):
                first._share, self._share = share, own

    def look(self) -> bool:
        """As `Share.look`; False as long as they are held by this instance alone."""
        return self._share is not None and self._share.look()

    @property
    def were_written(self) -> bool:
        """Whether somebody who holds them has written to them."""
        return self._share is not None and self._share.is_over

    @property
    def are_outdated(self) -> bool:
        """Whether another instance was the first to write to them: this one did not mean that."""
        return self._share is not None and self._share.is_over and not self._share.was_first


class Share:
    """What one of several instances that hold their weights together must know of them.

    Args:
        service: the instance's handler.
        other: the share of an instance that this one is tied to, or None for the first one.
    """

    def __init__(self, service: Any, other: Share | None = None) -> None:
        #: The shares of those that have written to the weights, for all of them.
        self._written: list[object] = [] if other is None else other._written
        modules = [module for _, module in modules_of(service)]
        weights = [
            tensor
            for module in modules
            for tensor in weights_of(module).values()
            if not tensor.is_inference()
        ]
        for tensor in weights:
            paramdata.count(tensor, True)
        # Weak, because a handler may take another model in place of this one.
        self._modules = list(map(weakref.ref, modules))
        self._versions = [(weakref.ref(tensor), tensor._version) for tensor in weights]

    def look(self) -> bool:
        """After a call: whether this instance is the first to have written to the weights.

        Then no other is tied to it from now on.
        """
        if self._written:
            return False
        for reference, version in self._versions:  # plainly, as there are hundreds, in every call
            tensor = reference()
            if tensor is not None and tensor._version != version:
                self._written.append(self)
                self._end()
                return self.was_first  # another may have looked at the same time
        return False

    @property
    def is_over(self) -> bool:
        """Whether one of the instances has written to the weights."""
        return bool(self._written)

    @property
    def was_first(self) -> bool:
        """Whether it was this one, before all others; once it `is_over`."""
        return self._written[0] is self

    def _end(self) -> None:
        for model in self._modules:
            if (module := model()) is not None:
                untie(module)
        for reference, _ in self._versions:
            if (tensor := reference()) is not None:
                paramdata.count(tensor, False)
