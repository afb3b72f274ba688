"""`grpc.health.v1.Health`; each check asks the registry (CONTRACT O67)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress

from grpc_health.v1 import health_pb2 as pb

from kserve_torch.errors import ClientError
from kserve_torch.grpc.rpc import Call

SERVICE = pb.DESCRIPTOR.services_by_name["Health"]


class UnknownService(ClientError):
    """A health check of a service that this port does not serve."""

    http = 404
    grpc = "NOT_FOUND"


class Health:
    """Reports SERVING for every service of a port while the server is ready.

    Args:
        ready: whether the server is.
        services: the full names that may be checked, beside "" for the server itself.
    """

    def __init__(self, ready: Callable[[], bool], services: Collection[str]) -> None:
        self._ready = ready
        self._services = {"", *services}
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._closing = False

    async def Check(self, message: pb.HealthCheckRequest, call: Call) -> pb.HealthCheckResponse:
        """The state of a service; an unknown one is NOT_FOUND."""
        if message.service not in self._services:
            raise UnknownService(f"service {message.service!r}: not served on this port")
        return pb.HealthCheckResponse(status=self._status(message.service))

    async def Watch(
        self, message: pb.HealthCheckRequest, call: Call
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """The state of a service now and after each change; an unknown one is SERVICE_UNKNOWN."""
        last = None
        while True:
            changed, closing = self._changed, self._closing
            status = self._status(message.service)
            if status != last:
                yield pb.HealthCheckResponse(status=status)
            if closing:
                return
            last = status
            await changed.wait()

    def refresh(self) -> None:
        """Wake the watchers, because the state may have changed; on any thread."""
        with suppress(RuntimeError):  # a model that is still loading may outlive the loop
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Turn NOT_SERVING for good and end the watches, so that the server can stop."""
        self._closing = True
        self.refresh()

    def _status(self, service: str) -> pb.HealthCheckResponse.ServingStatus:
        if service not in self._services:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        ready = self._ready() and not self._closing
        return pb.HealthCheckResponse.SERVING if ready else pb.HealthCheckResponse.NOT_SERVING
