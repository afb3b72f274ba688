"""Where this server differs from TorchServe 0.12 on purpose: every request, and the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is done otherwise.

    Attributes:
        reason: why.
        where: ``status``, or a path into the body such as ``body.message``; patterns of shells.
        steps: names of the requests where it shows.
    """

    reason: str
    where: tuple[str, ...]
    steps: tuple[str, ...]


#: A message, and the words of the exception's type.
MESSAGE = ("body.message",)
ANYTHING = ("status", "body", "body*")

DIFFERENCES = (
    Difference(
        reason="`/` reports that the server is alive, as KServe's own server does",
        where=ANYTHING,
        steps=("inference: GET /", "management: GET /"),
    ),
    Difference(
        reason="the API descriptions describe this server, completely and in its own words",
        where=("body*",),
        steps=(
            "inference: OPTIONS /",
            "inference: GET /api-description",
            "inference: POST /api-description",
            "inference: OPTIONS /predictions/echo",
            "management: OPTIONS /",
            "management: GET /api-description",
            "management: POST /api-description",
            "management: OPTIONS /models/echo",
        ),
    ),
    Difference(
        reason="every port serves KServe's protocols; TorchServe has v1's readiness with the "
        "management API only",
        where=ANYTHING,
        steps=(
            "inference: GET /v1/models/echo",
            "inference: GET /v1/models/nope",
            "management: GET /v1/models/nope",
        ),
    ),
    Difference(
        reason="the management address serves the inference API as well",
        where=ANYTHING,
        steps=(
            "management: GET /ping",
            "management: POST /ping",
            "management: GET /ping/",
            "management: GET /predictions/echo",
            "management: POST /predictions/nope",
            "management: POST /predictions/echo/9.9",
            "management: OPTIONS /predictions/echo",
            "management: OPTIONS /predictions/nope",
            "management: GET /models/echo/invoke",
            "management: GET /echo/predict",
            "management: GET /echo/1.0/predict",
            "management: GET /invocations",
            "management: GET /invocations?model_name=echo&a=b",
            "management: GET /invocations?model_name=nope",
        ),
    ),
    Difference(
        reason="the message says what went wrong",
        where=MESSAGE,
        steps=(
            "inference: POST /predictions/echo (mode fail)",
            "inference: POST /predictions/echo (mode count)",
            "inference: POST /predictions/echo/1.0 (scaled to none)",
            "management: POST /models?url=http://127.0.0.1:1/y.mar",
            "management: POST /models?url=echo.mar&handler=nosuch&initial_workers=1",
            "management: POST /models?url=broken.mar&initial_workers=1",
            "management: POST /models?url=large.mar&initial_workers=1",
            "grpc_management: RegisterModel (cannot load)",
        ),
    ),
    Difference(
        reason="gRPC errors have the status of what went wrong; TorchServe has two for all of them",
        where=("status",),
        steps=(
            "grpc_inference: Predictions (no such version)",
            "grpc_inference: Predictions (no model)",
        ),
    ),
    Difference(
        reason="likewise, and the message says what went wrong",
        where=("status", *MESSAGE),
        steps=(
            "grpc_inference: Predictions (no such model)",
            "grpc_inference: Predictions (mode fail)",
            "grpc_inference: Predictions (mode count)",
            "grpc_inference: StreamPredictions (mode fail)",
        ),
    ),
    Difference(
        reason="a status that the handler sets is that of the call; TorchServe's gRPC drops it",
        where=ANYTHING,
        steps=("grpc_inference: Predictions (mode status)",),
    ),
    Difference(
        reason="a missing version has the same message on all routes",
        where=MESSAGE,
        steps=(
            "management: PUT /models/echo/9.0/set-default",
            "grpc_management: SetDefault (no such version)",
        ),
    ),
    Difference(
        reason="sets, arrays and dates in results become JSON; TorchServe fails",
        where=ANYTHING,
        steps=(
            "inference: POST /predictions/echo (mode set)",
            "grpc_inference: Predictions (mode set)",
        ),
    ),
    Difference(
        reason="`explain` and `url_path` are available on all prediction routes, not on some",
        where=("body.explain", "body.url_path"),
        steps=("inference: POST /models/echo/invoke?z=1 (headers)",),
    ),
    Difference(
        reason="a request that is too large gets an error text; TorchServe's response is empty",
        where=("body",),
        steps=("inference: POST /predictions/echo (7 MB)",),
    ),
    Difference(
        reason="the last page has no token for a next one",
        where=("body.nextPageToken",),
        steps=("management: GET /models?limit=1",),
    ),
    Difference(
        reason="a customised description is also available for all versions",
        where=("body[[]*].customizedMetadata",),
        steps=("management: GET /models/echo/all?customized=true",),
    ),
    Difference(
        reason="GET does not change the default version; TorchServe reads the path as a version",
        where=ANYTHING,
        steps=("management: GET /models/echo/1.0/set-default",),
    ),
    Difference(
        reason="`loadedAtStartup` is per version; in TorchServe, per model name",
        where=("body[[]*].loadedAtStartup", "body[[]*][[]*].loadedAtStartup"),
        steps=(
            "management: GET /models/echo/2.0 (no workers)",
            "management: GET /models/echo/all (two versions)",
            "management: GET /models/echo/2.0 (one worker)",
            "management: GET /models/echo (the new default)",
            "management: GET /models/echo (two workers)",
            "management: GET /models/echo (scaled by no number)",
            "management: GET /models/echo (registered by JSON)",
            "grpc_management: DescribeModel (all versions)",
        ),
    ),
    Difference(
        reason="TorchServe takes the default delay of -100 times 100 ms for a JSON registration",
        where=("body[[]*].maxBatchDelay",),
        steps=("management: GET /models/echo (registered by JSON)",),
    ),
    Difference(
        reason="invalid JSON is a client error",
        where=ANYTHING,
        steps=("management: POST /models (half of a JSON text)",),
    ),
    Difference(
        reason="two dots in a file name do not leave the store",
        where=MESSAGE,
        steps=("management: POST /models?url=a..b.mar",),
    ),
    Difference(
        reason="input that the handler cannot read is a client error, and the message names it",
        where=ANYTHING,
        steps=(
            *(
                f"inference: {request}"
                for model in ("mnist", "image_classifier", "object_detector", "image_segmenter")
                for request in (
                    f"PUT /predictions/{model} (no picture)",
                    f"POST /predictions/{model} (no base64)",
                )
            ),
            "inference: PUT /predictions/text_classifier (no text)",
            "inference: POST /predictions/mnist (tensor of another shape)",
            "inference: POST /v1/models/mnist:predict (kserve: bad)",
            *(
                f"inference: POST {path} ({envelope}: {what})"
                for envelope, path, member in (
                    ("json", "/predictions/echo", "instances"),
                    ("kserve", "/predictions/echo", "instances"),
                    ("kserve", "/v1/models/echo:predict", "instances"),
                    ("kservev2", "/predictions/echo", "inputs"),
                    ("kservev2", "/v2/models/echo/infer", "inputs"),
                )
                for what in (f"no member {member}", "half of a JSON text")
            ),
            "inference: POST /predictions/echo (kservev2: no inputs)",
            "inference: POST /v2/models/echo/infer (kservev2: no inputs)",
        ),
    ),
    Difference(
        reason="no instances get no predictions; TorchServe reports a mismatched batch",
        where=ANYTHING,
        steps=(
            "inference: POST /predictions/echo (json: no instances)",
            "inference: POST /predictions/echo (kserve: no instances)",
            "inference: POST /v1/models/echo:predict (kserve: no instances)",
        ),
    ),
    Difference(
        reason="greyscale images are converted to the three channels that the network expects",
        where=ANYTHING,
        steps=(
            "inference: POST /predictions/image_classifier (grey picture)",
            "inference: POST /predictions/image_segmenter (grey picture)",
        ),
    ),
    Difference(
        reason="a row that is an image itself, and text as a tensor of its bytes, are accepted",
        where=ANYTHING,
        steps=(
            "inference: POST /predictions/mnist (json: picture)",
            *(
                "inference: POST /v2/models/text_classifier/infer "
                f"(kservev2: text_classifier_v2_{form})"
                for form in ("tensor", "tensor_batch")
            ),
        ),
    ),
    Difference(
        reason="a model whose output is no tensor cannot be explained, and the response says so",
        where=ANYTHING,
        steps=(
            "inference: POST /explanations/image_segmenter (upload)",
            "inference: POST /explanations/object_detector (upload)",
        ),
    ),
    Difference(
        reason="errors on v1 and v2 have the format of these protocols",
        where=("body.code", "body.error", "body.message", "body.type"),
        steps=(
            "inference: POST /v1/models/nope:predict (kserve: no such model)",
            "inference: POST /v2/models/nope/infer (kservev2: no such model)",
        ),
    ),
    Difference(
        reason="v1 predicts by POST only",
        where=ANYTHING,
        steps=("inference: GET /v1/models/echo:predict (kserve: GET)",),
    ),
    Difference(
        reason="BYTES elements are text, so an object is sent as its JSON text",
        where=("body.outputs[[]*].data[[]*]",),
        steps=(
            "inference: POST /predictions/echo (kservev2: inputs)",
            "inference: POST /predictions/echo (kservev2: one input, no id)",
            "inference: POST /v2/models/echo/infer (kservev2: inputs)",
            "inference: POST /v2/models/echo/infer (kservev2: one input, no id)",
            "inference: POST /v2/models/text_classifier/infer (kservev2: text_classifier_v2_bytes)",
            *(
                f"inference: POST /v2/models/bert_sequence_classification/infer (kservev2: {form})"
                for form in ("bert_v2_bytes", "bert_v2_tensor")
            ),
        ),
    ),
    Difference(
        reason="an output keeps its shape; the setting `v2_flatten` restores TorchServe's flat one",
        where=("body.outputs[[]*].shape",),
        steps=tuple(
            f"inference: POST /v2/models/mnist/explain (kservev2: mnist_v2_{form})"
            for form in ("bytes", "bytes_batch", "tensor", "tensor_batch")
        ),
    ),
)

#: The patterns that each request may differ in.
ALLOWED: dict[str, list[str]] = defaultdict(list)
for _difference in DIFFERENCES:
    for _step in _difference.steps:
        ALLOWED[_step] += _difference.where


def unexpected(step: str, found: Mapping[str, str]) -> dict[str, str]:
    """Of the differences that a request shows those that are not allowed."""
    patterns = ALLOWED.get(step, ())
    return {
        path: how
        for path, how in found.items()
        if not any(fnmatchcase(path, pattern) for pattern in patterns)
    }
