from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from kserve_torch.errors import MethodNotAllowed
from kserve_torch.http.call import Answer, Call
from kserve_torch.http.metrics import MetricsText


def pieces(names: Sequence[str] | None) -> Iterable[bytes]:
    return (f"{name}\n".encode() for name in names or "abc")


async def answer(
    path: str = "/metrics", query: str = "", method: str = "GET", enabled: bool = True
) -> Answer | None:
    call = Call(method=method, path=path, query=query)
    return await MetricsText(pieces, enabled=enabled).route(call)


async def test_all_metrics_or_those_with_the_names() -> None:
    for path in ("/metrics", "/metrics/"):
        whole = await answer(path)
        assert whole is not None
        assert (whole.status, whole.body) == (200, b"a\nb\nc\n")
        assert whole.content_type == "text/plain; version=0.0.4; charset=utf-8"
    some = await answer(query="name[]=QueueTime&name%5B%5D=queue_depth&name[]=")
    assert some is not None
    assert some.body == b"QueueTime\nqueue_depth\n"


async def test_requests_pass_a_scrape_between_its_pieces() -> None:
    scrape = asyncio.create_task(answer())
    turns = 0
    while not scrape.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3


async def test_other_paths_and_a_disabled_api_are_not_answered() -> None:
    assert await answer("/metrics/x") is None
    assert await answer(enabled=False) is None
    with pytest.raises(MethodNotAllowed) as refused:
        await answer(method="POST")
    assert refused.value.headers == (("allow", "GET, HEAD"),)
