import pytest
import torch

from kserve_torch.errors import LoadFailed
from kserve_torch.ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch


def test_without_transformers_the_error_names_it(monkeypatch):
    monkeypatch.setattr("kserve_torch.ts.unavailable.find_spec", lambda name: None)
    with pytest.raises(LoadFailed, match="needs the package transformers"):
        TextIteratorStreamerBatch(None, 2)


class Letters:
    """A tokenizer whose tokens are letters and spaces."""

    def decode(self, tokens, **kwargs):
        return "".join(chr(int(token)) for token in tokens)


def test_one_text_per_row_and_step():
    pytest.importorskip("transformers")
    streamer = TextIteratorStreamerBatch(Letters(), 2, skip_prompt=True, timeout=10)
    for _batch in range(3):
        streamer.put(torch.tensor([[ord("p")] * 3] * 2))
        for first, second in zip("ab cd ", "wx yz ", strict=True):
            streamer.put(torch.tensor([ord(first), ord(second)]))
        streamer.end()
        rows = list(streamer)
        texts = [[piece["text"] for piece in pieces] for pieces in zip(*rows, strict=True)]
        assert ["".join(pieces) for pieces in texts] == ["ab cd ", "wx yz "]
        assert all(list(piece) == ["text"] for pieces in rows for piece in pieces)
    with pytest.raises(ValueError, match="expected 2 rows of tokens, got 3"):
        streamer.put(torch.zeros(3))
