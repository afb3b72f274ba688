"""The TorchServe version whose archives this server runs."""

from __future__ import annotations

__version__ = "0.12.0"
