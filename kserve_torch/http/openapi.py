"""OpenAPI documents of operations; `api` lists the server's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kserve_torch import __version__

OPENAPI = "3.0.1"

Json = dict[str, Any]
#: Example bodies per model, by the schema of a body that must be sent.
Examples = Mapping[str, Mapping[str, Json]]

#: In place of a schema: a body of any kind.
BINARY = "*"

_HANDLERS: Json = {"description": "The handler's response", "content": {"*/*": {"schema": {}}}}
_ANY_BYTES: Json = {"schema": {"type": "string", "format": "binary"}}
# Generated clients cannot send "*/*": they need a type of which the body is bytes.
_BYTES: Json = {"application/octet-stream": _ANY_BYTES, "*/*": _ANY_BYTES}
_TAGS = {"v1": "KServe v1", "v2": "Open inference protocol"}
_PATH_TEXTS = {"model_name": "Name of the model", "model_version": "Version of the model"}
_TEXTS = {
    200: "Done",
    202: "Accepted, still in progress",
    206: "Some workers are still starting",
    400: "Invalid request or parameter, or the archive could not be downloaded or read",
    403: "The default version must be removed last",
    404: "No such model, version or archive",
    405: "Method not allowed, or the model API is disabled (enable_model_api)",
    408: "The body was not received in time, or requests still ran after the time limit",
    409: "The version is already registered",
    413: "The body is larger than max_request_size",
    415: "Unsupported content type or encoding",
    500: "The handler raised an exception, or another server error",
    503: "Not ready, the model's queue is full, or its handler failed",
    504: "The deadline or responseTimeout was exceeded",
    507: "Out of memory",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter.

    Attributes:
        default: what leaving it out means in any call; clients that were generated from the
            document send it, so it must not be there if the archive or another parameter decides.
    """

    name: str
    text: str
    kind: str = "string"
    default: int | bool | None = None
    required: bool = False

    def described(self) -> Json:
        """The OpenAPI parameter object."""
        schema: Json = {"type": self.kind}
        if self.default is not None:
            schema["default"] = self.default
        return _parameter("query", self.name, self.text, self.required, schema)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path; path parameters are read from the path.

    Attributes:
        name: unique among all operations.
        text: what it does.
        answer: name of the schema of its answers below 300, "" for the handler's answer.
        statuses: those other than 200 that it may answer with.
        parameters: those of the query.
        body: name of the schema of its JSON body, `BINARY` for any bytes, "" for none.
        error: name of the schema of its error answers.
    """

    method: str
    path: str
    name: str
    text: str
    answer: str
    statuses: tuple[int, ...]
    parameters: tuple[Parameter, ...] = ()
    body: str = ""
    error: str = "Error"

    def described(self, examples: Examples) -> Json:
        """The OpenAPI operation object."""
        described: Json = {
            "tags": [_TAGS.get(self.path.split("/")[1], "TorchServe")],
            "summary": self.text,
            "operationId": self.name,
            "parameters": [
                *(self._in_path(name, examples) for name in re.findall(r"{(\w+)}", self.path)),
                *(parameter.described() for parameter in self.parameters),
            ],
            "responses": {str(status): self._response(status) for status in (200, *self.statuses)},
        }
        if self.body == BINARY:
            described["requestBody"] = {"required": True, "content": _BYTES}
        elif self.body:
            required, media = self.body in examples, {"schema": reference(self.body)}
            if taken := examples.get(self.body):
                media["examples"] = {name: {"value": body} for name, body in taken.items()}
            content = {"application/json": media}
            described["requestBody"] = {"required": required, "content": content}
        return described

    def _in_path(self, name: str, examples: Examples) -> Json:
        schema = {"type": "string", "minLength": 1}
        parameter = _parameter("path", name, _PATH_TEXTS[name], True, schema)
        models = examples.get(self.body) or next(iter(examples.values()), {})
        if name == "model_name" and models:
            parameter["example"] = next(iter(models))
        return parameter

    def _response(self, status: int) -> Json:
        if status == 200 and not self.answer:
            return _HANDLERS
        schema = reference(self.answer if status < 300 else self.error)
        content = {"application/json": {"schema": schema}}
        return {"description": _TEXTS[status], "content": content}


def document(
    operations: Iterable[Operation], schemas: Json, examples: Examples, model: str = ""
) -> Json:
    """An OpenAPI document; if ``model`` is given, with its name in the paths."""
    paths: dict[str, Json] = {}
    for operation in operations:
        described, path = operation.described(examples), operation.path
        if model:
            path = path.replace("{model_name}", model)
            described["parameters"] = [
                each for each in described["parameters"] if each["name"] != "model_name"
            ]
        paths.setdefault(path, {})[operation.method] = described
    return {
        "openapi": OPENAPI,
        "info": {"title": "kserve_torch", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def reference(schema: str) -> Json:
    """A reference to one of the document's schemas."""
    return {"$ref": f"#/components/schemas/{schema}"}


def _parameter(place: str, name: str, text: str, required: bool, schema: Json) -> Json:
    return {"in": place, "name": name, "description": text, "required": required, "schema": schema}
