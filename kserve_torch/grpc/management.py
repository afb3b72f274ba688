"""TorchServe's management service, `ManagementAPIsService` (CONTRACT P2, 3.12).

Each RPC is passed to the REST endpoint of the same meaning, so both always agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson
from google.protobuf.message import Message

from kserve_torch.errors import InvalidInput, VersionNotFound
from kserve_torch.grpc.protos import management_pb2 as pb
from kserve_torch.grpc.rpc import Call
from kserve_torch.http.call import Call as HttpCall
from kserve_torch.http.management import Management

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry
    from kserve_torch.settings import Settings

SERVICE = pb.DESCRIPTOR.services_by_name["ManagementAPIsService"]


class TorchServeManagement:
    """Servicer of `SERVICE`.

    Args:
        registry: the models.
        settings: ``enable_model_api`` and ``unregister_model_timeout``.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._rest = Management(registry, settings, tokens=None)

    async def DescribeModel(
        self, message: pb.DescribeModelRequest, call: Call
    ) -> pb.ManagementResponse:
        """Limits, workers and queue of the default version, of one, or of ``all``, as JSON."""
        return await self._answer("GET", _path(message), message)

    async def ListModels(self, message: pb.ListModelsRequest, call: Call) -> pb.ManagementResponse:
        """One page of the models, as JSON."""
        return await self._answer("GET", "/models", message)

    async def RegisterModel(
        self, message: pb.RegisterModelRequest, call: Call
    ) -> pb.ManagementResponse:
        """Enter an archive and start its workers; waits for them if asked to (CONTRACT G21)."""
        waits = "true" if message.synchronous else "false"  # over REST it does unless told not to
        return await self._answer("POST", "/models", message, synchronous=waits)

    async def ScaleWorker(
        self, message: pb.ScaleWorkerRequest, call: Call
    ) -> pb.ManagementResponse:
        """Change a version's number of workers; waits for them only if asked to."""
        return await self._answer("PUT", _path(message), message)

    async def SetDefault(self, message: pb.SetDefaultRequest, call: Call) -> pb.ManagementResponse:
        """Make a version the default of its model."""
        if not message.model_version:
            raise InvalidInput("Parameter model_version is required.")
        return await self._answer("PUT", f"{_path(message)}/set-default", message)

    async def UnregisterModel(
        self, message: pb.UnregisterModelRequest, call: Call
    ) -> pb.ManagementResponse:
        """Drain a version and remove it."""
        return await self._answer("DELETE", _path(message), message)

    async def _answer(
        self, method: str, path: str, message: Message, **others: str
    ) -> pb.ManagementResponse:
        """The endpoint's status text, or all of its JSON if that has none.

        Args:
            method: of HTTP.
            path: of the endpoint.
            message: its fields that are set are the endpoint's parameters, of the same names.
            others: further parameters.
        """
        params = {field.name: value for field, value in message.ListFields()} | others
        rest = HttpCall(method=method, path=path, query=urlencode(params), management=True)
        answer = await self._rest.route(rest)
        if answer is None:  # over REST, /models/{model}/invoke is an inference
            model, version = path.split("/")[2:]
            raise VersionNotFound(f"Model version: {version} does not exist for model: {model}")
        assert isinstance(answer.body, bytes)
        said = orjson.loads(answer.body)
        if "status" in said:
            return pb.ManagementResponse(msg=said["status"])
        return pb.ManagementResponse(msg=answer.body.decode().rstrip())


def _path(message: Any) -> str:
    """The path of the model that a message names, or of one version of it."""
    model, version = message.model_name, message.model_version
    for name, value in (("model_name", model), ("model_version", version)):
        if "/" in value:
            raise InvalidInput(f"Parameter {name}: {value!r} has a slash")
    if not model:
        raise InvalidInput("Parameter model_name is required.")
    return f"/models/{model}/{version}"
