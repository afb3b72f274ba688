"""Zip a handler folder into the archive (``.mar``) that TorchServe and this package serve.

    python handlers/build_archive.py mnist --output model-store/

The folder's ``archive.json`` lists its contents, named as options of ``torch-model-archiver``:

    {
      "name": "mnist",                      required
      "version": "1.0",                     required
      "handler": "mnist_handler.py",        required: a file, file:function, or a built-in's name
      "model_file": "mnist.py",
      "serialized_file": "mnist_cnn.pt",
      "extra_files": ["labels.json"],       copied next to the handler; of folders, the contents
      "requirements_file": "requirements.txt",
      "config_file": "model-config.yaml"
    }

The same folder always gives the same bytes: entries are sorted and dated by SOURCE_DATE_EPOCH
(default: 1980, where zip's calendar begins). Only the standard library is needed.
"""

import argparse
import json
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: The archiver whose manifest is written (CONTRACT A1).
ARCHIVER_VERSION = "0.12.0"
MANIFEST = "MAR-INF/MANIFEST.json"
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
#: Handlers that a server brings along: named in the manifest, never copied (CONTRACT H5).
BUILT_IN = frozenset(
    {
        "base_handler",
        "dali_image_classifier",
        "image_classifier",
        "image_segmenter",
        "object_detector",
        "text_classifier",
        "trt_llm_handler",
        "vllm_handler",
    }
)
ZIP_EPOCH = 315_532_800  # 1980-01-01T00:00:00Z


class ArchiveError(Exception):
    """A folder that cannot be archived as its ``archive.json`` says; one line for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What ``archive.json`` says; file names are relative to its folder."""

    name: str
    version: str
    handler: str
    model_file: str = ""
    serialized_file: str = ""
    requirements_file: str = ""
    config_file: str = ""
    extra_files: tuple[str, ...] = ()


def main() -> int:
    """Build the archives named on the command line; 2 if one cannot be built."""
    options = _options()
    try:
        for folder in options.handlers:
            print(build(_folder(folder), options.output))
    except (ArchiveError, OSError) as error:
        print(f"build_archive: {error}", file=sys.stderr)
        return 2
    return 0


def build(folder: Path, output: Path) -> Path:
    """Write ``<name>.mar`` of a handler folder into ``output`` and give its path.

    Raises:
        ArchiveError: if ``archive.json`` is wrong or a file it names is missing.
        OSError: if a file cannot be read or written.
    """
    recipe = read_recipe(folder)
    created = datetime.fromtimestamp(_source_date(), UTC)
    entries = _entries(folder, recipe)
    output.mkdir(parents=True, exist_ok=True)
    archive = output / f"{recipe.name}.mar"
    unfinished = archive.with_suffix(".mar.part")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as mar:
        for name in sorted(entries):
            _write(mar, name, entries[name].read_bytes(), created)
        text = json.dumps(manifest(recipe, created), indent=2)
        _write(mar, MANIFEST, text.encode(), created)
    unfinished.replace(archive)
    return archive


def read_recipe(folder: Path) -> Recipe:
    """Read and check ``archive.json``.

    Raises:
        ArchiveError: if it is missing, not JSON, or has a wrong, unknown or missing member.
    """
    source = folder / "archive.json"
    try:
        members = json.loads(source.read_text("utf-8"))
    except FileNotFoundError:
        raise ArchiveError(f"{source}: not found") from None
    except ValueError as error:
        raise ArchiveError(f"{source}: not JSON: {error}") from None
    if not isinstance(members, dict):
        raise ArchiveError(f"{source}: an object expected")
    return _checked(source, members)


def _checked(source: Path, members: Mapping[str, Any]) -> Recipe:
    known = {member.name for member in fields(Recipe)}
    for name, value in members.items():
        if name not in known:
            raise ArchiveError(f"{source}: {name}: unknown; known are {', '.join(sorted(known))}")
        texts = value if name == "extra_files" else [value]
        if not (isinstance(texts, list) and all(text and isinstance(text, str) for text in texts)):
            kind = "a list of texts" if name == "extra_files" else "a text"
            raise ArchiveError(f"{source}: {name}: {kind} expected, got {json.dumps(value)}")
    for name in ("name", "version", "handler"):
        if name not in members:
            raise ArchiveError(f"{source}: {name}: missing")
    if not MODEL_NAME.fullmatch(members["name"]):
        allowed = "letters, digits, '_', '-' and '.', a letter or digit first"
        raise ArchiveError(f"{source}: name: {members['name']!r} given; allowed: {allowed}")
    return Recipe(**{**members, "extra_files": tuple(members.get("extra_files", ()))})


def manifest(recipe: Recipe, created: datetime) -> dict[str, Any]:
    """Give the manifest that the stock archiver would write, in its order (CONTRACT A1)."""
    model = {
        "modelName": recipe.name,
        "serializedFile": _basename(recipe.serialized_file),
        "handler": _basename(recipe.handler),
        "modelFile": _basename(recipe.model_file),
        "modelVersion": recipe.version,
        "requirementsFile": _basename(recipe.requirements_file),
        "configFile": _basename(recipe.config_file),
    }
    return {
        "createdOn": created.strftime("%d/%m/%Y %H:%M:%S"),
        "runtime": "python",
        "model": {key: value for key, value in model.items() if value},
        "archiverVersion": ARCHIVER_VERSION,
    }


def _entries(folder: Path, recipe: Recipe) -> dict[str, Path]:
    """Map each entry's name in the archive to the file it is made of."""
    entries: dict[str, Path] = {}
    for name, path in _files(folder, recipe):
        if name == MANIFEST or entries.setdefault(name, path) != path:
            raise ArchiveError(f"{folder / 'archive.json'}: two files would become {name}")
    return entries


def _files(folder: Path, recipe: Recipe) -> Iterator[tuple[str, Path]]:
    named = {
        "handler": _handler_file(recipe.handler),
        "model_file": recipe.model_file,
        "serialized_file": recipe.serialized_file,
        "requirements_file": recipe.requirements_file,
        "config_file": recipe.config_file,
    }
    for member, name in named.items():
        if name:
            yield _basename(name), _existing(folder, member, name)
    for name in recipe.extra_files:
        path = _existing(folder, "extra_files", name, folders=True)
        yield from _inside(path) if path.is_dir() else [(path.name, path)]


def _handler_file(handler: str) -> str:
    """Name the file that defines a handler; empty for a built-in one."""
    if handler in BUILT_IN:
        return ""
    module = handler.partition(":")[0]
    return module if module.endswith(".py") else f"{module}.py"


def _existing(folder: Path, member: str, name: str, *, folders: bool = False) -> Path:
    path = folder / name
    if not (path.is_file() or (folders and path.is_dir())):
        reason = f"{folder / 'archive.json'}: {member}: {name}: no such file{_maker(folder)}"
        raise ArchiveError(reason)
    return path


def _maker(folder: Path) -> str:
    """What makes a folder's missing files, as the end of a message."""
    for script in ("train.py", "make_checkpoint.py"):
        if (folder / script).is_file():
            return f"; {folder.name}/{script} makes it"
    return f"; make_weights.py {folder.name} makes it" if folder.parent == HERE else ""


def _inside(root: Path) -> Iterator[tuple[str, Path]]:
    """Give all files of a folder but caches and hidden folders."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(p.startswith((".", "__pycache__")) for p in parts[:-1]):
            yield "/".join(parts), path


def _write(mar: zipfile.ZipFile, name: str, content: bytes, created: datetime) -> None:
    entry = zipfile.ZipInfo(name, date_time=created.timetuple()[:6])
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    mar.writestr(entry, content)


def _source_date() -> int:
    """Seconds since 1970, by the convention of reproducible-builds.org."""
    text = os.environ.get("SOURCE_DATE_EPOCH", str(ZIP_EPOCH))
    if not text.isascii() or not text.isdigit():
        raise ArchiveError(f"SOURCE_DATE_EPOCH: {text!r} is not a number of seconds")
    return max(int(text), ZIP_EPOCH)


def _folder(name: str) -> Path:
    """A handler's folder: a path, or the name of one beside this file.

    Raises:
        ArchiveError: it is neither.
    """
    for folder in (Path(name), HERE / name):
        if folder.is_dir():
            return folder
    raise ArchiveError(f"{name}: no such folder, neither here nor in {HERE}")


def _basename(name: str) -> str:
    return name.rpartition("/")[2]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("handlers", nargs="+", metavar="handler", help="a handler folder or name")
    parser.add_argument("--output", type=Path, default=Path(), help="folder to write to")
    options = parser.parse_args()
    if options.output.suffix == ".mar":
        parser.error(f"argument --output: {options.output} given; a folder expected")
    return options


if __name__ == "__main__":
    sys.exit(main())
