"""The OpenAPI document and its page."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import jsonschema
import orjson
import pytest

from kserve_torch.edges import application
from kserve_torch.http.api import whole_api
from kserve_torch.http.app import App
from kserve_torch.http.call import Answer
from kserve_torch.http.docs import Docs
from kserve_torch.metrics import Metrics
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.settings.models import StartupModel

from ..makers import ECHO, make_archive
from .conftest import call, routed

SAMPLES: dict[str, Any] = {
    "v1": {"instances": [{"data": "x"}]},
    "v2": {"inputs": [{"name": "a", "datatype": "INT8", "shape": [1], "data": [1]}]},
    "row": {"data": "x"},
}


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    """A model with each kind of sample, one with a signature, one too large, and one with none."""
    tensors = [
        {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "y", "datatype": "BYTES", "shape": []},
    ]
    large = [{"name": "x", "datatype": "FP32", "shape": [3, 640, 640]}]
    configs = {
        "signed": {"signature": {"inputs": tensors}},
        "large": {"signature": {"inputs": large}},
        "plain": {},
        **{name: {"warmup": sample} for name, sample in SAMPLES.items()},
    }
    registry = Registry(Settings(model_store=tmp_path))
    for name, config in configs.items():
        files = {"handler.py": ECHO, "c.yaml": json.dumps(config)}
        make_archive(tmp_path / f"{name}.mar", files, modelName=name, configFile="c.yaml")
        await registry.register(f"{name}.mar")
    yield registry
    await registry.close()


async def got(registry: Registry, path: str, method: str = "GET") -> Answer:
    answer = await routed(Docs(registry).route, call(method, path))
    return answer


async def described(registry: Registry) -> Any:
    body = (await got(registry, "/openapi.json")).body
    assert isinstance(body, bytes)
    return orjson.loads(body)


def test_every_operation_has_a_heading_and_a_summary() -> None:
    paths = whole_api(management=True)["paths"]
    operations = [one for methods in paths.values() for one in methods.values()]
    tags = {tag for one in operations for tag in one["tags"]}
    assert tags == {"KServe v1", "Open inference protocol", "TorchServe"}
    assert all(one["summary"] for one in operations)


def test_the_management_api_is_there_where_it_answers() -> None:
    assert "/models" in whole_api(management=True)["paths"]
    assert "/models" not in whole_api(management=False)["paths"]
    for path in ("/", "/v2", "/v1/models/{model_name}:predict", "/predictions/{model_name}"):
        assert path in whole_api(management=False)["paths"]


async def test_examples_are_requests_that_the_models_take(registry: Registry) -> None:
    v2 = {
        "v2": SAMPLES["v2"],
        "signed": {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0, 0]},
                {"name": "y", "datatype": "BYTES", "shape": [], "data": ["text"]},
            ]
        },
    }
    v1 = {"v1": SAMPLES["v1"], "row": {"instances": [SAMPLES["row"]]}, **v2}
    paths = (await described(registry))["paths"]
    for path, taken in {":predict": v1, ":explain": v1, "/infer": v2, "/explain": v2}.items():
        version = "v1" if path.startswith(":") else "v2"
        operation = paths[f"/{version}/models/{{model_name}}{path}"]["post"]
        examples = operation["requestBody"]["content"]["application/json"]["examples"]
        assert {name: example["value"] for name, example in examples.items()} == taken
        assert operation["parameters"][0]["example"] in examples


async def test_models_without_a_sample_to_send_have_no_example(tmp_path: Path) -> None:
    (tmp_path / "worse.mar").write_bytes(b"no archive")
    make_archive(tmp_path / "bad.mar", {"handler.py": ECHO, "warmup.json": "{"})
    in_yaml = {"handler.py": ECHO, "c.yaml": "warmup: {1: x}"}
    make_archive(tmp_path / "no_json.mar", in_yaml, configFile="c.yaml")
    names = ["bad", "no_json", "worse"]
    registry = Registry(Settings(model_store=tmp_path))
    await registry.start([StartupModel(name=name, file=f"{name}.mar") for name in names])
    assert registry.is_ready("no_json")
    operation = (await described(registry))["paths"]["/v2/models/{model_name}/infer"]["post"]
    assert "examples" not in operation["requestBody"]["content"]["application/json"]
    assert registry.names() == names
    await registry.close()


async def test_the_page_needs_nothing_from_elsewhere(registry: Registry) -> None:
    page = await got(registry, "/docs")
    assert page.content_type == "text/html; charset=utf-8"
    assert isinstance(page.body, bytes)
    links = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    assert links
    for link in links:
        asset = await got(registry, f"/{link}")
        assert asset.status == 200
        assert asset.body


async def test_a_slash_at_the_end_leads_to_the_page(registry: Registry) -> None:
    answer = await got(registry, "/docs/")
    assert (answer.status, answer.headers) == (308, [("location", "../docs")])
    assert urljoin("http://proxy/model/docs/", "../docs") == "http://proxy/model/docs"


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_other_methods(registry: Registry, path: str) -> None:
    assert (await got(registry, path, "POST")).status == 405
    assert (await got(registry, path, "HEAD")).status == 200


@pytest.mark.parametrize("path", ["/", "/docs/../secret", "/docs/index.html", "/openapi.yaml"])
async def test_other_paths_are_left_to_others(registry: Registry, path: str) -> None:
    assert await Docs(registry).route(call("GET", path)) is None


@pytest.mark.parametrize(
    ("method", "path", "described"),
    [
        ("GET", "/v2/health/ready", "/v2/health/ready"),
        ("GET", "/v2/models/new/ready", "/v2/models/{model_name}/ready"),
        ("GET", "/v1/models/new", "/v1/models/{model_name}"),
        ("POST", "/v1/models/no:predict", "/v1/models/{model_name}:predict"),
        ("POST", "/v2/models/no/infer", "/v2/models/{model_name}/infer"),
        ("POST", "/predictions/no", "/predictions/{model_name}"),
        ("GET", "/ping", "/ping"),
    ],
)
async def test_errors_are_what_the_documents_say(
    tmp_path: Path, method: str, path: str, described: str
) -> None:
    settings = Settings(model_store=make_archive(tmp_path / "m.mar", {"handler.py": ECHO}).parent)
    registry = Registry(settings)
    await registry.register("m.mar", name="new", workers=0)
    registry.draining = True
    app = application(registry, Metrics(settings, registry), settings, None, [])
    assert isinstance(app, App)
    answer = await app.answer(
        {"method": method, "path": path, "headers": [], "query_string": b""}, b"{}"
    )
    await registry.close()
    assert answer.status >= 400
    assert isinstance(answer.body, bytes)
    api = whole_api(management=False)
    content = api["paths"][described][method.lower()]["responses"][str(answer.status)]["content"]
    schema = content["application/json"]["schema"] | {"components": api["components"]}
    jsonschema.validate(orjson.loads(answer.body), schema)
