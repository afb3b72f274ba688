"""RPCs of TorchServe's inference service and of its management service.

Those of `INFERENCE` may be sent in any order, those of `MANAGEMENT` are a story. Not among them is
what ends TorchServe's worker, hangs or is answered without a reason: a stream of one result, a
handler that streams to `Predictions`, `StreamPredictions2`, and customised descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from kserve_torch.grpc import management, torchserve
from kserve_torch.grpc.protos import inference_pb2, management_pb2

from ..grpc.serving import Stub
from .exchange import Answer, parsed

SERVICES = {"grpc_inference": torchserve.SERVICE, "grpc_management": management.SERVICE}


@dataclass(frozen=True, kw_only=True)
class Rpc:
    """A call; its status is gRPC's number, its body what the response holds, or the error's text.

    Attributes:
        port: one of `SERVICES`.
        method: of the port's service.
        note: what is special about it.
    """

    port: str
    method: str
    message: Message
    note: str

    @property
    def name(self) -> str:
        """What the call is called in `differences` and by pytest."""
        return f"{self.port}: {self.method} ({self.note})"

    def send(self, ports: Mapping[str, int]) -> Answer:
        """Send it to the server that has these ports."""
        with grpc.insecure_channel(f"127.0.0.1:{ports[self.port]}") as channel:
            call = getattr(Stub(channel, SERVICES[self.port]), self.method)
            try:
                answer = call(self.message, timeout=120)
                parts = [answer] if isinstance(answer, Message) else list(answer)
            except grpc.RpcError as error:
                text = error.details().partition("\n")[0]  # the next line names a class of Java
                return Answer(status=error.code().value[0], body={"message": text})
        return Answer(status=0, body=[parsed(_content(part)) for part in parts])


def _content(message: Message) -> bytes:
    """The value of the only field that is set."""
    ((_, value),) = message.ListFields()
    return value if isinstance(value, bytes) else value.encode()


def predict(
    note: str, model: str = "echo", version: str = "", method: str = "Predictions", **rows: bytes
) -> Rpc:
    message = inference_pb2.PredictionsRequest(model_name=model, model_version=version, input=rows)
    return Rpc(port="grpc_inference", method=method, message=message, note=note)


def manage(method: str, note: str, **members: Any) -> Rpc:
    service: ServiceDescriptor = management.SERVICE
    kind = getattr(management_pb2, service.methods_by_name[method].input_type.name)
    return Rpc(port="grpc_management", method=method, message=kind(**members), note=note)


INFERENCE = [
    Rpc(port="grpc_inference", method="Ping", message=Empty(), note="all models"),
    predict("one row", data=b"abc"),
    predict("a version", version="1.0", data=b"abc"),
    predict("no rows"),
    predict("no such model", model="nope", data=b"abc"),
    predict("no such version", version="9.9", data=b"abc"),
    predict("no model", model="", data=b"abc"),
    *(
        predict(f"mode {mode}", mode=mode.encode())
        for mode in (
            *("bytes", "text", "none", "set", "tuple", "large", "type"),
            *("status", "refuse", "fail", "count"),
        )
    ),
    predict("mode stream", method="StreamPredictions", mode=b"stream"),
    predict("mode fail", method="StreamPredictions", mode=b"fail"),
]

MANAGEMENT = [
    manage("ListModels", "one model", limit=10),
    manage("ListModels", "beyond the last", next_page_token=5),
    manage("DescribeModel", "the default", model_name="echo"),
    manage("DescribeModel", "no such model", model_name="nope"),
    manage("DescribeModel", "no such version", model_name="echo", model_version="9.9"),
    manage(
        "RegisterModel", "another version", url="echo2.mar", initial_workers=1, synchronous=True
    ),
    manage("RegisterModel", "no such archive", url="nope.mar"),
    manage("RegisterModel", "a path", url="../echo.mar"),
    manage("RegisterModel", "no archive"),
    manage("RegisterModel", "no such runtime", url="large.mar", runtime="LISP"),
    manage("RegisterModel", "cannot load", url="broken.mar", initial_workers=1, synchronous=True),
    manage("DescribeModel", "all versions", model_name="echo", model_version="all"),
    manage("ScaleWorker", "two", model_name="echo", min_worker=2, synchronous=True),
    manage("ScaleWorker", "one", model_name="echo", min_worker=1, max_worker=1, synchronous=True),
    manage("ScaleWorker", "fewer than the fewest", model_name="echo", min_worker=3, max_worker=1),
    manage("ScaleWorker", "no such model", model_name="nope", min_worker=1),
    manage("ScaleWorker", "no such version", model_name="echo", model_version="9.9", min_worker=1),
    manage("SetDefault", "the other version", model_name="echo", model_version="2.0"),
    manage("SetDefault", "no such model", model_name="nope", model_version="1.0"),
    manage("SetDefault", "no such version", model_name="echo", model_version="9.9"),
    manage("UnregisterModel", "no such model", model_name="nope"),
    manage("UnregisterModel", "no such version", model_name="echo", model_version="9.9"),
    manage("UnregisterModel", "the other version", model_name="echo", model_version="1.0"),
]
