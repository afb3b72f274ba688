"""Text to tokens and tokens to numbers, without torchtext."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kserve_torch.errors import LoadFailed
from kserve_torch.handler.weights import load_pickled

Tokenizer = Callable[[str], list[str]]

#: Where a model's vocabulary may be; the first is TorchServe's and may need torchtext to be read.
VOCABULARY_FILES = ("source_vocab.pt", "source_vocab.json", "source_vocab.txt")

_UNKNOWN = "<unk>"
_SPACED = re.compile(r"['.,()!?]")
_DROPPED = re.compile(r"<br />|[;:]")


def basic_english(line: str) -> list[str]:
    """Lower-case words; ``'.,()!?`` are tokens, ``"`` is removed, ``;:`` and ``<br />`` split."""
    text = _DROPPED.sub(" ", line.lower().replace('"', ""))
    return _SPACED.sub(lambda match: f" {match[0]} ", text).split()


def get_tokenizer(tokenizer: str | Tokenizer | None, language: str = "en") -> Tokenizer:
    """A tokenizer by name, ``basic_english``; None splits at white space, a callable is used as is.

    Raises:
        ValueError: no such name, or ``basic_english`` for another language.
    """
    if tokenizer is None:
        return str.split
    if callable(tokenizer):
        return tokenizer
    if tokenizer != "basic_english":
        raise ValueError(f"tokenizer: {tokenizer!r}; allowed: basic_english, None or a function")
    if language != "en":
        raise ValueError(f"language: {language!r}; basic_english is for en only")
    return basic_english


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """The tokens, then each two adjacent ones joined by a space, and so on up to ``ngrams``."""
    yield from token_list
    for n in range(2, ngrams + 1):
        for words in zip(*(token_list[start:] for start in range(n)), strict=False):
            yield " ".join(words)


class Vocabulary(dict[str, int]):
    """Token -> number; unknown tokens have the number of ``<unk>``, or 0."""

    def __missing__(self, token: str) -> int:
        return self.get(_UNKNOWN, 0)


def load_vocabulary(path: Path) -> Any:
    """The vocabulary in a file, for use as ``vocabulary[token]``.

    Args:
        path: ``.json``: an object of token to number or a list of tokens; ``.pt``: these, a
            torchtext vocabulary or whatever else an archive's handler reads, pickled; any other
            suffix: a token per line.

    Raises:
        LoadFailed: the file cannot be read.
    """
    if path.suffix == ".pt":
        return _named(path, load_pickled(path))
    try:
        text = path.read_text(encoding="utf-8")
        return _named(path, json.loads(text) if path.suffix == ".json" else _lines(text))
    except ValueError as error:
        raise LoadFailed(f"{path.name}: not readable as {path.suffix[1:] or 'text'}") from error


def _lines(text: str) -> list[str]:
    """Lines as a file has them; `str.splitlines` ends one at tokens such as U+2028 too."""
    return text.removesuffix("\n").split("\n") if text else []


def _named(path: Path, content: Any) -> Any:
    if isinstance(content, list) and all(isinstance(token, str) for token in content):
        content = {token: number for number, token in enumerate(content)}
    if isinstance(content, dict) and all(
        isinstance(token, str) and isinstance(number, int) for token, number in content.items()
    ):
        return Vocabulary(content)
    if path.suffix == ".pt":
        return content
    raise LoadFailed(f"{path.name}: expected tokens (strings), in a list or with their numbers")
