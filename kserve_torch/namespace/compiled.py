"""Compiled modules of archives, whose C code does not know the names that modules have here.

It imports by bare name and past the archive's ``__import__``, and so from the environment first.
Where both have a package of that name, a compiled module of the archive would get the
environment's, whose version may differ.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType

from kserve_torch.namespace.aliases import is_alias, known_elsewhere
from kserve_torch.namespace.bindings import own_classes


class CompiledLoader(ExtensionFileLoader):
    """Loads each file of a compiled module once: many end the process when loaded again.

    A module outside of packages gets its bare name, and may enter others below it in
    ``sys.modules``: OpenCV's makes ``cv2.dnn``, and does not know itself by another name than
    ``cv2``.
    """

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name, path)
        stat = os.stat(path)
        self._file = path, stat.st_ino, stat.st_mtime_ns, name.partition(".")[2]
        self._taken: dict[str, ModuleType] = {}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See `importlib.abc.Loader`."""
        package, _, bare = spec.name.partition(".")
        if self._file in _compiled:
            found = _compiled[self._file]
            sys.modules.update({f"{package}.{name}": module for name, module in found.items()})
            return found[bare]
        own = spec if "." in bare else ModuleSpec(bare, self, origin=spec.origin)
        with _explained(bare), self._taking_over(spec):
            return super().create_module(own)

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        spec = module.__spec__
        assert spec is not None
        if self._file in _compiled:
            return
        bare = spec.name.partition(".")[2]
        with _explained(bare):
            with self._taking_over(spec):
                super().exec_module(module)
            _no_mixture(module, spec.name)
        _compiled[self._file] = {**self._taken, bare: module}

    @contextmanager
    def _taking_over(self, spec: ModuleSpec) -> Iterator[None]:
        """Make what is entered in ``sys.modules`` below the bare name within it the archive's.

        Meanwhile what the environment has below that name is taken out, because C code adds to
        modules that it finds (``PyImport_AddModule``). Other archives' imports wait for their turn.

        The archive's modules of the same package are put in under their bare names, unless the
        environment has that package, too: mypyc's code makes those anew that it does not find.
        """
        package, _, bare = spec.name.partition(".")
        top = bare.partition(".")[0]
        elsewhere = known_elsewhere(top)
        below = bare if elsewhere else top
        before = sys.modules.copy()
        hidden = {name: before.pop(name) for name in [*before] if name.partition(".")[0] == bare}
        for name in hidden:
            sys.modules.pop(name, None)
        shown = {
            name.partition(".")[2]: module
            for name, module in before.items()
            if below == top and name.startswith(f"{package}.{top}.")
        }
        hidden |= {name: before[name] for name in shown if name in before}
        sys.modules.update(shown)
        before |= shown
        try:
            folder = Path(self.path).parents[bare.count(".")]
            with own_classes(top, str(folder), elsewhere=elsewhere):
                yield
        finally:
            for name, module in sys.modules.copy().items():
                if before.get(name) is module:
                    continue
                if name.startswith(f"{spec.name}."):
                    self._taken[name.partition(".")[2]] = module
                elif name == bare or (name.startswith(f"{below}.") and not is_alias(name)):
                    self._taken[name] = sys.modules[f"{package}.{name}"] = module
                    del sys.modules[name]
            for name in shown:
                sys.modules.pop(name, None)
            sys.modules.update(hidden)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Add to an error that compiled code may have got the environment's package of that name."""
    top = name.partition(".")[0]
    try:
        yield
    except Exception as error:
        why = f"the environment has a package {top} too, and compiled modules may get that one"
        if why in str(error) or not known_elsewhere(top):
            raise
        raise ImportError(f"{error} ({why})", name=name) from error


def _no_mixture(module: ModuleType, full: str) -> None:
    """Raise ImportError if it has imported from another package with the name of its own.

    A module of its own package that is still being imported, because it imports this one, does not
    count as another's.
    """
    package, _, name = full.partition(".")
    top = name.partition(".")[0]
    for value in [*vars(module).values()]:
        if isinstance(value, ModuleType):
            home = value.__name__
        elif isinstance(value, type | FunctionType):
            home = str(value.__module__)
        else:
            continue
        other = None if is_alias(home) else sys.modules.get(home)
        if other is None or home.partition(".")[0] != top:
            continue
        if other is sys.modules.get(f"{package}.{home}"):
            continue
        if value is other or vars(other).get(value.__name__) is value:
            raise ImportError(f"{name} has imported another {home}")


def source_beside(spec: ModuleSpec) -> str | None:
    """The file that a compiled module was made from, if it is there, as in mypyc's packages."""
    if not isinstance(spec.loader, ExtensionFileLoader):
        return None
    path = Path(spec.loader.path)
    source = path.with_name(path.name.partition(".")[0] + ".py")
    return str(source) if source.is_file() else None


#: Compiled modules by file and name, each with what it has entered in ``sys.modules``.
_compiled: dict[tuple[str, int, int, str], dict[str, ModuleType]] = {}
