"""Packages that one model brings along: ``requirements.txt`` with ``install_py_dep_per_model``.

pip finds out what the server's environment lacks; only that is installed, into a folder from which
only this model can import (CONTRACT A10).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kserve_torch.archives.archive import Archive
from kserve_torch.errors import LoadFailed, PackagesFailed
from kserve_torch.namespace.loader import Namespace

log = logging.getLogger(__name__)

#: Time limit for one run of pip, in seconds.
TIMEOUT = 600.0

#: Packages that a process can have only once, because their compiled modules import each other by
#: name, or because others of the environment take objects of theirs only, as torchvision does with
#: Pillow's images: if the environment has one, its version is used whatever an archive pins.
ONLY_ONCE = frozenset(
    {"numpy", "pandas", "pillow", "scikit-learn", "scipy", "torch", "torchaudio", "torchvision"}
)

_FURTHER = re.compile(r"(-r|-e|--requirement|--editable)\b")
#: An option with a relative path; URLs, quoted paths and paths that begin with a variable are left
#: as they are.
_PATH = re.compile(
    r"(?<!\S)(-[rcf]|--(?:requirement|constraint|find-links)\b)[\s=]*+"
    r"(?!\w[\w+.-]*:|[/\"'$])(\S+)"
)

#: A URL's user and password, and its host.
_SECRET = re.compile(r"://([^\s/@]+@)([^\s/?#]+)")

#: By folder: pip may take minutes, and other models need not wait for it.
_locks: dict[Path, threading.Lock] = {}
_namespaces: dict[Path, Namespace] = {}


def packages_of(archive: Archive, name: str, workdir: Path) -> Namespace | None:
    """A namespace with the packages that ``archive`` needs and the environment lacks.

    All instances of a model share it, because many compiled packages can be loaded only once.

    Returns:
        None if nothing is missing.

    Raises:
        PackagesFailed: one cannot be installed; the message names it.
        LoadFailed: the archive lacks its list of requirements.
    """
    file = archive.manifest.requirements_file
    if file is None:
        return None
    requirements = archive.root / file
    if not requirements.is_file():
        raise LoadFailed(f"{file}: named in the manifest, not in the archive")
    wanted = _missing(
        requirements.read_text(encoding="utf-8", errors="replace"), requirements.parent
    )
    if not wanted:
        return None
    # By that name dill and others know what is not the user's code.
    target = workdir / "site-packages" / f"{name}-{_digest(requirements, archive.root)}"
    with _locks.setdefault(target, threading.Lock()):
        if target not in _namespaces:
            install(wanted, target, archive.root)
            _namespaces[target] = Namespace(target)
        return _namespaces[target]


def install(lines: Sequence[str], target: Path, folder: Path) -> None:
    """Install requirements, with what they depend on, as far as the environment lacks them.

    Args:
        lines: lines of a requirements file: requirements, paths, pip's options.
        target: new folder for the packages.
        folder: where relative paths in ``lines`` start.

    Raises:
        PackagesFailed: pip failed, or took too long.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        file, staged = Path(scratch, "requirements.txt"), Path(scratch, "packages")
        file.write_text("\n".join(lines), encoding="utf-8")
        # --target alone ignores what is installed: it would install a second torch.
        report = Path(scratch, "report.json")
        _pip(["--dry-run", "--quiet", "--report", str(report), "-r", str(file)], folder)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
        items = [item for item in found if not _is_kept(item)]
        links = [_link(item) for item in items]
        log.info("%s: installing for this model only: %s", target.name, ", ".join(links))
        if seconds := [*_seconds(items)]:
            log.warning(
                "%s: the model gets another version than the environment has, which may fail with "
                "compiled packages: %s",
                target.name,
                ", ".join(seconds),
            )
        staged.mkdir()
        if links:
            options = [line for line in lines if _is_option(line)]
            secret = [_with_secrets(link, lines) for link in links]
            file.write_text("\n".join([*options, *secret]), encoding="utf-8")
            _pip(["--quiet", "--no-deps", "--target", str(staged), "-r", str(file)], folder)
        staged.rename(target)


def _is_kept(item: dict[str, Any]) -> bool:
    """Whether the environment's version is used in place of an entry of pip's report."""
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    known = _known_once(name)
    if known is not None:
        _warn_kept(f"{name}=={version}", known)
    return known is not None


def _known_once(name: str) -> str | None:
    """The environment's version of one of `ONLY_ONCE`; None if it has none, or of others."""
    return _installed(name) if canonicalize_name(name) in ONLY_ONCE else None


def _installed(name: str) -> str | None:
    """The environment's version of a package; None if it has none."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _warn_kept(requirement: str, known: str) -> None:
    log.warning(
        "%s: the environment's version, %s, is used, since a process can have only one",
        requirement,
        known,
    )


def _seconds(items: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Those entries of pip's report of which the environment has another version."""
    for item in items:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        known = _installed(name)
        if known not in (None, version):
            yield f"{name} {version} ({known})"


def _link(item: dict[str, Any]) -> str:
    """An entry of pip's installation report as a requirement for exactly that file."""
    where, name = item["download_info"], item["metadata"]["name"]
    if "vcs_info" in where:
        vcs = where["vcs_info"]
        return f"{name} @ {vcs['vcs']}+{where['url']}@{vcs['commit_id']}"
    return f"{name} @ {where['url']}"


def _with_secrets(link: str, lines: Sequence[str]) -> str:
    """A link with the user and password that its host has in ``lines``: pip's report has none."""
    for secret, host in _SECRET.findall(" ".join(lines)):
        link = link.replace(f"://{host}/", f"://{secret}{host}/")
    return link


def _missing(text: str, folder: Path) -> list[str]:
    """Lines that the environment does not satisfy, after all option lines; [] if there are none."""
    lines = [_anchored(line, folder) for line in _lines(text)]
    options = [line for line in lines if _is_option(line)]
    wanted = [line for line in lines if not _is_option(line) and not _satisfied(line)]
    return [*options, *wanted] if wanted else []


def _digest(requirements: Path, root: Path) -> str:
    """Of a requirements file, and of those of the archive's files that it names."""
    digest = sha256(requirements.read_bytes())
    for line in _lines(requirements.read_text(encoding="utf-8", errors="replace")):
        for word in filter(None, re.split(r"^-[rcfe]|[\s=]+", line)):
            for file in _files(root, word):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _files(root: Path, name: str) -> list[Path]:
    """The archive's file of that name, or all files in its folder of that name."""
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        return []
    found = sorted(path.rglob("*")) if os.path.isdir(path) else [path]
    return [file for file in found if os.path.isfile(file)]  # not Path's: URLs may be too long


def _is_option(line: str) -> bool:
    """Whether a line says only how to install; ``-r`` and ``-e`` say what."""
    return line.startswith("-") and not _FURTHER.match(line)


def _anchored(line: str, folder: Path) -> str:
    """Make paths absolute, because pip resolves them from the folder of the requirements file."""
    return _PATH.sub(lambda found: f"{found[1]} {shlex.quote(str(folder))}/{found[2]}", line)


def _lines(text: str) -> Iterator[str]:
    joined = re.sub(r"\\\r?\n", " ", text)
    for line in joined.splitlines():
        stripped = re.sub(r"(^|\s)#.*$", "", line).strip()
        if stripped:
            yield stripped


def _satisfied(line: str) -> bool:
    try:
        # A requirement may be followed by options of its own, such as --hash.
        requirement = Requirement(re.split(r"\s--", line, maxsplit=1)[0])
    except InvalidRequirement:
        return False
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    version = _installed(requirement.name)
    if version is None or requirement.extras:  # pip knows what extras need
        return False
    if requirement.url is None and requirement.specifier.contains(version, prereleases=True):
        return True
    if _known_once(requirement.name) is None:
        return False
    _warn_kept(str(requirement), version)
    return True


def _pip(arguments: list[str], folder: Path) -> None:
    """Run ``pip install``; the last of ``arguments`` is a file of requirements."""
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "install"]
    command += ["--no-user"]  # which PIP_USER asks for, and --target forbids
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PackagesFailed(f"installing packages took longer than {TIMEOUT:.0f} s") from error
    if done.returncode != 0:
        log.error("pip failed: %s", done.stderr)
        reason = _naming(_reason(done.stderr), Path(arguments[-1]))
        raise PackagesFailed(f"packages cannot be installed: {reason}")


def _naming(reason: str, file: Path) -> str:
    """``reason`` with the requirements in place of their lines in ``file``, which nobody knows."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return re.sub(
        rf"-r {re.escape(str(file))} \(line (\d+)\)",
        lambda found: _SECRET.sub(r"://\2", lines[int(found[1]) - 1]),
        reason,
    )


def _reason(stderr: str) -> str:
    """Pip's last error line, which names the package; the lines before it describe the search.

    Of an index that it could not reach, pip speaks in these only, and of a conflict in the line
    before the last. If a package cannot be built, pip may have none, and the last line of the build
    says why. Without pip the one line is the interpreter's, which begins with a path.
    """
    errors = re.findall(r"^ERROR: (?!Exception:|ResolutionImpossible:)(.*)", stderr, re.MULTILINE)
    built = stderr.rpartition("[end of output]")[0].strip().splitlines()
    headlines = re.findall(r"^[x\u00d7] (.*)", stderr, re.MULTILINE)
    last = (errors or built or headlines or stderr.strip().splitlines() or ["pip gives no reason"])[
        -1
    ]
    reason = re.sub(r"^/\S*: ", "", last.strip())
    unreached = "Retrying (Retry(total=0," in stderr
    return f"{reason} (the package index cannot be reached)" if unreached else reason
