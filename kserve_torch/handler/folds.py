"""Convolutions that do the work of the batch norms after them, for as long as nothing changes.

What is called instead of a module is in its ``_compiled_call_impl``, where torch keeps a module's
compiled form. So the modules keep their classes, and copies and files of them are without it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from kserve_torch.handler.kernels import Kernel
from kserve_torch.handler.trial import has_hooks
from kserve_torch.runtime import paramdata
from kserve_torch.runtime.tying import are_tied

#: Parameters or buffers of a module.
Table = dict[str, torch.Tensor | None]
_FORWARDS = (nn.Conv2d.forward, nn.BatchNorm2d.forward)
#: ``call``: the call of `Folds.run` in this thread, or None.
_thread = threading.local()


class NotAsItWas(Exception):
    """A module has changed, or a folded convolution's output went elsewhere than before."""


class _Call:
    """One call of `Folds.run`.

    Attributes:
        key: that of the `Folds`.
        left: how many outputs of folded convolutions somebody holds.
    """

    def __init__(self, key: object) -> None:
        self.key = key
        self.left = 0


class Pair(NamedTuple):
    """A convolution and the batch norm that gets its output, by their names in the model.

    Attributes:
        conv: the convolution.
        norm: the batch norm.
        size: ``[in channels, height, width]`` of the images that it gets, if its weight is to be
            packed for them.
    """

    conv: str
    norm: str
    size: torch.Size | None


class Fold:
    """One convolution and its batch norm; with ``kernel`` the convolution does the work of both.

    ``key`` is that of the `Folds` which it belongs to.
    """

    def __init__(self, key: object, conv: Any, norm: Any, kernel: Kernel) -> None:
        self.key = key
        self.kernel = kernel
        self.conv = conv
        self.norm = norm
        self._eps = norm.eps
        self._held = []
        for table, name, tensor in held(conv, norm):
            paramdata.count(tensor, True)
            self._held.append((table, name, tensor, tensor._version, tensor.data_ptr()))

    @property
    def is_current(self) -> bool:
        """Whether both modules are what they were, and have no hooks; asked in every call."""
        conv, norm = self.conv, self.norm
        if norm.training or norm.eps != self._eps or not (_is_torchs(conv) and _is_torchs(norm)):
            return False
        for table, name, tensor, version, place in self._held:
            same = table.get(name) is tensor and tensor._version == version
            if not (same and tensor.data_ptr() == place):
                return False
        return not has_hooks((conv, norm))

    def equals(self, conv: nn.Module, norm: nn.Module) -> bool:
        """Whether another convolution and its batch norm hold the same numbers."""
        theirs = list(held(conv, norm))
        return (
            self._eps == norm.eps
            and [name for _, name, *_ in self._held] == [name for _, name, _ in theirs]
            and all(
                torch.equal(one[2], two[2]) for one, two in zip(self._held, theirs, strict=True)
            )
        )


class _Normalized:
    """A folded convolution's output; no tensor, so that nothing but its batch norm can use it."""

    __slots__ = ("call", "fold", "tensor")

    def __init__(self, tensor: torch.Tensor, fold: Fold, call: _Call) -> None:
        self.tensor = tensor
        self.fold = fold
        self.call = call
        call.left += 1

    def __del__(self) -> None:
        self.call.left -= 1


class _Convolution:
    """Called in place of a convolution, of which it does more during a call of `Folds.run`."""

    folds = True

    def __init__(self, fold: Fold) -> None:
        self._fold = fold

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fold, call = self._fold, getattr(_thread, "call", None)
        if call is None or fold.key is not call.key or kwargs:
            return fold.conv._call_impl(*args, **kwargs)
        if not fold.is_current:
            raise NotAsItWas
        return _Normalized(fold.kernel.convolve(fold.conv, fold.norm, args[0]), fold, call)


class _BatchNorm:
    """Called in place of a batch norm, whose work the convolution before it may have done."""

    folds = True

    def __init__(self, fold: Fold) -> None:
        self._fold = fold

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fold, given = self._fold, args[0] if args else None
        if type(given) is not _Normalized:
            return fold.norm._call_impl(*args, **kwargs)
        if given.fold is not fold or not fold.is_current:
            raise NotAsItWas
        return given.tensor


class Folds:
    """The folded weights of a model.

    Args:
        pairs: the convolutions and batch norms to be folded.
        like: the folds of a model with equal weights, whose kernels this one is to use, too.
    """

    def __init__(self, model: nn.Module, pairs: Sequence[Pair], like: Folds | None = None) -> None:
        self._model = weakref.ref(model)
        self._names = [(conv, norm) for conv, norm, _ in pairs]
        self._key = object()
        get = model.get_submodule
        modules = [(get(conv), get(norm)) for conv, norm in self._names]
        with _lock:
            like = like or self._of_another(model, modules)
            kernels = like.kernels if like else _kernels(modules, pairs)
        self._folds = [
            Fold(self._key, *both, kernel) for both, kernel in zip(modules, kernels, strict=True)
        ]

    @property
    def kernels(self) -> list[Kernel]:
        """The folded weights of each pair, in the order of the pairs."""
        return [fold.kernel for fold in self._folds]

    def _of_another(self, model: nn.Module, modules: Sequence[tuple[Any, Any]]) -> Folds | None:
        """The folds of another instance whose model has the same weights, if there is one."""
        for other in _known:
            its = other._model()
            if its is not None and are_tied(its, model) and other._fits(self._names, modules):
                return other
        return None

    def _fits(self, names: list[tuple[str, str]], modules: Sequence[tuple[Any, Any]]) -> bool:
        return self._names == names and all(
            fold.is_current and fold.equals(*both)
            for fold, both in zip(self._folds, modules, strict=True)
        )

    def on(self) -> None:
        """Let the model use them during `run`; other threads may be calling it."""
        for fold in self._folds:
            fold.norm._compiled_call_impl = _BatchNorm(fold)  # first: it takes what the other gives
            fold.conv._compiled_call_impl = _Convolution(fold)

    def offer(self) -> None:
        """Let other instances of the model use them too."""
        with _lock:
            _known.add(self)

    def off(self) -> None:
        """Let the model forget them; a call of `run` in another thread may then raise."""
        for fold in self._folds:
            for module in (fold.conv, fold.norm):
                if getattr(module._compiled_call_impl, "_fold", None) is fold:
                    module._compiled_call_impl = None

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function``; the model, where it calls it, uses the folded weights.

        Raises:
            NotAsItWas: a part of the model is not what it was, or does not use a convolution's
                output as it did when it was observed. The model itself may raise another error
                when it meets such an output.
        """
        before = getattr(_thread, "call", None)
        _thread.call = call = _Call(self._key)
        try:
            output = function(*args, **kwargs)
        finally:
            _thread.call = before
        if call.left:
            raise NotAsItWas
        return output


def _kernels(modules: Sequence[tuple[Any, Any]], pairs: Sequence[Pair]) -> list[Kernel]:
    return [Kernel(*both, pair.size) for both, pair in zip(modules, pairs, strict=True)]


#: Those in use by models; several instances of one share theirs.
_known: weakref.WeakSet[Folds] = weakref.WeakSet()
_lock = threading.Lock()


def _is_torchs(module: nn.Module) -> bool:
    """Whether a module's forward pass is torch's; others may replace that of one, or of all."""
    return type(module).forward in _FORWARDS and "forward" not in module.__dict__


def held(conv: nn.Module, norm: nn.Module) -> Iterator[tuple[Table, str, torch.Tensor]]:
    """The tensors that are folded, each with the table and the name by which a module holds it."""
    tables: tuple[Any, ...] = (conv._parameters, norm._parameters, norm._buffers)
    for table in tables:
        for name, tensor in table.items():
            if tensor is not None and tensor.is_floating_point():  # not a count of batches
                yield table, name, tensor


def are_foldable(conv: nn.Module, norm: nn.Module) -> bool:
    """Whether both are torch's own, and there are statistics to fold."""
    kinds = (type(conv), type(norm))
    return kinds == (nn.Conv2d, nn.BatchNorm2d) and norm.running_mean is not None
