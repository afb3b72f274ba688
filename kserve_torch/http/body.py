"""Bodies of requests: they have a limit on size and time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kserve_torch.codec.content import decode_body
from kserve_torch.engine.aside import aside
from kserve_torch.errors import ClientLeft, PayloadTooLarge, RequestTimeout
from kserve_torch.http.call import CODING, Call

if TYPE_CHECKING:
    from starlette.types import Receive

#: Decompressing a body takes this many times as long as reading its bytes.
INFLATES = 16
#: Bytes per second that are fast enough: with each that many a client gets a second more.
LEAST_RATE = 16 * 1024


@dataclass(frozen=True, slots=True)
class Bodies:
    """Reads bodies.

    Attributes:
        most: bytes that one may have, also when it is decompressed.
        seconds: that a client may take to send one, plus a second per `LEAST_RATE` bytes.
    """

    most: int
    seconds: float

    async def read(self, call: Call, receive: Receive) -> bytes:
        """The body of a call.

        Raises:
            PayloadTooLarge: it is larger than the limit.
            RequestTimeout: it did not come in time.
            ClientLeft: its client disconnected before the end.
        """
        length = call.headers.get("content-length")
        if length is not None and int(length) > self.most:
            raise self._too_large()
        if length is None and "transfer-encoding" not in call.headers:
            return b""
        chunks: list[bytes] = []
        size = 0
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.seconds
        try:
            async with asyncio.timeout_at(ends) as limit:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft("the body was not complete")
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > self.most:
                        raise self._too_large()
                    if not message.get("more_body"):
                        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
                    limit.reschedule(ends + size / LEAST_RATE)
        except TimeoutError:
            raise RequestTimeout(
                f"the body did not arrive within {self.seconds:g} s, {size} bytes came"
            ) from None

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body is larger than {self.most} bytes (max_request_size)")

    async def decode(self, call: Call) -> None:
        """Undo the content coding of a call's body, if it has one; its headers then have none.

        Raises:
            UnsupportedContent: the coding is unknown.
            InvalidInput: the body is not in that coding.
            PayloadTooLarge: it becomes larger than the limit.
        """
        coding = call.headers.get(CODING)
        if not coding or not call.body:
            return
        size = INFLATES * len(call.body)
        call.body = await aside(size, decode_body, call.body, coding, self.most)
        headers = {name: value for name, value in call.headers.items() if name != CODING}
        if "content-length" in headers:
            headers["content-length"] = str(len(call.body))
        call.headers = headers
