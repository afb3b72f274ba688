"""Classes that archives register with a library: each archive has its own.

Tables such as transformers' ``AutoModel.register``, detectron2's and OpenMMLab's ``Registry``,
timm's ``register_model``, Keras' ``register_keras_serializable``, OmegaConf's resolvers and torch's
``functional_datapipe`` are there once for the process. A second instance of an archive would be
refused the names that the first one has registered, or get its classes, as would another version.
The same holds for the model class that transformers registers for a configuration class when it
runs a repository's code (``trust_remote_code``). And Hydra, which can be initialised only once,
would compose all archives' configurations from one archive's files.

transformers copies such code to a cache, and imports it from there under one name for the process.
If a model brings its own transformers, its code would import the environment's, or be what another
model has imported. So its cache is in the folder with the model's packages, and its code is one of
these. Before 5.8 it names the code of a folder after that folder alone; here after the content too,
so that two archives' folders ``model`` can differ.
"""

from __future__ import annotations

import hashlib
import os
from collections import ChainMap
from collections.abc import Iterator, MutableMapping
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from kserve_torch.namespace.importhooks import after_import
from kserve_torch.namespace.scopes import are_packages, current_scope, registering_scope, scopes

#: The package of repositories' code; the names of the separate ones begin with it.
_REMOTE = "transformers_modules"

#: Modules with the name of the attribute that has what was registered, and the classes that have
#: it, or whose instances do.
_TABLES = (
    ("fvcore.common.registry", "_obj_map", "Registry"),
    ("hydra.core.singleton", "_instances", "Singleton"),
    ("mmcv.utils.registry", "_children", "Registry"),
    ("mmcv.utils.registry", "_module_dict", "Registry"),
    ("mmengine.registry.registry", "_children", "Registry"),
    ("mmengine.registry.registry", "_module_dict", "Registry"),
    ("omegaconf.basecontainer", "_resolvers", "BaseContainer"),
    ("torch.utils.data.datapipes.datapipe", "functions", "IterDataPipe", "MapDataPipe"),
    ("transformers.models.auto.auto_factory", "_extra_content", "_LazyAutoMapping"),
    ("transformers.models.auto.configuration_auto", "_extra_content", "_LazyConfigMapping"),
    ("transformers.pipelines.base", "supported_tasks", "PipelineRegistry"),
)

#: Modules with the name of the table that they have as a global variable.
_GLOBAL_TABLES = {
    "albumentations.core.serialization": "SERIALIZABLE_REGISTRY",
    "keras.src.saving.object_registration": "GLOBAL_CUSTOM_OBJECTS",
    "timm.models._registry": "_model_entrypoints",
}


class Registrations(ChainMap[Any, Any]):
    """What one archive has registered in a table, then what its packages have, then the others."""

    def __setitem__(self, key: Any, value: Any) -> None:
        # Libraries register theirs when they are imported, which happens once for all archives.
        module = _module_of(value)
        package = module.partition(".")[0]
        if _REMOTE in module:
            scope = current_scope()
        elif package in scopes and not are_packages(package):
            scope = scopes[package]
        else:  # a library's class may have been registered by an archive: resolvers, singletons
            scope = registering_scope() or scopes.get(package)
        shared = self.maps[-1]
        (shared if scope is None else scope.registered.setdefault(id(shared), {}))[key] = value


def _registrations(shared: dict[Any, Any]) -> Registrations:
    """What the code that asks finds in a table, in which libraries have registered ``shared``."""
    scope = current_scope()
    # A thread of unknown origin, as in ``to_thread(AutoModel.from_pretrained, path)``, finds what
    # all archives have registered. One in which only an installed package of an archive is known
    # to run finds what that archive has.
    found = [
        each.registered.setdefault(id(shared), {})
        for each in reversed(list(scopes.values()))
        if scope is None or scope.name in each.homes or each.name in scope.homes
    ]
    return Registrations(*found, shared)


class _OfClass:
    """The attribute of a class that is the table; an instance may have another of that name."""

    def __init__(self, shared: dict[Any, Any]) -> None:
        self._shared = shared

    def __get__(self, instance: object, owner: type) -> Registrations:
        return _registrations(self._shared)


class _OfInstance:
    """The attribute of tables that has what was registered."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, table: object, owner: type) -> Registrations:
        return _registrations(vars(table)[self._name])

    def __set__(self, table: object, registered: dict[Any, Any]) -> None:
        for scope in list(scopes.values()):
            scope.registered.pop(id(registered), None)  # of a table that is no more
        vars(table)[self._name] = registered


class _Table(MutableMapping[Any, Any]):
    """In place of a table that is a global variable."""

    def __init__(self, shared: dict[Any, Any]) -> None:
        self._shared = shared

    def __getitem__(self, key: Any) -> Any:
        return _registrations(self._shared)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        _registrations(self._shared)[key] = value

    def __delitem__(self, key: Any) -> None:
        del _registrations(self._shared)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(_registrations(self._shared))

    def __len__(self) -> int:
        return len(_registrations(self._shared))

    def copy(self) -> dict[Any, Any]:
        """See `dict.copy`; mappings have none."""
        return dict(self)


def install() -> None:
    """Give the libraries' tables `Registrations`, now or once they are imported.

    A model's own transformers gets its cache among the model's packages.
    """
    for module, attribute, *tables in _TABLES:
        after_import(module, partial(_separate, tables, attribute))
    for module, table in _GLOBAL_TABLES.items():
        after_import(module, partial(_separate_global, table))
    after_import("albumentations.core.serialization", _name_barely)
    after_import("transformers.utils.hub", _move_cache)
    after_import("transformers.dynamic_module_utils", _name_after_content)


def _separate(tables: list[str], attribute: str, module: ModuleType) -> None:
    for name in tables:
        if table := getattr(module, name, None):  # an archive may bring versions that lack it
            shared = vars(table).get(attribute)
            own = _OfInstance(attribute) if shared is None else _OfClass(shared)
            setattr(table, attribute, own)


def _separate_global(table: str, module: ModuleType) -> None:
    shared = getattr(module, table, None)
    if isinstance(shared, dict):
        setattr(module, table, _Table(shared))


def _name_barely(serialization: Any) -> None:
    """Files with pipelines have the names that classes had where these were made."""
    name = serialization.get_shortest_class_fullname

    @wraps(name)
    def get_shortest_class_fullname(cls: type) -> str:
        package, _, module = cls.__module__.partition(".")
        if package in scopes:
            return str(serialization.shorten_class_name(f"{module}.{cls.__name__}"))
        return str(name(cls))

    serialization.get_shortest_class_fullname = get_shortest_class_fullname


def _module_of(registered: Any) -> str:
    """Of a class, or of the first of several, as for slow and fast tokenizers."""
    if isinstance(registered, dict):
        registered = tuple(registered.values())
    if isinstance(registered, tuple):
        registered = next(filter(None, registered), None)
    return str(getattr(registered, "__module__", ""))


def _move_cache(hub: Any) -> None:
    package = hub.__name__.partition(".")[0]
    if are_packages(package):
        hub.HF_MODULES_CACHE = str(scopes[package].root)
        # Under a name that is loaded already, the code would be run in the environment's module.
        hub.TRANSFORMERS_DYNAMIC_MODULE_NAME = f"{_REMOTE}_{package}"


def _name_after_content(utils: Any) -> None:
    if hasattr(utils, "_compute_local_source_files_hash"):  # transformers 5.8 does so itself
        return
    find = utils.get_cached_module_file

    @wraps(find)
    def get_cached_module_file(repository: Any, *args: Any, **kwargs: Any) -> Any:
        if not os.path.isdir(repository):
            return find(repository, *args, **kwargs)
        folder = Path(repository).resolve()
        with TemporaryDirectory() as links:
            link = Path(links, f"{folder.name}_{_digest(folder)}")
            link.symlink_to(folder)
            return find(str(link), *args, **kwargs)

    utils.get_cached_module_file = get_cached_module_file


def _digest(folder: Path) -> str:
    """Of its Python files."""
    digest = hashlib.sha256()
    for file in sorted(file for file in folder.rglob("*.py") if file.is_file()):
        digest.update(bytes(file.relative_to(folder)) + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
