"""A registry with one model, ``echo``, whose handler answers as the ``mode`` header says."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from kserve_torch.engine import tasks
from kserve_torch.http.app import Route, error_answer
from kserve_torch.http.call import Answer, Call, headers_of
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.settings.models import StartupModel

from ..makers import make_archive

HANDLER = """
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.utils.util import PredictionException


def handle(data, context):
    if data is None:
        return None
    if context.get_request_header(0, "describe") == "True":
        return [{"about": "echo"}]
    return [answer(row, i, context) for i, row in enumerate(data)]


def answer(row, i, context):
    mode = context.get_request_header(i, "mode")
    if mode == "status":
        context.set_response_status(507, "Own phrase", i)
        return "Invalid response"
    if mode == "no status":
        context.set_response_status("400", "Own phrase", i)
        return "text"
    if mode == "no type":
        context.set_response_content_type(i, 5)
        return "text"
    if mode == "headers":
        return context.get_all_request_header(i)
    if mode == "image":
        context.set_response_content_type(i, "image/png")
        context.set_response_header(i, "x-own", "1")
        return b"\\x89PNG"
    if mode == "ours":
        for name in ("x-own", "Date", "X-Request-Id", "Cache-Control"):
            context.set_response_header(i, name, "1")
        return ""
    if mode == "another server's":
        for name in ("X-Own", "Content-Encoding", "Inference-Header-Content-Length"):
            context.set_response_header(i, name, "1")
        return ""
    if mode == "raise":
        raise ValueError("broken in " + context.system_properties["model_dir"])
    if mode == "code":
        raise PredictionException("my text", 599)
    if mode == "half a pair":
        raise PredictionException("\\ud800", 404)
    if mode == "stream":
        for part in ("a ", "b "):
            send_intermediate_predict_response([part], context.request_ids, "", 200, context)
        return "end"
    if mode == "long stream":
        for _ in range(9):
            send_intermediate_predict_response(["a "], context.request_ids, "", 200, context)
        return "end"
    if mode == "stream of an error":
        context.set_response_status(422, "", i)
        send_intermediate_predict_response(["a "], context.request_ids, "", 200, context)
        return "end"
    if mode in ("201 at the end", "400 at the end"):
        send_intermediate_predict_response(["a "], context.request_ids, "", 200, context)
        context.set_response_status(int(mode[:3]), "", i)
        return "end"
    if mode == "broken stream":
        send_intermediate_predict_response(["a "], context.request_ids, "", 200, context)
        raise ValueError("broken")
    if mode in ("odd first", "odd later"):
        for part in [object()] if mode == "odd first" else ["a ", object()]:
            send_intermediate_predict_response([part], context.request_ids, "", 200, context)
        return "end"
    if mode == "set":
        return object()
    if mode == "tensor":
        import torch

        return torch.tensor([1, 2])
    if mode == "text":
        return "text"
    if mode == "row":
        return row
    if isinstance(row, dict):
        return {key: repr(value) for key, value in row.items()}
    return repr(row)
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A model store with ``echo`` in versions 1.0 and 2.0."""
    folder = tmp_path / "store"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        make_archive(
            folder / f"echo_{version}.mar",
            {"echo.py": HANDLER},
            modelName="echo",
            modelVersion=version,
            handler="echo.py",
        )
    return folder


@pytest.fixture
def settings(store: Path) -> Settings:
    """Settings of a server on that store, with the model API."""
    return Settings(model_store=store, enable_model_api=True, default_workers_per_model=1)


@pytest.fixture
async def registry(settings: Settings) -> AsyncIterator[Registry]:
    """``echo`` 1.0, loaded as at start-up."""
    registry = Registry(settings)
    await registry.start([StartupModel(name=None, file="echo_1.0.mar")])
    yield registry
    await registry.close()


def call(
    method: str,
    target: str,
    body: bytes = b"",
    management: bool = False,
    **headers: str,
) -> Call:
    """A call of ``target``, a path with its query; ``_`` in header names stands for ``-``."""
    path, _, query = target.partition("?")
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Call(
        method=method,
        path=path,
        query=query,
        body=body,
        headers=headers_of(raw),
        management=management,
    )


def parsed(answer: Answer) -> Any:
    """The JSON value in a body."""
    assert isinstance(answer.body, bytes)
    return orjson.loads(answer.body)


async def routed(route: Route, call: Call) -> Answer:
    """The answer of a route, or the application's to its error."""
    try:
        answer = await route(call)
    except Exception as error:
        return error_answer(call, error)
    assert answer is not None
    return answer


async def settled() -> None:
    """Wait until nothing goes on in the background."""
    loop = asyncio.get_running_loop()
    while left := [task for task in tasks._UNFINISHED if task.get_loop() is loop]:
        await asyncio.wait(left)
