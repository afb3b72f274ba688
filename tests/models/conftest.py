from __future__ import annotations

from pathlib import Path

import pytest

from .serving import Gate


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")
