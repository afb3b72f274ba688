"""pyplot's figures: each handler instance has its own.

``plt.plot`` draws into the process's current figure, and ``plt.savefig`` saves it. Two workers that
draw at the same moment would draw into each other's figure, so each has its own figures and its own
current one.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping, Sequence, ValuesView
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from kserve_torch.namespace import scopes

#: Where pyplot keeps them, as ``Gcf.figs``.
_MODULE = "matplotlib._pylab_helpers"


class Figures(MutableMapping[Any, Any]):
    """pyplot's table of figures by number, the current one last: the calling archive's own.

    Args:
        servers: the table for code outside of archives.
    """

    def __init__(self, servers: OrderedDict[Any, Any]) -> None:
        self._servers = servers

    @property
    def _own(self) -> OrderedDict[Any, Any]:
        # A thread that a handler started draws into its handler's figures.
        scope = scopes.thread.scope or scopes.calling_scope()
        return self._only_ones() if scope is None else scope.figures

    def _only_ones(self) -> OrderedDict[Any, Any]:
        """Those for a thread of unknown origin, as in ``to_thread(plt.savefig, file)``."""
        drawn = [scope.figures for scope in list(scopes.scopes.values()) if scope.figures]
        return drawn[0] if len(drawn) == 1 else self._servers

    def __getitem__(self, number: Any) -> Any:
        return self._own[number]

    def __setitem__(self, number: Any, manager: Any) -> None:
        self._own[number] = manager

    def __delitem__(self, number: Any) -> None:
        del self._own[number]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def values(self) -> ValuesView[Any]:
        """An `OrderedDict`'s view, which can be reversed."""
        return self._own.values()

    def move_to_end(self, number: Any) -> None:
        """Make it the current one."""
        self._own.move_to_end(number)


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _share(module)


class _Finder(importlib.abc.MetaPathFinder):
    """pyplot is imported late or never: it takes a second."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        spec = PathFinder.find_spec(fullname, path) if fullname == _MODULE else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


def install() -> None:
    """Give pyplot `Figures`, now or once it is imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        if _MODULE in sys.modules:
            _share(sys.modules[_MODULE])


def _share(module: Any) -> None:
    module.Gcf.figs = Figures(module.Gcf.figs)
