"""``ts.handler_utils.text_utils``."""

from __future__ import annotations

from kserve_torch.handler.tokens import basic_english, get_tokenizer, ngrams_iterator

__all__ = ["get_tokenizer", "ngrams_iterator"]

_basic_english_normalize = basic_english
_split_tokenizer = str.split
