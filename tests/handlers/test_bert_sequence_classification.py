import pytest
import torch

from ..scripts import run_script
from .calls import objects, post, refusal, sample, upload, v1, v2
from .store import BERT, HANDLERS

transformers = pytest.importorskip("transformers")
TEXT = "this year business is good"
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def checkpoint(handler_store):
    folder = handler_store.parent / BERT / "checkpoint"
    return (
        transformers.AutoTokenizer.from_pretrained(folder),
        transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval(),
    )


def probabilities(model, ids, mask):
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), attention_mask=torch.tensor([mask])).logits
    return torch.softmax(logits, 1)[0].tolist()


def named(model, values):
    return {model.config.id2label[i]: pytest.approx(value, 1e-4) for i, value in enumerate(values)}


def test_v1_answers_what_the_checkpoint_says(server, checkpoint):
    tokenizer, model = checkpoint
    tokens = tokenizer(TEXT)
    said = probabilities(model, tokens["input_ids"], tokens["attention_mask"])
    assert v1(server, BERT, TEXT) == [named(model, said)]


def test_v2_and_an_upload_are_answered_the_same(server):
    (answer,) = v1(server, BERT, TEXT)
    assert objects(v2(server, BERT, TEXT)) == [pytest.approx(answer)]
    assert upload(server, BERT, TEXT.encode()).json() == pytest.approx(answer)


def test_an_instance_may_be_the_text_or_the_token_ids_themselves(server):
    for data in (TEXT, [101, 2204, 102]):
        response = post(server, f"/v1/models/{BERT}:predict", {"instances": [data]})
        assert response.json()["predictions"] == [pytest.approx(v1(server, BERT, data)[0])]
        response = post(server, f"/v1/models/{BERT}:explain", {"instances": [data]})
        assert response.status_code == 200


def test_a_batch_of_two_is_answered_as_two_singles(server):
    pair = (TEXT, "no")
    singles = [answer for text in pair for answer in v1(server, BERT, text)]
    assert v1(server, BERT, *pair) == [pytest.approx(one, 1e-4) for one in singles]
    assert singles[0] != pytest.approx(singles[1], 1e-3)


def test_token_ids_and_their_mask_are_answered_as_one_text(server, checkpoint):
    _, model = checkpoint
    answer = sample(server, "v2/bert/bert_v2_tensor.json", f"/v2/models/{BERT}/infer")
    ids = [101, 2023, 2095, 2449, 2003, 2204, 102]
    expected = named(model, probabilities(model, ids, [1] * 7))
    assert [output["name"] for output in answer["outputs"]] == ["input_ids", "attention_masks"]
    assert objects(answer["outputs"]) == [expected, expected]


def test_sample_requests_with_text_are_answered(server):
    assert sample(server, "v1/bert.json", f"/v1/models/{BERT}:predict")["predictions"]
    (answer,) = sample(server, "v2/bert/bert_v2_bytes.json", f"/v2/models/{BERT}/infer")["outputs"]
    assert objects([answer]) == [pytest.approx(v1(server, BERT, TEXT)[0])]


def test_importances_of_an_explanation_add_up(server, checkpoint):
    tokenizer, model = checkpoint
    (explained,) = v1(server, BERT, TEXT, verb="explain")
    ids = tokenizer(TEXT)["input_ids"]
    assert explained["words"] == tokenizer.convert_ids_to_tokens(ids)
    nothing = [ids[0], *[tokenizer.pad_token_id] * (len(ids) - 2), ids[-1]]
    of_text, of_nothing = (probabilities(model, seen, [1] * len(ids)) for seen in (ids, nothing))
    target = model.config.label2id[explained["label"]]
    assert of_text[target] == max(of_text)
    difference = of_text[target] - of_nothing[target]
    assert sum(explained["importances"]) == pytest.approx(difference, abs=0.02)


def test_an_explanation_is_about_the_target_that_was_asked_for(server, checkpoint):
    _, model = checkpoint
    instances = [{"data": TEXT, "target": 0}, {"data": TEXT, "target": 1}]
    response = post(server, f"/v1/models/{BERT}:explain", {"instances": instances})
    labels = [explained["label"] for explained in response.json()["explanations"]]
    assert labels == [model.config.id2label[0], model.config.id2label[1]]


def test_a_long_text_is_cut(server):
    (explained,) = v1(server, BERT, "a" * 90 + " " + "b" * 90, verb="explain")
    assert len(explained["words"]) == 150


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (5, "expected a text or a list of token ids"),
        ([1.5], "expected a text or a list of token ids"),
        ([True, False], "expected a text or a list of token ids"),
        ([40_000], "token ids must be from 0 to 30521"),
        ([], "0 token ids given; 1 to 150 expected"),
        ([1] * 151, "151 token ids given; 1 to 150 expected"),
    ],
)
def test_what_is_no_text_is_the_clients_mistake(server, data, reason):
    assert reason in refusal(server, BERT, data)


def test_a_mask_that_does_not_fit_is_the_clients_mistake(server):
    inputs = [
        {"name": "input_ids", "datatype": "INT64", "shape": [2], "data": [2, 3]},
        {"name": "attention_mask", "datatype": "INT64", "shape": [3], "data": [1, 1, 1]},
    ]
    for sent in (inputs, inputs[::-1]):
        response = post(server, f"/v2/models/{BERT}/infer", {"inputs": sent})
        assert response.status_code == 400
        assert "must follow token ids" in response.json()["error"]


@pytest.mark.parametrize("target", [2, -1, True, "Accepted", [0]])
def test_a_target_that_is_no_class_is_the_clients_mistake(server, target):
    body = {"instances": [{"data": TEXT, "target": target}]}
    response = post(server, f"/v1/models/{BERT}:explain", body)
    assert response.status_code == 400
    assert "target: 0 to 1 expected" in response.json()["error"]


def test_a_local_checkpoint_is_copied(handler_store, tmp_path):
    folder = handler_store.parent / BERT / "checkpoint"
    script = HANDLERS / BERT / "make_checkpoint.py"
    done = run_script(script, "--output", tmp_path / "c", "--model", folder)
    assert done.returncode == 0, done.stderr
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "c").iterdir()
    }
