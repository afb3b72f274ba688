"""The OpenAPI descriptions of TorchServe's own routes, made from one table of operations.

Paths, operation ids and parameters have the names of TorchServe's descriptions, from which clients
have been generated (CONTRACT N6, N7); the texts are our own.
"""

from __future__ import annotations

from collections.abc import Iterable

from kserve_torch.http.openapi import Json, Operation, Parameter, document


def inference_api() -> Json:
    """The routes of a port without the management API."""
    return document("Inference API", _COMMON + _INFERENCE, _SCHEMAS)


def management_api() -> Json:
    """The routes of the management port, inference included."""
    operations = _COMMON + _INFERENCE + _MANAGEMENT
    return document("Inference and management API", operations, _SCHEMAS)


def model_inference_api(model: str) -> Json:
    """The inference routes of one model."""
    title = f"Inference API of model {model}"
    return document(title, _of_model(_INFERENCE), _SCHEMAS, model)


def model_management_api(model: str) -> Json:
    """The management routes of one model."""
    title = f"Management API of model {model}"
    return document(title, _of_model(_MANAGEMENT), _SCHEMAS, model)


def _of_model(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    return tuple(operation for operation in operations if "{model_name}" in operation.path)


def _error(path: str) -> str:
    """Name of the schema of errors below ``path``."""
    return "KServeError" if path.startswith(("/v1/", "/v2/")) else "Error"


# --- schemas ---


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


_STRING: Json = {"type": "string"}
_SCHEMAS: Json = {
    "Error": _object(code={"type": "integer"}, type=_STRING, message=_STRING),
    "KServeError": _object(error=_STRING),
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
    Operation(
        "get", "/ping", "ping", "Whether every model has its workers", "Status", error="Status"
    ),
    *(
        Operation("post", path, name, text, statuses=_RUN, body=True, error=_error(path))
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
