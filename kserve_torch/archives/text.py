"""Text files of an archive: untrusted, so their size is limited."""

from __future__ import annotations

from pathlib import Path

from kserve_torch.archives.extract import blamed
from kserve_torch.errors import InvalidArchive

#: Largest manifest or configuration that is read, in bytes; real ones have thousands.
MAX_TEXT = 256 * 1024


def read_text(root: Path, name: str) -> str | None:
    """The text of the file ``name`` of the archive at ``root``, or None if it has none.

    Raises:
        InvalidArchive: it is too large, or cannot be read.
        LoadFailed: too many files are open.
    """
    path = root / name
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_TEXT:
            raise InvalidArchive(f"{name}: larger than {MAX_TEXT} bytes")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArchive(f"{name}: not UTF-8 text") from error
    except OSError as error:
        raise blamed(error)(f"{name}: {error.strerror}") from error


def first_line(error: BaseException) -> str:
    """The first line of a parser's error, without the excerpt below it."""
    return str(error).partition("\n")[0] or type(error).__name__
