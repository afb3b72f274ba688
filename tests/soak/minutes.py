"""How long a soak test goes on: ``SOAK_MINUTES``, or 3."""

from __future__ import annotations

import os

import pytest

MINUTES = float(os.environ.get("SOAK_MINUTES", "3"))
MARKS = [pytest.mark.soak, pytest.mark.timeout(MINUTES * 60 + 300)]
