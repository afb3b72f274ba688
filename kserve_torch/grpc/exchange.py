"""One request over gRPC and its reply, whose end is reported."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kserve_torch.errors import AnswerTooLarge, ClientLeft, ServingError
from kserve_torch.grpc.rpc import Call
from kserve_torch.messages import Reply, Request
from kserve_torch.models.report import log_unsendable, responded

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry

T = TypeVar("T")


class Exchange:
    """A request and its reply; as a context, emits one `Responded` at its end.

    Args:
        registry: the models, and where the event goes.
        protocol: for the event, which has the corresponding HTTP status.
        most: bytes of a response.
        message: names a model and a version.
        call: its RPC.
        id: the client's id.

    Attributes:
        request: without rows until the decoded one is set.
        reply: to be set once it is there.
    """

    def __init__(
        self, registry: Registry, protocol: str, most: int, message: Any, call: Call, id: str = ""
    ) -> None:
        self._registry = registry
        self._protocol = protocol
        self._most = most
        self._began = time.perf_counter()
        model, version = message.model_name, message.model_version
        self.request = Request(id=id, model=model, version=version, rows=(), headers=call.headers)
        self.reply: Reply | None = None

    def serialize(self, make: Callable[[T], bytes], answered: T) -> bytes:
        """The encoded response that ``make`` makes of the handler's answer.

        Raises:
            ServingError: it cannot be sent; the log says why.
        """
        try:
            response = make(answered)
            if len(response) > self._most:
                # gRPC itself would end the call, a whole stream even, and only after it was counted
                # as answered.
                size = f"the answer has {len(response)} bytes"
                raise AnswerTooLarge(f"{size}, this port sends {self._most} at most")
            return response
        except ServingError as error:
            log_unsendable(self._registry, self.request, error)
            raise

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        status = 200
        if isinstance(error, Exception):
            status = error.http if isinstance(error, ServingError) else 500
        elif error is not None:  # cancelled, or a stream closed
            status = ClientLeft.http
        registry, request, reply = self._registry, self.request, self.reply
        registry.emit(
            responded(registry, self._protocol, request, status, self._began, reply, error)
        )
