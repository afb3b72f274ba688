"""What is wrong with a manifest, by KServe's CRD schemas and the Kubernetes client's models."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import yaml
from kubernetes import client

DEPLOY = Path(__file__).parents[2] / "deploy"
SCHEMAS = Path(__file__).parent / "schemas"
_SAME = {"ServingRuntime": "ClusterServingRuntime"}  # KServe has one type for both


def files() -> list[Path]:
    """All manifests, without the kustomizations and their JSON patches."""
    found = (path for path in sorted(DEPLOY.rglob("*.yaml")) if path.name != "kustomization.yaml")
    return [path for path in found if not isinstance(read(path)[0], list)]


def read(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def manifests() -> list[tuple[str, dict[str, Any]]]:
    """Every document with the place where it stands."""
    return [
        (f"{path.relative_to(DEPLOY)}:{manifest['kind']}/{manifest['metadata']['name']}", manifest)
        for path in files()
        for manifest in read(path)
    ]


def faults(manifest: dict[str, Any]) -> list[str]:
    """What is wrong with a manifest, element by element; empty if nothing."""
    version = manifest["apiVersion"].rpartition("/")[2]
    kind = _SAME.get(manifest["kind"], manifest["kind"])
    schema = SCHEMAS / f"{kind}-{version}.json"
    if schema.exists():
        validator = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
        return [f"{e.json_path}: {e.message}" for e in validator.iter_errors(manifest)]
    model = getattr(client, f"{version.capitalize()}{manifest['kind']}")
    try:
        model.model_validate(manifest)
    except pydantic.ValidationError as error:
        return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return []
