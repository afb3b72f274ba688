"""Fetches an archive over HTTP: streamed, bounded, and never from inside the cluster.

A registration URL comes from a client, so it must not become a way into the cluster: unless the
operator set which URLs are allowed, it connects to addresses of the public Internet only. Then it
uses no proxy either, which would look up names by itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote
from urllib.request import getproxies

import httpx

from kserve_torch.errors import DownloadFailed, ServingError
from kserve_torch.redact import redacted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

log = logging.getLogger(__name__)

#: Largest archive, in bytes.
MAX_BYTES = 64 * 1024**3
#: Most redirects to follow; each target is checked like the first URL.
MAX_REDIRECTS = 5
#: Bytes between two lines of progress in the log.
_PROGRESS_BYTES = 256 * 1024**2
_CHUNK_BYTES = 1024**2
# No content coding: the file must arrive as it is.
_HEADERS = {"accept": "*/*", "accept-encoding": "identity"}
#: Seconds; the whole download has no limit of its own, an archive may be huge.
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
#: IPv4 addresses within IPv6 by a network's translation (RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: All IPv6 addresses that have been assigned to the Internet. Python takes others for global, such
#: as site-local ones, and those of translations that hold an IPv4 address of the cluster.
_ASSIGNED = ipaddress.ip_network("2000::/3")
#: Reserved for protocols (RFC 6890), where a cloud has its metadata service. Python before 3.12.4
#: takes most of it for global.
_RESERVED = ipaddress.ip_network("192.0.0.0/24")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: str) -> bool:
    """Whether an IP address, or the IPv4 address within it, belongs to the public Internet."""
    parsed: Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner is None and parsed not in _ASSIGNED:
            return False
        parsed = inner or parsed
    return parsed.is_global and not parsed.is_multicast and parsed not in _RESERVED


class PublicTransport(httpx.AsyncHTTPTransport):
    """Connects to public addresses only, and to the very address that was checked.

    A name is resolved only once: a hostile name server could give another address the second time.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request.

        Raises:
            DownloadFailed: the host has an address that is not public.
            httpx.ConnectError: the host's name is unknown.
        """
        host = request.url.host
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=await _public_address(host)),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        return await super().handle_async_request(pinned)


async def _public_address(host: str) -> str:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error
    addresses = [str(sockaddr[0]) for *_, sockaddr in found]
    if not all(map(is_public, addresses)):
        raise DownloadFailed(
            f"{host} is not a public address; allowed_urls must name it to allow it"
        )
    return addresses[0]


async def download(
    url: str,
    folder: Path,
    *,
    check: Callable[[str], None],
    public_only: bool,
) -> Path:
    """Fetch ``url`` into ``folder``; the file is named like the last part of its path.

    Args:
        url: an ``http`` or ``https`` URL.
        folder: exists; who has made it removes it if this fails or is cancelled.
        check: called with every URL that a redirect leads to; raises if it is not allowed.
        public_only: connect to addresses of the public Internet only, and directly; otherwise
            through the proxies that ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` say.

    Raises:
        DownloadFailed: it could not be fetched; the text says why.
        ServingError: what ``check`` raises.
    """
    shown = redacted(url)
    try:
        name = PurePosixPath(unquote(httpx.URL(url).path)).name
    except httpx.InvalidURL as error:
        raise DownloadFailed.of(shown, "it is no URL") from error
    target = folder / (name or "archive")
    try:
        # On a thread: it reads the system's certificates, which takes 30 to 200 ms.
        client = await asyncio.to_thread(_client, public_only)
        async with client, _opened(client, url, check) as response:
            await _save(response, target, shown)
    except (ServingError, httpx.HTTPError, OSError, ValueError) as error:
        log.warning("download of %s failed: %s", shown, error)
        if public_only and getproxies():
            log.info("no proxy was used: that needs allowed_urls")
        if isinstance(error, ServingError) and not isinstance(error, DownloadFailed):
            raise
        raise DownloadFailed.of(shown, _reason(error)) from error
    return target


def _client(public_only: bool) -> httpx.AsyncClient:
    transport = PublicTransport() if public_only else None
    try:
        return httpx.AsyncClient(transport=transport, timeout=_TIMEOUT, headers=_HEADERS)
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        log.warning("a proxy of the environment cannot be used: %s", error)
        raise DownloadFailed("the server's proxy settings are wrong") from error


def _reason(error: Exception) -> str:
    """Why it failed, without anything about the network behind the server."""
    if isinstance(error, DownloadFailed):
        return error.message
    if isinstance(error, httpx.TimeoutException):
        return "it did not answer in time"
    if isinstance(error, (httpx.TransportError, UnicodeError)):  # or the host can be no name
        return "the connection failed"
    return "it could not be stored"


@asynccontextmanager
async def _opened(
    client: httpx.AsyncClient, url: str, check: Callable[[str], None]
) -> AsyncIterator[httpx.Response]:
    """The final response after redirects, its body not yet read."""
    for _ in range(MAX_REDIRECTS + 1):
        async with client.stream("GET", url) as response:
            if response.next_request is None:
                if response.status_code != httpx.codes.OK:
                    raise DownloadFailed(f"it answered {response.status_code}")
                yield response
                return
            url = str(response.next_request.url)
        check(url)
    raise DownloadFailed(f"more than {MAX_REDIRECTS} redirects")


async def _save(response: httpx.Response, target: Path, shown: str) -> None:
    announced = int(response.headers.get("content-length", 0))
    if announced > MAX_BYTES:
        raise _too_large()
    log.info("downloading %s, %s", shown, f"{announced} bytes" if announced else "size unknown")
    size, next_line = 0, _PROGRESS_BYTES
    # Not on a thread: who is cancelled while it opens the file would never close it.
    file = target.open("xb")
    try:
        async for chunk in response.aiter_raw(_CHUNK_BYTES):
            size += len(chunk)
            if size > MAX_BYTES:
                raise _too_large()
            await asyncio.to_thread(file.write, chunk)
            if size >= next_line:
                log.info("downloading %s: %d of %s bytes", shown, size, announced or "?")
                next_line += _PROGRESS_BYTES
    finally:
        await asyncio.to_thread(file.close)
    log.info("downloaded %s, %d bytes", shown, size)


def _too_large() -> DownloadFailed:
    return DownloadFailed(f"it is larger than {MAX_BYTES} bytes")
