import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.errors import LoadFailed
from kserve_torch.handler.contractions import CONTRACTION_MAP
from kserve_torch.handler.text import CONTRACTIONS_PATTERN, TextHandler, _expand
from kserve_torch.handler.tokens import (
    Vocabulary,
    basic_english,
    get_tokenizer,
    load_vocabulary,
    ngrams_iterator,
)


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("You can now install TorchText!", ["you", "can", "now", "install", "torchtext", "!"]),
        ('It\'s "a, b" (c).', ["it", "'", "s", "a", ",", "b", "(", "c", ")", "."]),
        ("a;b:c<br />d  e", ["a", "b", "c", "d", "e"]),
        ("", []),
    ],
)
def test_basic_english(line, tokens):
    assert basic_english(line) == tokens


def test_tokenizers_by_name():
    assert get_tokenizer(None)("A  b.") == ["A", "b."]
    assert get_tokenizer("basic_english") is basic_english
    assert get_tokenizer(list)("ab") == ["a", "b"]
    with pytest.raises(ValueError, match="spacy"):
        get_tokenizer("spacy")
    with pytest.raises(ValueError, match="de"):
        get_tokenizer("basic_english", "de")


def test_ngrams():
    words = ["here", "we", "are"]
    assert list(ngrams_iterator(words, 1)) == words
    assert list(ngrams_iterator(words, 2)) == [*words, "here we", "we are"]
    assert list(ngrams_iterator(words, 3)) == [*words, "here we", "we are", "here we are"]
    assert list(ngrams_iterator([], 2)) == []


def test_unknown_tokens():
    vocabulary = Vocabulary({"<unk>": 5, "a": 1})
    assert (vocabulary["a"], vocabulary["b"], len(vocabulary)) == (1, 5, 2)
    assert "a" in vocabulary
    assert "b" not in vocabulary
    assert Vocabulary({"a": 1})["b"] == 0


def test_archives_may_use_a_vocabulary_as_a_dict():
    vocabulary = Vocabulary({"<unk>": 5, "a": 1})
    assert vocabulary.get("b", 7) == 7
    assert vocabulary == {"<unk>": 5, "a": 1}


def write(path, content):
    if path.suffix == ".pt":
        torch.save(content, path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(content))
    else:
        path.write_text("\n".join(content))
    return path


@pytest.mark.parametrize("suffix", [".pt", ".json", ".txt"])
def test_a_list_of_tokens_in_every_format(tmp_path, suffix):
    vocabulary = load_vocabulary(write(tmp_path / f"v{suffix}", ["<unk>", "a", "b"]))
    assert [vocabulary[token] for token in ("a", "b", "c")] == [1, 2, 0]


def test_a_line_of_a_vocabulary_ends_with_a_line_feed_only(tmp_path):
    (tmp_path / "v.txt").write_bytes("<unk>\r\n\u2028\n\x85\na\n".encode())
    vocabulary = load_vocabulary(tmp_path / "v.txt")
    assert [vocabulary[token] for token in ("\u2028", "\x85", "a")] == [1, 2, 3]
    assert len(vocabulary) == 4


@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_numbers_by_token(tmp_path, suffix):
    vocabulary = load_vocabulary(write(tmp_path / f"v{suffix}", {"a": 7}))
    assert vocabulary["a"] == 7


@pytest.mark.parametrize("content", [{"stoi": {"a": 1}, "itos": ["a"]}, [["a", 1]], {1: "a"}])
def test_what_archives_read_themselves(tmp_path, content):
    assert load_vocabulary(write(tmp_path / "v.pt", content)) == content


@pytest.mark.parametrize(
    ("file", "content"),
    [("v.json", b"{"), ("v.json", b'"text"'), ("v.json", b'{"a": "b"}'), ("v.txt", b"\xff\xfe")],
)
def test_a_damaged_vocabulary_is_named(tmp_path, file, content):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(LoadFailed, match=file):
        load_vocabulary(tmp_path / file)


def test_contractions_are_found_as_in_torchserve():
    expand = TextHandler()._expand_contractions
    assert expand("I'd say don't; he'd've, y'all can't") == (
        "I would say do not; he wouldve, you all cannot"
    )
    assert expand("DON'T") == "Do not"
    assert expand("the dog's") == "the dogs"
    assert CONTRACTION_MAP["he'd've"] == "he would have"
    assert CONTRACTION_MAP["'cause"] == "because"


@given(st.lists(st.sampled_from([*CONTRACTION_MAP, *"' aeHDVs"])).map("".join))
def test_contractions_are_found_around_apostrophes_as_in_the_whole_text(text):
    whole = CONTRACTIONS_PATTERN.sub(_expand, text).replace("'", "")
    assert TextHandler()._expand_contractions(text) == whole


@pytest.mark.parametrize("text", ["Tanr\u0131'dan", "I\u017f'd", "\u0130't"])
def test_letters_that_only_look_like_those_of_contractions(text):
    assert TextHandler()._expand_contractions(text) == text.replace("'", "")
