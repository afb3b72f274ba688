"""The sockets of HTTP: bound before the models load, listening after."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from kserve_torch.errors import SettingError
from kserve_torch.settings.addresses import ANYWHERE, Address, Binding

_MOST_MILLISECONDS = 2**31 - 1
#: How often each socket is given to the event loop. uvloop accepts one connection per socket in
#: each of its turns (libuv 1.45), and a turn takes up to 60 ms while many models compute: of 200
#: clients that connect at once, the last would wait for seconds behind the requests of the first.
_TIMES = 16


class Listener:
    """A bound socket that does not listen yet: nothing can connect before the models are loaded.

    Args:
        binding: where to listen; errors name its settings.

    Attributes:
        binding: as given.
        sock: the socket.
        copies: the socket, and duplicates of it that accept beside it; once it listens.

    Raises:
        SettingError: the address is taken, or not one of this machine.
    """

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self._address = binding.address
        self._file: os.stat_result | None = None
        self.copies: list[socket.socket] = []
        try:
            self.sock = socket.socket(_family(self._address))
        except (OSError, UnicodeError) as error:  # the host's name is unknown, or cannot be one
            raise self._impossible(error) from None
        try:
            self._bind()
        except OSError as error:
            self.sock.close()
            raise self._impossible(error) from None

    def _bind(self) -> None:
        address = self._address
        if self.sock.family == socket.AF_UNIX:
            _remove_leftover(Path(address.path))
            self.sock.bind(address.path)
            self._file = Path(address.path).stat()
            return
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host = address.host
        if host == ANYWHERE and self.sock.family == socket.AF_INET6:
            self.sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            host = "::"
        self.sock.bind((host, address.port))

    def listen(self, patience: float) -> None:
        """Let clients connect.

        Args:
            patience: seconds after which Linux closes a connection whose client does not accept the
                data that waits for it, be it here, in TLS or in the kernel. Linux's own rule is
                some fifteen minutes if the client is gone, no limit if it only does not read.

        Raises:
            SettingError: a server that was started at the same time has the port, or the path.
        """
        if self._file is not None and not self._is_in_place(self._file):
            raise self._impossible(OSError("the socket file was removed or replaced meanwhile"))
        if sys.platform == "linux" and self.sock.family != socket.AF_UNIX:
            milliseconds = int(min(1000 * patience, _MOST_MILLISECONDS))
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        try:
            self.sock.listen(2048)
            self.copies = [self.sock, *(self.sock.dup() for _ in range(_TIMES - 1))]
        except OSError as error:
            raise self._impossible(error) from None

    def close(self) -> None:
        """Close it, and remove its socket file unless another server has replaced that."""
        if self._file is not None and self._is_in_place(self._file):
            Path(self._address.path).unlink(missing_ok=True)
        for sock in (self.sock, *self.copies):
            sock.close()

    def _is_in_place(self, file: os.stat_result) -> bool:
        """Whether the path has this file, which others take for a leftover until it listens."""
        try:
            return os.path.samestat(file, os.stat(self._address.path))
        except FileNotFoundError:
            return False

    def _impossible(self, error: OSError | UnicodeError) -> SettingError:
        names = " and ".join(self.binding.settings)
        reason = getattr(error, "strerror", None) or error
        return SettingError(f"{names}: cannot listen on {self._address}: {reason}")


def _family(address: Address) -> socket.AddressFamily:
    if address.scheme == "unix":
        return socket.AF_UNIX
    # Anywhere is IPv6 too, as with the JVM and gRPC: pods may have no other address.
    if address.host == ANYWHERE and socket.has_dualstack_ipv6():
        return socket.AF_INET6
    found = {family for family, *_ in socket.getaddrinfo(address.host, None)}
    return socket.AF_INET if socket.AF_INET in found else socket.AF_INET6


def _remove_leftover(path: Path) -> None:
    """Remove the socket file of a server that is gone, but no other file."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe, suppress(BlockingIOError):
        probe.setblocking(False)  # else it would wait for a server whose backlog is full
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
