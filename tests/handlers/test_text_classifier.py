import importlib.util
import json
import re
import sys

import pytest
import torch

from kserve_torch.handler.text_classifier import TextClassifier

from .calls import objects, sample, upload, v1, v2
from .store import HANDLERS

MODEL = "text_classifier"
FOLDER = HANDLERS / MODEL
ECONOMY = "Bloomberg has reported on the economy"
pytestmark = pytest.mark.timeout(180)


def texts(name):
    lines = (FOLDER / name).read_text().splitlines()
    return [tuple(line.split(": ", 1)) for line in lines]


def best(answer):
    return max(answer, key=answer.get)


def test_texts_are_of_four_topics_and_none_is_in_both_files():
    labels = set(json.loads((FOLDER / "index_to_name.json").read_bytes()).values())
    learnt, held_out = texts("learnt.txt"), texts("held_out.txt")
    assert {topic for topic, _ in learnt} == {topic for topic, _ in held_out} == labels
    assert (len(set(learnt)), len(set(held_out))) == (120, 40)
    assert not {text for _, text in learnt} & {text for _, text in held_out}


def test_held_out_texts_are_answered_as_well_as_the_readme_says(server):
    held_out = texts("held_out.txt")
    answers = v1(server, MODEL, *(text for _, text in held_out))
    right = sum(best(answer) == topic for answer, (topic, _) in zip(answers, held_out, strict=True))
    stated = re.search(r"(\d+) of 40", (FOLDER / "README.md").read_text())
    assert stated is not None
    assert right == int(stated[1])


def test_v1_v2_and_an_upload_are_answered_the_same(server):
    (answer,) = v1(server, MODEL, ECONOMY)
    assert best(answer) == "Business"
    assert sum(answer.values()) == pytest.approx(1)
    assert objects(v2(server, MODEL, ECONOMY)) == [pytest.approx(answer)]
    assert upload(server, MODEL, ECONOMY.encode()).json() == pytest.approx(answer)


def test_a_batch_of_two_is_answered_as_two_singles(server):
    pair = (ECONOMY, "The goalkeeper saved a penalty")
    singles = [answer for text in pair for answer in v1(server, MODEL, text)]
    assert v1(server, MODEL, *pair) == [pytest.approx(one) for one in singles]
    assert best(singles[1]) == "Sports"


def test_sample_requests_of_every_form_are_answered_alike(server):
    (answer,) = sample(server, "v1/text_classifier.json", f"/v1/models/{MODEL}:predict")[
        "predictions"
    ]
    for form, rows in (("bytes", 1), ("tensor", 1), ("tensor_batch", 2)):
        name = f"v2/text_classifier/text_classifier_v2_{form}.json"
        outputs = sample(server, name, f"/v2/models/{MODEL}/infer")["outputs"]
        assert objects(outputs) == [pytest.approx(answer)] * rows


def test_an_explanation_names_the_words_and_shares_out_the_embedding(server):
    (explained,) = v1(server, MODEL, ECONOMY, verb="explain")
    assert explained["words"] == ECONOMY.lower().split()
    ((*shares,),) = explained["importances"]
    assert len(shares) == 24
    assert sum(shares) == pytest.approx(1)


def test_training_reads_texts_as_the_handler_does(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    spec = importlib.util.spec_from_file_location("_test_train", FOLDER / "train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    del sys.modules["model"]
    looked_up = []
    handler = TextClassifier()

    class Vocabulary:
        def __getitem__(self, gram):
            looked_up.append(gram)
            return 0

    handler.source_vocab = Vocabulary()
    for _, text in texts("learnt.txt") + texts("held_out.txt"):
        looked_up.clear()
        handler.preprocess([{"data": text}])
        assert train.grams(text) == looked_up


def test_training_takes_seconds_and_writes_what_the_archive_holds(tmp_path, forks):
    printed = forks.run_script(FOLDER / "train.py", "--output", tmp_path)
    right = re.search(r"held-out accuracy: (\d+) of 40", printed)
    assert right is not None
    assert int(right[1]) >= 30
    made, committed = (
        torch.load(folder / "source_vocab.pt", weights_only=True) for folder in (tmp_path, FOLDER)
    )
    assert made == committed
    assert made["a word that nobody wrote"] == 0
