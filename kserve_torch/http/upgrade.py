"""Requests that ask for another protocol: they are served as if they had not (RFC 9110 7.8)."""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def feed_without_upgrade(protocol: HttpToolsProtocol, rest: memoryview) -> None:
    """Parse a head that asks for an upgrade once more, without that, and what follows it.

    The parser takes the bytes after such a head for another protocol: it would drop the body, and
    then parse it as the next request. So a new parser starts over with the head.

    Args:
        protocol: the connection, whose parser has just raised `HttpParserUpgrade`.
        rest: the bytes after the head.

    Raises:
        HttpParserError: this is no HTTP, or it is CONNECT, which cannot be served otherwise.
    """
    while True:
        if protocol.parser.get_method() == b"CONNECT":
            raise HttpParserError("there is no tunnel here")
        head = _head_without_upgrade(protocol)
        protocol.parser = HttpRequestParser(protocol)
        protocol.parser.feed_data(head)
        try:
            protocol.parser.feed_data(rest)
        except HttpParserUpgrade as upgrade:
            rest = rest[upgrade.args[0] :]
        else:
            return


def _head_without_upgrade(protocol: HttpToolsProtocol) -> bytes:
    parser = protocol.parser
    version = parser.get_http_version().encode()
    first = b"%b %b HTTP/%b" % (parser.get_method(), protocol.url, version)
    fields = [b"%b: %b" % field for field in protocol.headers if field[0] != b"upgrade"]
    return b"\r\n".join((first, *fields, b"", b""))
