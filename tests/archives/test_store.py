"""Archives found in the store, by file URL and over HTTP."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kserve_torch.archives.store import ModelStore
from kserve_torch.errors import DownloadFailed, ModelNotFound
from kserve_torch.settings import Settings

from ..unprivileged import locked_folder, unprivileged
from .stores import CONTENT, allowing, workdir

# --- within the store -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("a.mar", "a.mar"),
        ("a..b.mar", "a..b.mar"),
        ("./a.mar", "a.mar"),
        ("sub/d.mar", "sub/d.mar"),
        ("sub//d.mar", "sub/d.mar"),
        ("model-store/a.mar", "a.mar"),
        ("sub/a.mar", "a.mar"),
        ("/home/model-server/model-store/a.mar", "a.mar"),
        ("unpacked", "unpacked"),
        ("link.mar", "a.mar"),
        ("%41.mar", "%41.mar"),
    ],
)
async def test_names(store: ModelStore, folder: Path, url: str, file: str) -> None:
    assert await store.resolve(url) == folder / file


async def test_an_absolute_path_within_the_store(store: ModelStore, folder: Path) -> None:
    assert await store.resolve(str(folder / "a.mar")) == folder / "a.mar"


async def test_a_relative_store_stays_where_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where threads share a working directory, a model that loads changes it for all."""
    monkeypatch.chdir(folder.parent)
    store = ModelStore(Settings(model_store=Path(folder.name)), workdir(folder))
    monkeypatch.chdir(folder / "unpacked")
    assert await store.resolve("a.mar") == folder / "a.mar"
    assert store.by_name("a") == "a.mar"


async def test_a_store_behind_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mnt").symlink_to(folder)
    linked = ModelStore(Settings(model_store=tmp_path / "mnt"), workdir(folder))
    assert await linked.resolve("a.mar") == folder / "a.mar"


@pytest.fixture
def container(folder: Path) -> Iterator[Path]:
    """The same store in another container, as KServe's modelcars show it to this one."""
    inside = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"]).returncode:
        pytest.skip("no namespaces here")
    script = f"""
        mkdir {folder}-there && mount -t tmpfs none {folder}-there &&
        cp -r --no-dereference {folder} {folder}-there/ && echo ready && cat
    """
    with subprocess.Popen(
        [*inside, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        link = folder.with_name("mnt")
        link.symlink_to(f"/proc/{process.pid}/root{folder}-there/store")
        yield link
        process.stdin.close()


async def test_a_store_in_another_container(container: Path) -> None:
    store = ModelStore(Settings(model_store=container), workdir(container))
    assert await store.resolve("sub//d.mar") == container / "sub/d.mar"
    assert await store.resolve(f"{container}/a.mar") == container / "a.mar"
    open_store = allowing(container, ".*")
    assert await open_store.resolve(f"file://{container}/a.mar") == container / "a.mar"
    assert store.by_name("unpacked") == "unpacked"
    for name in ("link.mar", "escape.mar", "/etc/passwd", ".", "b.mar", "loop.mar"):
        with pytest.raises(ModelNotFound):
            await store.resolve(name)


@pytest.mark.parametrize(
    "url",
    [
        "nope.mar",
        ".mar",
        ".",
        "/",
        "/etc/passwd",
        "sub/nope.mar",
        "escape.mar",
        "loop.mar",
        "a.mar/x",
        "a\0.mar",
        "x" * 5000,
        "ftp://host/a.mar",
        "s3://bucket/a.mar",
        "HTTPX://host/a.mar",
    ],
)
async def test_names_of_nothing(store: ModelStore, url: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        await store.resolve(url)
    assert caught.value.message == f"Model not found at: {url}"


async def test_a_link_that_the_configuration_names(folder: Path, store: ModelStore) -> None:
    store.configure(["escape.mar", "loop.mar", "/etc/passwd", "."])
    for url in ("escape.mar", "./escape.mar"):
        assert await store.resolve(url) == folder.parent / "outside.mar"
    for url in ("loop.mar", "/etc/passwd", "."):
        with pytest.raises(ModelNotFound):
            await store.resolve(url)
    store.configure(["store/escape.mar"])
    assert await store.resolve("store/escape.mar") == folder.parent / "outside.mar"


async def test_a_store_that_cannot_be_read() -> None:
    """The configuration's models are told why; clients may not look around."""
    with locked_folder() as folder:
        store = ModelStore(Settings(model_store=folder), workdir(folder))
        store.configure(["a.mar"])
        with unprivileged():
            for name, why in (("a.mar", ": Permission denied"), ("b.mar", "")):
                with pytest.raises(ModelNotFound) as caught:
                    await store.resolve(name)
                assert caught.value.message == f"Model not found at: {name}{why}"


async def test_a_sibling_with_the_same_prefix(store: ModelStore, folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="Model not found at"):
        await store.resolve(f"{folder}-too/x.mar")


@pytest.mark.parametrize(
    "url",
    [
        "..",
        "../outside.mar",
        "sub/../a.mar",
        "sub/../../outside.mar",
        "file:///tmp/../etc/passwd",
        "file:///tmp/%2e%2e/etc/passwd",
        "http://host/../a.mar",
        "http://host/%2E%2E/a.mar",
    ],
)
async def test_relative_paths(store: ModelStore, url: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        await store.resolve(url)
    assert caught.value.message == f"Relative path is not allowed in url: {url}"


async def test_no_url(store: ModelStore) -> None:
    with pytest.raises(ModelNotFound, match=r"^empty url$"):
        await store.resolve("")


async def test_no_store(tmp_path: Path) -> None:
    store = ModelStore(Settings(), tmp_path)
    with pytest.raises(ModelNotFound, match="Model store has not been configured"):
        await store.resolve("a.mar")
    assert store.by_name("a") is None


async def test_the_model_folder_serves_as_a_store(folder: Path) -> None:
    store = ModelStore(Settings(model_dir=folder), workdir(folder))
    assert await store.resolve("a.mar") == folder / "a.mar"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a", "a.mar"),
        ("c", "c.tar.gz"),
        ("e", "e.model"),
        ("unpacked", "unpacked"),
        ("a.mar", "a.mar"),
        ("nope", None),
        ("escape", None),
        ("..", None),
        (".", None),
        ("", None),
        ("sub/d", None),
        ("/etc", None),
        ("file:", None),
    ],
)
def test_by_name(store: ModelStore, name: str, source: str | None) -> None:
    assert store.by_name(name) == source


# --- file URLs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["file://", "FILE://localhost"])
async def test_file_url(store: ModelStore, tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "with space.mar"
    file.write_bytes(CONTENT)
    assert await store.resolve(f"{prefix}{tmp_path}/with%20space.mar") == file
    store.discard(file)
    assert file.exists()


@pytest.mark.parametrize("url", ["file:///no/nope.mar", "file://host/etc/passwd", "file:///%00"])
async def test_file_url_of_nothing(store: ModelStore, url: str) -> None:
    with pytest.raises(DownloadFailed) as caught:
        await store.resolve(url)
    assert caught.value.message == f"Failed to download archive from: {url}"


# --- allowed URLs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("file:///etc/passwd", "file:///etc/passwd"),
        ("http://models.example/a.mar", "http://models.example/a.mar"),
        ("https://models.example/b.mar", "https://models.example/b.mar"),
        ("https://models.example/a.mar/more", "https://models.example/a.mar/more"),
        ("https://evil.example/?https://models.example/a.mar", "https://evil.example/"),
        ("https://models.example@evil.example/a.mar", "https://evil.example/a.mar"),
    ],
)
async def test_urls_that_are_not_allowed(folder: Path, url: str, shown: str) -> None:
    strict = allowing(folder, r"https://models\.example/a\.mar", "")
    with pytest.raises(ModelNotFound) as caught:
        await strict.resolve(url)
    assert caught.value.message == f"Given URL {shown} does not match any allowed URL(s)"


async def test_names_need_not_be_allowed(folder: Path) -> None:
    assert await allowing(folder, "nothing").resolve("a.mar") == folder / "a.mar"


# --- what errors show of the configuration, which every client can read ---------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/no/nope.mar", "Model not found at: nope.mar"),
        ("/no/../nope.mar", "Relative path is not allowed in url: nope.mar"),
        ("file:///no/nope.mar", "Failed to download archive from: nope.mar"),
        ("s3://me:pw@bucket/nope.mar?token=secret", "Model not found at: nope.mar"),
        (
            "http://me:pw@host/../a.mar?token=secret",
            "Relative path is not allowed in url: http://host/../a.mar",
        ),
        (
            "http://me:pw@host/a.mar?token=secret",
            "Given URL http://host/a.mar does not match any allowed URL(s)",
        ),
    ],
)
async def test_configured_models_show_no_secrets_and_no_folders(
    folder: Path, url: str, message: str
) -> None:
    store = allowing(folder, "file://.*")
    store.configure([url])
    with pytest.raises((ModelNotFound, DownloadFailed)) as caught:
        await store.resolve(url)
    assert caught.value.message == message


# --- inside of the cluster ------------------------------------------------------------------------


def test_the_store_is_never_written_to(folder: Path, store: ModelStore) -> None:
    before = sorted(os.walk(folder))
    store.discard(folder / "a.mar")
    store.discard(folder / "sub/d.mar")
    assert sorted(os.walk(folder)) == before
