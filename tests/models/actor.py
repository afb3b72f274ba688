"""A handler that does what its rows say, and requests to it."""

from pathlib import Path
from typing import Any

from kserve_torch.messages import Request, Verb

from ..makers import make_archive

#: Answers with the version it was told; its rows say what it is to do.
ACTOR = """
import threading, time

seen = []

class Actor:
    def initialize(self, context):
        self.calls = 0

    def handle(self, data, context):
        self.calls += 1
        rows = [row["data"] for row in data]
        seen.append(len(rows))
        for row in rows:
            if row == "raise": raise ValueError("boom")
            if isinstance(row, (int, float)): time.sleep(row)
        return [[row, len(rows), context.get_request_id(i)] for i, row in enumerate(rows)]
"""


def request(*rows: Any, name: str = "m", verb: Verb = Verb.PREDICT, **more: Any) -> Request:
    return Request(
        id=more.pop("id", "an-id"),
        model=name,
        rows=[{"data": row} for row in rows],
        verb=verb,
        element="instances[{}]",
        **more,
    )


YAML = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 10000\n"


def actor(path: Path, yaml: str = YAML, **model: Any) -> Path:
    files = {"handler.py": ACTOR, "model-config.yaml": yaml}
    return make_archive(path, files, configFile="model-config.yaml", **model)


WARM = """
class Handler:
    def initialize(self, context):
        self.context = context
    def handle(self, data, context):
        return [[1.0]] * len(data)
"""
