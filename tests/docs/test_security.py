"""The page on security: which call needs which key."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ..server import ROOT, Server

TEXT = (ROOT / "docs/security.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("| key | calls |\n|---|---|\n")[2].partition("\n\n")[0]
CALLS = [
    (key.strip("`"), *call)
    for row in TABLE.splitlines()
    for key, calls in [row.strip("| ").split(" | ")]
    for call in re.findall(r"`([A-Z]+) (/[^`]*)`", calls)
]
REFUSED = re.compile(r"Token Auth\w+ failed")


@dataclass(frozen=True, slots=True)
class Asked:
    """A server that asks for keys: a client without one, and the keys."""

    client: httpx.Client
    keys: dict[str, str]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, mnist_store: Path) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("keys")
    options = ("--disable_token_authorization", "false", "--enable_model_api")
    with (
        Server(mnist_store, *options, cwd=folder) as server,
        server.client(server.inference_url) as client,
    ):
        made = json.loads((folder / "key_file.json").read_text())
        yield Asked(client, {name: entry["key"] for name, entry in made.items()})


def test_the_table_is_found() -> None:
    assert {key for key, _, _ in CALLS} == {"none", "inference", "management", "API"}
    assert len(CALLS) > 25


@pytest.mark.parametrize(("key", "method", "path"), CALLS, ids=lambda part: part)
def test_the_call_needs_the_key_that_the_page_names(
    asked: Asked, key: str, method: str, path: str
) -> None:
    there = path.replace("{m}", "nobody")
    answer = asked.client.request(method, there)
    assert bool(REFUSED.search(answer.text)) == (key != "none")
    if key != "none":
        assert answer.status_code == 400
        shown = {"authorization": f"Bearer {asked.keys[key]}"}
        assert not REFUSED.search(asked.client.request(method, there, headers=shown).text)
