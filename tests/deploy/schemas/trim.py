"""Makes the schemas here from KServe's CustomResourceDefinitions: ``python trim.py CRD.yaml...``

A CRD describes every field of a pod several times over. Kept is what manifests for this server may
use; a field that is not kept counts as unknown, so a manifest that needs it needs a wider trim.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

#: Members of these parts of a CRD are kept, those of all others are kept whole.
KEPT: dict[str, set[str]] = {
    "predictor": {
        *("annotations", "autoScaling", "canaryTrafficPercent", "containerConcurrency"),
        *("containers", "labels", "maxReplicas", "minReplicas", "model", "nodeSelector", "pytorch"),
        *("scaleMetric", "scaleMetricType", "scaleTarget", "serviceAccountName", "timeout"),
        *("terminationGracePeriodSeconds", "tolerations", "volumes"),
    },
    "transformer": {"annotations", "containers", "labels", "maxReplicas", "minReplicas"},
    "volumes": {"configMap", "emptyDir", "name", "persistentVolumeClaim", "secret"},
    "podmetric": set(),
}
DROPPED = {
    *("affinity", "canary", "envFrom", "explainer", "lifecycle", "resizePolicy", "resourceClaims"),
    *("restartPolicyRules", "startupProbe", "status", "volumeDevices", "workerSpec", "description"),
}


def trim(node: Any, name: str = "", members: bool = False) -> Any:
    """The schema without descriptions and without the members that are not kept."""
    if isinstance(node, list):
        return [trim(each) for each in node]
    if not isinstance(node, dict):
        return node
    if members:
        kept = KEPT.get(name, node.keys()) - DROPPED
        return {key: trim(value, key) for key, value in node.items() if key in kept}
    result = {
        key: trim(value, name, members=key == "properties")
        for key, value in node.items()
        if key != "description" and not key.startswith("x-kubernetes-list")
    }
    if "properties" in result:
        result["additionalProperties"] = False
    return result


def main(files: list[str]) -> None:
    """Write one schema for each version of each CRD."""
    for file in files:
        crd = yaml.safe_load(Path(file).read_text())
        for version in crd["spec"]["versions"]:
            schema = trim(version["schema"]["openAPIV3Schema"])
            name = f"{crd['spec']['names']['kind']}-{version['name']}.json"
            text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
            Path(__file__).with_name(name).write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
