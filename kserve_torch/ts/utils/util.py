"""``ts.utils.util`` (CONTRACT 3.8)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kserve_torch.handler.classes import list_classes_from_module
from kserve_torch.handler.compile import PT2Backend, check_valid_pt2_backend
from kserve_torch.handler.labels import load_label_mapping, map_class_to_label
from kserve_torch.handler.text import CLEANUP_REGEX

__all__ = [
    "CLEANUP_REGEX",
    "PT2Backend",
    "PredictionException",
    "check_valid_pt2_backend",
    "deprecated",
    "get_yaml_config",
    "list_classes_from_module",
    "load_label_mapping",
    "logger",
    "map_class_to_label",
]

R = TypeVar("R")

logger = logging.getLogger("ts.utils.util")


class PredictionException(Exception):
    """Raised by a handler to answer with an HTTP status of its choice (CONTRACT R7)."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def get_yaml_config(yaml_file_path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty if the file is."""
    text = Path(yaml_file_path).read_text(encoding="utf-8")
    return yaml.safe_load(text) or {}


def deprecated(
    version: str, replacement: str = "", klass: type[Warning] = PendingDeprecationWarning
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Warn with ``klass`` whenever the decorated function is called."""

    def decorate(func: Callable[..., R]) -> Callable[..., R]:
        text = f"{func.__name__} is deprecated since {version}; use {replacement or 'another one'}"

        @wraps(func)
        def call(*args: Any, **kwargs: Any) -> R:
            warnings.warn(text, klass, stacklevel=2)
            return func(*args, **kwargs)

        return call

    return decorate
