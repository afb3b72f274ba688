"""The handler that peers and the in-process limit run."""

from pathlib import Path

import pytest

from benchmarks.handling import only_handler

from ..makers import make_archive

ECHO = """
class Handler:
    def initialize(self, context):
        self.name = context.model_name
    def handle(self, data, context):
        return [[self.name, row["data"], context.get_request_id(0)] for row in data]
"""


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_an_archives_handler_without_a_server(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO}, modelName="alone")
    handler = only_handler(tmp_path)
    rows = [{"data": 1}, {"data": 2}]
    assert handler(rows) == [["alone", 1, "benchmark"], ["alone", 2, "benchmark"]]
