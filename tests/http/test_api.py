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
    assert schemas["batch_size"] == (False, {"type": "integer", "default": 1})
    assert schemas["synchronous"] == (False, {"type": "boolean", "default": True})
