"""Classes of C++ that compiled modules show to Python: each model has its own.

pybind11 and nanobind keep one table of such classes per process, in the interpreter's state or in
``builtins``. What a second model brings of the same package, such as sentencepiece or a compiled
module of its archive's next version, would be refused ("already registered") or get the classes of
the first. It is loaded with tables of its own. The others share one, because modules of different
packages may exchange objects, as torch's extensions do with torch.
"""

from __future__ import annotations

import builtins
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TABLES = ("__pybind11_", "__nb_internals_")

#: The folder that the first such package was loaded from, by its name.
_first: dict[str, str] = {}


@contextmanager
def own_classes(package: str, folder: str, *, elsewhere: bool) -> Iterator[None]:
    """Compiled modules that are loaded within it enter their classes in tables of their own.

    Those of one package and folder share theirs.

    Args:
        package: the top-level package, or module, that they belong to.
        folder: where it is; the first that has it uses the tables of all others.
        elsewhere: whether the environment has one of that name, too: then none is the first.
    """
    if _first.setdefault(package, folder) == folder and not elsewhere:
        yield
        return
    places, mark = (_state(), vars(builtins)), f"{folder}/{package}: "
    shared = [_take(place, _TABLES) for place in places]
    for place in places:
        own = _take(place, tuple(mark + table for table in _TABLES))
        place.update({name.removeprefix(mark): table for name, table in own.items()})
    try:
        yield
    finally:
        for place, tables in zip(places, shared, strict=True):
            # They are kept there under other names, because they must live as long as that does.
            own = _take(place, _TABLES)
            place.update({mark + name: table for name, table in own.items()})
            place.update(tables)


def _take(place: dict[Any, Any], beginnings: tuple[str, ...]) -> dict[str, Any]:
    found = [name for name in [*place] if isinstance(name, str) and name.startswith(beginnings)]
    return {name: place.pop(name) for name in found}


def _state() -> dict[Any, Any]:
    """Where extensions keep what they have one of per interpreter."""
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    api.PyInterpreterState_GetDict.argtypes = [ctypes.c_void_p]
    api.PyInterpreterState_GetDict.restype = ctypes.c_void_p
    address = api.PyInterpreterState_GetDict(api.PyInterpreterState_Get())
    state: dict[Any, Any] = ctypes.cast(address, ctypes.py_object).value
    return state
