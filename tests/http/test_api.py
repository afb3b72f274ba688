"""OpenAPI descriptions: complete in themselves, and named as TorchServe's are."""

import json
import re
from typing import Any

import pytest

from kserve_torch.http.api import model_api, whole_api

DOCUMENTS = {
    "inference": whole_api(management=False),
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
def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references <= set(document["components"]["schemas"])


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for operation in operations(document).values()]
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_path_parameters_are_those_of_the_path(document: dict[str, Any]) -> None:
    for (_, path), operation in operations(document).items():
        described = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
        assert described == re.findall(r"{(\w+)}", path)


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
