"""What all of TorchServe's own routes share: JSON answers, errors, and how models are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from kserve_torch.codec.values import json_text
from kserve_torch.errors import ModelNotFound, VersionNotFound
from kserve_torch.http.call import Answer
from kserve_torch.http.errors import as_told

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry
    from kserve_torch.models.version import ModelVersion

#: TorchServe's text for an unknown path (CONTRACT N21).
NO_ROUTE = "Requested resource is not found, please refer to API document."

#: Sent with every answer (CONTRACT R9).
_HEADERS = (
    ("pragma", "no-cache"),
    ("cache-control", "no-cache; no-store, must-revalidate, private"),
    ("expires", "Thu, 01 Jan 1970 00:00:00 UTC"),
)
_NAMES = frozenset(("x-request-id", *dict(_HEADERS)))


def native_json(value: Any, status: int = 200) -> Answer:
    """``value`` as TorchServe prints JSON: two spaces, a newline at the end (CONTRACT N24).

    Raises:
        TypeError: something in it has no JSON form.
    """
    return Answer(status=status, body=json_text(value, orjson.OPT_INDENT_2) + b"\n")


def native_error(error: BaseException, request_id: str) -> Answer:
    """The answer of a native route to an error (INTERFACE, Errors)."""
    told = as_told(error, request_id)
    answer = native_json(
        {"code": told.native, "type": told.kind, "message": told.message}, told.native
    )
    answer.headers = told.headers
    return answer


def with_native_headers(answer: Answer, request_id: str) -> Answer:
    """``answer`` with the headers of every native answer, which replace those of a handler.

    As in TorchServe, the connection is closed after an error (CONTRACT R9).
    """
    own = [(name, value) for name, value in answer.headers if name.lower() not in _NAMES]
    answer.headers = [*own, ("x-request-id", request_id), *_HEADERS]
    answer.close = answer.status >= 400
    return answer


def find(registry: Registry, model: str, version: str | None = None) -> ModelVersion:
    """A version of a model, the default one for None; the error texts are TorchServe's (N22).

    Raises:
        ModelNotFound: no such model.
        VersionNotFound: the model has no such version.
    """
    try:
        return registry.find(model, version)
    except VersionNotFound:
        raise
    except ModelNotFound:
        raise ModelNotFound(f"Model not found: {model}") from None
