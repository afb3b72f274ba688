"""pyplot's figures: each handler instance has its own.

``plt.plot`` draws into the process's current figure, and ``plt.savefig`` saves it. Two workers that
draw at the same moment would draw into each other's figure, so each has its own figures and its own
current one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from kserve_torch.namespace import scopes
from kserve_torch.namespace.importhooks import after_import


class Figures:
    """An attribute of a class: a table of figures by number, the calling archive's own.

    Args:
        servers: the table for code outside of archives.
    """

    def __init__(self, servers: OrderedDict[Any, Any]) -> None:
        self._servers = servers

    def __get__(self, instance: object, owner: type) -> OrderedDict[Any, Any]:
        # A thread that a handler started draws into its handler's figures.
        scope = scopes.current_scope()
        return self._only_ones() if scope is None else scope.figures

    def _only_ones(self) -> OrderedDict[Any, Any]:
        """The figures for a thread of unknown origin, as in ``to_thread(plt.savefig, file)``.

        If only one handler has any, they are meant.
        """
        drawn = [scope.figures for scope in list(scopes.scopes.values()) if scope.figures]
        return drawn[0] if len(drawn) == 1 else self._servers


def install() -> None:
    """Give pyplot `Figures`, now or once it is imported, which takes a second."""
    after_import("matplotlib._pylab_helpers", _share)


def _share(helpers: Any) -> None:
    helpers.Gcf.figs = Figures(helpers.Gcf.figs)
