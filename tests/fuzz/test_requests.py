"""Whole HTTP requests, without sockets: every one gets one answer, in the form of its path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kserve_torch import edges
from kserve_torch.server import Server
from kserve_torch.settings import load_settings

from ..makers import ECHO, make_archive
from .test_targets import BODIES

PATHS = (
    *(
        "/",
        "/v1/models",
        "/v1/models/m",
        "/v1/models/m:predict",
        "/v1/models/m:explain",
        "/metrics",
    ),
    *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m", "/v2/models/m/ready"),
    *("/v2/models/m/infer", "/v2/models/m/explain", "/v2/models/m/versions/1.0/infer"),
    *("/v2/repository/index", "/predictions/m", "/predictions/m/1.0", "/explanations/m", "/ping"),
    *("/models", "/models/m", "/models/m/1.0", "/invocations", "/api-description", "/m/predict"),
)
WORDS = st.sampled_from(["", "m", "1.0", "..", "%00", "v1", "models", ":predict", "a" * 300, "é"])
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            *("content-type", "content-encoding", "inference-header-content-length"),
            *("x-request-timeout-ms", "authorization", "ce-specversion", "ce-id", "x-request-id"),
        ]
    ),
    st.sampled_from(
        [
            *("application/json", "multipart/form-data; boundary=b", "text/plain; charset=utf-16"),
            *("gzip", "identity", "0", "10", "-1", "999999999", "1.0", "Bearer x", "é", ""),
        ]
    )
    | st.text(st.characters(max_codepoint=255), max_size=10),
    max_size=3,
)


class Application:
    """The application of a server that never opens its sockets."""

    def __init__(self, store: Path) -> None:
        self.runner = asyncio.Runner()
        self.runner.run(self._start(store))

    async def _start(self, store: Path) -> None:
        options = ["--model_store", str(store), "--enable_model_api", "--access_log", "false"]
        self.settings = load_settings(options, {}, "kserve_torch")
        self.server = Server(self.settings)
        await self.server.registry.register("m.mar")
        made = self.server
        self.app = edges.application(
            made.registry, made.metrics, self.settings, None, self.settings.bindings()
        )

    def ask(self, method: str, path: str, query: bytes, headers: Any, body: bytes) -> Any:
        """Status, headers and body of the one answer."""
        return self.runner.run(self._ask(method, path, query, headers, body))

    async def _ask(self, method: str, path: str, query: bytes, headers: Any, body: bytes) -> Any:
        raw = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
        raw.append((b"content-length", b"%d" % len(body)))
        incoming = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return incoming.pop() if incoming else await asyncio.Event().wait()  # type: ignore[return-value]

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": raw,
            "server": ("127.0.0.1", self.settings.inference_address.port),
        }
        async with asyncio.timeout(20):
            await self.app(scope, receive, send)
        head, *rest = sent
        return head["status"], dict(head["headers"]), b"".join(part["body"] for part in rest)

    def close(self) -> None:
        self.runner.run(self.server.registry.close())
        self.runner.close()


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    store = tmp_path_factory.mktemp("store")
    make_archive(store / "m.mar", {"handler.py": ECHO})
    application = Application(store)
    yield application
    application.close()


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"]),
    path=st.sampled_from(PATHS)
    | st.lists(WORDS, max_size=5).map(lambda parts: "/" + "/".join(parts)),
    query=st.sampled_from([b"", b"url=m.mar", b"limit=x", b"min_worker=-1", b"a=%zz&&=", b"\xff"]),
    headers=HEADERS,
    body=BODIES.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=50),
)
@settings(max_examples=600, derandomize=True)
def test_one_answer_each(
    application: Application,
    method: str,
    path: str,
    query: bytes,
    headers: dict[str, str],
    body: bytes,
) -> None:
    if path.startswith("/models/m") and method in ("DELETE", "PUT"):
        return  # would change what the next example meets
    status, answered, content = application.ask(method, path, query, headers, body)
    assert 200 <= status < 600
    assert status != 500 or path.startswith(("/predictions", "/ping")), content
    assert int(answered[b"content-length"]) == len(content) or method == "HEAD"
    if status >= 400 and method != "HEAD":
        error = json.loads(content)
        kserve = f"{path}/".startswith(("/v1/", "/v2/"))
        assert list(error) == (["error"] if kserve else ["code", "type", "message"]), error
    assert b"Traceback" not in content


def test_it_serves_afterwards(application: Application) -> None:
    body = b'{"instances": [{"data": "x"}]}'
    status, _, content = application.ask("POST", "/v1/models/m:predict", b"", {}, body)
    assert (status, json.loads(content)) == (200, {"predictions": ["x"]})
