"""One tree of errors, split by whose fault it is, with every protocol's status on the class.

An error is raised wherever the fault is seen and becomes a response in exactly one place per
protocol::

    bytes -> codec -> Request -> queue -> handler -> Reply -> codec -> bytes
             ClientError         Overloaded, DeadlineExceeded
                                          HandlerError, BadRow, OutOfMemory

The message is written for the client: it names the element at fault and never holds a path of the
server or a traceback. The cause goes along as ``__cause__`` and is logged once, by the worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from kserve_torch.messages import Timing

#: TorchServe's text where a route lacks a method, or its model API is off (CONTRACT N21, G20).
NOT_ALLOWED = "Requested method is not allowed, please refer to API document."


class ServingError(Exception):
    """Root of all errors that a client can get as an answer.

    Attributes:
        http: status on the ``/v1`` and ``/v2`` routes.
        native: status on TorchServe's own routes; the same, unless a class says otherwise.
        grpc: name of the ``grpc.StatusCode``.
        kind: the ``type`` member of a native error body (CONTRACT N21-N25).
        headers: what HTTP says of it in headers (RFC 9110 10.2.1, 10.2.3).
        timing: where the time of the request went that failed with it; None if it never waited.
    """

    http: int = 500
    native: int = 500
    grpc: ClassVar[str] = "INTERNAL"
    kind: ClassVar[str] = "InternalServerException"
    headers: tuple[tuple[str, str], ...] = ()
    timing: Timing | None = None

    def __init_subclass__(cls) -> None:
        if "http" in vars(cls):
            cls.native = vars(cls).get("native", cls.http)

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # A str may hold lone surrogates, which no protocol can send.
        self.message = message.encode("utf-8", "replace").decode()


# --- the client's fault ---------------------------------------------------------------------------


class ClientError(ServingError):
    """The request cannot be served as it was sent."""

    http = 400
    grpc = "INVALID_ARGUMENT"
    kind = "BadRequestException"


class InvalidInput(ClientError):
    """A body, tensor, row or parameter that cannot be read; the message names it."""


class BadRow(InvalidInput):
    """One row of a batch is unreadable; raised by handlers, which know rows only by their index.

    Attributes:
        index: the row's index in the ``data`` list that the handler was given.
        reason: what is wrong with it, starting with the field if there is one (``data: not ...``).
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"row {index}: {reason}")
        self.index = index
        self.reason = reason


class ModelNotFound(ClientError):
    """No model of that name is configured."""

    http = 404
    grpc = "NOT_FOUND"
    kind = "ModelNotFoundException"


class VersionNotFound(ModelNotFound):
    """The model exists, this version of it does not."""

    kind = "ModelVersionNotFoundException"


class RouteNotFound(ClientError):
    """No such route on this port."""

    http = 404
    grpc = "UNIMPLEMENTED"
    kind = "ResourceNotFoundException"


class MethodNotAllowed(ClientError):
    """The route exists, but not with this method (or the calls that change things are off).

    Args:
        allowed: the route's methods; empty if the method is not the reason.
    """

    http = 405
    grpc = "PERMISSION_DENIED"
    kind = "MethodNotAllowedException"

    def __init__(self, message: str, allowed: Iterable[str] = ()) -> None:
        super().__init__(message)
        if allow := ", ".join(allowed):
            self.headers = (("allow", allow),)


class Forbidden(ClientError):
    """Understood, but refused."""

    http = 403
    grpc = "PERMISSION_DENIED"
    kind = "InvalidModelVersionException"


class Conflict(ClientError):
    """What the client wants to create exists already."""

    http = 409
    grpc = "ALREADY_EXISTS"
    kind = "ConflictStatusException"


class PayloadTooLarge(ClientError):
    """The body is over ``max_request_size``."""

    http = 413
    grpc = "RESOURCE_EXHAUSTED"
    kind = "PayloadTooLargeException"


class RequestTimeout(ClientError):
    """The client took too long to send its request, or to take its answer."""

    http = 408
    grpc = "DEADLINE_EXCEEDED"
    kind = "RequestTimeoutException"


class ClientLeft(ClientError):
    """The client disconnected before the answer; the status, nginx's, is for logs and metrics."""

    http = 499
    grpc = "CANCELLED"


class UnsupportedContent(ClientError):
    """A content type or coding that no codec reads."""

    http = 415
    kind = "UnsupportedMediaTypeException"


class InvalidArchive(ClientError):
    """An archive that is damaged, hostile or incomplete."""

    kind = "InvalidModelException"


class DownloadFailed(ClientError):
    """An archive that a registration URL names could not be fetched."""

    kind = "DownloadArchiveException"

    @classmethod
    def of(cls, url: str, why: str = "") -> DownloadFailed:
        """The error that says why ``url`` could not be fetched."""
        text = f"Failed to download archive from: {url}"
        return cls(f"{text}: {why}" if why else text)


# --- the fault of server, model or machine --------------------------------------------------------


class ServerError(ServingError):
    """The request was good and could not be served."""


class HandlerError(ServerError):
    """The handler raised, or returned what cannot be sent (CONTRACT R6, R7, T-28)."""

    native = 503


class PredictionError(HandlerError):
    """The handler raised ``PredictionException(message, error_code)``: its code is sent."""

    def __init__(self, message: str, code: int = 500) -> None:
        super().__init__(message)
        self.http = self.native = code


class LoadFailed(ServerError):
    """A model could not be loaded; the message is the one reason."""

    http = 503
    native = 500
    grpc = "UNAVAILABLE"


class PackagesFailed(LoadFailed):
    """Packages that a model requires could not be installed."""


class UnmetRequirements(ServerError):
    """A model that a client wants started lacks packages; TorchServe's status (CONTRACT A10)."""

    http = 400
    grpc = "INVALID_ARGUMENT"
    kind = "ModelException"


class NotReady(ServerError):
    """Loading, failed to load, draining or stopped."""

    http = 503
    grpc = "UNAVAILABLE"
    kind = "ServiceUnavailableException"


class DeviceLost(NotReady):
    """The GPU that the model is on can no longer be used by this process."""


class Overloaded(ServerError):
    """The queue of the model is full, or too many connections are open.

    Attributes:
        retry_after: seconds after which a retry makes sense.
    """

    http = 503
    grpc = "RESOURCE_EXHAUSTED"
    kind = "ServiceUnavailableException"
    retry_after: ClassVar[int] = 1
    headers = (("retry-after", str(retry_after)),)


class DeadlineExceeded(ServerError):
    """The request's deadline or the model's ``responseTimeout`` passed."""

    http = 504
    native = 500
    grpc = "DEADLINE_EXCEEDED"


class AnswerTooLarge(ServerError):
    """The answer is over ``max_response_size`` or ``grpc_max_send_message_length``."""

    grpc = "RESOURCE_EXHAUSTED"


class OutOfMemory(ServerError):
    """The machine or the device ran out of memory, even for this request alone."""

    http = 507
    grpc = "RESOURCE_EXHAUSTED"


class Unsupported(ServerError):
    """Part of the protocol, but not supported by this server, build or model."""

    http = 501
    grpc = "UNIMPLEMENTED"
    kind = "UnsupportedOperationException"


class SettingError(Exception):
    """A wrong setting: one line with key, value and what is allowed; the start ends with exit 1."""
