"""The ASGI application: bytes from sockets become a `Call`, an `Answer` becomes bytes.

One application serves every socket; the port that a request arrived on decides which routes it
sees. A request is withdrawn when its client goes away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kserve_torch.errors import RouteNotFound, ServingError
from kserve_torch.events import Responded
from kserve_torch.http.body import Bodies
from kserve_torch.http.call import CODING, Answer, Call, headers_of
from kserve_torch.http.errors import kserve_answer
from kserve_torch.http.native_json import NO_ROUTE, native_error, with_native_headers
from kserve_torch.http.sending import refuse, respond
from kserve_torch.messages import fresh_id
from kserve_torch.tokens import Access, Tokens

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Route = Callable[[Call], Awaitable[Answer | None]]

#: Paths whose errors are KServe's; all others answer as TorchServe does (CONTRACT D3).
KSERVE = ("/v1/", "/v2/")

MANAGEMENT, METRICS = "management", "metrics"

#: Seconds after which a task watches whether the client leaves; most calls need none until then.
WATCH_AFTER = 0.05


class App:
    """Routes calls by the role of their socket.

    Args:
        routes: tried in order; the first answer that is not None goes out.
        metrics: the last of them, and the only one on sockets for metrics alone.
        roles: per port, or path of a unix socket, what answers there; others are for inference.
        max_body: bytes that a body may have.
        body_seconds: as of `Bodies`.
        tokens: the keys, if token authorisation is on; TorchServe's own routes check them
            themselves.
        draining: whether connections should be closed after their answer.
        refused: takes the event of a request whose body was refused or could not be decoded: no
            route reports it.

    Attributes:
        max_body: as given.
        draining: as given.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        metrics: Route,
        roles: Mapping[Hashable, frozenset[str]],
        max_body: int,
        body_seconds: float = 60.0,
        tokens: Tokens | None = None,
        draining: Callable[[], bool] = lambda: False,
        refused: Callable[[Responded], None] = lambda event: None,
    ) -> None:
        self._routes = (*routes, metrics)
        self._sockets = {
            key: (MANAGEMENT in served, served == {METRICS}) for key, served in roles.items()
        }
        self.max_body = max_body
        self._bodies = Bodies(max_body, body_seconds)
        self._tokens = tokens
        self.draining = draining
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection scope of type http, the only one that uvicorn is set up for."""
        call = self._call(scope)
        try:
            call.body = await self._bodies.read(call, receive)
            call.began = time.perf_counter()
        except ServingError as error:
            await refuse(send, self._refusal(call, error), receive)
            return
        await self._serve(call, receive, send)

    async def answer(self, scope: Mapping[str, Any], body: bytes) -> Answer:
        """Answer a request whose body is complete; all errors become answers.

        Args:
            scope: of ASGI, of type http.
            body: at most `max_body` bytes.
        """
        call = self._call(scope)
        call.body = body
        return await self._answer(call)

    def _call(self, scope: Mapping[str, Any]) -> Call:
        server = scope.get("server") or ("", None)
        key = server[0] if server[1] is None else server[1]
        management, metrics_only = self._sockets.get(key, (False, False))
        return Call(
            method=scope["method"],
            path=scope["path"],
            headers=headers_of(scope["headers"]),
            query=scope["query_string"].decode("latin-1"),
            management=management,
            metrics_only=metrics_only,
        )

    def _refusal(self, call: Call, error: Exception) -> Answer:
        kserve = _is_kserve(call)
        request_id = call.headers.get("x-request-id", "") if kserve else fresh_id()
        answer = error_answer(call, error, request_id)
        self._refused(
            Responded(
                protocol=call.path[1:3] if kserve else "native",
                model="",
                version="",
                status=answer.status,
                seconds=0.0,
                request_id=request_id,
                error=type(error).__name__,
                headers=call.headers,
            )
        )
        return answer

    async def _serve(self, call: Call, receive: Receive, send: Send) -> None:
        """Answer a call; its client may leave before the answer, or in the middle of a stream."""
        loop = asyncio.get_running_loop()
        serving = asyncio.current_task()
        assert serving is not None
        watcher: asyncio.Task[None] | None = None

        def watch() -> None:
            nonlocal watcher
            watcher = loop.create_task(_cancel_on_departure(receive, serving))

        timer = loop.call_later(WATCH_AFTER, watch)
        try:
            answer = await self._answer(call)
            await respond(send, answer, close=self.draining())
        except asyncio.CancelledError:
            if watcher is None or not watcher.done():
                raise
            serving.uncancel()
        finally:
            timer.cancel()
            if watcher is not None:
                watcher.cancel()

    async def _answer(self, call: Call) -> Answer:
        try:
            return await self._routed(call)
        except Exception as error:
            return error_answer(call, error)

    async def _routed(self, call: Call) -> Answer:
        self._check_key(call)
        if CODING in call.headers:
            try:
                await self._bodies.decode(call)
            except ServingError as error:
                return self._refusal(call, error)
        for route in self._routes[-1:] if call.metrics_only else self._routes:
            answer = await route(call)
            if answer is not None:
                return answer
        return self._not_found(call)

    def _check_key(self, call: Call) -> None:
        """Require a key of calls that run or change a model; probes and metadata stay open.

        Raises:
            InvalidKey: the call has none, or not the one for its route.
        """
        if self._tokens is None or call.method != "POST":
            return
        if call.path.startswith("/v2/repository/models/"):
            self._tokens.check(Access.MANAGEMENT, call.headers.get("authorization"))
        elif call.path.startswith(("/v1/", "/v2/models/")):
            self._tokens.check(Access.INFERENCE, call.headers.get("authorization"))

    def _not_found(self, call: Call) -> Answer:
        text = f"{call.path} is no route of this server"
        return error_answer(call, RouteNotFound(text if _is_kserve(call) else NO_ROUTE))


def error_answer(call: Call, error: Exception, request_id: str = "") -> Answer:
    """The answer to an error that no route has handled, in the form of the path's protocol."""
    if _is_kserve(call):
        return kserve_answer(error, call.headers.get("x-request-id", "-"))
    request_id = request_id or fresh_id()
    return with_native_headers(native_error(error, request_id), request_id)


def _is_kserve(call: Call) -> bool:
    return f"{call.path}/".startswith(KSERVE)


async def _cancel_on_departure(receive: Receive, serving: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    serving.cancel()
