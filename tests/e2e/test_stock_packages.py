"""What TorchServe's image for KServe has, and archives import without listing it."""

import json
from collections.abc import Iterator

import pytest

from ..makers import make_archive
from ..server import Server

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "this", "year", "business", "is", "good"]

#: Like TorchServe's example for Hugging Face models, from which most handlers for them are copied.
HANDLER = """
import json

import matplotlib, pandas, psutil, requests, tqdm, yaml
import torch
import transformers
from captum.attr import LayerIntegratedGradients
from pkg_resources import packaging, resource_filename
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from ts.torch_handler.base_handler import BaseHandler

assert packaging.version.parse(transformers.__version__) >= packaging.version.parse("4")

class TransformersHandler(BaseHandler):
    def initialize(self, ctx):
        folder = ctx.system_properties.get("model_dir")
        self.device = torch.device("cpu")
        self.model = AutoModelForSequenceClassification.from_pretrained(folder)
        self.model.to(self.device).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder, do_lower_case=True)
        with open(resource_filename(__name__, "index_to_name.json")) as file:
            self.mapping = json.load(file)
        self.initialized = True

    def preprocess(self, requests):
        texts = [row.get("data") or row.get("body") for row in requests]
        inputs = [
            self.tokenizer.encode_plus(
                text,
                max_length=8,
                pad_to_max_length=True,
                add_special_tokens=True,
                return_tensors="pt",
            )
            for text in texts
        ]
        names = ("input_ids", "attention_mask")
        return [torch.cat([each[name] for each in inputs]) for name in names]

    def inference(self, batch):
        input_ids, attention_mask = batch
        classes = self.model(input_ids, attention_mask)[0].argmax(1).tolist()
        return [[self.mapping[str(index)], input_ids.shape[1]] for index in classes]

    def postprocess(self, output):
        return output

    def get_insights(self, batch, text, target):
        def forward(ids):
            return torch.softmax(self.model(ids)[0], 1)

        gradients = LayerIntegratedGradients(forward, self.model.bert.embeddings)
        ids = torch.tensor([self.tokenizer.encode(text, add_special_tokens=True)])
        found = gradients.attribute(ids, baselines=torch.zeros_like(ids), target=0)
        return [{"words": self.tokenizer.convert_ids_to_tokens(ids[0]), "shape": [*found.shape]}]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("stock")
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(checkpoint / "vocab.txt")).save_pretrained(checkpoint)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(checkpoint)
    files: dict[str, str | bytes] = {
        **{path.name: path.read_bytes() for path in checkpoint.iterdir()},
        "handler.py": HANDLER,
        "index_to_name.json": json.dumps({"0": "one", "1": "one"}),
    }
    make_archive(folder / "store/bert.mar", files, modelName="bert")
    with Server(folder / "store") as running:
        yield running


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("predict", {"predictions": [["one", 8]]}),
        (
            "explain",
            {
                "explanations": [
                    {"words": ["[CLS]", "business", "is", "good", "[SEP]"], "shape": [1, 5, 8]}
                ]
            },
        ),
    ],
)
def test_a_handler_of_torchserves_time_is_served_as_it_is(
    server: Server, verb: str, answer: dict[str, object]
) -> None:
    body = {"instances": [{"data": "business is good"}]}
    with server.client(server.inference_url) as http:
        response = http.post(f"/v1/models/bert:{verb}", json=body)
    assert (response.status_code, response.json()) == (200, answer)
