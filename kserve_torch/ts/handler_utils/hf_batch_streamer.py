"""``ts.handler_utils.hf_batch_streamer``: streams the generated texts of a whole batch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from kserve_torch.ts.unavailable import require


class TextIteratorStreamerBatch:
    """A streamer for ``generate`` of Hugging Face models: ``{"text": ...}`` per row and step.

    Needs the package transformers. The iteration ends when one row's text does: rows are
    generated in step, finished ones padded. After that it can be used for the next ``generate``.
    """

    def __init__(
        self,
        tokenizer: Any,
        batch_size: int,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        require("TextIteratorStreamerBatch", "transformers")
        streamer = importlib.import_module("transformers").TextIteratorStreamer
        self.batch_size = batch_size
        self.streamers = [
            streamer(tokenizer, skip_prompt, timeout, **decode_kwargs) for _ in range(batch_size)
        ]
        self._texts = [iter(streamer) for streamer in self.streamers]

    def put(self, value: Any) -> None:
        """Take the next token of each row, ``[rows]`` or, for the prompt, ``[rows, tokens]``.

        Raises:
            ValueError: a number of rows other than ``batch_size``.
        """
        if len(value) != self.batch_size:
            raise ValueError(f"expected {self.batch_size} rows of tokens, got {len(value)}")
        for streamer, row in zip(self.streamers, value, strict=True):
            streamer.put(row.reshape(1, -1) if row.dim() else row.reshape(1))

    def end(self) -> None:
        """No more tokens."""
        for streamer in self.streamers:
            streamer.end()

    def __iter__(self) -> Iterator[list[dict[str, str]]]:
        return self

    def __next__(self) -> list[dict[str, str]]:
        # From all rows, even after one has ended: each end mark must be taken.
        pieces: list[Any] = [next(texts, None) for texts in self._texts]
        if None in pieces:
            raise StopIteration
        return [{"text": piece} for piece in pieces]
