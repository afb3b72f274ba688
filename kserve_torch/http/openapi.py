"""OpenAPI descriptions of TorchServe's own routes, made from one table of operations.

Paths, operation ids and parameters are named as in TorchServe's descriptions, which generated
clients were made from (CONTRACT N6, N7); the texts are ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

OPENAPI = "3.0.1"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter; ``default`` tells its type, unless it is required."""

    name: str
    text: str
    default: str | int | bool | None = None
    required: bool = False

    def described(self) -> Json:
        """The OpenAPI parameter object."""
        schema: Json = {"type": _type(self.default)}
        if self.default is not None:
            schema["default"] = self.default
        return _parameter("query", self.name, self.text, self.required, schema)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path; path parameters are read from the path.

    Attributes:
        answer: name of the schema of a 200 answer, "" if it is the handler's.
        statuses: what else it may answer with.
        body: whether it takes a request body.
    """

    method: str
    path: str
    name: str
    text: str
    answer: str = ""
    statuses: tuple[int, ...] = (500,)
    parameters: tuple[Parameter, ...] = ()
    body: bool = False

    def described(self) -> Json:
        """The OpenAPI operation object."""
        names = re.findall(r"{(\w+)}", self.path)
        in_path = [
            _parameter("path", name, _PATH_TEXTS[name], True, {"type": "string"}) for name in names
        ]
        described: Json = {
            "description": self.text,
            "operationId": self.name,
            "parameters": in_path + [parameter.described() for parameter in self.parameters],
            "responses": {"200": _answer(self.answer)}
            | {str(status): _RESPONSES[status] for status in self.statuses},
        }
        if self.body:
            schema = {"type": "string", "format": "binary"}
            described["requestBody"] = {"required": True, "content": {"*/*": {"schema": schema}}}
        return described


def inference_api(version: str) -> Json:
    """What answers on a port without the management API."""
    return _document("Inference API", version, _COMMON + _INFERENCE)


def management_api(version: str) -> Json:
    """What answers on the management port, where inference answers too."""
    return _document("Inference and management API", version, _COMMON + _INFERENCE + _MANAGEMENT)


def model_inference_api(model: str, version: str) -> Json:
    """The inference routes of one model."""
    title = f"Inference API of model {model}"
    return _document(title, version, _of_model(_INFERENCE), model)


def model_management_api(model: str, version: str) -> Json:
    """The management routes of one model."""
    title = f"Management API of model {model}"
    return _document(title, version, _of_model(_MANAGEMENT), model)


def _of_model(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    return tuple(operation for operation in operations if "{model_name}" in operation.path)


def _document(
    title: str, version: str, operations: Iterable[Operation], model: str | None = None
) -> Json:
    paths: dict[str, Json] = {}
    for operation in operations:
        described, path = operation.described(), operation.path
        if model is not None:
            path = path.replace("{model_name}", model)
            described["parameters"] = [
                parameter
                for parameter in described["parameters"]
                if parameter["name"] != "model_name"
            ]
        paths.setdefault(path, {})[operation.method] = described
    return {
        "openapi": OPENAPI,
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


# --- parts ---


def _type(value: str | int | bool | None) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "integer" if isinstance(value, int) else "string"


def _parameter(place: str, name: str, text: str, required: bool, schema: Json) -> Json:
    return {
        "in": place,
        "name": name,
        "description": text,
        "required": required,
        "schema": schema,
    }


def _answer(schema: str) -> Json:
    if not schema:
        return {"description": "The handler's answer", "content": {"*/*": {"schema": {}}}}
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": "Done", "content": {"application/json": {"schema": reference}}}


def _error(text: str) -> Json:
    return {**_answer("Error"), "description": text}


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


_STRING: Json = {"type": "string"}
_PATH_TEXTS = {"model_name": "Name of the model", "model_version": "Version of the model"}
_RESPONSES = {
    202: {**_answer("Status"), "description": "Accepted, the work goes on"},
    206: {**_answer("Status"), "description": "Some workers are still starting"},
    400: _error("A parameter is wrong, or the archive could not be fetched or read"),
    403: _error("The default version goes last"),
    404: _error("No such model, version or archive"),
    405: _error("The model API is switched off"),
    408: _error("Requests were still running when the time was up"),
    409: _error("That version is registered already"),
    500: _error("The server failed"),
    503: _error("The model cannot take the request, or its handler failed"),
    507: _error("Out of memory"),
}
_SCHEMAS: Json = {
    "Error": _object(code={"type": "integer"}, type=_STRING, message=_STRING),
    "Status": _object(status=_STRING),
    "Description": _object(openapi=_STRING, info={"type": "object"}, paths={"type": "object"}),
    "Models": {
        "type": "object",
        "required": ["models"],
        "properties": {
            "nextPageToken": _STRING,
            "models": {"type": "array", "items": _object(modelName=_STRING, modelUrl=_STRING)},
        },
    },
    "Versions": {
        "type": "array",
        "items": _object(
            modelName=_STRING,
            modelVersion=_STRING,
            modelUrl=_STRING,
            minWorkers={"type": "integer"},
            maxWorkers={"type": "integer"},
            batchSize={"type": "integer"},
            maxBatchDelay={"type": "integer"},
            workers={"type": "array", "items": {"type": "object"}},
            jobQueueStatus={"type": "object"},
        ),
    },
}

# --- the table ---

_MODEL, _VERSION = "/{model_name}", "/{model_name}/{model_version}"
_RUN = (400, 404, 500, 503, 507)
_SYNCHRONOUS = Parameter("synchronous", "Whether to wait until it is done", default=False)
_CUSTOMIZED = Parameter("customized", "Whether to ask the handler too", default=False)
_REGISTER = (
    Parameter("url", "File in the model store, or a file, http or https URL", required=True),
    Parameter("model_name", "Name to register under, instead of the archive's"),
    Parameter("handler", "Handler, instead of the archive's"),
    Parameter("runtime", "python or python3"),
    Parameter("batch_size", "Rows of a batch", default=1),
    Parameter("max_batch_delay", "Milliseconds to wait for a full batch", default=100),
    Parameter("response_timeout", "Seconds that a handler call may take", default=120),
    Parameter("startup_timeout", "Seconds that loading may take", default=120),
    Parameter("initial_workers", "Workers to start", default=0),
    Parameter("synchronous", "Whether to wait until they run", default=True),
)
_SCALE = (
    Parameter("min_worker", "Fewest workers", default=1),
    Parameter("max_worker", "Most workers; min_worker if it is not given", default=1),
    _SYNCHRONOUS,
)
_LIST = (
    Parameter("limit", "Most models on the page, 0 to 100", default=100),
    Parameter("next_page_token", "nextPageToken of the page before"),
)
_COMMON = (
    Operation("options", "/", "apiDescription", "Describe this API", "Description"),
    Operation("get", "/api-description", "api-description", "Describe this API", "Description"),
)
_INFERENCE = (
    Operation("get", "/ping", "ping", "Whether every model has its workers", "Status"),
    *(
        Operation("post", path, name, text, statuses=_RUN, body=True)
        for path, name, text in (
            ("/predictions" + _MODEL, "predictions", "Predict"),
            ("/predictions" + _VERSION, "version_predictions", "Predict with one version"),
            ("/explanations" + _MODEL, "explanations", "Explain a prediction"),
            ("/explanations" + _VERSION, "version_explanations", "Explain with one version"),
            (f"/v1/models{_MODEL}:predict", "v1_predict", "Predict, KServe v1"),
            (f"/v1/models{_MODEL}:explain", "v1_explain", "Explain, KServe v1"),
            (f"/v2/models{_MODEL}/infer", "v2_infer", "Predict, open inference protocol"),
            (f"/v2/models{_MODEL}/explain", "v2_explain", "Explain, open inference protocol"),
        )
    ),
)
_MANAGEMENT = (
    Operation("get", "/models", "listModels", "List the models", "Models", parameters=_LIST),
    Operation(
        "post",
        "/models",
        "registerModel",
        "Register a model or a further version of one",
        "Status",
        (202, 400, 404, 405, 409, 500),
        _REGISTER,
    ),
    *(
        operation
        for path, prefix in ((_MODEL, ""), (_VERSION, "version_"))
        for operation in (
            Operation(
                "get",
                "/models" + path,
                prefix + "describeModel",
                "Describe it",
                "Versions",
                (404, 500),
                (_CUSTOMIZED,),
            ),
            Operation(
                "put",
                "/models" + path,
                prefix + "setAutoScale",
                "Change its workers",
                "Status",
                (202, 206, 400, 404, 500),
                _SCALE,
            ),
            Operation(
                "delete",
                "/models" + path,
                prefix + "unregisterModel",
                "Unregister it",
                "Status",
                (403, 404, 405, 408, 500),
            ),
        )
    ),
    Operation(
        "put",
        f"/models{_VERSION}/set-default",
        "setDefault",
        "Let this version answer where none is asked for",
        "Status",
        (404, 500),
    ),
)
