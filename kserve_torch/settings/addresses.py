"""Where to listen: addresses, and the sockets to open for all settings that name one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from kserve_torch.errors import SettingError
from kserve_torch.settings.kinds import Kind

ANYWHERE = "0.0.0.0"
LOCAL = "127.0.0.1"

_TCP = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[^:/\[\]\s]+)(?::(\d{1,5}))?/?", re.IGNORECASE)
_UNIX = re.compile(r"unix:(/.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An address to listen on.

    Attributes:
        scheme: ``http``, ``https``, ``unix`` or ``grpc``.
        host: a name or number, an IPv6 one without its brackets; "" for ``unix``.
        port: 1 to 65535; 0 for ``unix``.
        path: of the socket file; "" unless ``unix``.
    """

    scheme: str = "http"
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def endpoint(self) -> Hashable:
        """What only one socket can use: the port, or the socket file."""
        return self.path or self.port

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def address_kind(http: int, https: int) -> Kind[Address]:
    """Addresses in TorchServe's form; ``http`` and ``https`` are the default ports."""

    def read(text: str) -> Address:
        if unix := _UNIX.fullmatch(text):
            return Address(scheme="unix", path=unix[1])
        tcp = _TCP.fullmatch(text)
        if tcp is None:
            raise ValueError
        scheme = tcp[1].lower()
        port = int(tcp[3]) if tcp[3] else (https if scheme == "https" else http)
        if not 1 <= port <= 65535:
            raise ValueError
        return Address(scheme=scheme, host=tcp[2].strip("[]"), port=port)

    return Kind(read, "http://HOST[:PORT], https://HOST[:PORT] or unix:/PATH", "ADDRESS")


def _read_host(text: str) -> str:
    host = text.strip("[]")  # an IPv6 number may be in brackets, as in URLs
    if ":" in host:
        ipaddress.IPv6Address(host)
    elif "/" in host:
        raise ValueError
    return host


HOST = Kind(_read_host, "a host without scheme or port", "HOST")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One socket to open and what answers on it.

    Attributes:
        roles: of ``inference``, ``management``, ``metrics`` for HTTP; of ``oip``, ``inference``,
            ``management`` for gRPC.
        settings: names of the settings that asked for it.
    """

    address: Address
    roles: frozenset[str]
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """A setting that asks for a socket; ``given`` if its host and port were set."""

    setting: str
    address: Address
    role: str
    given: bool


def share(wishes: Iterable[Wish]) -> list[Binding]:
    """Settings that name the same port share one socket; an explicit address beats a default one.

    Raises:
        SettingError: two explicit addresses want one port on different hosts.
    """
    groups: dict[Hashable, list[Wish]] = {}
    for wish in wishes:
        groups.setdefault(wish.address.endpoint, []).append(wish)
    return [
        Binding(
            address=_decide(group),
            roles=frozenset(wish.role for wish in group),
            settings=tuple(wish.setting for wish in group),
        )
        for group in groups.values()
    ]


def _decide(group: Sequence[Wish]) -> Address:
    first, *others = [wish for wish in group if wish.given] or group[:1]
    for other in others:
        if other.address != first.address:
            raise SettingError(
                f"{other.setting}: {other.address} and {first.setting} {first.address} use the "
                "same port; give both the same address or different ports"
            )
    return first.address


def correct_host(host: str) -> str:
    """``127.0.0.0``, which TorchServe's own documents print, is a network; 127.0.0.1 is meant."""
    return LOCAL if host == "127.0.0.0" else host
