"""Archives over HTTP: whole or not at all, from where it is allowed, through a proxy."""

import asyncio
import gzip
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from kserve_torch.archives import download
from kserve_torch.archives.download import is_public
from kserve_torch.archives.store import ModelStore
from kserve_torch.errors import DownloadFailed, LoadFailed, ModelNotFound
from kserve_torch.settings import Settings

from ..hosts import serving
from .stores import CONTENT, allowing, workdir


class Host(ThreadingHTTPServer):
    """Serves ``/a.mar`` and misbehaves on other paths."""

    daemon_threads = False

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.release = threading.Event()
        super().__init__(("127.0.0.1", 0), Responder)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Responder(BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Host"]))
        name = self.path.partition("?")[0].strip("/").rpartition("/")[2]
        getattr(self, f"answer_{name.partition('.')[0]}", self.answer_a)()

    def start(self, status: int = 200, **headers: str | int) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header.replace("_", "-"), str(value))
        self.end_headers()

    def answer_a(self) -> None:
        self.start(Content_Length=len(CONTENT))
        self.wfile.write(CONTENT)

    def answer_unsized(self) -> None:
        self.start()
        self.wfile.write(CONTENT)

    def answer_coded(self) -> None:
        body = gzip.compress(CONTENT)
        self.start(Content_Length=len(body), Content_Encoding="gzip")
        self.wfile.write(body)

    def answer_cut(self) -> None:
        self.start(Content_Length=len(CONTENT) + 1)
        self.wfile.write(CONTENT)

    def answer_missing(self) -> None:
        self.start(404, Content_Length=0)

    def answer_partial(self) -> None:
        self.start(206, Content_Length=0)

    def answer_moved(self) -> None:
        self.start(302, Location="/a.mar", Content_Length=0)

    def answer_away(self) -> None:
        self.start(302, Location=self.path.partition("?")[2], Content_Length=0)

    def answer_circle(self) -> None:
        self.start(302, Location=self.path, Content_Length=0)

    def answer_slow(self) -> None:
        self.start(Content_Length=len(CONTENT))
        self.wfile.write(CONTENT[:100])
        self.wfile.flush()
        self.server.release.wait()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def host() -> Iterator[Host]:
    server = Host()
    with serving(server):
        yield server
        server.release.set()


@pytest.fixture
def open_store(folder: Path, host: Host) -> ModelStore:
    """A store that may fetch from the host."""
    return allowing(folder, re.escape(host.url) + "/.*")


def left(tmp_path: Path) -> list[Path]:
    return list(workdir(tmp_path / "store").glob("downloads/*/*"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.mar", "a.mar"),
        ("x/a%20b.mar?token=secret", "a b.mar"),
        ("unsized.tar.gz", "unsized.tar.gz"),
        ("moved.mar", "moved.mar"),
        ("", "archive"),
        ("x%2Fy.mar", "y.mar"),
    ],
)
async def test_download(open_store: ModelStore, host: Host, path: str, name: str) -> None:
    file = await open_store.resolve(f"{host.url}/{path}")
    assert (file.name, file.read_bytes()) == (name, CONTENT)


async def test_each_download_has_a_folder_of_its_own(
    open_store: ModelStore, host: Host, tmp_path: Path
) -> None:
    first = await open_store.resolve(f"{host.url}/a.mar")
    second = await open_store.resolve(f"{host.url}/a.mar")
    assert first != second
    open_store.discard(first)
    assert left(tmp_path) == [second]


async def test_certificates_are_not_read_on_the_loop(
    open_store: ModelStore, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[threading.Thread] = []

    class Client(httpx.AsyncClient):
        def __init__(self, **options: Any) -> None:
            made.append(threading.current_thread())
            super().__init__(**options)

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    await open_store.resolve(f"{host.url}/a.mar")
    assert made
    assert threading.main_thread() not in made


async def test_a_content_coding_is_left_on(open_store: ModelStore, host: Host) -> None:
    file = await open_store.resolve(f"{host.url}/coded.tar.gz")
    assert gzip.decompress(file.read_bytes()) == CONTENT


async def test_progress_is_logged_and_secrets_are_not(
    folder: Path,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(download, "_PROGRESS_BYTES", 1)
    monkeypatch.setattr(download, "_CHUNK_BYTES", 8192)
    store = allowing(folder, ".*")
    with caplog.at_level("INFO", "kserve_torch"):
        await store.resolve(f"{host.url}/a.mar?token=secret".replace("//", "//me:pw@", 1))
    lines = [record.getMessage() for record in caplog.records if "kserve" in record.name]
    assert lines[0] == f"downloading {host.url}/a.mar, 16384 bytes"
    assert lines[1] == f"downloading {host.url}/a.mar: 8192 of 16384 bytes"
    assert lines[-1] == f"downloaded {host.url}/a.mar, 16384 bytes"
    assert not any("secret" in line or "pw" in line for line in lines)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing.mar", "it answered 404"),
        ("partial.mar", "it answered 206"),
        ("cut.mar", "the connection failed"),
        ("circle.mar", "more than 5 redirects"),
    ],
)
async def test_a_download_that_fails_leaves_nothing(
    open_store: ModelStore, host: Host, tmp_path: Path, path: str, why: str
) -> None:
    url = f"{host.url}/{path}"
    with pytest.raises(DownloadFailed) as caught:
        await open_store.resolve(url)
    assert caught.value.message == f"Failed to download archive from: {url}: {why}"
    assert left(tmp_path) == []


async def test_a_download_that_fails_does_not_tell_secrets(folder: Path, host: Host) -> None:
    url = f"{host.url}/missing.mar"
    with pytest.raises(DownloadFailed) as caught:
        await allowing(folder, ".*").resolve(url.replace("//", "//me:pw@", 1) + "?token=secret")
    message = f"Failed to download archive from: {url}: it answered 404"
    assert caught.value.message == message


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/a.mar", "file:///etc/passwd", "//evil/"])
async def test_a_redirect_to_what_is_not_allowed(
    open_store: ModelStore, host: Host, target: str
) -> None:
    with pytest.raises(ModelNotFound, match="does not match any allowed URL"):
        await open_store.resolve(f"{host.url}/away.mar?{target}")
    assert len(host.asked) == 1


async def test_a_redirect_does_not_tell_secrets(open_store: ModelStore, host: Host) -> None:
    target = "http://me:pw@storage.example/a.mar?signature=secret"
    with pytest.raises(ModelNotFound) as caught:
        await open_store.resolve(f"{host.url}/away.mar?{target}")
    message = "Given URL http://storage.example/a.mar does not match any allowed URL(s)"
    assert caught.value.message == message


@pytest.mark.parametrize("path", ["a.mar", "unsized.mar"])
async def test_too_large(
    open_store: ModelStore, host: Host, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", len(CONTENT) - 1)
    with pytest.raises(DownloadFailed, match="larger than 16383 bytes"):
        await open_store.resolve(f"{host.url}/{path}")
    assert left(tmp_path) == []


async def begun(store: ModelStore, host: Host, tmp_path: Path) -> asyncio.Future[Path]:
    """A download that has written something and waits for more."""
    fetching = asyncio.ensure_future(store.resolve(f"{host.url}/slow.mar"))
    async with asyncio.timeout(10):
        while not left(tmp_path):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    return fetching


async def test_a_cancelled_download_leaves_nothing(
    open_store: ModelStore, host: Host, tmp_path: Path
) -> None:
    fetching = await begun(open_store, host, tmp_path)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert left(tmp_path) == []


async def test_the_folder_may_be_removed_before_a_cancelled_download_has_tidied_up(
    open_store: ModelStore, folder: Path, host: Host, tmp_path: Path
) -> None:
    fetching = await begun(open_store, host, tmp_path)
    fetching.cancel()
    shutil.rmtree(workdir(folder))
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert left(tmp_path) == []


async def test_nobody_listens(folder: Path) -> None:
    url = "http://127.0.0.1:1/a.mar"
    with pytest.raises(DownloadFailed, match="the connection failed"):
        await allowing(folder, ".*").resolve(url)


async def test_a_name_that_is_unknown(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(DownloadFailed, match="the connection failed"):
        await store.resolve("http://models.example/a.mar")


async def test_a_host_that_falls_silent(
    open_store: ModelStore, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_TIMEOUT", httpx.Timeout(10.0, read=0.05))
    async with asyncio.timeout(4):  # httpx's own patience is longer
        with pytest.raises(DownloadFailed, match="it did not answer in time"):
            await open_store.resolve(f"{host.url}/slow.mar")


@pytest.mark.parametrize(
    "url", ["http://", "http://host:x/a.mar", "http://[::1/a.mar", "http://me:x#secret@host/a.mar"]
)
async def test_urls_that_cannot_be_read(folder: Path, url: str) -> None:
    with pytest.raises(DownloadFailed, match="Failed to download archive from: http") as caught:
        await allowing(folder, ".*").resolve(url)
    assert "secret" not in caught.value.message


async def test_a_file_name_that_cannot_be_one(open_store: ModelStore, host: Host) -> None:
    with pytest.raises(DownloadFailed, match="it could not be stored"):
        await open_store.resolve(f"{host.url}/%00.mar")


async def test_a_work_folder_that_cannot_be_written_to(folder: Path, host: Host) -> None:
    workdir(folder).write_text("no folder")
    with pytest.raises(LoadFailed, match="the work folder cannot be written to"):
        await allowing(folder, ".*").resolve(f"{host.url}/a.mar")


@pytest.mark.parametrize("host", ["..", "models..example", "a" * 64, "xn--a"])
async def test_hosts_that_cannot_be_names(store: ModelStore, folder: Path, host: str) -> None:
    for any_store in (store, allowing(folder, ".*")):
        with pytest.raises(DownloadFailed, match="the connection failed"):
            await any_store.resolve(f"https://{host}/a.mar")


async def test_a_proxy_of_the_environment(
    folder: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", host.url)
    url = "http://models.example/a.mar"
    file = await allowing(folder, ".*").resolve(url)
    assert file.read_bytes() == CONTENT
    assert host.asked == [(url, "models.example")]


async def test_hosts_that_need_no_proxy(
    folder: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    file = await allowing(folder, ".*").resolve(f"{host.url}/a.mar")
    assert file.read_bytes() == CONTENT


async def test_no_proxy_where_addresses_are_checked(
    store: ModelStore, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kserve_torch")
    monkeypatch.setenv("HTTP_PROXY", host.url)
    with pytest.raises(DownloadFailed, match="is not a public address"):
        await store.resolve("http://127.0.0.1:1/a.mar")
    assert host.asked == []
    assert "no proxy was used: that needs allowed_urls" in caplog.text


@pytest.mark.parametrize("proxy", ["socks5://me:secret@127.0.0.1:1", "gopher://x", "http://[::1"])
async def test_a_proxy_that_cannot_be_used(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    proxy: str,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(DownloadFailed, match="the server's proxy settings are wrong"):
        await allowing(folder, ".*").resolve("http://models.example/a.mar")
    assert "a proxy of the environment cannot be used" in caplog.text
    assert "secret" not in caplog.text
    assert left(tmp_path) == []


async def test_addresses_of_the_cluster_are_refused_by_default(
    store: ModelStore, host: Host
) -> None:
    for name in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f000001", "2130706433"):
        url = host.url.replace("127.0.0.1", name) + "/a.mar"
        with pytest.raises(DownloadFailed) as caught:
            await store.resolve(url)
        assert "is not a public address; allowed_urls must name it" in caught.value.message
    assert host.asked == []


async def test_addresses_of_the_cluster_that_the_configuration_names(
    store: ModelStore, host: Host
) -> None:
    store.configure([host.url + "/a.mar"])
    path = await store.resolve(host.url + "/a.mar")
    assert path.read_bytes() == CONTENT
    with pytest.raises(DownloadFailed, match="is not a public address"):
        await store.resolve(host.url + "/b.mar")


async def test_the_address_that_was_checked_is_the_one_connected_to(
    folder: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that would be public at first and local the second time it is resolved."""
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])
    loop = asyncio.get_running_loop()

    async def getaddrinfo(*args: object, **kwargs: object) -> list[tuple[object, ...]]:
        return [(None, None, None, "", (address, 0)) for address in next(answers)]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(download, "is_public", lambda address: address == "127.0.0.1")
    store = ModelStore(Settings(model_store=folder), workdir(folder))
    port = host.server_port
    file = await store.resolve(f"http://models.example:{port}/a.mar")
    assert file.read_bytes() == CONTENT
    assert host.asked == [("/a.mar", f"models.example:{port}")]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "192.0.0.192",
        "::ffff:192.0.0.192",
        "fec0::1",
        "5f00::1",
        "::169.254.169.254",
        "::ffff:0:a9fe:a9fe",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "2002:7f00:1::",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::"],
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)
