import base64
import json
import random
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.errors import BadRow, LoadFailed
from kserve_torch.handler.contractions import CONTRACTION_MAP
from kserve_torch.handler.text import CLEANUP_REGEX, CONTRACTIONS_PATTERN, TextHandler
from kserve_torch.handler.text_classifier import TextClassifier
from kserve_torch.messages import Verb

MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(20, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))
"""
TOKENS = ["<unk>", "good", "bad", "film", "very", "good film", "very good", "is not", "not"]


@pytest.fixture
def text_folder(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "source_vocab.json").write_text(json.dumps(TOKENS))
    (tmp_path / "index_to_name.json").write_text('{"0": "bad", "1": "good"}')
    return tmp_path


@pytest.fixture
def loaded(text_folder, load):
    torch.manual_seed(0)
    return load(TextClassifier(), text_folder, {"modelFile": "net.py"})


def test_probabilities_by_label(loaded):
    (answer,) = loaded.ask({"data": "good film"})
    assert set(answer) == {"bad", "good"}
    assert sum(answer.values()) == pytest.approx(1)


@given(st.text(st.sampled_from("<>&;a#1 \n")))
def test_markup_is_what_torchserves_pattern_finds(text):
    assert TextHandler()._remove_html_tags(text) == CLEANUP_REGEX.sub("", text)


@given(st.text(st.sampled_from("aé ﬁ한\u0301\u0327\u0f73"), max_size=200))
def test_accents_are_removed_as_in_one_piece(text):
    whole = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    assert TextHandler()._remove_accented_characters(text) == whole


@pytest.mark.parametrize(
    "text", ["e" + "\u0301" * 10**5 + "\u0327" * 10**5, "e" + "\u0f73" * 10**5]
)
def test_a_text_of_accents_takes_no_quadratic_time(text):
    """Nothing else in the process would run in that time."""
    assert TextHandler()._remove_accented_characters(text) == "e"


def test_a_text_of_open_tags_takes_no_quadratic_time(loaded):
    (answer,) = loaded.ask({"data": "<" * 400_000})
    assert set(answer) == {"bad", "good"}


def test_every_form_of_a_text(loaded):
    text = "Good film"
    encoded = {"b64": base64.b64encode(text.encode()).decode()}
    rows = [{"data": text}, {"body": text.encode()}, {"data": bytearray(text.encode())}, text]
    rows += [encoded, {"data": encoded}]
    rows += [{"data": list(text.encode())}, {"data": np.frombuffer(text.encode(), np.uint8)}]
    answers = loaded.ask(*rows)
    assert all(answer == answers[0] for answer in answers)


def test_a_batch_answers_as_its_rows_do_alone(loaded):
    texts = ["good film", "bad", "", "very very good", "<b>unknown</b> words don't matter &amp; é"]
    together = loaded.ask(*({"data": text or " "} for text in texts))
    alone = [loaded.ask({"data": text or " "})[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_cleaning(loaded):
    numbers, tokens = loaded.handler.preprocess([{"data": "<b>GOOD</b>, film! isn't"}])
    assert tokens == ["good", "film", "is", "not"]
    assert numbers.tolist() == [1, 3, 0, 8, 5, 0, 7]


class OwnWords(TextClassifier):
    """As TorchServe's preprocess does it: the first row's text, and its words in a plain list."""

    def preprocess(self, data):
        words = data[0]["data"].split()
        pairs = [" ".join(pair) for pair in pairwise(words)]
        return torch.tensor([self.source_vocab[one] for one in words + pairs]), words


@pytest.mark.parametrize("verb", [Verb.PREDICT, Verb.EXPLAIN])
def test_a_subclass_with_a_preprocess_of_its_own(text_folder, loaded, load, verb):
    own = load(OwnWords(), text_folder, {"modelFile": "net.py"})
    own.handler.model.load_state_dict(loaded.handler.model.state_dict())
    row = {"data": "very good film", "target": 1}
    assert own.ask(row, verb=verb) == loaded.ask(row, verb=verb)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"data": b"\xff\xfe"}, "data: not valid UTF-8"),
        ({"data": [256]}, "data: expected text, or its UTF-8 bytes as numbers from 0 to 255"),
        (
            {"data": [[1], [1, 2]]},
            "data: expected text, or its UTF-8 bytes as numbers from 0 to 255",
        ),
        ({"data": [[]]}, "data: expected text, or its UTF-8 bytes as numbers from 0 to 255"),
        ({"data": [-1]}, "data: expected text, or its UTF-8 bytes as numbers from 0 to 255"),
        ({"data": [1.5]}, "data: expected text, or its UTF-8 bytes as numbers from 0 to 255"),
        ({"data": [[1], [2]]}, "data: expected text, or its UTF-8 bytes as numbers from 0 to 255"),
        (
            {"data": ["a", "b"]},
            "data: expected one text, got a list of 2; each needs a row of its own",
        ),
        ({"data": 3}, "data: expected text, got int"),
        ({"data": {"b64": "Good film!"}}, "data: not valid base64"),
        ({"b64": 3}, "data: not valid base64"),
        ({}, "data: expected text, got nothing"),
    ],
)
def test_what_is_no_text(loaded, row, reason):
    with pytest.raises(BadRow) as caught:
        loaded.ask({"data": "good"}, row)
    assert (caught.value.index, caught.value.reason) == (1, reason)


def test_explanations_name_the_words(loaded):
    rows = [{"data": "good film", "target": 1}, {"data": "bad", "target": 0}]
    together = loaded.ask(*rows, verb=Verb.EXPLAIN)
    assert [explanation["words"] for explanation in together] == [["good", "film"], ["bad"]]
    alone = [loaded.ask(row, verb=Verb.EXPLAIN)[0] for row in rows]
    for one, other in zip(together, alone, strict=True):
        assert np.allclose(one["importances"], other["importances"], atol=1e-5)


def test_a_compiled_model_is_explained_as_it_was_before(text_folder, load):
    compiled = {"pt2": {"compile": {"enable": True, "backend": "eager"}}}
    row = {"data": "very good film", "target": 1}
    answers = []
    for yaml in (None, compiled):
        torch.manual_seed(0)
        loaded = load(TextClassifier(), text_folder, {"modelFile": "net.py"}, yaml)
        loaded.ask(row)
        answers += loaded.ask(row, verb=Verb.EXPLAIN)
    assert answers[0] == answers[1]


def test_a_text_without_words_is_explained_by_nothing(loaded):
    rows = [{"data": "<br>"}, {"data": "good"}]
    nothing, something = loaded.ask(*rows, verb=Verb.EXPLAIN)
    assert nothing == {"importances": [], "words": []}
    assert something["words"] == ["good"]


@pytest.mark.parametrize("target", [2, -3])
def test_a_target_that_the_model_does_not_have(loaded, target):
    with pytest.raises(BadRow, match=f"^row 1: target: {target} is no class, the model has 2"):
        loaded.ask({"data": "bad"}, {"data": "good film", "target": target}, verb=Verb.EXPLAIN)


def test_the_vocabulary_that_an_old_manifest_names(text_folder, load):
    (text_folder / "other.txt").write_text("\n".join(reversed(TOKENS)))
    manifest = {"modelFile": "net.py", "sourceVocab": "other.txt"}
    assert load(TextClassifier(), text_folder, manifest).handler.source_vocab["not"] == 0


@pytest.mark.parametrize("name", ["source_vocab.pt", "source_vocab.json", "source_vocab.txt"])
def test_the_vocabularies_that_are_looked_for(text_folder, load, name):
    (text_folder / "source_vocab.json").unlink()
    if name.endswith(".pt"):
        torch.save(TOKENS, text_folder / name)
    else:
        text = json.dumps(TOKENS) if name.endswith(".json") else "\n".join(TOKENS)
        (text_folder / name).write_text(text)
    loaded = load(TextClassifier(), text_folder, {"modelFile": "net.py"})
    assert loaded.handler.source_vocab["film"] == 3


def test_no_vocabulary(text_folder, load):
    (text_folder / "source_vocab.json").unlink()
    with pytest.raises(LoadFailed, match="no vocabulary in the archive; looked for source_vocab"):
        load(TextClassifier(), text_folder, {"modelFile": "net.py"})


def test_helpers_of_old_handlers(loaded):
    handler = loaded.handler
    assert handler.get_word_token(["\u0120good", "film"]) == ["good", "film"]
    assert handler._remove_puncutation("a,b!") == "ab"
    shares = handler.summarize_attributions(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert shares.sum(1).tolist() == pytest.approx([2**-0.5, 2**-0.5])


def test_contractions_are_expanded_as_by_the_pattern_alone():
    def expanded(match):
        return match[0][0] + CONTRACTION_MAP[match[0].lower()][1:]

    chance = random.Random(0)
    pieces = [*CONTRACTION_MAP, *map(str.upper, CONTRACTION_MAP), *["'", " ", "dogs'", "n't"] * 30]
    for _ in range(200):
        text = "".join(chance.choices(pieces, k=6))
        expected = CONTRACTIONS_PATTERN.sub(expanded, text).replace("'", "")
        assert TextHandler()._expand_contractions(text) == expected
