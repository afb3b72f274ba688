"""The management API and hostile archives: nobody gets in, nothing gets out."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ..makers import ECHO, make_archive, manifest
from .actor import V1, Client, store_of, talking_to, until


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
    assert not written & {"b", "é☃"}


# --- archives -------------------------------------------------------------------------------------


HOSTILE: dict[str, dict[str, str | bytes]] = {
    "evil.mar": {"../owned": b"x"},
    "outside.mar": {"MAR-INF/MANIFEST.json": manifest(handler="../../outside.py")},
    "deep.mar": {"MAR-INF/MANIFEST.json": "[" * 100_000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives(client: Client, folder: Path, name: str) -> None:
    make_archive(folder / "store" / name, {"handler.py": ECHO, **HOSTILE[name]}, modelName="evil")
    answer = client.http.post("/models", params={"url": name, "initial_workers": 1})
    assert 400 <= answer.status_code < 600, answer.text
    assert "Traceback" not in answer.text
    assert str(folder) not in answer.text
    (folder / "store" / name).unlink()


def test_nothing_stays_of_what_was_refused(client: Client, folder: Path) -> None:
    def written() -> list[str]:
        return [path.parent.name for path in folder.glob("kserve_torch-*/*/*")]

    until(lambda: written() == ["models"])  # m; folders are removed after the answers
