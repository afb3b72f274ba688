"""What all data-plane endpoints share: submit a Request, time it, report it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kserve_torch.engine.aside import aside
from kserve_torch.errors import ClientLeft, InvalidInput
from kserve_torch.events import Responded
from kserve_torch.http.call import Answer, Call
from kserve_torch.messages import Reply, Request
from kserve_torch.models.report import log_unsendable, responded
from kserve_torch.models.v2 import size_of

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry

#: Milliseconds that the client waits, from the request's arrival.
TIMEOUT_HEADER = "x-request-timeout-ms"


def deadline(call: Call) -> float | None:
    """``time.monotonic()`` after which the client no longer waits, from its time-out header.

    Raises:
        InvalidInput: the header is not a positive number.
    """
    text = call.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if not 0 < milliseconds < float("inf"):
        raise InvalidInput(f"{TIMEOUT_HEADER}: {text!r} is not a positive number of milliseconds")
    return time.monotonic() + milliseconds / 1000


class Serve:
    """Submits a request, turns the outcome into an answer and reports it.

    Args:
        registry: the models.
        protocol: as of `responded`.
        failed: turns an error into the protocol's answer.
    """

    def __init__(
        self, registry: Registry, protocol: str, failed: Callable[[BaseException, str], Answer]
    ) -> None:
        self._registry = registry
        self._protocol = protocol
        self._failed = failed
        self._untold: list[Responded] = []

    async def __call__(
        self, call: Call, request: Request, write: Callable[[Reply], Answer]
    ) -> Answer:
        """Submit a request and ``write`` the reply; all errors become answers.

        Cancelling it means that the client has disconnected.

        Args:
            call: the HTTP request.
            request: what was decoded from it.
            write: makes the answer.
        """
        reply: Reply | None = None
        try:
            reply = await self._registry.submit(request)
            answer = await aside(size_of(reply), write, reply)
        except asyncio.CancelledError as gone:
            self._tell(call, request, ClientLeft.http, reply, gone)
            raise
        except Exception as error:
            if reply is not None:
                log_unsendable(self._registry, request, error)
            return self.fail(call, request, error, reply)
        self._tell(call, request, answer.status, reply)
        return answer

    def refuse(
        self, call: Call, model: str, error: Exception, asked: str | None = None, id_: str = ""
    ) -> Answer:
        """The answer to a request that could not be decoded; ``id_`` if that could be."""
        id_ = id_ or call.headers.get("x-request-id") or "-"
        refused = Request(id=id_, model=model, version=asked, rows=(), headers=call.headers)
        return self.fail(call, refused, error)

    def fail(
        self, call: Call, request: Request, error: Exception, reply: Reply | None = None
    ) -> Answer:
        """The answer to a request that failed, or whose own answer cannot be sent."""
        answer = self._failed(error, request.id)
        # The traceback's frames hold the request and objects that hold the error again: this circle
        # would stay in memory until Python's garbage collector runs.
        error.__traceback__ = None
        self._tell(call, request, answer.status, reply, error)
        return answer

    def _tell(
        self,
        call: Call,
        request: Request,
        status: int,
        reply: Reply | None,
        error: BaseException | None = None,
    ) -> None:
        if call.told:  # a stream ends twice if a part of it cannot be sent: then its handler ends
            return
        call.told = True
        # In the next turn of the event loop: after the answer is sent, so that the client need not
        # wait for this, and before its next request is read, so that a scrape counts it.
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._untold.append(
            responded(self._registry, self._protocol, request, status, call.began, reply, error)
        )

    def _tell_all(self) -> None:
        """Report all answers of the last turn of the event loop, often those of a whole batch."""
        untold, self._untold = self._untold, []
        for event in untold:
            self._registry.emit(event)
