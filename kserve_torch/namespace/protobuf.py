"""Protobuf's definitions of messages: an archive may define what another, or the server, has too.

Generated modules, ``…_pb2``, enter what their file defines into one table of the process, which
refuses a second file, or message, of a known name. Clients of TorchServe's own services would be
refused, and so would another version of a model whose messages have changed since.
"""

from __future__ import annotations

import sys
from typing import Any

from kserve_torch.namespace.importhooks import after_import

_MODULE = "google.protobuf.descriptor_pool"


class Definitions:
    """The process's table as an archive's modules see it: what is refused there is its own.

    Not all of it is, because fields of the process's types, such as ``Timestamp``, take no messages
    from another table.
    """

    def __init__(self, shared: Any, own: Any) -> None:
        self._shared = shared
        self._own = own
        self._files: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    def AddSerializedFile(self, serialized: bytes) -> Any:
        """The file's descriptor."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        file = FileDescriptorProto.FromString(serialized)
        # Those that import the archive's own files mean these, and not the process's of that name.
        if self._files.isdisjoint(file.dependency):
            try:
                return self._shared.AddSerializedFile(serialized)
            except TypeError:
                pass
        for name in file.dependency:
            if name not in self._files:
                self._copy(self._shared.FindFileByName(name))
        self._files.add(file.name)
        return self._own.AddSerializedFile(serialized)

    def _copy(self, file: Any) -> None:
        for imported in file.dependencies:
            self._copy(imported)
        self._own.AddSerializedFile(file.serialized_pb)


#: By top-level package: an archive, or one of the environment, of which models may use two that
#: conflict. Modules outside of packages share theirs.
_definitions: dict[str, Definitions] = {}


def install() -> None:
    """Give generated modules `Definitions`, now or once protobuf is imported."""
    after_import(_MODULE, _separate)


def _separate(pools: Any) -> None:
    if pools.__name__ != _MODULE:  # an archive's own protobuf has a table of its own
        return
    shared = pools.Default()

    def default() -> Any:
        module = str(sys._getframe(1).f_globals.get("__name__"))
        if not module.endswith("_pb2") or module.startswith("google.protobuf."):
            return shared
        owner = module.partition(".")[0] if "." in module else ""
        return _definitions.setdefault(owner, Definitions(shared, pools.DescriptorPool()))

    pools.Default = default


def forget(package: str) -> None:
    """Let go of an archive's definitions."""
    _definitions.pop(package, None)
