"""The page on security: which call needs which key."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
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
    """Clients of a server that asks for keys, and the file that has them."""

    client: httpx.Client
    channel: grpc.Channel
    file: Path

    def keys(self) -> dict[str, str]:
        """As they are by now: two calls renew them."""
        return {name: entry["key"] for name, entry in json.loads(self.file.read_text()).items()}

    def shown(self, key: str) -> tuple[str, str]:
        """The header that shows a key."""
        return "authorization", f"Bearer {self.keys()[key]}"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, mnist_store: Path) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("keys")
    options = ("--disable_token_authorization", "false", "--enable_model_api")
    with (
        Server(mnist_store, *options, "--log_level", "debug", cwd=folder) as server,
        server.client(server.inference_url) as client,
        grpc.insecure_channel(f"127.0.0.1:{server.ports['grpc']}") as channel,
    ):
        asked = Asked(client, channel, folder / "key_file.json")
        yield asked
        assert not any(key in server.log for key in asked.keys().values())


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
        answer = asked.client.request(method, there, headers=[asked.shown(key)])
        assert not REFUSED.search(answer.text)


@pytest.mark.parametrize(
    ("key", "code"), [("management", "PERMISSION_DENIED"), ("inference", "NOT_FOUND")]
)
def test_grpc_needs_the_same_key(asked: Asked, key: str, code: str) -> None:
    call = asked.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"", metadata=[asked.shown(key)])
    assert refused.value.code().name == code
