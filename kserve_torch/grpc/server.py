"""The gRPC servers: which services answer on which port, and their start and end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import grpc

from kserve_torch.errors import SettingError
from kserve_torch.events import DefaultChanged, StateChanged, WorkerChanged
from kserve_torch.grpc import arrivals, health, management, oip, reflection, torchserve
from kserve_torch.grpc.rpc import Authorise, Streams, bind
from kserve_torch.tls import Renewal, identity
from kserve_torch.tokens import Access

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

    from kserve_torch.models.registry import Registry
    from kserve_torch.settings import Binding, Settings
    from kserve_torch.tokens import Tokens

#: Milliseconds that a client must leave between two pings. Those in Go and Java ping every ten
#: seconds at most; with gRPC's default of five minutes their calls end if the answer takes a while.
_PING_MS = 5000

#: Bytes of a call's metadata, as many as of HTTP's headers: tokens alone may exceed gRPC's 8 KiB,
#: beyond which it refuses calls at random.
_METADATA = 64 * 1024

#: Calls that may wait for the event loop to take them, some 15 KB each. With gRPC's own limit of
#: 1000, those beyond it end at random as CANCELLED, probes among them, and no log tells of it.
_WAITING = 10_000

#: The largest number that gRPC takes: no limit, as bytes, seconds, milliseconds or calls.
_NO_LIMIT = 2**31 - 1

_DEFINITIONS = (
    *reflection.definitions(
        oip.SERVICE.file,
        torchserve.SERVICE.file,
        management.SERVICE.file,
        health.SERVICE.file,
        reflection.SERVICE.file,
    ),
    reflection.repackaged(oip.SERVICE.file, oip.PACKAGE),
    reflection.repackaged(reflection.SERVICE.file, "grpc.reflection.v1"),
)


class GrpcServer:
    """One grpc.aio server per port, all on the running event loop.

    Args:
        registry: the models.
        settings: ports, message sizes, TLS.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._servers: list[grpc.aio.Server] = []
        self._healths: list[health.Health] = []
        self._streams = Streams()

    async def start(self, tokens: Tokens | None = None) -> None:
        """Open every port and serve.

        Args:
            tokens: the keys, if token authorisation is on.

        Raises:
            SettingError: a port is taken, or TLS is asked for and its files cannot be used.
        """
        arrivals.take_together()
        changes = [WorkerChanged, StateChanged, DefaultChanged]
        self._registry.observers.add(lambda event: self.refresh(), changes)
        for binding in self._settings.grpc_bindings():
            # Limited: one connection can have any number of calls, and messages that have come stay
            # in memory.
            server = grpc.aio.server(
                options=self._options(binding),
                maximum_concurrent_rpcs=min(self._settings.max_connections, _NO_LIMIT),
            )
            server.add_generic_rpc_handlers(self._handlers(binding, tokens))
            self._open(server, binding)
            self._servers.append(server)
        for server in self._servers:
            await server.start()

    def refresh(self) -> None:
        """Wake health watchers: after an event, or a change without one, such as draining."""
        for servicer in self._healths:
            servicer.refresh()

    async def stop(self, grace: float) -> None:
        """Send clients elsewhere with their next RPCs; running ones have ``grace`` seconds to end.

        Refusing RPCs for a while before would fail those of all clients that do not try again.
        """
        for servicer in self._healths:
            servicer.close()
        self._streams.close()
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    # --- one port ---

    def _sizes(self, binding: Binding) -> tuple[int, int]:
        """Most bytes of a request and of a response: the largest limits of the port's roles."""
        settings, requests, responses = self._settings, [], []
        if "oip" in binding.roles:
            requests.append(settings.grpc_max_receive_message_length)
            responses.append(settings.grpc_max_send_message_length)
        if binding.roles - {"oip"}:
            requests.append(settings.max_request_size)
            responses.append(settings.max_response_size)
        return min(max(requests), _NO_LIMIT), min(max(responses), _NO_LIMIT)

    def _options(self, binding: Binding) -> list[tuple[str, int]]:
        """Channel arguments."""
        settings = self._settings
        receive, send = self._sizes(binding)
        ages = {
            "oip": settings.grpc_inference_max_connection_age_ms,
            "inference": settings.grpc_inference_max_connection_age_ms,
            "management": settings.grpc_management_max_connection_age_ms,
        }
        quiet = max(settings.receive_timeout, 1.0)
        limits = [age for role, age in ages.items() if role in binding.roles and age is not None]
        options = [
            # Without this a second process could listen on the same port and take half the calls.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", receive),
            ("grpc.max_send_message_length", send),
            ("grpc.max_metadata_size", _METADATA),
            ("grpc.server.max_pending_requests", _WAITING),
            # Seconds for which they may wait: gRPC's own limit is 30, which ends them as CANCELLED.
            ("grpc.server_max_unrequested_time_in_server", _NO_LIMIT),
            # After so long a silence the client is pinged; gRPC's own default is two hours.
            ("grpc.keepalive_time_ms", int(min(1000 * quiet, _NO_LIMIT))),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
        ]
        if limits:
            options.append(("grpc.max_connection_age_ms", min(*limits, _NO_LIMIT)))
        return options

    def _handlers(
        self, binding: Binding, tokens: Tokens | None
    ) -> Iterator[grpc.GenericRpcHandler]:
        """The services of a port, with health and reflection beside them."""
        services = list(self._services(binding))
        names = [name for _, name, _, _ in services]
        for descriptor, name, servicer, access in services:
            yield bind(descriptor, servicer, self._streams, name, _checks(access, tokens))
        servicer = health.Health(self._registry.ready, names)
        self._healths.append(servicer)
        yield bind(health.SERVICE, servicer, self._streams)
        names += [health.SERVICE.full_name, *reflection.NAMES]
        for name in reflection.NAMES:
            servicer = reflection.reflection(names, _DEFINITIONS)
            yield bind(reflection.SERVICE, servicer, self._streams, name)

    def _services(
        self, binding: Binding
    ) -> Iterator[tuple[ServiceDescriptor, str, object, Mapping[str, Access]]]:
        """Per service of a port: descriptor, full name, servicer, and access by method."""
        registry, settings = self._registry, self._settings
        _, most = self._sizes(binding)
        if binding.roles & {"oip", "inference"}:
            servicer = oip.OpenInference(registry, most)
            for name in oip.NAMES:
                yield oip.SERVICE, name, servicer, oip.ACCESS
        if "inference" in binding.roles:
            native = torchserve.TorchServeInference(registry, settings, most)
            access = _for_all(torchserve.SERVICE, Access.INFERENCE)
            yield torchserve.SERVICE, torchserve.SERVICE.full_name, native, access
        if "management" in binding.roles:
            models = management.TorchServeManagement(registry, settings)
            access = _for_all(management.SERVICE, Access.MANAGEMENT)
            yield management.SERVICE, management.SERVICE.full_name, models, access

    def _open(self, server: grpc.aio.Server, binding: Binding) -> None:
        address = binding.address
        host = f"[{address.host}]" if ":" in address.host else address.host
        target = f"{host}:{address.port}"
        names = " and ".join(binding.settings)
        try:
            if self._settings.enable_grpc_ssl and binding.roles - {"oip"}:
                server.add_secure_port(target, self._credentials())
            else:
                server.add_insecure_port(target)
        except RuntimeError:
            raise SettingError(f"{names}: cannot listen on {target}; is the port in use?") from None

    def _credentials(self) -> grpc.ServerCredentials:
        """The key and certificate of https, for one port; each handshake asks for renewed ones."""
        files = identity(self._settings, self._registry.workdir)
        renewal = Renewal(files)

        def read() -> grpc.ServerCertificateConfiguration:
            contents = (files.key.read_bytes(), files.certificate.read_bytes())
            return grpc.ssl_server_certificate_configuration([contents])

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            return read() if renewal.is_due() else None

        return grpc.dynamic_ssl_server_credentials(read(), renewed)


def _checks(access: Mapping[str, Access], tokens: Tokens | None) -> dict[str, Authorise]:
    if tokens is None:
        return {}
    return {name: partial(tokens.check, kind) for name, kind in access.items()}


def _for_all(service: ServiceDescriptor, access: Access) -> dict[str, Access]:
    return {method.name: access for method in service.methods}
