"""The management API and hostile archives: nobody gets in, nothing gets out."""

import http.server
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from ..hosts import hosting
from ..makers import ECHO, make_archive, manifest, write_tar
from ..server import ROOT
from .actor import GRPC, PROTOCOLS, V1, Client, store_of, talking_to


class Tricks(http.server.BaseHTTPRequestHandler):
    """An HTTP server inside the cluster that redirects to itself, and to files."""

    def do_GET(self) -> None:
        if self.path.startswith("/redirect/"):
            self.send_response(302)
            self.send_header("location", self.path.removeprefix("/redirect/"))
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-length", "6")
        self.end_headers()
        self.wfile.write(b"secret")

    def log_message(self, *args: object) -> None:
        seen.append(self.path)


seen: list[str] = []


@pytest.fixture(scope="module")
def inside() -> Iterator[str]:
    """The URL of a server that only insiders should reach."""
    with hosting(Tricks) as url:
        yield url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``store`` with a good model, and beside it what must not be reached."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "store").mkdir()
    store_of(folder / "store", m="")
    make_archive(folder / "outside.mar", {"handler.py": ECHO}, modelName="outside")
    (folder / "store" / "link.mar").symlink_to(folder / "outside.mar")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    environment = {"TMPDIR": str(folder)}
    options = ("--enable_model_api", "--load_models", "m.mar")
    with talking_to(folder / "store", *options, env=environment, cwd=folder) as client:
        client.http.base_url = client.server.inference_url
        yield client


def names(client: Client) -> list[str]:
    return [model["modelName"] for model in client.http.get("/models").json()["models"]]


@pytest.fixture(autouse=True)
def _nothing_got_in(client: Client) -> Iterator[None]:
    yield
    assert names(client) == ["m"]
    assert client.ask(V1, "m", "say on").ok
    assert not Path("/tmp/owned").exists()


@pytest.mark.parametrize(
    "url",
    [
        *("../outside.mar", "./../outside.mar", "m.mar/../../outside.mar", "/etc/passwd"),
        *("%2e%2e/outside.mar", "..%2foutside.mar", "..\\outside.mar", "link.mar", ".", "/", ""),
        *("m.mar\0.txt", "\0", "~/x.mar", "$HOME/x.mar", "//etc/passwd", "m.mar/", "a" * 5000),
        *(
            "file:///etc/passwd",
            "file://../outside.mar",
            "file:outside.mar",
            "file://%2fetc%2fpasswd",
        ),
        *(
            "ftp://localhost/a.mar",
            "gopher://localhost/",
            "s3://a/b.mar",
            "data:,x",
            "http://",
            "http:///",
        ),
        *("http://[::1/a.mar", "https://user:pass@/", "jar:file:///x!/y", "\n", "http://a\nb/"),
    ],
)
def test_tricks_in_the_url(client: Client, url: str) -> None:
    answer = client.http.post("/models", params={"url": url})
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()
    assert list(error) == ["code", "type", "message"]
    assert "root:" not in error["message"]
    assert "Traceback" not in error["message"]


@pytest.mark.parametrize(
    "host", ["localhost", "127.1", "0x7f.1", "0.0.0.0", "[::]", "[::ffff:7f00:1]"]
)
def test_addresses_inside_are_not_connected_to(client: Client, inside: str, host: str) -> None:
    port = inside.rpartition(":")[2]
    before = len(seen)
    answer = client.http.post("/models", params={"url": f"http://{host}:{port}/a.mar"})
    assert answer.status_code == 400
    assert answer.json()["type"] == "DownloadArchiveException"
    assert "secret" not in answer.text
    assert len(seen) == before


def test_redirects_are_checked_like_the_first_url(folder: Path, inside: str) -> None:
    allowed = f"{inside}/redirect/.*,{inside}/public/.*"
    options = ("--enable_model_api", "--load_models", "m.mar", "--allowed_urls", allowed)
    with talking_to(folder / "store", *options, cwd=folder) as client:
        client.http.base_url = client.server.inference_url
        for target in (f"{inside}/private/a.mar", "file:///etc/passwd", "/private/a.mar"):
            before = len(seen)
            answer = client.http.post("/models", params={"url": f"{inside}/redirect/{target}"})
            assert answer.status_code in (400, 404), answer.text
            assert [path for path in seen[before:] if not path.startswith("/redirect")] == []
        answer = client.http.post("/models", params={"url": f"{inside}/public/a.mar"})
        assert (answer.status_code, answer.json()["type"]) == (400, "InvalidModelException")
        assert seen[-1] == "/public/a.mar"
        loop = f"{inside}/redirect/" * 20
        assert client.http.post("/models", params={"url": loop}).status_code in (400, 404)


@pytest.mark.parametrize(
    "name", ["../m", "a/b", "..", ".", "", "a\0b", "a b\n", "%2e%2e", "a" * 3000, "/etc", "é☃"]
)
def test_tricks_in_the_name(client: Client, folder: Path, name: str) -> None:
    """Odd names are refused or are nothing but names; no file is made for them."""
    answer = client.http.post("/models", params={"url": "m.mar", "model_name": name})
    assert answer.status_code < 500
    for left in set(names(client)) - {"m"}:
        left = quote(left, safe="")
        assert client.http.post(f"/v2/repository/models/{left}/unload").status_code == 200
    # os.walk, for the server still removes folders of what was unloaded.
    written = {name for _, folders, files in os.walk(folder) for name in (*folders, *files)}
    assert not written & {"owned", "b", "é☃"}


# --- archives -------------------------------------------------------------------------------------


HOSTILE: dict[str, dict[str, str | bytes]] = {
    "evil.mar": {"../owned": b"x"},
    "outside.mar": {"MAR-INF/MANIFEST.json": manifest(handler="../../outside.py")},
    "deep.mar": {"MAR-INF/MANIFEST.json": "[" * 100_000},
}


def refused(client: Client, folder: Path, name: str) -> None:
    answer = client.http.post("/models", params={"url": name, "initial_workers": 1})
    assert 400 <= answer.status_code < 600, answer.text
    message = answer.json()["message"]
    assert "Traceback" not in message
    assert "root:" not in message
    assert str(folder) not in message
    assert not (folder / "owned").exists()
    (folder / "store" / name).unlink()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives(client: Client, folder: Path, name: str) -> None:
    make_archive(folder / "store" / name, {"handler.py": ECHO, **HOSTILE[name]}, modelName="evil")
    refused(client, folder, name)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_files_that_are_no_archives(client: Client, folder: Path, content: bytes) -> None:
    (folder / "store" / "evil.mar").write_bytes(content)
    refused(client, folder, "evil.mar")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_hostile_tars(client: Client, folder: Path, kind: bytes) -> None:
    entry = tarfile.TarInfo("model/x")
    entry.type, entry.linkname = kind, "/etc/passwd"
    contents = {"model/MAR-INF/MANIFEST.json": manifest(modelName="evil").encode()}
    write_tar(folder / "store" / "evil.tar.gz", contents, entry)
    refused(client, folder, "evil.tar.gz")


def test_nothing_stays_of_what_was_refused(client: Client, folder: Path) -> None:
    written = [path.parent.name for path in folder.glob("kserve_torch-*/*/*")]
    assert written == ["models"]  # m


def test_changes_need_the_model_api(folder: Path) -> None:
    with talking_to(folder / "store", "--load_models", "m.mar", cwd=folder) as client:
        url = client.server.inference_url
        for method, path in (("POST", "/models?url=m.mar"), ("DELETE", "/models/m")):
            answer = httpx.request(method, url + path, trust_env=False)
            assert (answer.status_code, answer.json()["code"]) == (405, 405)
        # It answers on its own port only.
        assert client.http.get("/models").status_code == 404


# --- keys -----------------------------------------------------------------------------------------


def test_keys(folder: Path, tmp_path: Path) -> None:
    options = ("--enable_model_api", "--load_models", "m.mar")
    options += ("--disable_token_authorization", "false", "--log_level", "debug")
    with talking_to(folder / "store", *options, cwd=tmp_path) as client:
        file = tmp_path / "key_file.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        keys = {name: entry["key"] for name, entry in json.loads(file.read_text()).items()}
        right = {"authorization": f"Bearer {keys['inference']}"}
        wrong = ("", "Bearer", "Bearer x", f"Bearer {keys['management']}", keys["inference"])
        for protocol in PROTOCOLS:
            if protocol == GRPC:
                metadata = (("authorization", right["authorization"]),)
                assert client.ask(GRPC, "m", "say yes", metadata=metadata).ok
                assert not client.ask(GRPC, "m", "say no").ok
                continue
            assert client.ask(protocol, "m", "say yes", headers=right).ok
            for value in wrong:
                refusal = client.ask(protocol, "m", "say no", headers={"authorization": value})
                assert refusal.status in (400, 401, 403)
        assert client.http.get("/v2/health/live").status_code == 200  # a probe has no key
        management = {"authorization": f"Bearer {keys['management']}"}
        url = client.server.inference_url + "/models"
        assert httpx.get(url, headers=management, trust_env=False).status_code == 200
        assert httpx.get(url, headers=right, trust_env=False).status_code == 400
        assert not any(key in client.server.log for key in keys.values())
        for path in ("/metrics", "/models/m", "/v2/models/m"):
            text = client.http.get(path, headers=management).text
            assert not any(key in text for key in keys.values())


def test_settings_show_no_secret(folder: Path) -> None:
    command = [sys.executable, "-m", "kserve_torch", "--print-settings"]
    config = folder / "secret.properties"
    config.write_text("keystore_pass=opensesame\n")
    shown = subprocess.run(
        [*command, "--model_dir", folder / "store", "--ts-config", config],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "keystore_pass" in shown.stdout
    assert "opensesame" not in shown.stdout + shown.stderr
