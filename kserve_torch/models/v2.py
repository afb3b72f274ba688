"""A v2 request as the engine takes it, and its output tensors, whichever transport it came by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kserve_torch.codec import signature
from kserve_torch.codec.mapping import MAPPINGS
from kserve_torch.codec.results import flattened
from kserve_torch.codec.rows import TARGET, in_base64
from kserve_torch.codec.v2 import V2Request
from kserve_torch.messages import Reply, Request, Tensor, Verb, fresh_id

if TYPE_CHECKING:
    from kserve_torch.models.version import ModelVersion


def request_of(
    found: ModelVersion,
    decoded: V2Request,
    headers: Mapping[str, str],
    verb: Verb,
    asked: str | None = None,
    deadline: float | None = None,
    from_grpc: bool = False,
) -> Request:
    """The request; its rows are the inputs, or the elements of dimension 0 (CONTRACT D2).

    Args:
        found: the version that answers.
        decoded: the body.
        headers: of the call.
        verb: predict or explain.
        asked: the version that the client named, if any.
        deadline: as of `Request`.
        from_grpc: whether ``v2_grpc_bytes`` applies (CONTRACT T-44).
    """
    limits, inputs = found.limits, decoded.inputs
    mapping = MAPPINGS[limits.v2_rows]
    if from_grpc and limits.v2_grpc_bytes == "b64":
        inputs = [in_base64(tensor) for tensor in inputs]
    if verb is Verb.EXPLAIN and TARGET in decoded.parameters:
        inputs = _explained(inputs, decoded.parameters[TARGET])
    return Request(
        id=decoded.id or headers.get("x-request-id") or fresh_id(),
        model=found.name,
        version=found.version,
        asked=asked or "",
        verb=verb,
        rows=mapping.rows(inputs),
        headers=headers,
        parameters=decoded.parameters,
        element=mapping.element,
        deadline=deadline,
        snapshot=mapping.snapshot,
    )


def _explained(inputs: Sequence[Tensor], target: object) -> Sequence[Tensor]:
    """The inputs, with the request's target if none of them has one of its own."""
    if any(TARGET in tensor.parameters for tensor in inputs):
        return inputs
    return [replace(each, parameters={**each.parameters, TARGET: target}) for each in inputs]


def size_of(reply: Reply) -> int:
    """About how many bytes the answer will have that are still to be written one by one."""
    arrays = [row.result.array for row in reply.rows if isinstance(row.result, Tensor)]
    return 8 * sum(array.nbytes for array in arrays)


def outputs_of(
    found: ModelVersion,
    decoded: V2Request,
    verb: Verb,
    reply: Reply,
    part: Sequence[int] | None = None,
) -> list[Tensor]:
    """The output tensors of a v2 request.

    Those of a batch without rows are the model's, or as they are asked for if they are not known.

    Args:
        found: the version that answered.
        decoded: the body.
        verb: predict or explain.
        reply: the results.
        part: the rows that they are of, if they are not of all.

    Raises:
        HandlerError: a result is of a kind that no datatype holds.
    """
    outputs: list[Tensor] = []
    if not reply.rows:
        asked = [
            {"name": output.name, "datatype": "FP64", "shape": [-1]}
            for output in decoded.outputs or ()
        ]
        outputs = signature.empty(found.signature("outputs") or asked)
    if not outputs:
        names: Sequence[str] = [tensor.name for tensor in decoded.inputs]
        joined = found.limits.v2_rows == "batch"
        count = 1 if joined else len(reply.rows if part is None else names)
        if verb is Verb.PREDICT and len(told := found.output_names()) == count:
            names = told
        if part is not None and not joined:
            names = [names[row] for row in part]
        outputs = MAPPINGS[found.limits.v2_rows].outputs(reply.results, names)
    return list(map(flattened, outputs)) if found.limits.v2_flatten else outputs
