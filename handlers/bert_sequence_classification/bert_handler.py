"""Classifies texts with any Hugging Face checkpoint for sequence classification.

The archive holds this file and the files of the checkpoint's folder. It needs the package
transformers, and also runs on a stock TorchServe.
"""

import torch
from captum.attr import LayerIntegratedGradients
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from ts.service import PredictionException
from ts.torch_handler.base_handler import BaseHandler

#: Tokens in a text; more are cut off. model-config.yaml may say otherwise.
MAX_LENGTH = 150
#: Points at which an explanation's integral is evaluated.
STEPS = 30
#: v2 inputs of this name are the mask of the token ids before them.
MASKS = ("attention_mask", "attention_masks")


class SequenceClassifier(BaseHandler):
    """A row is a text, or the token ids of one; a further row may hold the ids' attention mask.

    Answers ``{label: probability}``, for a mask's row the same as for its ids.
    """

    def initialize(self, context):
        self.context = context
        self.manifest = context.manifest
        properties = context.system_properties
        gpu = properties.get("gpu_id") if torch.cuda.is_available() else None
        self.device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
        folder = properties["model_dir"]
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)
        self.model = model.to(self.device).eval()
        options = (context.model_yaml_config or {}).get("handler", {})
        self.max_length = options.get("max_length", MAX_LENGTH)
        self.labels = model.config.id2label
        self.initialized = True

    def preprocess(self, data):
        """The texts as ``{"input_ids": [...], "attention_mask": [...]}``, and each row's text."""
        texts, text_of_row = [], []
        for index, row in enumerate(data):
            value = content(row)
            if named(row, "name") in MASKS:
                if not (texts and self.goes_on(index) and fits(value, texts[-1])):
                    raise refusal(index, "an attention mask must follow token ids and be as long")
                texts[-1]["attention_mask"] = [int(bool(seen)) for seen in value]
            else:
                texts.append(self.encoded(index, value))
            text_of_row.append(len(texts) - 1)
        return texts, text_of_row

    def goes_on(self, index):
        """Whether a row is of the same request as the one before it."""
        ids = self.context.request_ids  # a stock TorchServe knows one, whatever the rows
        return ids.get(index, ids.get(index - 1)) == ids.get(index - 1)

    def encoded(self, index, value):
        if isinstance(value, str):
            tokens = self.tokenizer(value, max_length=self.max_length, truncation=True)
            return {key: tokens[key] for key in ("input_ids", "attention_mask")}
        if not isinstance(value, list) or not all(type(token) is int for token in value):
            raise refusal(index, "expected a text or a list of token ids")
        vocabulary = self.model.config.vocab_size
        if not all(0 <= token < vocabulary for token in value):
            raise refusal(index, f"token ids must be from 0 to {vocabulary - 1}")
        if not 0 < len(value) <= self.max_length:
            raise refusal(index, f"{len(value)} token ids given; 1 to {self.max_length} expected")
        return {"input_ids": value, "attention_mask": [1] * len(value)}

    @torch.inference_mode()
    def inference(self, data):
        """Probabilities ``[rows, classes]``."""
        texts, text_of_row = data
        batch = self.tokenizer.pad(texts, return_tensors="pt").to(self.device)
        return torch.softmax(self.model(**batch).logits, dim=1)[text_of_row]

    def postprocess(self, data):
        return [
            {self.labels[number]: probability for number, probability in enumerate(row)}
            for row in data.tolist()
        ]

    def explain_handle(self, data_preprocess, raw_data):
        """How much each token speaks for ``target``, by default for the likeliest class."""
        texts, text_of_row = data_preprocess
        likeliest = self.inference(data_preprocess).argmax(1).tolist()
        targets = {
            text: likeliest[i] if (target := named(raw_data[i], "target")) is None else target
            for i, text in enumerate(text_of_row)
        }
        explained = [self.attributed(text, targets[i]) for i, text in enumerate(texts)]
        return [explained[text] for text in text_of_row]

    def attributed(self, text, target):
        """Integrated gradients of one text, from a text of as many padding tokens."""
        if type(target) is not int or target not in self.labels:
            raise PredictionException(f"target: 0 to {len(self.labels) - 1} expected", 400)
        ids = torch.tensor([text["input_ids"]], device=self.device)
        mask = torch.tensor([text["attention_mask"]], device=self.device)
        special = torch.tensor(
            [[token in self.tokenizer.all_special_ids for token in text["input_ids"]]],
            device=self.device,
        )
        nothing = ids.where(special, self.tokenizer.pad_token_id)
        method = LayerIntegratedGradients(self.probability, self.model.get_input_embeddings())
        found = method.attribute(
            ids, nothing, target, (mask,), n_steps=STEPS, internal_batch_size=STEPS
        )
        return {
            "label": self.labels[target],
            "words": [
                word or self.tokenizer.unk_token
                for word in self.tokenizer.convert_ids_to_tokens(text["input_ids"])
            ],
            "importances": found.sum(-1)[0].tolist(),
        }

    def probability(self, ids, mask):
        return torch.softmax(self.model(input_ids=ids, attention_mask=mask).logits, dim=1)


def fits(mask, text):
    return isinstance(mask, list) and len(mask) == len(text["input_ids"])


def named(row, name):
    """A member of a row, which may also be the text or the token ids themselves."""
    return row.get(name) if isinstance(row, dict) else None


def content(row):
    """What a row holds, as text or as a list."""
    value = named(row, "data")
    value = named(row, "body") if value is None else value
    value = row if value is None and not isinstance(row, dict) else value
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("utf-8", "replace")
    return value.tolist() if hasattr(value, "tolist") else value


def refusal(index, reason):
    """The client's mistake: status 400, on this server and on TorchServe."""
    return PredictionException(f"row {index}: data: {reason}", 400)
