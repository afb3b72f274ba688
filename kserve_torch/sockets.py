"""The sockets of HTTP: bound before the models load, listening after."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kserve_torch.errors import SettingError
from kserve_torch.settings.addresses import Address

_MOST_MILLISECONDS = 2**31 - 1


class Listener:
    """A bound socket that does not listen yet: nothing can connect before the models are loaded.

    Args:
        address: where to listen.
        settings: names of the settings that give the address, for the error.

    Attributes:
        address: as given.
        sock: the socket.

    Raises:
        SettingError: the address is taken, or not one of this machine.
    """

    def __init__(self, address: Address, settings: Sequence[str] = ()) -> None:
        self.address = address
        self._settings = settings
        self._file: os.stat_result | None = None
        try:
            self.sock = socket.socket(_family(address))
        except OSError as error:  # the host's name is unknown
            raise self._impossible(error) from None
        try:
            self._bind()
        except OSError as error:
            self.sock.close()
            raise self._impossible(error) from None

    def _bind(self) -> None:
        address = self.address
        if self.sock.family == socket.AF_UNIX:
            _remove_leftover(Path(address.path))
            self.sock.bind(address.path)
            self._file = Path(address.path).stat()
        else:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.sock.bind((address.host, address.port))

    def listen(self, patience: float = 0.0) -> None:
        """Let clients connect.

        Args:
            patience: seconds after which Linux closes a connection whose client does not accept the
                data that waits for it, be it here, in TLS or in the kernel. 0 is Linux's own rule:
                some fifteen minutes if the client is gone, no limit if it only does not read.

        Raises:
            SettingError: a server that was started at the same time was faster.
        """
        if sys.platform == "linux" and self.sock.family != socket.AF_UNIX:
            milliseconds = int(min(1000 * patience, _MOST_MILLISECONDS))
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        try:
            self.sock.listen(2048)
        except OSError as error:
            raise self._impossible(error) from None

    def close(self) -> None:
        """Close it, and remove its socket file unless another server has replaced that."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(self._file, os.stat(self.address.path)):
                    os.unlink(self.address.path)
            self._file = None
        self.sock.close()

    def _impossible(self, error: OSError) -> SettingError:
        names = " and ".join(self._settings)
        text = f"cannot listen at {self.address}: {error.strerror or error}"
        return SettingError(f"{names}: {text}" if names else text)


def _family(address: Address) -> socket.AddressFamily:
    if address.scheme == "unix":
        return socket.AF_UNIX
    if ":" in address.host:
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
