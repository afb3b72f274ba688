"""Bytes to the server and back, without a client that knows better."""

from __future__ import annotations

import socket

from ..server import Server

Sent = tuple[int, dict[str, str], bytes]


class Client:
    """One connection."""

    def __init__(self, server: Server) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=20)
        self._file = self.sock.makefile("rb")

    def send(self, *pieces: bytes) -> None:
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            self.sock.sendall(piece)

    def answer(self) -> Sent:
        status, headers = self.head()
        return status, headers, self._file.read(int(headers["content-length"]))

    def head(self) -> tuple[int, dict[str, str]]:
        status = int(self._file.readline().split()[1])
        headers = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        return status, headers

    def lines(self, count: int) -> list[bytes]:
        """What comes next."""
        return [self._file.readline().rstrip() for _ in range(count)]

    def rest(self) -> bytes:
        """All that comes until the end of the connection."""
        return self._file.read()

    def ended(self) -> bool:
        return self._file.read(1) == b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self.sock.close()


def post(row: str, version: str = "1.1", *headers: str) -> bytes:
    body = b'{"instances": ["%s"]}' % row.encode()
    lines = [
        f"POST /v1/models/m:predict HTTP/{version}",
        "Host: m",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def predicted(row: str) -> bytes:
    return b'{"predictions":["%s"]}' % row.encode()
