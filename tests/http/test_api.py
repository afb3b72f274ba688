"""OpenAPI descriptions: complete in themselves, and named as TorchServe's are."""

from typing import Any

import pytest
from openapi_spec_validator import validate

from kserve_torch.http.api import model_api, whole_api

DOCUMENTS = {
    "inference": whole_api(management=False, examples={"mnist": {"instances": [1]}}),
    "management": whole_api(management=True),
    "inference of a model": model_api("m", management=False),
    "management of a model": model_api("m", management=True),
}


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method, path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents_are_valid(document: dict[str, Any]) -> None:
    """References lead somewhere, operations' names and the parameters of paths are right, too."""
    validate(document)


def test_operations_are_named_as_torchserve_names_them() -> None:
    names = {key: one["operationId"] for key, one in operations(DOCUMENTS["management"]).items()}
    version = "{model_name}/{model_version}"
    expected = {
        ("options", "/"): "apiDescription",
        ("get", "/ping"): "ping",
        ("post", "/predictions/{model_name}"): "predictions",
        ("post", f"/predictions/{version}"): "version_predictions",
        ("get", "/models"): "listModels",
        ("post", "/models"): "registerModel",
        ("get", "/models/{model_name}"): "describeModel",
        ("put", f"/models/{version}"): "version_setAutoScale",
        ("delete", f"/models/{version}"): "version_unregisterModel",
        ("put", f"/models/{version}/set-default"): "setDefault",
    }
    assert expected.items() <= names.items()


def test_query_parameters_have_types_and_defaults() -> None:
    register = DOCUMENTS["management"]["paths"]["/models"]["post"]["parameters"]
    schemas = {one["name"]: (one["required"], one["schema"]) for one in register}
    assert schemas["url"] == (True, {"type": "string"})
    assert schemas["initial_workers"] == (False, {"type": "integer", "default": 0})
    assert schemas["synchronous"] == (False, {"type": "boolean", "default": True})


def test_generated_clients_send_no_default_in_place_of_the_archives() -> None:
    """Those in Go and Python send the described default of each parameter that was left out."""
    models = DOCUMENTS["management"]["paths"]
    described = [models["/models"]["post"], models["/models/{model_name}"]["put"]]
    schemas = {one["name"]: one["schema"] for each in described for one in each["parameters"]}
    open_ones = ("batch_size", "max_batch_delay", "response_timeout", "startup_timeout")
    for name in (*open_ones, "max_worker"):
        assert schemas[name] == {"type": "integer"}, name


def test_generated_clients_send_as_many_instances_as_they_like() -> None:
    instances = DOCUMENTS["inference"]["components"]["schemas"]["Instances"]["properties"]
    assert instances["instances"] == {"type": "array", "items": {}}


def test_generated_clients_tell_the_protocols_apart() -> None:
    """Of schemas that are ``anyOf`` those in TypeScript make one that needs all members."""
    schemas = DOCUMENTS["inference"]["components"]["schemas"]
    either = [{"$ref": f"#/components/schemas/{name}"} for name in ("Instances", "V2Body")]
    assert schemas["V1Body"] == {"oneOf": either}


def test_generated_clients_have_a_content_type_to_send_bytes_with() -> None:
    """Some send the first one; others leave out operations that have none but ``*/*``."""
    predict = DOCUMENTS["inference"]["paths"]["/predictions/{model_name}"]["post"]
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = predict["requestBody"]["content"]
    assert list(content.items()) == [("application/octet-stream", binary), ("*/*", binary)]
