"""Code of repositories (``trust_remote_code``) where a model brings its own transformers.

transformers copies that code to a cache and imports it from there, under a name of the process: it
would get the environment's transformers, or be what another model's has imported. In the folder
with the model's packages it is one of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kserve_torch.namespace.around import after_import
from kserve_torch.namespace.scopes import scopes

#: The package of that code; what the name of a copy's begins with.
PACKAGE = "transformers_modules"


@cache
def install() -> None:
    """Let the cache of a model's own transformers be among its packages."""
    after_import("transformers.utils.hub", _move_cache)


def _move_cache(hub: Any) -> None:
    package = hub.__name__.partition(".")[0]
    if any(package in scope.homes[1:] for scope in list(scopes.values())):
        hub.HF_MODULES_CACHE = str(scopes[package].root)
        # Of a name that is loaded already, it would run anew in the environment's module.
        hub.TRANSFORMERS_DYNAMIC_MODULE_NAME = f"{PACKAGE}_{package}"
