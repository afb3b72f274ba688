"""Browsers' questions whether a page of another origin may call (CONTRACT F2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware

from kserve_torch.http.exchange import JSON, json_answer

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from kserve_torch.settings import Settings


def with_cors(app: ASGIApp, settings: Settings) -> ASGIApp:
    """The application, answering browsers of the configured origins."""
    if settings.cors_allowed_origin is None:
        return app
    methods = settings.cors_allowed_methods or "GET, POST, PUT, OPTIONS"
    return _Cors(
        app,
        allow_origins=_listed(settings.cors_allowed_origin),
        allow_methods=_listed(methods),
        allow_headers=_listed(settings.cors_allowed_headers or ""),
    )


class _Cors(CORSMiddleware):
    """Starlette's, which refuses in plain text."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to the question that comes before a request; a refusal is JSON."""
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
