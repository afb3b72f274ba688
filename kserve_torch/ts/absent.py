"""Names that need a missing package or device: importable, with a clear error when used."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from kserve_torch.errors import LoadFailed


def require(name: str, *packages: str) -> None:
    """Check that what ``name`` needs is installed.

    Raises:
        LoadFailed: it names the first package that is missing.
    """
    for package in packages:
        if find_spec(package) is None:
            raise LoadFailed(f"{name} needs the package {package}, which is not installed")


def unsupported(name: str, why: str) -> LoadFailed:
    """The error for a name that is not supported, even if its package is installed."""
    return LoadFailed(f"{name} is not supported: {why}")


def without_dali(name: str, instead: str) -> LoadFailed:
    """The error for a handler whose preprocessing is a pipeline of NVIDIA's DALI.

    Args:
        name: the handler.
        instead: what to do instead.

    Raises:
        LoadFailed: DALI is not installed either.
    """
    require(name, "nvidia", "nvidia.dali")
    return unsupported(name, f"DALI pipelines; {instead} instead")


class AbsentHandler:
    """Base of TorchServe's handlers for engines that need processes or devices of their own."""

    needs: tuple[str, ...] = ()
    why = "it needs a process of its own; serve it with its own KServe runtime"

    def __init__(self) -> None:
        self.initialized = False

    def initialize(self, ctx: Any) -> None:
        """Say what is missing.

        Raises:
            LoadFailed: always.
        """
        name = type(self).__name__
        require(name, *self.needs)
        raise unsupported(name, self.why)

    def handle(self, data: Any, context: Any) -> Any:
        """Say what is missing, as `initialize` does."""
        self.initialize(context)
