"""Workers extract their weights into one folder while others compute with those of before."""

import io
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import torch

from ..makers import make_archive
from ..server import Server

HANDLER = """
import zipfile
import torch
from ts.torch_handler.base_handler import BaseHandler

class Extracting(BaseHandler):
    def initialize(self, context):
        folder = context.system_properties["model_dir"]
        with zipfile.ZipFile(folder + "/model.zip") as file:
            file.extractall(folder + "/model")
        # As transformers does it: the weights are read from the file when they are needed.
        self.weights = torch.load(folder + "/model/weights.pt", mmap=True)

    def handle(self, data, context):
        return [float(self.weights.sum()) for _ in data]
"""


def test_a_worker_that_extracts_weights_once_more_harms_no_other(tmp_path: Path) -> None:
    weights, extra = io.BytesIO(), io.BytesIO()
    torch.save(torch.ones(2_000_000), weights)
    with zipfile.ZipFile(extra, "w") as file:
        file.writestr("weights.pt", weights.getvalue())
    files = {
        "handler.py": HANDLER,
        "model.zip": extra.getvalue(),
    }
    make_archive(tmp_path / "m.mar", files)
    with (
        Server(tmp_path) as server,
        server.client(server.inference_url) as client,
        ThreadPoolExecutor(8) as threads,
    ):

        def ask_until(scaled: Future[httpx.Response]) -> set[tuple[int, str]]:
            answers = set()
            while not answers or not scaled.done():
                response = client.post("/predictions/m", content=b"")
                answers.add((response.status_code, response.text))
            return answers

        more = {"min_worker": "4", "synchronous": "true"}
        scaled = threads.submit(client.put, "/models/m", params=more)
        answers = [threads.submit(ask_until, scaled) for _ in range(4)]
        assert scaled.result().json() == {"status": "Workers scaled to 4 for model: m"}
        assert set.union(*(each.result() for each in answers)) == {(200, "2000000.0")}
