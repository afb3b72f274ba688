"""Finds the archive that a registration names: in the model store, by ``file:`` or over HTTP.

Names are the client's words, so a path counts only after it was resolved and found inside of the
store (CONTRACT A8, A9, T-45). Who configures the server may have linked archives into it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kserve_torch.archives.folders import PACKED, fresh_folder
from kserve_torch.errors import DownloadFailed, ModelNotFound
from kserve_torch.redact import redacted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kserve_torch.settings import Settings

_SCHEME = re.compile(r"(file|https?)://", re.IGNORECASE)


class ModelStore:
    """The folder of archives, and what may be fetched from elsewhere.

    Args:
        settings: ``model_store`` (or else ``model_dir``) and ``allowed_urls``.
        workdir: downloads go below it.
    """

    def __init__(self, settings: Settings, workdir: Path) -> None:
        root = settings.model_store or settings.model_dir
        self._root = root and root.absolute()  # a model that loads may change the directory
        self._allowed = settings.allowed_urls
        # Hosts that somebody has named may be anywhere, also in the cluster; by default every URL
        # is allowed, which names none.
        self._public_only = not settings.given("allowed_urls")
        self._configured: frozenset[str] = frozenset()
        self._downloads = workdir / "downloads"

    def configure(self, names: Iterable[str]) -> None:
        """Trust these names and URLs: links may lead anywhere, and hosts need not be public."""
        self._configured = frozenset(names)

    async def resolve(self, url: str) -> Path:
        """The file or folder that ``url`` names, downloaded if it is remote.

        Args:
            url: a path within the store, or a ``file:``, ``http:`` or ``https:`` URL. Of a path
                that leads nowhere in the store, the last part counts, as in TorchServe.

        Raises:
            ModelNotFound: nothing is there, or the URL is not allowed.
            DownloadFailed: it could not be fetched.
            LoadFailed: the work folder cannot be written to.
        """
        if not url:
            raise ModelNotFound("empty url")
        scheme = _SCHEME.match(url)
        path = _path(url) if scheme else url
        if ".." in PurePosixPath(path).parts:
            raise ModelNotFound(f"Relative path is not allowed in url: {self._shown(url)}")
        if scheme is None:
            return self._named(url)
        self._check_allowed(url)
        if scheme[1].lower() == "file":
            return _local(Path(path), url, self._shown(url))
        return await self._fetch(url)

    def by_name(self, name: str) -> str | None:
        """The path within the store of the archive called ``name``, as `resolve` takes it.

        A folder wins over a file (CONTRACT O83, Q14).
        """
        if PurePosixPath(name).name != name:
            return None
        for candidate in (name, *(name + suffix for suffix in PACKED)):
            try:
                self._within(candidate)
            except ModelNotFound:
                continue
            return candidate
        return None

    def discard(self, path: Path) -> None:
        """Remove a download that is no longer needed; any other path is left alone."""
        if path.parent.parent == self._downloads:
            _remove(path.parent)

    def _named(self, name: str) -> Path:
        # TorchServe reads the last part only: `--models m=model-store/m.mar` works there.
        last = PurePosixPath(name).name
        try:
            return self._within(name)
        except ModelNotFound:
            if "://" not in name:
                with suppress(ModelNotFound):
                    return self._within(last, trusted=name in self._configured)
            raise

    def _within(self, name: str, *, trusted: bool = False) -> Path:
        if self._root is None:
            raise ModelNotFound("Model store has not been configured.")
        missing = ModelNotFound(f"Model not found at: {self._shown(name)}")
        try:
            root, path = _beneath(self._root, name)
        except (OSError, ValueError, RuntimeError) as error:  # absent, a NUL byte, a loop of links
            # Only the configuration may ask what is on this machine.
            if isinstance(error, PermissionError) and name in self._configured:
                raise ModelNotFound(f"{missing.message}: {error.strerror}") from None
            raise missing from None
        checked = root / name if trusted or name in self._configured else path
        if path == root or not checked.is_relative_to(root):
            raise missing
        return path

    def _check_allowed(self, url: str) -> None:
        if not any(pattern.fullmatch(url) for pattern in self._allowed):
            shown = self._shown(url)
            raise ModelNotFound(f"Given URL {shown} does not match any allowed URL(s)")

    def _shown(self, url: str) -> str:
        # A client knows the folders that it has named; those of the configuration it must not see.
        if url in self._configured and not url.lower().startswith(("http://", "https://")):
            return PurePosixPath(redacted(url)).name
        return redacted(url)

    async def _fetch(self, url: str) -> Path:
        # Most servers never need it, and importing it would take a tenth of their start.
        await asyncio.to_thread(importlib.import_module, "kserve_torch.archives.download")
        from kserve_torch.archives.download import download

        folder = fresh_folder(self._downloads)
        try:
            public_only = self._public_only and url not in self._configured
            return await download(url, folder, check=self._check_allowed, public_only=public_only)
        except BaseException:
            await asyncio.to_thread(_remove, folder)
            raise


def _beneath(root: Path, name: str) -> tuple[Path, Path]:
    """The folder ``root``, an absolute path, and what ``name`` is in it, without links.

    KServe puts models that are images (``oci://``) behind a link into another container,
    ``/mnt/models -> /proc/PID/root/models``. Resolved it is a path of this container, so such a
    folder is taken as it is, and links in it lead nowhere.

    Raises:
        OSError: absent, or a loop of links.
        ValueError: a NUL byte.
    """
    real = Path(os.path.realpath(root))
    if real.exists() and real.samefile(root):
        return real, (real / name).resolve(strict=True)
    path = Path(os.path.normpath(root / name))
    below = [path, *path.parents][: len(path.parts) - len(root.parts)]
    if not path.exists() or any(each.is_symlink() for each in below):
        raise FileNotFoundError(name)
    return root, path


def _remove(folder: Path) -> None:
    """Remove a folder; another thread may be removing it, or part of it, at the same time."""
    shutil.rmtree(folder, ignore_errors=True)


def _path(url: str) -> str:
    try:
        return unquote(urlsplit(url).path)
    except ValueError:
        raise DownloadFailed.of(redacted(url), "it is no URL") from None


def _local(path: Path, url: str, shown: str) -> Path:
    try:
        if urlsplit(url).netloc not in ("", "localhost"):
            raise OSError("a file URL names this host")
        path.stat()
        return path
    except (OSError, ValueError, RuntimeError):
        raise DownloadFailed.of(shown) from None
