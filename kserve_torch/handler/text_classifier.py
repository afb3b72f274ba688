"""TextClassifier: classes of texts, by bags of n-grams."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch

from kserve_torch.errors import BadRow
from kserve_torch.handler.labels import map_class_to_label
from kserve_torch.handler.rows import payloads, refuse_several
from kserve_torch.handler.text import TextHandler
from kserve_torch.handler.timer import timed
from kserve_torch.handler.tokens import ngrams_iterator


class TextClassifier(TextHandler):
    """Answers ``{label: probability}``, for a model with the inputs of ``EmbeddingBag``.

    TorchServe's reads only the first row of a batch; this one answers every row.
    """

    ngrams = 2

    @timed
    def preprocess(self, data: list[Any]) -> Any:
        """Rows to ``(numbers, tokens)``.

        Returns:
            The n-grams' numbers of all texts in one int64 tensor, and the tokens: of one row in a
            list, as in TorchServe, whose subclasses make and read them; of several in one each.

        Raises:
            BadRow: a row holds no text.
        """
        tokens = [
            self.__tokens(as_text(index, value)) for index, value in enumerate(payloads(data))
        ]
        numbers = [self.source_vocab[gram] for row in tokens for gram in self.__grams(row)]
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        return tensor, tokens[0] if len(tokens) == 1 else tokens

    def __tokens(self, text: str) -> list[str]:
        text = self._expand_contractions(self._remove_html_tags(text).lower())
        return self._tokenize(self._remove_punctuation(self._remove_accented_characters(text)))

    def __grams(self, tokens: list[str]) -> list[str]:
        return list(ngrams_iterator(tokens, self.ngrams))

    def __rows(self, numbers: torch.Tensor, tokens: Any) -> list[tuple[torch.Tensor, Any]]:
        """Numbers and tokens of each row, from what `preprocess` made."""
        if not (isinstance(tokens, list) and tokens and isinstance(tokens[0], list)):
            return [(numbers, tokens)]
        lengths = [len(self.__grams(row)) for row in tokens]
        return list(zip(torch.split(numbers, lengths), tokens, strict=True))

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Logits ``[rows, classes]``."""
        rows = self.__rows(*data)
        starts = [0, *accumulate(len(numbers) for numbers, _ in rows)][: len(rows)]
        return super().inference(data[0], torch.tensor(starts, device=self.device))

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """Logits to one dict per row."""
        return map_class_to_label(torch.softmax(data, dim=1).tolist(), self.mapping)

    def get_insights(self, text_preprocess: Any, _: Any, target: Any = 0) -> list[Any]:
        """``{"importances": ..., "words": tokens}`` for each row, about its row's target."""
        rows = self.__rows(*text_preprocess)
        targets = target if isinstance(target, list) else [target] * len(rows)
        goals = zip(rows, targets, strict=False)  # subclasses may make fewer rows
        return [self.__explain(*row, goal) for row, goal in goals]

    def __explain(self, numbers: torch.Tensor, tokens: Any, target: Any) -> dict[str, Any]:
        if not len(numbers):  # captum takes no empty texts
            return {"importances": [], "words": []}
        attributions = self.lig.attribute(
            numbers,
            torch.zeros_like(numbers),
            additional_forward_args=(torch.tensor([0], device=self.device),),
            target=target,
        )
        importances = self.summarize_attributions(attributions)
        return {"importances": importances.tolist(), "words": self.get_word_token(tokens)}


def as_text(index: int, value: Any) -> str:
    """A payload as text: a string, UTF-8 bytes, or such bytes as numbers (an INT64 tensor).

    Raises:
        BadRow: it is none of these.
    """
    if isinstance(value, str):
        return value
    refuse_several(index, value, "text")
    if isinstance(value, (list, np.ndarray)):
        value = _as_bytes(index, value)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        got = "nothing" if value is None else type(value).__name__
        raise BadRow(index, f"data: expected text, got {got}")
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise BadRow(index, "data: not valid UTF-8") from None


def _as_bytes(index: int, values: list[Any] | np.ndarray) -> bytes:
    refusal = BadRow(index, "data: expected text, or its UTF-8 bytes as numbers from 0 to 255")
    try:
        numbers = np.asarray(values)
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise refusal
        return bytes(numbers.tolist())
    except ValueError:  # ragged lists; numbers outside of 0 to 255
        raise refusal from None
