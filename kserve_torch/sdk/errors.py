"""Translates our errors to those of KServe's SDK, which turns them into answers."""

from __future__ import annotations

from grpc_interceptor.exceptions import GrpcException
from kserve import errors
from kserve.model_server import app
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from kserve_torch.errors import ModelNotFound, NotReady, ServingError
from kserve_torch.grpc.status import status_of


class _Refused(HTTPException):
    """An error whose status no error of the SDK has."""


async def _answered(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, _Refused)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


# Else FastAPI would answer with {"detail": ...}, unlike KServe's other errors (CONTRACT D3).
app.add_exception_handler(_Refused, _answered)


def translated(error: ServingError, model: str, from_grpc: bool) -> Exception:
    """The SDK's error for one of ours; if it has none, one with the same status and text."""
    theirs: Exception = _Refused(error.http, error.message, dict(error.headers))
    if from_grpc:
        status = status_of(error, "ModelInfer")
        theirs = GrpcException(status.text, status.code)
    elif type(error) is ModelNotFound:
        theirs = errors.ModelNotFound(model)
    elif isinstance(error, NotReady):
        theirs = errors.ModelNotReady(model)
    elif error.http == 400:
        theirs = errors.InvalidInput(error.message)
    elif error.http == 500:
        theirs = errors.InferenceError(error.message)
    return theirs
