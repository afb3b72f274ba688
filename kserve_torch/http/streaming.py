"""A handler's intermediate results as chunks of a response body (CONTRACT R10).

Whether a handler streams is known only when it does: nothing is sent before its first intermediate
result, or else its answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kserve_torch.engine.emissions import Emissions
from kserve_torch.errors import HandlerError, ServingError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence

    from kserve_torch.http.call import Answer
    from kserve_torch.messages import RowReply


async def answer_or_stream(
    answering: Coroutine[Any, Any, Answer],
    emissions: Emissions,
    write: Callable[[RowReply], Answer],
    unsendable: Callable[[ServingError], Answer],
) -> Answer:
    """The answer, or a streamed one if the handler sends intermediate results before it.

    Args:
        answering: waits for the handler and returns the whole answer, or its last part.
        emissions: where the handler's intermediate results go.
        write: makes an answer of one intermediate result; the status and headers of the first are
            those of the streamed answer.
        unsendable: reports an intermediate result that ``write`` refuses, and returns the answer to
            send instead.
    """
    task = asyncio.create_task(answering)
    emissions.until(task)
    try:
        first = await anext(emissions, None)
        if first is None:
            return await task
        answers = [write(row) for row in first.values()]
    except ServingError as error:
        task.cancel()
        return unsendable(error)
    except BaseException:
        task.cancel()
        raise
    return replace(answers[0], body=_chunks(answers, task, emissions, write, unsendable))


async def _chunks(
    first: Sequence[Answer],
    task: asyncio.Future[Answer],
    emissions: Emissions,
    write: Callable[[RowReply], Answer],
    unsendable: Callable[[ServingError], Answer],
) -> AsyncGenerator[bytes]:
    try:
        for answer in first:
            yield _body(answer)
        async for rows in emissions:
            for row in rows.values():
                try:
                    answer = write(row)
                except ServingError as error:
                    unsendable(error)
                    raise
                yield _body(answer)
        last = await task
        if last.status >= 400 and last.status != first[0].status:
            # Another status has been sent: an incomplete body is how HTTP tells of an error now.
            raise HandlerError(f"the handler failed with status {last.status} in mid-stream")
        yield _body(last)
    finally:
        task.cancel()


def _body(answer: Answer) -> bytes:
    assert isinstance(answer.body, bytes)
    return answer.body
