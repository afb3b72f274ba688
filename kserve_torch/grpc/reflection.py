"""Server reflection: clients such as grpcurl learn services and messages from the server itself.

Two packages cannot come from protobuf's process-wide registry: ``inference``, which KServe's or
Triton's modules may have registered, and ``grpc.reflection.v1``, for which nobody generated code.
They are copies of files that we do have, under another package name, which is not sent on the wire.
They are kept in a descriptor pool of our own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio

SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

#: The service's two names. Their messages are the same on the wire; clients try ``v1`` first.
NAMES = ("grpc.reflection.v1.ServerReflection", SERVICE.full_name)


def reflection(services: Iterable[str], files: Iterable[FileDescriptorProto]) -> object:
    """A servicer of `SERVICE`.

    Args:
        services: full names of all services of the port.
        files: their definitions, each after those that it imports.
    """
    pool = DescriptorPool()
    for file in files:
        pool.Add(file)
    return aio.ReflectionServicer(services, pool=_Definitions(pool))


class _Definitions:
    """A pool that also says which file has a method; protobuf's own search knows no methods."""

    def __init__(self, pool: DescriptorPool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def definitions(*files: FileDescriptor) -> list[FileDescriptorProto]:
    """``files`` and all that they import, each once and after its imports."""
    found: dict[str, FileDescriptorProto] = {}

    def visit(file: FileDescriptor) -> None:
        for imported in file.dependencies:
            visit(imported)
        found.setdefault(file.name, _proto(file))

    for file in files:
        visit(file)
    return list(found.values())


def repackaged(file: FileDescriptor, package: str) -> FileDescriptorProto:
    """A copy of ``file`` that defines its messages and services in ``package``."""
    proto = _proto(file)
    old, new = f".{proto.package}.", f".{package}."
    proto.name, proto.package = f"{package.replace('.', '/')}.proto", package
    for message in proto.message_type:
        _rename_types(message, old, new)
    for service in proto.service:
        for method in service.method:
            method.input_type = method.input_type.replace(old, new)
            method.output_type = method.output_type.replace(old, new)
    return proto


def _proto(file: FileDescriptor) -> FileDescriptorProto:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return proto


def _rename_types(message: DescriptorProto, old: str, new: str) -> None:
    for field in message.field:
        if field.type_name:
            field.type_name = field.type_name.replace(old, new)
    for nested in message.nested_type:
        _rename_types(nested, old, new)
