"""CORS: whether browsers let pages of other origins call this server (CONTRACT F2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.middleware.cors import CORSMiddleware

from kserve_torch.codec.document import JSON
from kserve_torch.http.call import json_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import Headers
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from kserve_torch.settings import Settings


#: Headers of answers that pages may read: without the first, no binary tensors.
_READABLE = ("Inference-Header-Content-Length", "Retry-After", "X-Request-Id")


def with_cors(app: ASGIApp, settings: Settings) -> ASGIApp:
    """The application, with CORS for the configured origins; unchanged if there are none.

    As in TorchServe, every answer has the configured headers (CONTRACT F2), not only those to
    requests with an ``Origin``: some proxies and clients rely on that.
    """
    if settings.cors_allowed_origin is None:
        return app
    methods = settings.cors_allowed_methods or "GET, POST, PUT, OPTIONS"
    return _Cors(
        app,
        allow_origins=_listed(settings.cors_allowed_origin),
        allow_methods=_listed(methods),
        allow_headers=_listed(settings.cors_allowed_headers or ""),
        expose_headers=_READABLE,
        configured=[
            (b"access-control-allow-" + part, text.encode("latin-1"))
            for part, text in (
                (b"origin", settings.cors_allowed_origin),
                (b"methods", settings.cors_allowed_methods),
                (b"headers", settings.cors_allowed_headers),
            )
            if text
        ],
    )


class _Cors(CORSMiddleware):
    """Starlette's, but refusals are JSON, and requests without an origin get headers, too.

    Args:
        app: the application.
        configured: headers that are added to every answer that lacks them.
        rules: as for `CORSMiddleware`.
    """

    def __init__(
        self, app: ASGIApp, configured: Sequence[tuple[bytes, bytes]], **rules: Any
    ) -> None:
        super().__init__(app, **rules)
        self._configured = configured

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope of ASGI."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message["headers"])
                there = {name.lower() for name, _ in headers}
                headers += [header for header in self._configured if header[0] not in there]
                message = {**message, "headers": headers}
            await send(message)

        await super().__call__(scope, receive, send_with_headers)

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight request."""
        response = super().preflight_response(request_headers)
        if response.status_code >= 400:
            refusal = json_answer({"error": bytes(response.body).decode()})
            assert isinstance(refusal.body, bytes)
            response.body = refusal.body
            response.headers["content-type"] = JSON
            response.headers["content-length"] = str(len(refusal.body))
        return response


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
