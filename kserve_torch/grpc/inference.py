"""One inference request of the open inference protocol, and its responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from kserve_torch.codec.replies import check_rows, row_headers
from kserve_torch.codec.v2 import V2Request, verb_of
from kserve_torch.engine.aside import aside
from kserve_torch.grpc import convert
from kserve_torch.grpc.protos import open_inference_pb2 as pb
from kserve_torch.grpc.rpc import Call
from kserve_torch.messages import Reply, RowReply, Tensor
from kserve_torch.models.v2 import outputs_of, request_of

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry
    from kserve_torch.models.version import ModelVersion

#: Triton's parameters: a client asks for an empty last response, and that response says so.
WANTS_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"


class Inference:
    """One decoded inference request; makes responses of its results.

    Headers that the handler sets go out in the response's ``parameters``, as over REST, and as
    trailing metadata.

    Args:
        version: the one that answers, whose limits say how tensors become rows.
        decoded: the message.
        asked: the version that the client named, "" for none.
        call: its RPC.
    """

    def __init__(self, version: ModelVersion, decoded: V2Request, asked: str, call: Call) -> None:
        self._version = version
        self._trailing = call.trailing
        self._decoded = decoded
        self.request = request_of(
            version,
            decoded,
            call.headers,
            verb_of(decoded),
            asked=asked,
            deadline=call.deadline,
            from_grpc=True,
        )

    @classmethod
    async def of(cls, registry: Registry, message: pb.ModelInferRequest, call: Call) -> Self:
        """The request in a message.

        Raises:
            InvalidInput: the message cannot be decoded.
            ModelNotFound: no such model or version.
        """
        version = registry.find(message.model_name, message.model_version)
        decoded = await aside(message.ByteSize(), convert.decode, message)
        return cls(version, decoded, message.model_version, call)

    def response(self, reply: Reply) -> bytes:
        """The encoded response with the results of a reply.

        Raises:
            PredictionError: the handler gave a row an error status.
            InvalidInput: the request selects an output that does not exist.
        """
        check_rows(reply)
        return self._response(reply, self._outputs(reply), self._decoded)

    def part(self, rows: Mapping[int, RowReply]) -> bytes:
        """The encoded response with intermediate results by row, and so not all selected outputs.

        Raises:
            PredictionError: the handler gave a row an error status.
        """
        reply = Reply(model=self.request.model, version="", rows=list(rows.values()))
        check_rows(reply)
        outputs = self._outputs(reply, list(rows))
        if self._decoded.outputs is not None:
            selected = {output.name for output in self._decoded.outputs}
            outputs = [tensor for tensor in outputs if tensor.name in selected]
        return self._response(reply, outputs, replace(self._decoded, outputs=None))

    def _outputs(self, reply: Reply, part: Sequence[int] | None = None) -> list[Tensor]:
        return outputs_of(self._version, self._decoded, self.request.verb, reply, part)

    def _response(self, reply: Reply, outputs: Sequence[Tensor], request: V2Request) -> bytes:
        headers = dict(row_headers(reply))
        self._trailing.update(headers)
        return self._encode(outputs, request, headers)

    @property
    def wants_ending(self) -> bool:
        """Whether the client asked for `ending` after the last response."""
        return bool(self._decoded.parameters.get(WANTS_FINAL))

    def ending(self) -> bytes:
        """The encoded empty response that marks the end of a stream."""
        return self._encode((), V2Request(inputs=()), {FINAL: True})

    def _encode(
        self, outputs: Sequence[Tensor], request: V2Request, parameters: Mapping[str, Any]
    ) -> bytes:
        model, version = self._version.name, self._version.version
        return convert.encode(model, version, self.request.id, outputs, request, parameters)
