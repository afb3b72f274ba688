"""``sys.modules`` as an archive sees it, with a ``__main__`` of its own.

It sees its own modules there under their bare names, as in a process of its own, and none of other
archives: handlers that combine two repositories go through all names to forget the first one's
``utils`` and ``models``. It sees them under their full names as well, because packages that look
for their own modules compare names with their ``__name__``.

What it puts there is its own if it is one of its modules, or below one of them. Anything else is
for everybody: it may be a stand-in that a library is meant to find.
"""

from __future__ import annotations

import sys
from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from types import ModuleType
from typing import Any

from kserve_torch.namespace.aliases import Alias
from kserve_torch.namespace.scopes import PREFIX, Scope, current_scope, loaded_name

MAIN = "__main__"


class Main(ModuleType):
    """The process's ``__main__``; what it lacks is looked up in the thread's archive's."""

    def __getattr__(self, name: str) -> Any:
        scope = current_scope()
        if scope is not None and name in vars(scope.main):
            return vars(scope.main)[name]
        raise AttributeError(f"module {MAIN!r} has no attribute {name!r}")


class _Copy(dict[str, Any]):
    """A snapshot of what an archive sees, with what is to be put back."""

    def __init__(self, scope: Scope) -> None:
        # Copied first, because other threads import meanwhile.
        self.everything = sys.modules.copy()
        self.names = scope.names.copy()
        super().__init__()
        for home in reversed(scope.homes):
            self.update(
                (bare_name(name), module)
                for name, module in self.everything.items()
                if name.startswith(f"{home}.")
            )
        for name, full in self.names.items():
            if full in self.everything:
                self[name] = self.everything[full]
        own = tuple(f"{home}." for home in scope.homes)
        for name, module in self.everything.items():
            if name.startswith(own) or not (name.startswith(PREFIX) or type(module) is Alias):
                self.setdefault(name, module)
        self[MAIN] = scope.main


class Modules(MutableMapping[str, Any]):
    """``sys.modules``, with an archive's modules under their bare names.

    A module's ``__name__`` is known too, as ``sys.modules[__name__]``.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        #: Names in ``sys.modules`` whose entries the archive itself has set or deleted.
        self._touched: set[str] = set()
        #: Bare names of modules that it has deleted by their full names.
        self._deleted: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        module = self._scope.main if name == MAIN else sys.modules[self._loaded(name) or name]
        if type(module) is Alias and self._scope.is_anothers(name):
            raise KeyError(name)
        return module

    def __setitem__(self, name: str, module: Any) -> None:
        if name == MAIN and not isinstance(module, Main):
            self._scope.main = module
        elif not self._is_own(module):
            # Below a package of the archive it is the archive's whatever it is: Lightning puts
            # modules that it makes there for a while.
            full = (self._scope.full_name(name) if "." in name else None) or name
            self._touched.add(full)
            sys.modules[full] = module
        else:
            bare = name.removeprefix(f"{self._scope.name}.")
            if bare_name(module.__name__) == bare:  # it is put back, or about to be run
                sys.modules[module.__name__] = module
            elif "." in bare:
                sys.modules[self._scope.full_name(bare) or name] = module
            if "." not in bare:
                self._scope.bind(bare, module.__name__)

    def __delitem__(self, name: str) -> None:
        if self._is_gone(name):
            self._deleted.discard(name)
            return
        if name.partition(".")[0] in self._scope.homes:
            name = bare_name(name)
            self._deleted.add(name)
        full = self._loaded(name)
        if full is None or "." in name or bare_name(full) == name:
            self._touched.add(full or name)
            del sys.modules[full or name]
        if full is not None:  # or it was another name for the module, which stays
            self._scope.bind(name, None)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a module and return it; None if a loop over all names has removed it already."""
        return super().pop(name, *(default or (None,) if self._is_gone(name) else default))

    def _is_gone(self, name: str) -> bool:
        """Whether a loop over all names deletes it twice: by its bare and by its full name."""
        if name.partition(".")[0] in self._scope.homes:
            return name not in sys.modules
        return name in self._deleted and self._loaded(name) is None

    # What concerns all modules is atomic, as with a dict: other threads import meanwhile.

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())

    def items(self) -> ItemsView[str, Any]:
        """All names with their modules, as they are now."""
        return self.copy().items()

    def values(self) -> ValuesView[Any]:
        """All modules, as they are now."""
        return self.copy().values()

    def copy(self) -> _Copy:
        """All that it sees."""
        return _Copy(self._scope)

    def clear(self) -> None:
        """Do nothing: other threads would import anew what they miss.

        `mock.patch.dict` calls it before it puts back a `copy`.
        """

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Add modules; or put back a `copy`, as far as the archive has changed anything since."""
        if isinstance(other, _Copy):
            self._put_back(other)
            other = ()
        super().update(other, **more)

    def _put_back(self, before: _Copy) -> None:
        own = [name for name in sys.modules.copy() if name.startswith(f"{self._scope.name}.")]
        for name in {*own, *self._touched}:
            if name in before.everything:
                sys.modules[name] = before.everything[name]
            else:
                sys.modules.pop(name, None)
        for name in {**self._scope.names, **before.names}:
            self._scope.bind(name, before.names.get(name))

    def _loaded(self, name: object) -> str | None:
        return loaded_name(self._scope, name)

    def _is_own(self, module: object) -> bool:
        return str(getattr(module, "__name__", "")).partition(".")[0] in self._scope.homes


def bare_name(full: str) -> str:
    """What an archive calls its module ``full``."""
    return full.partition(".")[2]
