"""Names that need a missing package or device: importable, with a clear error when used."""

from __future__ import annotations

from importlib.util import find_spec

from kserve_torch.errors import LoadFailed
from kserve_torch.handler.base import BaseHandler
from kserve_torch.runtime.context import Context


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


class AbsentHandler(BaseHandler):
    """Base of TorchServe's handlers that cannot be served here.

    Attributes:
        needs: the packages that TorchServe's handler is made for.
        why: why it is not supported, even with these.
    """

    needs: tuple[str, ...] = ()
    why = "models over several processes"

    def initialize(self, context: Context) -> None:
        """Say what is missing.

        Raises:
            LoadFailed: always.
        """
        name = type(self).__name__
        require(name, *self.needs)
        raise unsupported(name, self.why)
