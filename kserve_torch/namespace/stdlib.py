"""Standard modules as archives see them: some members are each archive's own.

Handlers register pickled classes under the names with which they were pickled::

    import __main__, sys
    setattr(__main__, "Net", Net)          each archive has a __main__ of its own
    sys.modules["models"] = my_models      the name is for this archive only
    spec_from_file_location("net", file)   so is this one, if the file is the archive's
    builtins.print = my_print              all of its modules print with that, and no others
"""

from __future__ import annotations

import atexit
import builtins
import importlib.util
import io
import logging
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import ModuleType
from typing import Any

from kserve_torch.namespace.imports import adopt_file
from kserve_torch.namespace.modules import MAIN, Main, Modules, bare_name
from kserve_torch.namespace.scopes import PREFIX, Scope

log = logging.getLogger(__name__)

_BUILTINS = frozenset(dir(builtins))

#: Signals that end the server; TorchServe kills its workers with another one.
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Lent(ModuleType):
    """A proxy for a standard module, with some members that are an archive's own."""

    def __init__(self, module: ModuleType, **own: Any) -> None:
        # Not the parent's, which would set ``__spec__`` to None.
        vars(self).update(own, _module=module, __doc__=module.__doc__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __dir__(self) -> Iterable[str]:
        return {*dir(self._module), *vars(self)}

    def __reduce__(self) -> tuple[Any, ...]:
        """By name: cloudpickle, which pickles functions by value, pickles their modules too."""
        return importlib.import_module, (self.__name__,)


class _Sys(Lent):
    """``sys``: setting a member sets it for the process, as its streams and hooks are shared."""

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(sys, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(sys, name)


class Builtins(ModuleType):
    """An archive's ``builtins``, whose members its modules have: what it changes is for them only.

    What it adds is for everybody else as well: a library may be meant to find it.
    """

    def __init__(self, **own: Any) -> None:
        super().__init__(builtins.__name__)
        vars(self).update(vars(builtins), **own)

    def __getattr__(self, name: str) -> Any:
        """What others have added since."""
        return getattr(builtins, name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name not in _BUILTINS:
            setattr(builtins, name, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if name not in _BUILTINS:
            delattr(builtins, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """By name, for cloudpickle, as `Lent` modules."""
        return importlib.import_module, (self.__name__,)


def install() -> None:
    """Let unpicklers that know nothing of archives find what is in an archive's ``__main__``."""
    main = sys.modules[MAIN]
    if type(main) is ModuleType:
        main.__class__ = Main


def lent_to(scope: Scope, own: Builtins) -> dict[str, ModuleType]:
    """What an archive, with ``builtins`` of its own, gets in place of standard modules, by name."""
    util = Lent(
        importlib.util,
        find_spec=_finding(scope),
        spec_from_file_location=_adopting(importlib.util.spec_from_file_location, scope),
        spec_from_loader=_adopting(importlib.util.spec_from_loader, scope),
    )
    return {
        "atexit": Lent(atexit, register=scope.exits.register, unregister=scope.exits.unregister),
        "builtins": own,
        "importlib": Lent(importlib, import_module=scope.import_module, util=util),
        "importlib.util": util,
        "pickle": scope.pickle_module,
        "signal": Lent(signal, signal=_handle_signal),
        "sys": _Sys(sys, modules=Modules(scope), __all__=[n for n in dir(sys) if n[0] != "_"]),
    }


@wraps(signal.signal)
def _handle_signal(signalnum: Any, handler: Any) -> Any:
    """On a worker's thread, handlers of signals that would end a worker's process are not called.

    Nor does TorchServe, which kills workers. All others are refused there, as by Python.
    """
    if threading.current_thread() is threading.main_thread() or signalnum not in _ENDS:
        return signal.signal(signalnum, handler)
    log.warning("what a handler sets for %s is not called", signal.Signals(signalnum).name)
    return signal.SIG_DFL


def _adopting(make: Callable[..., ModuleSpec | None], scope: Scope) -> Callable[..., Any]:
    """``make``, which makes specs; those of the archive's own files are of modules of its own."""

    @wraps(make)
    def adopting(*args: Any, **options: Any) -> ModuleSpec | None:
        spec = make(*args, **options)
        if spec is not None:
            adopt_file(spec, scope)
        return spec

    return adopting


def _finding(scope: Scope) -> Callable[..., ModuleSpec | None]:
    """``find_spec`` of the archive's modules, on any thread; those of others are not there."""

    @wraps(importlib.util.find_spec)
    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        absolute = importlib.util.resolve_name(name, package)
        full = scope.full_name(absolute)
        if full is None and scope.is_anothers(absolute):
            return None
        return importlib.util.find_spec(full or absolute)

    return find_spec


def pickle_module(scope: Scope) -> ModuleType:
    """A ``pickle`` that finds the archive's classes first, on any thread."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            if module == MAIN and hasattr(scope.main, name.partition(".")[0]):
                return attrgetter(name)(scope.main)
            # Pickled by another instance, or before the server was restarted.
            known = bare_name(module) if module.startswith(PREFIX) else module
            return super().find_class(scope.full_name(known) or module, name)

    return Lent(
        pickle,
        Unpickler=Unpickler,
        load=lambda file, **options: Unpickler(file, **options).load(),
        loads=lambda data, /, **options: Unpickler(io.BytesIO(data), **options).load(),
    )
