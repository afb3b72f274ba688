"""TextHandler: cleaning, tokens and a vocabulary for text models."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kserve_torch.errors import LoadFailed
from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.compile import uncompiled
from kserve_torch.handler.contractions import CONTRACTION_MAP
from kserve_torch.handler.explain import LazyAttribution
from kserve_torch.handler.tokens import VOCABULARY_FILES, get_tokenizer, load_vocabulary
from kserve_torch.runtime.context import Context

_ENTITY = re.compile(r"&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")
#: HTML tags and entities. Takes quadratic time on many ``<`` without ``>``.
CLEANUP_REGEX = re.compile(f"<.*?>|{_ENTITY.pattern}")
#: Finds the same in linear time, and each ``<`` without ``>`` with the rest of its line.
_MARKUP = re.compile(rf"<[^>\n]*+>?|{_ENTITY.pattern}")
CONTRACTIONS_PATTERN = re.compile(
    f"({'|'.join(CONTRACTION_MAP)})", re.IGNORECASE | re.DOTALL | re.ASCII
)
#: Characters of the longest contraction.
_LONGEST = max(map(len, CONTRACTION_MAP))
#: Characters that are normalized at once.
_PIECE = 64
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextHandler(BaseHandler):
    """Base of text handlers whose model has a layer ``embedding`` (CONTRACT 3.8).

    Attributes:
        source_vocab: token -> number.
        tokenizer: text -> tokens.
        lig: integrated gradients at the model's ``embedding``.
    """

    source_vocab: Any = None
    lig: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = get_tokenizer("basic_english")

    def initialize(self, context: Context) -> None:
        """Load model and vocabulary.

        Raises:
            LoadFailed: with the reason.
        """
        super().initialize(context)
        path = self.get_source_vocab_path(context)
        self.source_vocab = load_vocabulary(Path(path))
        self.lig = LazyAttribution("LayerIntegratedGradients", self.__explained)

    def __explained(self) -> tuple[Any, Any]:
        """The model, and the layer that explanations are about; captum's hooks need eager ones."""
        model = uncompiled(self.model)
        return model, model.embedding

    def get_source_vocab_path(self, ctx: Context) -> str:
        """The vocabulary's file: named by an old manifest, else the first of `VOCABULARY_FILES`.

        Raises:
            LoadFailed: there is none.
        """
        model_dir = Path(ctx.system_properties["model_dir"])
        named = (self.manifest or {}).get("model", {}).get("sourceVocab")
        files = (Path(named).name,) if named else VOCABULARY_FILES
        for file in files:
            if (model_dir / file).is_file():
                return str(model_dir / file)
        raise LoadFailed(f"no vocabulary in the archive; looked for {', '.join(files)}")

    def _expand_contractions(self, text: str) -> str:
        """``don't`` to ``do not``; the first letter stays, other apostrophes are removed."""
        parts: list[str] = []
        done = 0
        # Only around apostrophes: the pattern takes microseconds at each character, in one call
        # that keeps the interpreter's lock.
        while (apostrophe := text.find("'", done)) >= 0:
            start = max(done, apostrophe - _LONGEST)
            found = CONTRACTIONS_PATTERN.search(text, start, apostrophe + _LONGEST)
            if found is None or found.start() > apostrophe:
                parts.append(text[done:apostrophe])
                done = apostrophe + 1
            else:
                parts += text[done : found.start()], _expand(found)
                done = found.end()
        return "".join((*parts, text[done:])).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        """Letters without their accents; other characters outside of ASCII are removed."""
        # In pieces: accents in a row are sorted, in quadratic time and one call that keeps the
        # interpreter's lock. Their order does not matter here.
        pieces = (text[i : i + _PIECE] for i in range(0, len(text), _PIECE))
        letters = "".join(unicodedata.normalize("NFKD", piece) for piece in pieces)
        return letters.encode("ascii", "ignore").decode()

    def _remove_html_tags(self, text: str) -> str:
        return _MARKUP.sub(_without_markup, text)

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(_NO_PUNCTUATION)

    _remove_puncutation = _remove_punctuation  # TorchServe's old spelling

    def _tokenize(self, text: str) -> list[str]:
        return self.tokenizer(text)

    def get_word_token(self, input_tokens: Sequence[str]) -> list[str]:
        """Tokens without the mark that byte-pair encodings put in front of a word."""
        return [token.replace("\u0120", "") for token in input_tokens]

    def summarize_attributions(self, attributions: torch.Tensor) -> torch.Tensor:
        """Attributions ``[tokens, embedding]`` as shares of 1 per token, scaled to length 1."""
        shares = torch.softmax(attributions, dim=0 if attributions.dim() in (1, 3) else 1)
        scaled: torch.Tensor = shares / torch.linalg.vector_norm(shares.sum(dim=-1))
        return scaled


def _without_markup(match: re.Match[str]) -> str:
    found = match[0]
    return "" if found.endswith(">") else _ENTITY.sub("", found)


def _expand(match: re.Match[str]) -> str:
    found = match[0]
    return found[0] + CONTRACTION_MAP[found.lower()][1:]
