"""Parts of OpenAPI documents, and TorchServe's operations written with them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kserve_torch import __version__

OPENAPI = "3.0.1"

Json = dict[str, Any]


def reference(schema: str) -> Json:
    """A reference to one of the document's schemas."""
    return {"$ref": f"#/components/schemas/{schema}"}


def content(text: str, schema: str) -> Json:
    """The OpenAPI response object of a JSON answer."""
    return {"description": text, "content": {"application/json": {"schema": reference(schema)}}}


_HANDLERS = {"description": "The handler's answer", "content": {"*/*": {"schema": {}}}}
_PATH_TEXTS = {"model_name": "Name of the model", "model_version": "Version of the model"}
_TEXTS = {
    202: "Accepted, the work goes on",
    206: "Some workers are still starting",
    400: "A parameter is wrong, or the archive could not be fetched or read",
    403: "The default version goes last",
    404: "No such model, version or archive",
    405: "The model API is switched off",
    408: "Requests were still running when the time was up",
    409: "That version is registered already",
    500: "The server failed",
    503: "The model cannot take the request, or its handler failed",
    507: "Out of memory",
}


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
        answer: name of the schema of its 200 answer, "" for the handler's answer.
        statuses: those other than 200 that it may answer with.
        body: whether it takes a request body.
        error: name of the schema of its error answers.
    """

    method: str
    path: str
    name: str
    text: str
    answer: str = ""
    statuses: tuple[int, ...] = (500,)
    parameters: tuple[Parameter, ...] = ()
    body: bool = False
    error: str = "Error"

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
            "responses": {"200": content("Done", self.answer) if self.answer else _HANDLERS}
            | {
                str(status): content(_TEXTS[status], self.answer if status < 300 else self.error)
                for status in self.statuses
            },
        }
        if self.body:
            schema = {"type": "string", "format": "binary"}
            described["requestBody"] = {"required": True, "content": {"*/*": {"schema": schema}}}
        return described


def document(
    title: str, operations: Iterable[Operation], schemas: Json, model: str | None = None
) -> Json:
    """An OpenAPI document of operations; if ``model`` is given, with its name in the paths."""
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
        "info": {"title": title, "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


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
