"""Writes on from a word, and sends each word to the client as soon as it is there.

The model is a table that says how often a word follows another in ``text.txt``; it is made when
the archive loads. An archive of this file and ``text.txt`` also runs on a stock TorchServe.
"""

from pathlib import Path

import torch
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler

#: Words in an answer, and the seed that they are drawn with, so that equal requests have equal
#: answers.
LENGTH, SEED = 12, 1


class StreamingHandler(BaseHandler):
    """A row is the first word, as text; unknown words start as the text does."""

    def initialize(self, context):
        self.context = context
        self.manifest = context.manifest
        model_dir = Path(context.system_properties["model_dir"])
        words = (model_dir / "text.txt").read_text("utf-8").lower().replace(".", " .").split()
        self.words = sorted(set(words))
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.follows = self.count([self.numbers[word] for word in words])
        self.first = self.numbers[words[0]]
        self.initialized = True

    def count(self, numbers):
        """How often each word follows each, and the first the last: float32 ``[words, words]``."""
        table = torch.zeros(len(self.words), len(self.words))
        for word, next_word in zip(numbers, [*numbers[1:], numbers[0]], strict=True):
            table[word, next_word] += 1
        return table

    def handle(self, data, context):
        """Send all words but the last one as they are drawn; the last one is the result."""
        current = [self.numbers.get(self.prompt(row), self.first) for row in data]
        draws = [torch.Generator().manual_seed(SEED) for _ in data]
        for left in range(LENGTH - 1, -1, -1):
            current = [
                int(torch.multinomial(self.follows[word], 1, generator=draw))
                for word, draw in zip(current, draws, strict=True)
            ]
            pieces = [self.words[word] + " " for word in current]
            if left:
                send_intermediate_predict_response(
                    pieces, context.request_ids, "Intermediate Prediction success", 200, context
                )
        return [piece.strip() for piece in pieces]

    def prompt(self, row):
        """The last word of a row's text."""
        text = row.get("data") or row.get("body") or "" if isinstance(row, dict) else row
        if isinstance(text, (bytes, bytearray)):
            text = text.decode("utf-8", "replace")
        return (str(text).lower().split() or [""])[-1]
