"""``/openapi.json`` and ``/docs``: every route in one OpenAPI document, and a page to try them.

The page is Swagger UI from a Python package, so it works offline. The examples are requests that
the loaded models accept: their warm-up samples, or tensors as their signatures say.
"""

from __future__ import annotations

import math
import re
from importlib.resources import files
from typing import TYPE_CHECKING

import orjson

from kserve_torch.errors import LoadFailed
from kserve_torch.http.api import whole_api
from kserve_torch.http.call import Answer, Call, json_answer
from kserve_torch.http.openapi import Json
from kserve_torch.http.routes import Routes, question
from kserve_torch.runtime.warmup import sample_body

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry
    from kserve_torch.models.version import ModelVersion

_ASSETS = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
#: Most elements of an example: larger ones would fill the page.
MAX_ELEMENTS = 1024

_UI = "vendor/swagger-ui-4.15.5"
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>kserve_torch</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon-32x32.png">
</head>
<body>
<div id="ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({url: "openapi.json", dom_id: "#ui", validatorUrl: null})</script>
</body>
</html>
"""


class Docs:
    """Answers ``GET /openapi.json`` and ``GET /docs``.

    Args:
        registry: the models to show examples of.

    Attributes:
        route: answers calls of its paths.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.route = Routes(
            {
                "/openapi.json": question(self._document),
                "/docs": question(self._page),
                f"/docs/(?P<name>{'|'.join(map(re.escape, _ASSETS))})": question(self._asset),
            }
        )

    async def _document(self, call: Call) -> Answer:
        return json_answer(whole_api(management=call.management, examples=self._examples()))

    async def _page(self, call: Call) -> Answer:
        if call.path != "/docs":  # the page's links are relative, for proxies, and would not work
            return Answer(status=308, content_type=None, headers=[("location", "../docs")])
        return Answer(body=_PAGE.encode(), content_type="text/html; charset=utf-8")

    async def _asset(self, call: Call, name: str) -> Answer:
        asset = files("swagger_ui_bundle") / _UI / name
        return Answer(body=asset.read_bytes(), content_type=_ASSETS[name])

    def _examples(self) -> dict[str, Json]:
        defaults = map(self._registry.find, self._registry.names())
        return {found.name: body for found in defaults if (body := example(found)) is not None}


def example(found: ModelVersion) -> Json | None:
    """A request body that a model accepts; None if its archive does not say."""
    if found.archive is None:
        return None
    try:
        body = sample_body(found.archive)
        orjson.dumps(body)
    except (LoadFailed, TypeError):  # YAML has numbers as keys, bytes and sets
        return None
    if isinstance(body, dict) and body.keys() & {"instances", "inputs"}:
        return body
    if body is not None:
        return {"instances": [body]}
    inputs = [_tensor(**tensor) for tensor in found.signature("inputs")]
    small = 0 < sum(len(tensor["data"]) for tensor in inputs) <= MAX_ELEMENTS
    return {"inputs": inputs} if small else None


def _tensor(name: str, datatype: str, shape: list[int]) -> Json:
    """A tensor of zeros; dimensions of any size are 1."""
    dims = [1 if dim < 0 else dim for dim in shape]
    element = {"BYTES": "text", "BOOL": False}.get(datatype, 0)
    count = min(math.prod(dims), MAX_ELEMENTS + 1)
    return {"name": name, "datatype": datatype, "shape": dims, "data": [element] * count}
