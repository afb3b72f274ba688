"""Classes that archives register with transformers: each archive has its own.

``AutoModel.register`` is for the process, and so is what transformers itself registers when it runs
a repository's code (``trust_remote_code``): the model class for a configuration class. The next
archive with that configuration, such as another version of the model, would get the first one's.
"""

from __future__ import annotations

from collections import ChainMap
from functools import cache, partial
from types import ModuleType
from typing import Any

from kserve_torch.namespace.around import after_each_import
from kserve_torch.namespace.remotecode import PACKAGE
from kserve_torch.namespace.scopes import current_scope, scopes

#: The classes of Auto classes' tables, by module.
_TABLES = {
    "transformers.models.auto.auto_factory": "_LazyAutoMapping",
    "transformers.models.auto.configuration_auto": "_LazyConfigMapping",
}
_ATTRIBUTE = "_extra_content"


class Registrations(ChainMap[Any, Any]):
    """What one archive has registered in a table, then what its packages have, then the others."""

    def __setitem__(self, key: Any, value: Any) -> None:
        # Libraries register theirs when they are imported, which happens once for all archives.
        module = _module_of(value)
        owner = scopes.get(module.partition(".")[0])
        scope = current_scope() if PACKAGE in module else owner
        shared = self.maps[-1]
        (shared if scope is None else scope.registered.setdefault(id(shared), {}))[key] = value


class _Attribute:
    """The attribute of a table that has what was registered."""

    def __get__(self, table: object, owner: type) -> Registrations:
        shared = vars(table)[_ATTRIBUTE]
        scope = current_scope()
        # A thread of unknown origin finds all: ``to_thread(AutoModel.from_pretrained, path)``. One
        # that only a package of an archive is known to have started finds the archive's too.
        found = [
            each.registered.setdefault(id(shared), {})
            for each in reversed(list(scopes.values()))
            if scope is None or scope.name in each.homes or each.name in scope.homes
        ]
        return Registrations(*found, shared)

    def __set__(self, table: object, registered: dict[Any, Any]) -> None:
        vars(table)[_ATTRIBUTE] = registered


@cache
def install() -> None:
    """Give transformers `Registrations`, now or once it is imported."""
    for module, name in _TABLES.items():
        after_each_import(module, partial(_separate, name))


def _separate(name: str, module: ModuleType) -> None:
    if hasattr(module, name):  # an archive may bring versions that lack it
        setattr(getattr(module, name), _ATTRIBUTE, _Attribute())


def _module_of(registered: Any) -> str:
    """Of a class, or of the first of several, as for slow and fast tokenizers."""
    if isinstance(registered, dict):
        registered = tuple(registered.values())
    if isinstance(registered, tuple):
        registered = next(filter(None, registered), None)
    return str(getattr(registered, "__module__", ""))
