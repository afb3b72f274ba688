"""What the tests of archives open, and how they are refused."""

from pathlib import Path

import pytest

from kserve_torch.archives.archive import open_archive
from kserve_torch.errors import InvalidArchive

from ..makers import ECHO

FILES = {"handler.py": ECHO, "data/words.txt": "a b"}


def refusal(source: Path, workdir: Path) -> str:
    """The reason why ``source`` is refused; it names no folder, and nothing stays behind."""
    with pytest.raises(InvalidArchive) as caught:
        open_archive(source, workdir)
    assert str(workdir) not in caught.value.message
    assert str(source.parent) not in caught.value.message
    assert not list(workdir.rglob("*.*"))
    return caught.value.message
