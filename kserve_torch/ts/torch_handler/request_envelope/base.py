"""``ts.torch_handler.request_envelope.base``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class BaseEnvelope(ABC):
    """Translates bodies to rows before an entry point, and its results to bodies after it."""

    def __init__(self, handle_fn: Callable[[Any, Any], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: Any, context: Any) -> Any:
        """Call the entry point with the rows in ``data``; falsy data goes through as it is."""
        self.context = context
        rows = self.parse_input(data) if data else data
        results = self._handle_fn(rows, context)
        return self.format_output(results) if results else results

    @abstractmethod
    def parse_input(self, data: Any) -> Any:
        """Bodies to rows."""

    @abstractmethod
    def format_output(self, data: Any) -> Any:
        """Results to bodies."""
