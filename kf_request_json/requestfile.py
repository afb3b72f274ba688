"""What the scripts beside it share: reading inputs, writing requests, failing in one line."""

import argparse
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image


class InputError(Exception):
    """An input that no request can be made of; one line for the user."""


def parser(description: str | None, output: str = "input.json") -> argparse.ArgumentParser:
    """A parser that knows ``--output`` (old name: ``--result_file``) and shows defaults."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "-o",
        "--output",
        "--result_file",
        type=Path,
        default=Path(output),
        help="file to write (default: %(default)s)",
    )
    return made


def run(program: Callable[[], None]) -> None:
    """Run a script's main function; an InputError becomes one line and exit code 2."""
    try:
        program()
    except InputError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)


def read(path: Path) -> bytes:
    """Read a file that must not be empty."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if not content:
        raise InputError(f"{path}: empty")
    return content


def read_image(path: Path) -> bytes:
    """Read an image file as it is, after making sure that it can be decoded."""
    content = read(path)
    if decoded(content) is None:
        raise InputError(f"{path}: not an image")
    return content


def decoded(content: bytes) -> Image.Image | None:
    """Decode an image; None if the bytes are none, or a damaged one."""
    try:
        image = Image.open(io.BytesIO(content))
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    return image


def write(path: Path, content: bytes) -> None:
    """Write a request and say where it is."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    print(f"written: {path}")


def pretty(value: Any) -> bytes:
    """Indented JSON, with every list of numbers on one line."""
    text = json.dumps(value, indent=2)
    return re.sub(r"\[[\d\s.,eE+-]+\]", _one_line, text).encode() + b"\n"


def _one_line(numbers: re.Match[str]) -> str:
    return "[" + " ".join(numbers.group().strip("[]").split()) + "]"
