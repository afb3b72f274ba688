"""``ts.handler_utils.text_utils``."""

from __future__ import annotations

from kserve_torch.handler.tokens import get_tokenizer, ngrams_iterator

__all__ = ["get_tokenizer", "ngrams_iterator"]
