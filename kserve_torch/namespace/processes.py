"""What joblib's processes run of archives, whose modules they cannot import, is sent by value.

So cloudpickle sends functions and classes of ``__main__``, with what they use of their module.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from kserve_torch.namespace.around import after_import
from kserve_torch.namespace.scopes import PREFIX

_MODULE = "cloudpickle.cloudpickle"


class _ByValue(set[str]):
    """Names of modules whose functions and classes are sent by value."""

    def __contains__(self, name: object) -> bool:
        return str(name).startswith(PREFIX) or super().__contains__(name)


@cache
def install() -> None:
    """From now on cloudpickle sends what is an archive's by value."""
    after_import(_MODULE, _change)


def _change() -> None:
    cloudpickle: Any = sys.modules[_MODULE]
    cloudpickle._PICKLE_BY_VALUE_MODULES = _ByValue(cloudpickle._PICKLE_BY_VALUE_MODULES)
