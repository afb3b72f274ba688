import json
import runpy

import promql_parser
import pytest
import yaml

from ..metrics.observed import LIGHT_LOAD, TROUBLE, exposition, observed
from . import manifests

DASHBOARD = json.loads((manifests.DEPLOY / "monitoring/dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [
    rule
    for name, manifest in manifests.manifests()
    if manifest["kind"] == "PrometheusRule"
    for group in manifest["spec"]["groups"]
    for rule in group["rules"]
]


def autoscaler_queries():
    for name, manifest in manifests.manifests():
        if manifest["kind"] == "ScaledObject":
            for trigger in manifest["spec"]["triggers"]:
                yield name, trigger["metadata"]["query"]
        if manifest["kind"] == "InferenceService":
            scaling = manifest["spec"]["predictor"].get("autoScaling", {})
            for metric in scaling.get("metrics", ()):
                yield name, metric["external"]["metric"]["query"]
        if manifest["kind"] == "HorizontalPodAutoscaler":
            for metric in manifest["spec"]["metrics"]:
                yield name, metric["pods"]["metric"]["name"]
        if manifest["kind"] == "ConfigMap":
            for rule in yaml.safe_load(manifest["data"]["rules.yaml"])["rules"]:
                yield name, rule["seriesQuery"]


def queries():
    yield from autoscaler_queries()
    for rule in RULES:
        yield f"alert {rule['alert']}", rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"panel {panel['title']} {target['refId']}", target["expr"]


QUERIES = dict(queries())


def selectors(expression):
    """The series that an expression reads."""
    found = []
    for name in ("vector_selector", "expr", "lhs", "rhs", "param", "args"):
        part = getattr(expression, name, None)
        for each in part if isinstance(part, list) else [part]:
            if each is not None:
                found += selectors(each)
    if isinstance(expression, promql_parser.VectorSelector):
        found.append(expression)
    return found


def parsed(query):
    return promql_parser.parse(query.replace("$__rate_interval", "5m"))


@pytest.fixture(scope="module")
def exported():
    """Names of everything that the server exports after some requests, and their labels."""
    names = {"up": set()}  # Prometheus' own, of each target
    for line in exposition(observed(*LIGHT_LOAD, *TROUBLE)).decode().splitlines():
        if line.startswith("# TYPE"):
            names.setdefault(line.split()[2], set())
        elif not line.startswith("#"):
            series, _, labels = line.rpartition(" ")[0].partition("{")
            known = {pair.split("=")[0] for pair in labels.rstrip("}").split('",') if pair}
            names.setdefault(series, set()).update(known)
    return names


@pytest.mark.parametrize("name", QUERIES)
def test_query_reads_series_that_the_server_exports(name, exported):
    read = selectors(parsed(QUERIES[name]))
    assert read
    assert {selector.name for selector in read} <= exported.keys()


#: Labels that Prometheus adds to what it scrapes from a pod by the ServiceMonitor.
TARGET = {
    *("namespace", "pod", "job", "instance"),
    *("serving_kserve_io_inferenceservice", "app_kubernetes_io_component"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_query_selects_by_labels_that_the_series_have(name, exported):
    for selector in selectors(parsed(QUERIES[name])):
        labels = exported[selector.name] | TARGET
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels


def restricted(expression):
    """The series that an expression reads only from where a server of ours is."""
    if getattr(expression, "op", None) is not None and str(expression.op) == "and":
        (ours,) = selectors(expression.rhs)
        matching = expression.modifier.matching
        if ours.name == "server_ready" and set(matching.labels) == {"job", "instance"}:
            return selectors(expression.lhs)
    parts = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "param", "args")]
    flat = [each for part in parts for each in (part if isinstance(part, list) else [part])]
    return [found for each in flat if each is not None for found in restricted(each)]


@pytest.mark.parametrize(
    "name", [name for name in QUERIES if name.startswith(("alert ", "panel "))]
)
def test_query_leaves_other_programs_series_of_the_same_name_out(name):
    read = {s.name for s in selectors(parsed(QUERIES[name]))} - {"server_ready", "up"}
    assert {s.name for s in restricted(parsed(QUERIES[name]))} == read


def test_the_target_that_is_down_is_the_services():
    """A ServiceMonitor's job is the name of the service that it finds."""
    (rule,) = [rule for rule in RULES if rule["alert"] == "ModelServerDown"]
    (service,) = [
        m
        for _, m in manifests.manifests()
        if m["kind"] == "Service" and m["spec"]["ports"][0]["name"] == "metrics"
    ]
    assert f'up{{job="{service["metadata"]["name"]}"}}' in rule["expr"]


def test_pods_carry_the_labels_that_the_monitor_copies():
    multi = manifests.read(manifests.DEPLOY / "overlays/multi-model/multi-model.yaml")[0]
    (label,) = [patch for patch in multi if patch["path"].startswith("/spec/labels/")]
    key = label["path"].removeprefix("/spec/labels/").replace("~1", "/")
    (monitor,) = [m for _, m in manifests.manifests() if m["kind"] == "ServiceMonitor"]
    assert key in monitor["spec"]["podTargetLabels"]
    (alert,) = [rule for rule in RULES if rule["alert"] == "ModelServerNotReady"]
    assert f'{key.replace(".", "_").replace("/", "_")}!="{label["value"]}"' in alert["expr"]


def test_a_wrong_name_would_be_noticed(exported):
    (selector,) = selectors(parsed("sum(rate(queue_depths[$__rate_interval])) > 1"))
    assert selector.name == "queue_depths"
    assert selector.name not in exported
    with pytest.raises(ValueError, match="unclosed"):
        parsed("sum(")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_texts_use_labels_that_the_expression_leaves(rule):
    for text in rule["annotations"].values():
        for word in text.split():
            label = word.partition("$labels.")[2].rstrip("}").strip()
            assert not label or f" {label}" in rule["expr"] or f"({label}" in rule["expr"]


def test_dashboard_is_what_its_script_writes():
    written = runpy.run_path(str(manifests.DEPLOY / "monitoring/dashboard.py"))["dashboard"]()
    assert written == DASHBOARD


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_dashboard_covers_what_operators_look_for():
    text = json.dumps(DASHBOARD)
    for name in ("ts_inference_requests_total", "ts_queue_latency_microseconds", "queue_depth"):
        assert name in text
