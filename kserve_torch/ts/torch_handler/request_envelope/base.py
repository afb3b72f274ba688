"""``ts.torch_handler.request_envelope.base``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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


class PerInstance(BaseEnvelope):
    """An envelope of bodies with any number of instances, each of which becomes a row."""

    _lengths: tuple[int, ...] = ()

    def parse_input(self, data: list[Any]) -> list[Any]:
        """The instances of all bodies."""
        batches = list(map(self._instances, data))
        self._lengths = tuple(map(len, batches))
        return [instance for batch in batches for instance in batch]

    def format_output(self, data: list[Any]) -> list[Any]:
        """Each body's answer, with its share of the results."""
        results = iter(data)
        return [self._answer([next(results) for _ in range(length)]) for length in self._lengths]

    @abstractmethod
    def _instances(self, row: Any) -> Sequence[Any]:
        """The instances of one body."""

    @abstractmethod
    def _answer(self, results: list[Any]) -> Any:
        """The body that answers one."""
