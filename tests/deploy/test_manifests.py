import copy
import functools
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kserve_torch.settings import load_settings

from . import manifests

ALL = dict(manifests.manifests())
RUNTIME = next(m for m in ALL.values() if m["kind"] == "ClusterServingRuntime")
CONTAINER = RUNTIME["spec"]["containers"][0]
SERVICES = {name: m for name, m in ALL.items() if m["kind"] == "InferenceService"}
KUSTOMIZATIONS = sorted(manifests.DEPLOY.rglob("kustomization.yaml"))
#: The arguments of KServe's own TorchServe runtime (CONTRACT Q1).
STOCK = [
    "torchserve",
    "--start",
    "--model-store=/mnt/models/model-store",
    "--ts-config=/mnt/models/config/config.properties",
]


@pytest.mark.parametrize("name", ALL)
def test_manifest_is_valid(name):
    assert manifests.faults(ALL[name]) == []


def changed(name, change):
    manifest = copy.deepcopy(next(m for key, m in ALL.items() if key.endswith(name)))
    change(manifest)
    return manifests.faults(manifest)


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("InferenceService/mnist-gpu", lambda m: m["spec"].update(predicter={}), "predicter"),
        (
            "ClusterServingRuntime/kserve-torch",
            lambda m: m["spec"]["containers"][0]["readinessProbe"].update(path="/x"),
            "'path' was unexpected",
        ),
        ("ServiceMonitor/kserve-torch", lambda m: m["spec"].pop("endpoints"), "'endpoints'"),
        (
            "Pod/model-store-pod",
            lambda m: m["spec"].update(container=[]),
            "spec.container: Extra inputs",
        ),
        (
            "HorizontalPodAutoscaler/mnist-hpa",
            lambda m: m["spec"].update(maxReplicas="5"),
            "spec.maxReplicas: Input should be a valid integer",
        ),
    ],
)
def test_a_wrong_manifest_is_noticed(name, change, fault):
    assert any(fault in each for each in changed(name, change))


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda p: p.parent.name)
def test_kustomization_names_what_exists(path):
    kustomization = yaml.safe_load(path.read_text())
    named = [*kustomization["resources"]]
    named += [patch["path"] for patch in kustomization.get("patches", ()) if "path" in patch]
    named += [f for each in kustomization.get("configMapGenerator", ()) for f in each["files"]]
    for name in named:
        assert (path.parent / name).exists()


needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")


def rendered(folder):
    """The manifests that a kustomization comes to."""
    return list(yaml.safe_load_all(_kustomized(folder)))


@functools.cache
def _kustomized(folder):
    return subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@needs_kubectl
@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda p: p.parent.name)
def test_kustomization_renders_to_valid_manifests(path):
    made = rendered(path.parent)
    assert made
    assert [manifests.faults(manifest) for manifest in made] == [[]] * len(made)


@needs_kubectl
@pytest.mark.parametrize(
    ("folder", "runtime", "chosen"),
    [
        (".", "kserve-torch", None),
        ("overlays/auto-select", "kserve-torch", 3),
        ("overlays/gpu", "kserve-torch-gpu", None),
        ("overlays/grpc", "kserve-torch-grpc", None),
        ("overlays/multi-model", "kserve-torch-multi-model", None),
        ("overlays/namespace", "kserve-torch", None),
        ("overlays/stock-name", "kserve-torchserve", 2),
    ],
)
def test_kserve_chooses_a_runtime_by_itself_only_where_the_overlay_says_so(folder, runtime, chosen):
    """And no two at one priority, which KServe refuses (validateServingRuntimePriority)."""
    (manifest,) = rendered(manifests.DEPLOY / folder)
    assert manifest["metadata"]["name"] == runtime
    (served,) = manifest["spec"]["supportedModelFormats"]
    assert (served["priority"] if served["autoSelect"] else None) == chosen


@needs_kubectl
@pytest.mark.parametrize(
    "folder", [".", *(p.name for p in (manifests.DEPLOY / "overlays").iterdir())]
)
def test_the_image_that_the_runtime_names_is_that_of_every_overlay(folder, tmp_path):
    shutil.copytree(manifests.DEPLOY, tmp_path / "deploy")
    kustomization = tmp_path / "deploy/runtime/kustomization.yaml"
    mine = "registry.example:5000/team/torch"  # what "kustomize edit set image" writes
    named = kustomization.read_text().replace("    newTag", f"    newName: {mine}\n    newTag")
    kustomization.write_text(named)
    place = tmp_path / "deploy" / (folder if folder == "." else f"overlays/{folder}")
    (manifest,) = rendered(place)
    tag = "0.1.0-gpu" if folder == "gpu" else "0.1.0"
    assert manifest["spec"]["containers"][0]["image"] == f"{mine}:{tag}"


@pytest.mark.parametrize("name", SERVICES)
def test_services_name_their_runtime(name):
    model = SERVICES[name]["spec"]["predictor"]["model"]
    assert model["modelFormat"] == {"name": "pytorch"}
    of_their_own = {"mnist-grpc": "kserve-torch-grpc", "several-models": "kserve-torch-multi-model"}
    file = Path(name.partition(":")[0]).stem
    assert model["runtime"] == of_their_own.get(file, "kserve-torch")


@needs_kubectl
@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda p: p.parent.name)
def test_runtimes_need_no_feature_that_knative_has_off_by_default(path):
    for manifest in rendered(path.parent):
        if manifest["kind"].endswith("ServingRuntime"):
            assert not {"tolerations", "nodeSelector", "affinity"} & manifest["spec"].keys()


@needs_kubectl
def test_runtime_of_a_namespace_leaves_the_uid_to_openshift_and_is_the_same_otherwise():
    (cluster,) = rendered(manifests.DEPLOY)
    (mine,) = rendered(manifests.DEPLOY / "overlays/namespace")
    assert (cluster["kind"], mine["kind"]) == ("ClusterServingRuntime", "ServingRuntime")
    context = cluster["spec"]["containers"][0]["securityContext"]
    # Kubernetes cannot tell that a user by name, as derived images have, is not root.
    assert context.pop("runAsUser") == 1000
    assert context["runAsNonRoot"]
    assert mine["spec"] == cluster["spec"]


# --- the runtime, by what the server makes of it ---


def rendered_environment(envelope="kserve", protocol="v1"):
    """The container's environment as KServe's webhook fills it (CONTRACT Q2)."""
    rendered = {
        each["name"]: each["value"].replace("{{.Labels.serviceEnvelope}}", envelope)
        for each in CONTAINER["env"]
    }
    return rendered | {"PROTOCOL_VERSION": protocol}


def started(folder, arguments=(), **environment):
    """The settings that the server starts with, its model folder in the place of /mnt/models."""
    models = folder / "models"
    (models / "config").mkdir(parents=True)
    (models / "model-store").mkdir()
    properties = (manifests.DEPLOY / "storage/config.properties").read_text()
    config = models / "config/config.properties"
    config.write_text(properties.replace("/mnt/models", str(models)))
    program, *given = [
        argument.replace("/mnt/models", str(models))
        for argument in [*CONTAINER["args"], *arguments]
    ]
    return load_settings(given, rendered_environment(**environment), program)


def test_arguments_are_those_of_the_stock_runtime():
    assert CONTAINER["args"] == STOCK
    assert CONTAINER["name"] == "kserve-container"
    assert RUNTIME["metadata"]["annotations"]["serving.kserve.io/server-type"] == "torchserve"
    assert RUNTIME["spec"]["protocolVersions"] == ["v1", "v2", "grpc-v2"]


def test_arguments_environment_and_sample_config_start_the_server(tmp_path):
    settings = started(tmp_path)
    assert settings.open_early
    assert settings.grace_period == 25
    assert settings.service_envelope == "kserve"
    assert settings.metrics_mode == "prometheus"
    sources = settings.sources
    assert "TS_OPEN_EARLY" in sources["open_early"]
    assert [model.name for model in settings.startup_models()] == ["mnist"]


@pytest.mark.parametrize(
    ("envelope", "protocol", "taken"),
    [
        ("kserve", "v1", "kserve"),
        ("kservev2", "v2", "kservev2"),
        ("kservev2", "grpc-v2", "kservev2"),
        ("<no value>", "v1", None),
        ("", "v1", None),
    ],
)
def test_every_rendering_of_the_envelope_is_accepted(tmp_path, envelope, protocol, taken):
    assert started(tmp_path, envelope=envelope, protocol=protocol).service_envelope == taken


def test_arguments_of_kserves_samples_may_follow(tmp_path):
    settings = started(tmp_path, ["--disable-token-auth", "--enable-model-api"])
    assert settings.enable_model_api


def test_probes_and_annotations_name_ports_where_the_server_listens(tmp_path):
    roles = {binding.address.port: binding.roles for binding in started(tmp_path).bindings()}
    for probe in ("readinessProbe", "livenessProbe"):
        assert "inference" in roles[CONTAINER[probe]["httpGet"]["port"]]
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    annotations = RUNTIME["spec"]["annotations"]
    assert "metrics" in roles[int(annotations["prometheus.kserve.io/port"])]
    assert annotations["prometheus.kserve.io/path"] == "/metrics"
    service = next(m for name, m in ALL.items() if name.endswith("Service/kserve-torch-metrics"))
    assert "metrics" in roles[service["spec"]["ports"][0]["targetPort"]]


def test_pods_carry_the_label_by_which_the_metrics_service_finds_them():
    service = next(m for name, m in ALL.items() if name.endswith("Service/kserve-torch-metrics"))
    monitor = next(m for name, m in ALL.items() if name.endswith("ServiceMonitor/kserve-torch"))
    assert service["spec"]["selector"].items() <= RUNTIME["spec"]["labels"].items()
    selected = monitor["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_grpc_example_names_a_grpc_port_h2c(tmp_path):
    settings = started(tmp_path)
    (port,) = ALL["examples/mnist-grpc.yaml:InferenceService/mnist-grpc"]["spec"]["predictor"][
        "model"
    ]["ports"]
    assert port["name"] == "h2c"
    assert port["containerPort"] in (settings.grpc_port, settings.grpc_inference_port)


def test_the_grpc_runtime_is_probed_where_its_services_listen():
    """Knative turns HTTP and TCP probes to the declared port, whatever port they name."""
    patches = yaml.safe_load((manifests.DEPLOY / "overlays/grpc/grpc.yaml").read_text())
    (port,) = ALL["examples/mnist-grpc.yaml:InferenceService/mnist-grpc"]["spec"]["predictor"][
        "model"
    ]["ports"]
    container = copy.deepcopy(CONTAINER)
    for patch in patches:
        *path, last = patch["path"].removeprefix("/spec/containers/0/").split("/")
        if path and path[0] in container:
            place = container[path[0]]
            place.pop(last) if patch["op"] == "remove" else place.update({last: patch["value"]})
    probed = {"port": port["containerPort"]}
    kinds = {"httpGet", "tcpSocket", "grpc", "exec"}
    for name, kind in (("readinessProbe", "grpc"), ("livenessProbe", "tcpSocket")):
        probe = container[name]
        assert kinds & probe.keys() == {kind}
        assert probe[kind] == probed


def test_container_is_confined_and_writes_to_its_scratch_volume_alone():
    context = CONTAINER["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 1000)
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    volumes = {volume["name"] for volume in RUNTIME["spec"]["volumes"]}
    assert [(m["name"], m["mountPath"]) for m in CONTAINER["volumeMounts"]] == [("scratch", "/tmp")]
    assert volumes == {"scratch"}


def test_liveness_waits_for_the_ports_and_the_grace_period_ends_before_the_kill():
    liveness = CONTAINER["livenessProbe"]
    patience = liveness["initialDelaySeconds"]
    patience += liveness["periodSeconds"] * (liveness["failureThreshold"] - 1)
    assert patience >= 60
    assert int(rendered_environment()["TS_GRACE_PERIOD"]) < 30


@pytest.mark.parametrize("name", [n for n, m in SERVICES.items() if "gpu" in m["metadata"]["name"]])
def test_gpu_services_ask_for_a_gpu_and_its_image(name):
    predictor = SERVICES[name]["spec"]["predictor"]["model"]
    assert predictor["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "-gpu" in predictor["runtimeVersion"]


def test_services_name_things_that_exist():
    names = {(m["kind"], m["metadata"]["name"]) for m in ALL.values()}
    pvc = ALL["examples/mnist-pvc.yaml:InferenceService/mnist-pvc"]
    claim = pvc["spec"]["predictor"]["model"]["storageUri"].removeprefix("pvc://")
    assert ("PersistentVolumeClaim", claim) in names
    for manifest in ALL.values():
        if manifest["kind"] == "TrainedModel":
            assert ("InferenceService", manifest["spec"]["inferenceService"]) in names
        if manifest["kind"] in ("ScaledObject", "HorizontalPodAutoscaler"):
            target = manifest["spec"]["scaleTargetRef"]["name"].removesuffix("-predictor")
            assert ("InferenceService", target) in names


def test_the_threshold_for_keda_stands_where_kserve_reads_it():
    # KServe's webhook refuses a metric without target.value; its controller passes on nothing else.
    metrics = [
        metric
        for service in SERVICES.values()
        for metric in service["spec"]["predictor"].get("autoScaling", {}).get("metrics", ())
    ]
    assert metrics
    for metric in metrics:
        assert metric["external"]["target"] == {"type": "Value", "value": "4"}


def test_versions_in_manifests_are_the_packages():
    from kserve_torch import __version__

    for path in Path(manifests.DEPLOY).rglob("*.yaml"):
        for line in path.read_text().splitlines():
            if "image: kserve-torch" in line or "newTag:" in line or "runtimeVersion:" in line:
                assert __version__ in line, f"{path}: {line}"
