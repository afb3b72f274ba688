"""The OpenAPI description of KServe's routes, made from one table (CONTRACT 1.1, 1.5, 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.http.openapi import Json, content, reference

_TEXTS = {
    400: "Invalid request; the error text names the invalid element",
    404: "No such model or version",
    405: "Method not allowed",
    408: "The body was not received in time",
    413: "The body is larger than max_request_size",
    415: "Unsupported content type or encoding",
    500: "The handler raised an exception",
    503: "Not ready, or the model's queue is full",
    504: "The deadline or responseTimeout was exceeded",
    507: "Out of memory",
}
_ANY = (400, 405, 408, 413, 415)
_MODEL = (*_ANY, 404, 503)
_RUN = (*_MODEL, 500, 504, 507)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Attributes:
        answer: name of the schema of its 200 answer.
        body: name of the schema of its request body, "" if it takes none.
        statuses: those other than 200 that it may answer with.
    """

    method: str
    path: str
    name: str
    text: str
    answer: str
    body: str = ""
    statuses: tuple[int, ...] = _ANY

    def described(self, models: Mapping[str, Json]) -> Json:
        """The OpenAPI operation object.

        Args:
            models: an example of a request body per model, where one is known.
        """
        v1 = self.path.startswith("/v1")
        # v1 takes the bodies of v2 as well.
        taken = {name: body for name, body in models.items() if v1 or "inputs" in body}
        described: Json = {
            "tags": ["KServe v1" if v1 else "Open inference protocol"],
            "summary": self.text,
            "operationId": self.name,
            "parameters": list(self._parameters(taken or models)),
            "responses": {"200": content("Done", self.answer)}
            | {
                str(status): content(_TEXTS[status], self._error(status))
                for status in self.statuses
            },
        }
        if self.body:
            media: Json = {"schema": reference(self.body)}
            if self.statuses is _RUN and taken:
                media["examples"] = {name: {"value": body} for name, body in taken.items()}
            described["requestBody"] = {
                "required": self.statuses is _RUN,
                "content": {"application/json": media},
            }
        return described

    def _error(self, status: int) -> str:
        """Name of the schema of an answer with ``status``; a probe's 503 may have its own."""
        probed = self.answer in ("Live", "Ready", "ModelReady")
        return "Not" + self.answer if probed and status == 503 else "KServeError"

    def _parameters(self, models: Mapping[str, Json]) -> Iterator[Json]:
        for name in re.findall(r"{(\w+)}", self.path):
            parameter = {
                "in": "path",
                "name": name,
                "required": True,
                "schema": {"type": "string", "minLength": 1},
            }
            if name == "model_name" and models:
                parameter["example"] = next(iter(models))
            yield parameter


def paths(models: Mapping[str, Json]) -> Json:
    """The OpenAPI paths object of all of KServe's routes; ``models`` as in `Route.described`."""
    described: Json = {}
    for route in _ROUTES:
        described.setdefault(route.path, {})[route.method] = route.described(models)
    return described


# --- schemas ---


def _object(required: str, **properties: Json) -> Json:
    described: Json = {"type": "object", "properties": properties}
    return {**described, "required": required.split()} if required else described


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _either(*schemas: str) -> Json:
    return {"anyOf": [reference(schema) for schema in schemas]}


_STRING: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_DATATYPE: Json = {"type": "string", "enum": list(DATATYPES)}
_PARAMETERS: Json = {"type": "object", "additionalProperties": True}
_SHAPE: Json = _array({"type": "integer"})
_DATA: Json = {"description": "The elements, flat or nested, row by row"}
_DESCRIBED = _object("name datatype shape", name=_STRING, datatype=_DATATYPE, shape=_SHAPE)
_OUTPUT = _object("name", name=_STRING, parameters=_PARAMETERS)

SCHEMAS: Json = {
    "KServeError": _object("error", error=_STRING),
    "Alive": _object("status", status=_STRING),
    "Live": _object("live", live=_FLAG),
    "Ready": _object("ready", ready=_FLAG),
    "ModelReady": _object("name ready", name=_STRING, ready=_FLAG),
    **{
        f"Not{answer}": _either(answer, "KServeError") for answer in ("Live", "Ready", "ModelReady")
    },
    "ModelNames": _object("models", models=_array(_STRING)),
    "Instances": _object(
        "instances", instances={**_array({}), "maxItems": 16}, parameters=_PARAMETERS
    ),
    "Predictions": _object("predictions", predictions=_array({})),
    "Explanations": _object("explanations", explanations=_array({})),
    "Tensor": _object(
        "name datatype shape",
        name=_STRING,
        datatype=_DATATYPE,
        shape=_SHAPE,
        data=_DATA,
        parameters=_PARAMETERS,
    ),
    "InferenceRequest": _object(
        "inputs",
        id=_STRING,
        parameters=_PARAMETERS,
        inputs={**_array(reference("Tensor")), "minItems": 1},
        outputs=_array(_OUTPUT),
    ),
    "InferenceResponse": _object(
        "model_name outputs",
        id=_STRING,
        model_name=_STRING,
        model_version=_STRING,
        parameters=_PARAMETERS,
        outputs=_array(reference("Tensor")),
    ),
    "V1Body": _either("Instances", "InferenceRequest"),
    "V1Predicted": _either("Predictions", "InferenceResponse"),
    "V1Explained": _either("Explanations", "InferenceResponse"),
    "ServerMetadata": _object(
        "name version extensions", name=_STRING, version=_STRING, extensions=_array(_STRING)
    ),
    "ModelMetadata": _object(
        "name platform",
        name=_STRING,
        versions=_array(_STRING),
        platform=_STRING,
        inputs=_array(_DESCRIBED),
        outputs=_array(_DESCRIBED),
    ),
    "IndexRequest": _object("", ready=_FLAG),
    "Index": _array(
        _object(
            "name version state reason",
            name=_STRING,
            version=_STRING,
            state={"type": "string", "enum": ["LOADING", "READY", "UNAVAILABLE", "UNLOADING"]},
            reason=_STRING,
        )
    ),
    "RepositoryRequest": _object("", parameters=_PARAMETERS),
    "Loaded": _object("name load", name=_STRING, load=_FLAG),
    "Unloaded": _object("name unload", name=_STRING, unload=_FLAG),
}

# --- the table ---

_V1, _V2 = "/v1/models/{model_name}", "/v2/models/{model_name}"
_REPOSITORY = "/v2/repository/models/{model_name}"
_VERSION = "/versions/{model_version}"

_ROUTES = (
    Route("get", "/", "alive", "Server liveness", "Alive"),
    Route("get", "/v1/models", "v1_models", "List the models", "ModelNames"),
    Route("get", _V1, "v1_ready", "Model readiness", "ModelReady", "", _MODEL),
    Route("post", f"{_V1}:predict", "v1_predict", "Predict", "V1Predicted", "V1Body", _RUN),
    Route("post", f"{_V1}:explain", "v1_explain", "Explain", "V1Explained", "V1Body", _RUN),
    Route("get", "/v2", "server_metadata", "Name, version and extensions", "ServerMetadata"),
    Route("get", "/v2/health/live", "live", "Server liveness", "Live", "", (*_ANY, 503)),
    Route("get", "/v2/health/ready", "ready", "Server readiness", "Ready", "", (*_ANY, 503)),
    Route("get", "/v2/models", "v2_models", "List the models", "ModelNames"),
    *(
        Route(method, f"{_V2}{version}{end}", f"{prefix}{name}", text, answer, body, statuses)
        for version, prefix in (("", ""), (_VERSION, "version_"))
        for method, end, name, text, answer, body, statuses in (
            ("get", "", "model_metadata", "Model metadata", "ModelMetadata", "", _MODEL),
            ("get", "/ready", "model_ready", "Model readiness", "ModelReady", "", _MODEL),
            ("post", "/infer", "infer", "Infer", "InferenceResponse", "InferenceRequest", _RUN),
            (
                "post",
                "/explain",
                "explain",
                "Explain",
                "InferenceResponse",
                "InferenceRequest",
                _RUN,
            ),
        )
    ),
    Route(
        "post",
        "/v2/repository/index",
        "index",
        "List the models and their states",
        "Index",
        "IndexRequest",
    ),
    Route(
        "post",
        f"{_REPOSITORY}/load",
        "load",
        "Load or reload a model",
        "Loaded",
        "RepositoryRequest",
        _MODEL,
    ),
    Route(
        "post",
        f"{_REPOSITORY}/unload",
        "unload",
        "Unload a model",
        "Unloaded",
        "RepositoryRequest",
        _MODEL,
    ),
)
