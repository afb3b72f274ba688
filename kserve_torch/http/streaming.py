"""A handler's intermediate results as chunks of a response body (CONTRACT R10).

Whether a handler streams shows only when it does: until its first intermediate result, or else its
answer, nothing has been sent.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from kserve_torch.engine.emissions import Emissions
from kserve_torch.errors import HandlerError, ServingError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from kserve_torch.http.exchange import Answer
    from kserve_torch.messages import RowReply


async def answer_or_stream(
    answering: Callable[[], Awaitable[Answer]],
    emissions: Emissions,
    write: Callable[[RowReply], Answer],
    unsendable: Callable[[ServingError], Answer],
) -> Answer:
    """The answer, or a streamed one if the handler emits something before it.

    Args:
        answering: waits for the handler and gives the whole answer, or its last part.
        emissions: where the handler's intermediate results go.
        write: makes the answer whose body is one intermediate result; the first one's status and
            headers become those of the streamed answer.
        unsendable: reports an intermediate result that ``write`` refuses and gives the answer in
            its place.
    """
    task = asyncio.create_task(_ending(answering, emissions))
    try:
        first = await emissions.next()
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


async def _ending(answering: Callable[[], Awaitable[Answer]], emissions: Emissions) -> Answer:
    try:
        return await answering()
    finally:
        emissions.end()


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
        if last.status >= 400:
            # The status is out already: a body without its end is how HTTP says that it went wrong.
            raise HandlerError(f"the handler failed with status {last.status} in mid-stream")
        yield _body(last)
    finally:
        task.cancel()


def _body(answer: Answer) -> bytes:
    assert isinstance(answer.body, bytes)
    return answer.body
