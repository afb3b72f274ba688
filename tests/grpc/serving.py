"""A real server with real models for these tests, and clients without generated code."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from kserve_torch.events import Accepted, Event, Responded
from kserve_torch.grpc import oip
from kserve_torch.grpc.server import GrpcServer
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.tokens import Tokens

from ..makers import make_archive
from ..server import free_ports

HANDLERS = {
    # Gives every tensor back as it is.
    "echo": """
class Echo:
    accepts_arrays = True
    def initialize(self, context):
        pass
    def handle(self, data, context):
        return [row["data"] for row in data]
""",
    # Answers with what it was told, as JSON text.
    "mirror": """
import json
def handle(data, context):
    if data is None:
        return None
    def told(i, row):
        headers = context.get_all_request_header(i)
        values = {name: [type(value).__name__, str(value)] for name, value in row.items()}
        return json.dumps({"row": values, "headers": {k: str(v) for k, v in headers.items()}})
    return [told(i, row) for i, row in enumerate(data)]
""",
    # Raises, or sets a status, as its input says: "code text".
    "moody": """
from ts.utils.util import PredictionException
def handle(data, context):
    if data is None:
        return None
    command = bytes(data[0].get("data") or data[0].get("body"))
    code, _, text = command.decode("utf-8", "surrogatepass").partition(" ")
    if code == "crash":
        raise RuntimeError("secret of the handler")
    if code == "memory":
        raise MemoryError
    if code == "status":
        context.set_response_status(code=418, phrase="teapot", idx=0)
        return [text]
    raise PredictionException(text, int(code))
""",
    # Sends each word of its input on its own.
    "words": """
from ts.handler_utils.utils import send_intermediate_predict_response
def handle(data, context):
    if data is None:
        return None
    words = bytes(data[0].get("data") or data[0].get("body")).decode().split()
    for word in words[:-1]:
        send_intermediate_predict_response([word], context.request_ids, "", 200, context)
    if words[-1] == "crash":
        raise RuntimeError("half way")
    return [words[-1]]
""",
    # Says something in a header, too.
    "marks": """
def handle(data, context):
    if data is None:
        return None
    length = context.get_request_header(0, "length")
    if length:
        context.set_response_header(0, "x-long", "x" * int(length))
    context.set_response_header(0, "x-own", "1")
    return ["marked"]
""",
    # Sends a first result with an error status.
    "refuses": """
from ts.handler_utils.utils import send_intermediate_predict_response as send
def handle(data, context):
    if data is None:
        return None
    context.set_response_status(code=404, phrase="not here", idx=0)
    send(["first"], context.request_ids, "not here", 404, context)
    return ["last"]
""",
    # Tells all rows, then the second half of them, and answers all.
    "tells": """
from ts.handler_utils.utils import send_intermediate_predict_response as send
def handle(data, context):
    if data is None:
        return None
    values = [row["data"] for row in data]
    send(values, context.request_ids, "", 200, context)
    late = {i: id for i, id in context.request_ids.items() if i >= len(data) // 2}
    send(values, late, "", 200, context)
    return values
""",
    # Waits until somebody opens the pipe that its input names.
    "gate": """
def handle(data, context):
    if data is None:
        return None
    open(bytes(data[0].get("data") or data[0].get("body")).decode()).close()
    return ["open"]
""",
    # Answers with a tensor of the length it was told.
    "tensor": """
import torch
def handle(data, context):
    if data is None:
        return None
    return [torch.arange(float(row["data"])) for row in data]
""",
    # Doubles rows that are single elements of a batch.
    "batch": """
def handle(data, context):
    if data is None:
        return None
    return [[value * 2 for value in row["data"]] for row in data]
""",
}

CONFIGS = {
    "batch": "v2_rows: batch",
    "base64": "v2_grpc_bytes: b64",
    "gate": "jobQueueSize: 1",
    "two": """
signature:
  outputs:
  - {name: y, datatype: INT64, shape: [-1]}
  - {name: z, datatype: INT64, shape: [-1]}
""",
    "echo": """
signature:
  inputs: [{name: x, datatype: FP32, shape: [-1, 3]}]
  outputs: [{name: y, datatype: INT64, shape: [-1]}]
""",
}


def write_archive(store: Path, name: str, handler: str, version: str = "1.0") -> None:
    """An unpacked archive ``store/name``."""
    files = {"handler.py": HANDLERS.get(handler, handler)}
    config = None
    if name in CONFIGS:
        config, files["model-config.yaml"] = "model-config.yaml", CONFIGS[name]
    make_archive(store / name, files, modelName=name, modelVersion=version, configFile=config)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status of a call that fails, and its text."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call was answered")


class Stub:
    """Callables for the methods of a service; ``name`` replaces its full name."""

    def __init__(
        self, channel: grpc.aio.Channel, service: ServiceDescriptor, name: str | None = None
    ) -> None:
        for method in service.methods:
            request = "stream" if method.client_streaming else "unary"
            response = "stream" if method.server_streaming else "unary"
            call = getattr(channel, f"{request}_{response}")(
                f"/{name or service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Serving:
    """A registry, its gRPC server on free ports of this machine, and channels to it."""

    def __init__(self, store: Path, *, tokens: Tokens | None = None, **settings: Any) -> None:
        oip_port, inference_port, management_port = free_ports(3)
        ports = {
            "grpc_port": oip_port,
            "grpc_inference_port": inference_port,
            "grpc_management_port": management_port,
            "grpc_inference_address": "127.0.0.1",
        }
        self.settings = Settings(**{"model_store": store, **ports, **settings})
        self.registry = Registry(self.settings)
        self.server = GrpcServer(self.registry, self.settings)
        self.tokens = tokens
        self.events: list[Event] = []
        self.registry.observers.add(self.events.append)
        self.channels: list[grpc.aio.Channel] = []

    async def start(self, models: Sequence[str]) -> None:
        for model in models:
            await self.registry.register(model)
        await self.server.start(self.tokens)

    def channel(self, port: int | None) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.channels.append(channel)
        return channel

    def oip(self, name: str = oip.NAMES[0]) -> Any:
        return Stub(self.channel(self.settings.grpc_port), oip.SERVICE, name)

    def stub(self, service: ServiceDescriptor, port: int | None, name: str | None = None) -> Any:
        return Stub(self.channel(port), service, name)

    def responses(self) -> Iterator[Responded]:
        return (event for event in self.events if isinstance(event, Responded))

    def versions_asked_for(self) -> list[str]:
        return [event.asked for event in self.events if isinstance(event, Accepted)]

    async def stop(self) -> None:
        for channel in self.channels:
            await channel.close()
        await self.server.stop(0)
        await self.registry.close()
