"""The values that travel: a Request on its way in, a Reply on its way out.

Nothing here knows a protocol, a queue or a handler; every floor above speaks in these words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from random import Random
from typing import Any, Protocol

import numpy as np

from kserve_torch.frozen import frozen

#: One element of the ``data`` list that a handler sees. Native bodies make dicts of ``bytearray``,
#: ``str`` or parsed JSON (CONTRACT R1, R2); v1 instances are as in the JSON, so of any type.
Row = Any

#: Most rows of one call. Each costs 500 bytes of objects besides its data, and a body of a few
#: megabytes can hold millions of empty ones.
MAX_ROWS = 100_000


class _Nothing(dict[str, Any]):
    """An empty mapping that stays empty, so that dataclasses may have it as a default."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # dicts have none

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("this mapping stays empty")

    __setitem__ = setdefault = update = _refuse


NOTHING: Mapping[str, Any] = _Nothing()


#: The bits of a UUID that say its variant and version (RFC 9562 5.4), and all others.
_VERSION_4 = 0x4000_8000 << 48
_OPEN_BITS = (1 << 128) - 1 - (0xF000_C000 << 48)
#: Not the one that the random module shares: handlers may seed that.
_ids = Random()


def fresh_id() -> str:
    """A request id in the form of a version 4 UUID; unique, not secret."""
    digits = f"{_ids.getrandbits(128) & _OPEN_BITS | _VERSION_4:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class Verb(StrEnum):
    """What is asked of the handler."""

    PREDICT = "predict"
    EXPLAIN = "explain"
    DESCRIBE = "describe"


@frozen(kw_only=True)
class Tensor:
    """A named array of the open inference protocol (CONTRACT O20, O27).

    Attributes:
        name: the tensor's name, unique within its request or reply.
        datatype: a protocol name: ``FP32``, ``INT64``, ``BYTES``, ... ``BF16`` arrays are held as
            ``uint16`` bit patterns, ``BYTES`` as an object array of ``bytes`` or ``str``.
        array: the elements, in their real shape.
        parameters: the tensor's own parameters, without those of the binary extension.
    """

    name: str
    datatype: str
    array: np.ndarray
    parameters: Mapping[str, Any] = NOTHING

    @property
    def shape(self) -> tuple[int, ...]:
        """The real shape: ``array.shape``."""
        shape: tuple[int, ...] = self.array.shape
        return shape


class Parts(Protocol):
    """Takes what a streaming handler sends before its answer.

    Attributes:
        started: whether there was anything.
    """

    started: bool

    def __call__(self, rows: Mapping[int, RowReply]) -> None:
        """Take results by row of the request, on a handler's thread."""


@frozen(kw_only=True)
class Request:
    """The rows of one call, never split and answered as a whole.

    Attributes:
        id: the client's id or a fresh one; a handler reads it with ``context.get_request_id``.
        model: the registered name.
        version: the version that must answer, or None for the default.
        asked: the version that the client named, "" for none; a label of metrics (CONTRACT X2).
        verb: predict, explain or describe.
        rows: what becomes the handler's ``data`` list. A `Tensor` becomes the row dict of CONTRACT
            V3 on the worker's thread, with an array or nested lists as the handler prefers.
        again: rebuilds the rows from what the client sent, on any thread: a handler may have
            changed them before its batch failed. None if all are tensors, which cannot change.
        headers: request headers, in any case; handlers' look-ups ignore case (CONTRACT R4).
        content_types: per row field, its content type, where the transport knows one (CONTRACT R4).
        parameters: request parameters of the protocol.
        url_path: what followed ``/predictions/{m}/{v}/`` (CONTRACT R4).
        element: how this protocol names row ``i``, as a format: ``instances[{}]``.
        deadline: ``time.monotonic()`` after which nobody waits for the answer, or None.
        parts: takes intermediate results of a streaming handler, or None if nobody listens.
        snapshot: makes of a row's result, on the worker's thread, what the handler cannot change
            any more; None copies it.
    """

    id: str
    model: str
    rows: Sequence[Row]
    again: Callable[[], Sequence[Row]] | None = None
    version: str | None = None
    asked: str = ""
    verb: Verb = Verb.PREDICT
    headers: Mapping[str, str] = NOTHING
    content_types: Mapping[str, str] = NOTHING
    parameters: Mapping[str, Any] = NOTHING
    url_path: str = ""
    element: str = "row {}"
    deadline: float | None = None
    parts: Parts | None = None
    snapshot: Callable[[Any], Any] | None = None

    @property
    def partly_answered(self) -> bool:
        """Whether its client has part of the answer; run again, it would get that part twice."""
        return self.parts is not None and self.parts.started

    def anew(self) -> Request:
        """This request as its client sent it.

        Raises:
            Exception: whatever `again` raises, such as MemoryError.
        """
        return self if self.again is None else replace(self, rows=self.again())


@frozen(kw_only=True)
class RowReply:
    """One row's result, with what the handler said about its response (CONTRACT R8, R9).

    Attributes:
        result: what the handler returned for the row, as `Request.snapshot` made it: bytes, str,
            tensor, array or JSON value.
        status: HTTP status that the handler set for the row.
        phrase: its reason phrase.
        content_type: set by the handler, or None.
        headers: set by the handler.
    """

    result: Any
    status: int = 200
    phrase: str = ""
    content_type: str | None = None
    headers: Mapping[str, str] = NOTHING


@frozen(kw_only=True)
class Timing:
    """Where a request's time went, in seconds, and the size of its batch.

    ``began`` is the ``time.monotonic()`` at which it left the queue for the handler, 0.0 if it
    never did.
    """

    queued: float = 0.0
    handler: float = 0.0
    batch_rows: int = 0
    began: float = 0.0


#: Of a request that never waited.
NO_TIME = Timing()


@frozen(kw_only=True)
class Reply:
    """The answer to one Request: one `RowReply` per row, in order.

    The inputs of a v2 request may belong together; then there are fewer, for the first ones.

    Attributes:
        model: the registered name, as it goes into the answer.
        version: the version that answered.
        rows: see above.
    """

    model: str
    version: str
    rows: Sequence[RowReply]
    timing: Timing = NO_TIME

    @property
    def results(self) -> list[Any]:
        """The bare results."""
        return [row.result for row in self.rows]
