"""One row's request headers, as a handler reads them, and its settings for the response."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

from kserve_torch.codec.snapshot import snapshot
from kserve_torch.messages import Request, RowReply, Verb


class Headers(dict[str, Any]):
    """Headers of one request as a handler sees them: a dict whose lookups ignore case.

    Iteration gives the names as they came in. Values are strings, but for one entry per row field,
    ``{"body": {"content-type": "image/png"}}`` (CONTRACT R4).
    """

    def __missing__(self, name: str) -> Any:
        lower = name.lower()
        for key, value in self.items():
            if key.lower() == lower:
                return value
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name, self) is not self

    def get(self, name: str, default: Any = None) -> Any:
        """The value under ``name`` in any case, or ``default``."""
        try:
            return self[name]
        except KeyError:
            return default

    @classmethod
    def of(cls, request: Request) -> Headers:
        """All that CONTRACT R4 lists; the server's own win over a client's.

        The ``parameters`` of a KServe request are among them, in their own types: TorchServe has no
        other place for what a client sends besides rows. A header of the same name wins.
        """
        headers = cls(deepcopy(dict(request.parameters)) if request.parameters else ())
        headers.update(
            (field, {"content-type": kind}) for field, kind in request.content_types.items()
        )
        headers.update(request.headers)
        headers["explain"] = _truth(request.verb is Verb.EXPLAIN)
        headers["url_path"] = request.url_path
        if request.verb is Verb.DESCRIBE:
            headers["describe"] = "True"
        return headers


def _truth(value: bool) -> str:
    """TorchServe's header values are text (CONTRACT T-14)."""
    return "True" if value else "False"


class RequestProcessor:
    """One row's request headers and what the handler sets for its response (CONTRACT C3)."""

    def __init__(self, request_header: Mapping[str, Any] | None = None) -> None:
        self.request: Request | None = None
        self._request_header = None if request_header is None else Headers(request_header)
        self._status_code = 200
        self._reason_phrase: str | None = None
        self._response_header: dict[str, str] = {}

    @classmethod
    def of(cls, request: Request) -> RequestProcessor:
        """The processor of one row of ``request``; its headers are built when first read."""
        processor = cls()
        processor.request = request
        return processor

    def get_request_properties(self) -> dict[str, Any]:
        """All request headers."""
        if self._request_header is None:
            self._request_header = Headers() if self.request is None else Headers.of(self.request)
        return self._request_header

    def get_request_property(self, key: str) -> Any:
        """The request header ``key`` in any case, or None."""
        if self._request_header is None and self.request is not None and key == "explain":
            return _truth(self.request.verb is Verb.EXPLAIN)
        return self.get_request_properties().get(key)

    def report_status(self, code: int | None, reason_phrase: str | None = None) -> None:
        """Set the HTTP status of this row's response; None is 200, as in TorchServe."""
        self._status_code = 200 if code is None else code
        with suppress(TypeError):  # what is none at all fails the row when it is answered
            self._status_code = operator.index(self._status_code)  # of NumPy's integers, too
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        """The HTTP status, 200 if none was set."""
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        """The reason phrase, or None."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Set the response header ``key``."""
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """All response headers set so far."""
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        """The response header ``key``, or None."""
        return self._response_header.get(key)

    def reply(self, result: Any) -> RowReply:
        """This row's `RowReply`: ``result`` as it is now, and all that was set for its response."""
        own = None if self.request is None else self.request.snapshot
        result = (own or snapshot)(result)
        if not self._response_header and self._status_code == 200:
            return RowReply(result=result, phrase=self._reason_phrase or "")
        headers = dict(self._response_header)
        content_type = next(
            (headers.pop(k) for k in list(headers) if k.lower() == "content-type"), None
        )
        return RowReply(
            result=result,
            status=self._status_code,
            phrase=self._reason_phrase or "",
            content_type=content_type,
            headers=headers,
        )
