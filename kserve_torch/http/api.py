"""The OpenAPI documents of the server's routes (CONTRACT N6, N7, 1.1, 2).

`v1`, `v2`, `metadata`, `native` and `management` have the tables of the endpoints that answer them.
TorchServe's paths, operation ids and parameters are those of its own descriptions, from which
clients have been generated; the texts are our own.
"""

from __future__ import annotations

from collections.abc import Mapping

from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.http.openapi import BINARY, Json, Operation, Parameter, document, reference
from kserve_torch.messages import NOTHING


def whole_api(*, management: bool, examples: Mapping[str, Json] = NOTHING) -> Json:
    """All routes of a port.

    Args:
        management: whether the management API is among them.
        examples: per model, a v1 or v2 request body.
    """
    operations = _OPERATIONS if management else filter(_is_inference, _OPERATIONS)
    v2 = {name: body for name, body in examples.items() if "inputs" in body}
    # v1 takes the bodies of v2 as well.
    return document(operations, _SCHEMAS, {"V1Body": examples, "V2Body": v2})


def model_api(model: str, *, management: bool) -> Json:
    """The routes of one model, for inference or for its management."""
    chosen = (
        operation
        for operation in _OPERATIONS
        if "{model_name}" in operation.path and _is_inference(operation) is not management
    )
    return document(chosen, _SCHEMAS, {"V1Body": {}, "V2Body": {}}, model)


def _is_inference(operation: Operation) -> bool:
    return not operation.path.startswith("/models")


# --- schemas ---


def _object(optional: str = "", /, **properties: Json) -> Json:
    """An object whose members are required, but for those that are ``optional``."""
    described: Json = {"type": "object", "properties": properties}
    required = [name for name in properties if name not in optional.split()]
    return {**described, "required": required} if required else described


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _each(schema: Json, names: str) -> dict[str, Json]:
    return dict.fromkeys(names.split(), schema)


def _either(*schemas: str) -> Json:
    return {"oneOf": [reference(schema) for schema in schemas]}


_STRING: Json = {"type": "string"}
_NUMBER: Json = {"type": "integer"}
_FLAG: Json = {"type": "boolean"}
_ANY_OBJECT: Json = {"type": "object"}
_DATATYPE: Json = {"type": "string", "enum": list(DATATYPES)}
_PARAMETERS: Json = {"type": "object", "additionalProperties": True}
_DATA: Json = {"description": "The elements, flat or nested, row by row"}
_TENSOR = {"name": _STRING, "datatype": _DATATYPE, "shape": _array(_NUMBER)}
_STATE: Json = {"type": "string", "enum": ["LOADING", "READY", "UNAVAILABLE", "UNLOADING"]}

_SCHEMAS: Json = {
    "Error": _object(code=_NUMBER, type=_STRING, message=_STRING),
    "KServeError": _object(error=_STRING),
    "NotReady": _object(
        "name live ready error", name=_STRING, live=_FLAG, ready=_FLAG, error=_STRING
    ),
    "Status": _object(status=_STRING),
    "Live": _object(live=_FLAG),
    "Ready": _object(ready=_FLAG),
    "ModelReady": _object(name=_STRING, ready=_FLAG),
    "ModelNames": _object(models=_array(_STRING)),
    "Instances": _object("parameters", instances=_array({}), parameters=_PARAMETERS),
    "Predictions": _object(predictions=_array({})),
    "Explanations": _object(explanations=_array({})),
    "Tensor": _object("data parameters", **_TENSOR, data=_DATA, parameters=_PARAMETERS),
    "V2Body": _object(
        "id parameters outputs",
        id=_STRING,
        parameters=_PARAMETERS,
        inputs={**_array(reference("Tensor")), "minItems": 1},
        outputs=_array(_object("parameters", name=_STRING, parameters=_PARAMETERS)),
    ),
    "V2Answer": _object(
        "id model_version parameters",
        id=_STRING,
        model_name=_STRING,
        model_version=_STRING,
        parameters=_PARAMETERS,
        outputs=_array(reference("Tensor")),
    ),
    "V1Body": _either("Instances", "V2Body"),
    "V1Predicted": _either("Predictions", "V2Answer"),
    "V1Explained": _either("Explanations", "V2Answer"),
    "ServerMetadata": _object(name=_STRING, version=_STRING, extensions=_array(_STRING)),
    "ModelMetadata": _object(
        "versions inputs outputs",
        name=_STRING,
        versions=_array(_STRING),
        platform=_STRING,
        inputs=_array(_object(**_TENSOR)),
        outputs=_array(_object(**_TENSOR)),
    ),
    "IndexBody": _object("ready", ready=_FLAG),
    "Index": _array(_object(name=_STRING, version=_STRING, state=_STATE, reason=_STRING)),
    "RepositoryBody": _object("parameters", parameters=_PARAMETERS),
    "Loaded": _object(name=_STRING, load=_FLAG),
    "Unloaded": _object(name=_STRING, unload=_FLAG),
    "Description": _object(openapi=_STRING, **_each(_ANY_OBJECT, "info paths components")),
    "Models": _object(
        "nextPageToken",
        nextPageToken=_STRING,
        models=_array(_object(modelName=_STRING, modelUrl=_STRING)),
    ),
    "Versions": _array(
        _object(
            "deviceIds customizedMetadata",
            **_each(_STRING, "modelName modelVersion modelUrl runtime deviceType parallelType"),
            **_each(_NUMBER, "minWorkers maxWorkers batchSize maxBatchDelay responseTimeout"),
            **_each(_NUMBER, "startupTimeout maxRetryTimeoutInSec clientTimeoutInMills"),
            **_each(_NUMBER, "parallelLevel sequenceMaxIdleMSec sequenceTimeoutMSec"),
            **_each(_NUMBER, "maxNumSequence maxSequenceJobQueueSize"),
            **_each(_FLAG, "continuousBatching useJobTicket useVenv stateful loadedAtStartup"),
            deviceIds=_array(_NUMBER),
            workers=_array(_ANY_OBJECT),
            jobQueueStatus=_ANY_OBJECT,
            customizedMetadata=_ANY_OBJECT,
        )
    ),
}

# --- operations ---

_ANY = (400, 405, 408, 413, 415)
_MODEL = (*_ANY, 404, 503)
_RUN = (*_MODEL, 500, 504, 507)
_REGISTERED = (202, 400, 404, 405, 409, 500)
_VERSION = "/{model_name}/{model_version}"
_SET_DEFAULT = f"/models{_VERSION}/set-default"
_PATHS = (("/{model_name}", ""), (_VERSION, "version_"))
_V1, _V2 = "/v1/models/{model_name}", "/v2/models/{model_name}"
_REPOSITORY = "/v2/repository/models/{model_name}"

_CUSTOMIZED = (Parameter("customized", "Include the handler's own description", "boolean", False),)
_REGISTER = (
    Parameter("url", "File in the model store, or a file, http or https URL", required=True),
    Parameter("model_name", "Name to register the model under, instead of the archive's"),
    Parameter("handler", "Handler, instead of the archive's"),
    Parameter("runtime", "python or python3"),
    *(
        Parameter(name, f"{text}; default: the archive's", "integer")
        for name, text in (
            ("batch_size", "Maximum rows per batch"),
            ("max_batch_delay", "Maximum wait for a full batch, in milliseconds"),
            ("response_timeout", "Maximum duration of a handler call, in seconds"),
            ("startup_timeout", "Maximum load time, in seconds"),
        )
    ),
    Parameter("initial_workers", "Workers to start", "integer", 0),
    Parameter("synchronous", "Wait until they run", "boolean", True),
)
_SCALE = (
    Parameter("min_worker", "Minimum workers", "integer", 1),
    Parameter("max_worker", "Maximum workers; default: min_worker", "integer"),
    Parameter("synchronous", "Wait until it is done", "boolean", False),
)
_LIST = (
    Parameter("limit", "Maximum models per page, 0 to 100", "integer", 100),
    Parameter("next_page_token", "nextPageToken of the previous page"),
)


def _get(path: str, name: str, text: str, answer: str, *statuses: int) -> Operation:
    """One of KServe's questions."""
    error = "NotReady" if 503 in statuses else "KServeError"
    return Operation("get", path, name, text, answer, statuses or _ANY, error=error)


def _post(path: str, name: str, text: str, body: str, answer: str, *statuses: int) -> Operation:
    """One of KServe's requests."""
    return Operation("post", path, name, text, answer, statuses, body=body, error="KServeError")


def _run(path: str, name: str, text: str) -> Operation:
    """Inference as TorchServe has it."""
    return Operation("post", path, name, text, "", _RUN, body=BINARY)


_OPERATIONS = (
    Operation("get", "/", "alive", "Server liveness", "Status", _ANY),
    Operation("options", "/", "apiDescription", "Describe this API", "Description", (500,)),
    Operation("get", "/api-description", "api-description", "The same", "Description", (500,)),
    Operation("get", "/ping", "ping", "Server health", "Status", (500,), error="Status"),
    *(
        operation
        for path, v in _PATHS
        for operation in (
            _run(f"/predictions{path}", f"{v}predictions", "Predict"),
            _run(f"/explanations{path}", f"{v}explanations", "Explain a prediction"),
        )
    ),
    _get("/v1/models", "v1_models", "List the models", "ModelNames"),
    _get(_V1, "v1_ready", "Model readiness", "ModelReady", *_MODEL),
    _post(f"{_V1}:predict", "v1_predict", "Predict", "V1Body", "V1Predicted", *_RUN),
    _post(f"{_V1}:explain", "v1_explain", "Explain", "V1Body", "V1Explained", *_RUN),
    _get("/v2", "server_metadata", "Name, version and extensions", "ServerMetadata"),
    _get("/v2/health/live", "live", "Server liveness", "Live", *_ANY, 503),
    _get("/v2/health/ready", "ready", "Server readiness", "Ready", *_ANY, 503),
    _get("/v2/models", "v2_models", "List the models", "ModelNames"),
    *(
        operation
        for path, v in ((_V2, ""), (f"{_V2}/versions/{{model_version}}", "version_"))
        for operation in (
            _get(path, f"{v}model_metadata", "Model metadata", "ModelMetadata", *_ANY, 404),
            _get(f"{path}/ready", f"{v}model_ready", "Model readiness", "ModelReady", *_MODEL),
            _post(f"{path}/infer", f"{v}infer", "Infer", "V2Body", "V2Answer", *_RUN),
            _post(f"{path}/explain", f"{v}explain", "Explain", "V2Body", "V2Answer", *_RUN),
        )
    ),
    _post("/v2/repository/index", "index", "The models' states", "IndexBody", "Index", *_ANY),
    _post(f"{_REPOSITORY}/load", "load", "Load or reload", "RepositoryBody", "Loaded", *_MODEL),
    _post(f"{_REPOSITORY}/unload", "unload", "Unload", "RepositoryBody", "Unloaded", *_MODEL),
    Operation("get", "/models", "listModels", "List", "Models", (500,), _LIST),
    Operation("post", "/models", "registerModel", "Register", "Status", _REGISTERED, _REGISTER),
    *(
        Operation(method, f"/models{path}", f"{v}{name}", text, answer, statuses, parameters)
        for path, v in _PATHS
        for method, name, text, answer, statuses, parameters in (
            ("get", "describeModel", "Describe", "Versions", (404, 500, 503), _CUSTOMIZED),
            ("put", "setAutoScale", "Scale", "Status", (202, 206, 400, 404, 500), _SCALE),
            ("delete", "unregisterModel", "Unregister", "Status", (403, 404, 405, 408, 500), ()),
        )
    ),
    Operation("put", _SET_DEFAULT, "setDefault", "Make it the default", "Status", (404, 500)),
)
