import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kserve_torch.errors import SettingError
from kserve_torch.settings import Settings, load_settings
from kserve_torch.settings.limits import Limits
from kserve_torch.settings.models import StartupModel

from ..documents import KSERVE_CONFIG
from ..unprivileged import locked_folder, unprivileged

Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads settings in an empty folder that has a ``store`` and what the test writes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()

    def load(*argv: str, program: str = "kserve_torch", file: str = "", **env: str) -> Settings:
        if file:
            (tmp_path / "config.properties").write_text(file)
        return load_settings(["--model_store", "store", *argv], env, program)

    return load


def kserve_layout(folder: Path, config: str = KSERVE_CONFIG) -> Path:
    for part in ("config", "model-store"):
        (folder / part).mkdir(parents=True)
    (folder / "config" / "config.properties").write_text(config)
    return folder


def sockets(settings: Settings) -> dict[str, str]:
    bindings = [*settings.bindings(), *settings.grpc_bindings()]
    return {str(binding.address): " ".join(sorted(binding.roles)) for binding in bindings}


# --- who wins -------------------------------------------------------------------------------------


def test_command_line_beats_environment_beats_file_beats_default(load: Load) -> None:
    file = "job_queue_size=1"
    assert load().job_queue_size == 100
    assert load(file=file).job_queue_size == 1
    assert load(file=file, TS_JOB_QUEUE_SIZE="2").job_queue_size == 2
    settings = load("--job-queue-size", "3", file=file, TS_JOB_QUEUE_SIZE="2")
    assert settings.job_queue_size == 3


def test_the_source_of_every_value_is_known(load: Load) -> None:
    sources = load("--http_port=1234", file="job_queue_size=1", TS_LOG_JSON="true").sources
    assert sources["http_port"] == "command line --http_port"
    assert sources["job_queue_size"] == "config.properties"
    assert sources["log_json"] == "environment TS_LOG_JSON"
    assert sources["grpc_port"] == "default"


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_says_nothing(load: Load, empty: str) -> None:
    assert load(TS_JOB_QUEUE_SIZE=empty, file="job_queue_size=7").job_queue_size == 7


def test_variables_count_whether_or_not_the_file_lets_them(load: Load) -> None:
    settings = load(file="enable_envvars_config=false", TS_SERVICE_ENVELOPE="kserve")
    assert settings.service_envelope == "kserve"


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("kfserving", "kserve"), ("KFServingv2", "kservev2"), ("none", None), ("unheard-of", None)],
)
def test_envelopes_have_older_names(load: Load, name: str, canonical: str | None) -> None:
    assert load(TS_SERVICE_ENVELOPE=name).service_envelope == canonical


@pytest.mark.parametrize(
    ("variable", "name", "text", "value"),
    [
        ("TS_TOKEN_EXPIRATION_TIME_MIN", "token_expiration_min", "5", 5),
        ("TS_HEADER_KEY_SEQUENCE_ID", "ts_header_key_sequence_id", "x-id", "x-id"),
        ("TS_REQUEST_SEQUENCE_END", "ts_header_key_sequence_end", "x-end", "x-end"),
        ("TS_DRAIN_SECONDS", "drain_seconds", "0.5", 0.5),
        ("TS_DISABLE_TOKEN_AUTHORIZATION", "disable_token_authorization", "False", False),
    ],
)
def test_variables_are_named_after_the_keys(
    load: Load, variable: str, name: str, text: str, value: object
) -> None:
    assert getattr(load(**{variable: text}), name) == value


@pytest.mark.parametrize("variable", ["TS_MODELS", "TS_MODEL_SNAPSHOT"])
def test_some_keys_are_not_for_the_environment(load: Load, variable: str) -> None:
    assert load(**{variable: "{"}).startup_models() is None


def test_kubernetes_word_of_a_service_is_no_setting(load: Load) -> None:
    settings = load(TS_GRPC_PORT="tcp://10.0.0.1:80", TS_GRPC_PORT_80_TCP="tcp://10.0.0.1:80")
    assert (settings.grpc_port, settings.unknown) == (8081, ())


def test_allowed_urls_from_the_environment_must_be_allowed(load: Load) -> None:
    env = {"TS_ALLOWED_URLS": "https://mine/.*"}
    for file in ("", "use_env_allowed_urls=false"):
        (usual, *_) = load(**env, file=file).allowed_urls
        assert usual.pattern == "file://.*"
    (mine,) = load(**env, file="use_env_allowed_urls=true").allowed_urls
    assert mine.fullmatch("HTTPS://MINE/model.mar")


# --- where the file is ----------------------------------------------------------------------------


def test_the_file_is_looked_for_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model_dir = kserve_layout(tmp_path / "models", "job_queue_size=4")
    for number, name in enumerate(("option", "ts_config_file", "config_path"), start=1):
        (tmp_path / name).write_text(f"job_queue_size={number}")
    (tmp_path / "config.properties").write_text("job_queue_size=5")
    argv = ["--ts-config", "option"]
    env = {"TS_CONFIG_FILE": "ts_config_file", "CONFIG_PATH": "config_path"}
    layout = ["--model_dir", str(model_dir)]

    def size(argv: list[str], env: dict[str, str]) -> int:
        return load_settings(argv, env).job_queue_size

    assert size([*argv, *layout], env) == 1
    assert size(layout, env) == 2
    assert size(layout, {"CONFIG_PATH": "config_path"}) == 3
    assert size(layout, {}) == 4
    assert size(["--model_store", "models"], {}) == 5


def test_a_file_that_was_named_must_exist(load: Load) -> None:
    with pytest.raises(SettingError, match=r"absent\.properties: No such file"):
        load("--ts-config", "absent.properties")


# --- the drop-in ----------------------------------------------------------------------------------


def test_the_file_of_the_kserve_guide_starts_unchanged(tmp_path: Path) -> None:
    folder = kserve_layout(tmp_path / "models")
    settings = load_settings(["--model_dir", str(folder)], {})
    assert settings.model_store == folder / "model-store"
    assert sockets(settings) == {
        "http://0.0.0.0:8085": "inference management",
        "http://0.0.0.0:8082": "metrics",
        "http://0.0.0.0:8080": "inference",
        "grpc://0.0.0.0:7070": "inference",
        "grpc://127.0.0.1:7071": "management",
        "grpc://0.0.0.0:8081": "oip",
    }
    assert settings.startup_models() == [
        StartupModel(name="mnist", file="mnist.mar", version="1.0", is_default=True)
    ]
    assert settings.limits_for("mnist", "1.0", {"maxWorkers": 9}) == Limits(
        max_workers=5, max_batch_delay=5, queue_size=10
    )
    assert settings.ignored == (
        "enable_envvars_config",
        "metrics_format",
        "NUM_WORKERS",
        "number_of_netty_threads",
    )
    assert settings.unknown == ()


def test_torchserves_grace_of_grpc_connections_is_known(load: Load) -> None:
    name = "grpc_inference_max_connection_age_grace_ms"
    settings = load(file=f"{name}=1000")
    assert (settings.ignored, settings.unknown) == ((name,), ())


def test_the_command_line_of_the_stock_runtime_starts_unchanged(tmp_path: Path) -> None:
    folder = kserve_layout(tmp_path / "models")
    argv = ["torchserve", "--start", f"--model-store={folder}/model-store"]
    argv += [f"--ts-config={folder}/config/config.properties"]
    argv += ["--disable-token-auth", "--enable-model-api", "--ncs", "--foreground"]
    settings = load_settings(argv, {"TS_SERVICE_ENVELOPE": "<no value>"})
    assert settings.program == "torchserve"
    assert settings.model_store == folder / "model-store"
    assert settings.enable_model_api
    assert settings.disable_token_authorization
    assert settings.unknown == ()
    assert settings.service_envelope is None
    (notice,) = settings.notices
    assert notice.startswith("service_envelope: unknown envelope")
    assert notice.endswith("known are body, json, kserve, kfserving, kservev2, kfservingv2")


def test_the_addresses_of_the_mnist_guide_stay_local(load: Load) -> None:
    file = "inference_address=http://127.0.0.0:8085\nmanagement_address=http://127.0.0.0:8081\n"
    settings = load("--models", "mnist=mnist.mar", program="torchserve", file=file)
    assert sockets(settings)["http://127.0.0.1:8085"] == "inference"
    assert sockets(settings)["http://127.0.0.1:8081"] == "management"
    assert settings.grpc_port is None
    assert [notice.split(":")[0] for notice in settings.notices] == [
        "inference_address",
        "management_address",
        "grpc_port",
    ]
    assert settings.startup_models() == [StartupModel(name="mnist", file="mnist.mar")]


def test_grpc_hosts_are_corrected_like_addresses(load: Load) -> None:
    settings = load("--grpc_inference_address", "127.0.0.0", TS_GRPC_MANAGEMENT_ADDRESS="[::1]")
    assert {"grpc://127.0.0.1:7070", "grpc://127.0.0.1:8081", "grpc://[::1]:7071"} <= sockets(
        settings
    ).keys()
    assert settings.notices == (
        "grpc_inference_address: 127.0.0.0 is a network address; listening on 127.0.0.1",
    )


def test_a_file_beside_the_store_is_said_not_to_be_read(tmp_path: Path) -> None:
    (tmp_path / "model-store").mkdir()
    argv = ["--model_dir", str(tmp_path)]
    assert load_settings(argv, {}).notices == ()
    file = tmp_path / "config.properties"
    file.touch()
    assert load_settings(argv, {}).notices == (
        f"ts_config: {file} is only read if --ts-config names it",
    )
    assert load_settings([*argv, "--ts-config", str(file)], {}).notices == ()
    (tmp_path / "config").mkdir()
    file.rename(tmp_path / "config/config.properties")
    assert load_settings(argv, {}).notices == ()


def test_kserve_layout_has_the_store_unless_the_command_line_names_one(tmp_path: Path) -> None:
    folder = kserve_layout(tmp_path / "models", f"model_store={tmp_path}")
    argv = ["--model_dir", str(folder)]
    assert load_settings(argv, {}).model_store == folder / "model-store"
    other = load_settings([*argv, "--model-store", str(tmp_path)], {})
    assert other.model_store == tmp_path


@pytest.mark.parametrize(
    ("argv", "source"),
    [
        (["--ts-config=app/config.properties"], "default: beside ts_config"),
        ([], "default: in the working directory"),
    ],
)
def test_the_store_may_be_where_the_images_of_torchserve_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], source: str
) -> None:
    (tmp_path / "app" / "model-store").mkdir(parents=True)
    (tmp_path / "app" / "config.properties").write_text("\nservice_envelope=json")
    monkeypatch.chdir(tmp_path if argv else tmp_path / "app")
    if not argv:
        Path("config.properties").unlink()
    settings = load_settings(["--start", *argv, "--models", "a.mar"], {}, "torchserve")
    assert settings.model_store is not None
    assert settings.model_store.samefile(tmp_path / "app" / "model-store")
    assert settings.sources["model_store"] == source
    with pytest.raises(SettingError, match="elsewhere: no such folder"):
        load_settings([*argv, "--model-store", "elsewhere"], {}, "torchserve")


def test_a_variable_that_the_layout_beats_is_named(tmp_path: Path) -> None:
    folder = kserve_layout(tmp_path / "models")
    argv = ["--model_dir", str(folder)]
    settings = load_settings(argv, {"TS_MODEL_STORE": str(tmp_path)})
    assert settings.model_store == folder / "model-store"
    assert settings.notices == (
        f"model_store: {folder}/model-store from the layout of model_dir; {tmp_path} is ignored "
        "(environment TS_MODEL_STORE)",
    )
    assert not load_settings(argv, {"TS_MODEL_STORE": f"{folder}/model-store"}).notices


def test_a_stop_that_leaves_no_time_for_answers_is_announced(load: Load) -> None:
    assert load("--grace_period", "6").notices == ()
    assert load("--grace_period", "5").notices != ()
    (notice,) = load("--grace_period", "2.5").notices
    assert notice.startswith("grace_period: 2.5 s leaves no time after drain_seconds, 5 s")


# --- ports ----------------------------------------------------------------------------------------


def test_management_joins_inference_unless_started_as_torchserve(load: Load) -> None:
    assert sockets(load()) == {
        "http://0.0.0.0:8085": "inference management",
        "http://0.0.0.0:8082": "metrics",
        "http://0.0.0.0:8080": "inference",
        "grpc://0.0.0.0:7070": "inference",
        "grpc://127.0.0.1:7071": "management",
        "grpc://0.0.0.0:8081": "oip",
    }
    settings = load(program="torchserve")
    assert sockets(settings) == {
        "http://0.0.0.0:8085": "inference",
        "http://127.0.0.1:8081": "management",
        "http://0.0.0.0:8082": "metrics",
        "http://0.0.0.0:8080": "inference",
        "grpc://0.0.0.0:7070": "inference",
        "grpc://127.0.0.1:7071": "management",
    }
    assert settings.notices == (
        "grpc_port: http://127.0.0.1:8081 uses it, so KServe's gRPC port is not opened; port 7070 "
        "offers the same service",
    )


def test_ports_that_nobody_asked_for_open_no_wider_than_the_addresses_given(load: Load) -> None:
    file = (
        "inference_address=http://127.0.0.1:9090\nmanagement_address=http://127.0.0.1:9091\n"
        "metrics_address=http://127.0.0.1:9092\n"
    )
    local = {
        "http://127.0.0.1:9090": "inference",
        "http://127.0.0.1:9091": "management",
        "http://127.0.0.1:9092": "metrics",
        "http://127.0.0.1:8080": "inference",
        "grpc://127.0.0.1:7070": "inference",
        "grpc://127.0.0.1:7071": "management",
        "grpc://127.0.0.1:8081": "oip",
    }
    assert sockets(load(program="torchserve", file=file)) == local
    file += "grpc_inference_address=127.0.0.1\n"
    assert sockets(load(program="torchserve", file=file)) == local
    env = {"TS_INFERENCE_ADDRESS": "http://[::1]:8085", "TS_GRPC_INFERENCE_ADDRESS": "10.0.0.1"}
    opened = sockets(load(**env))
    assert opened["http://[::1]:8080"] == "inference"
    assert opened["grpc://10.0.0.1:8081"] == "oip"
    opened = sockets(load("--inference_address", "unix:/run/ts.sock"))
    assert {"http://127.0.0.1:8080", "grpc://127.0.0.1:8081"} <= opened.keys()


def test_ports_that_were_asked_for_are_open_to_all(load: Load) -> None:
    argv = ["--http_port", "8080", "--grpc_port", "8081"]
    opened = sockets(load(*argv, TS_INFERENCE_ADDRESS="http://127.0.0.1:8085"))
    assert {"http://0.0.0.0:8080", "grpc://0.0.0.0:8081"} <= opened.keys()


@pytest.mark.parametrize("by_hand", [False, True])
def test_in_kserves_layout_the_ports_of_its_probes_stay_open(tmp_path: Path, by_hand: bool) -> None:
    config = KSERVE_CONFIG.replace("//0.0.0.0", "//127.0.0.1")
    folder = kserve_layout(tmp_path / "models", config)
    argv = ["--model_dir", str(folder)]
    if by_hand:  # as the stock runtime is started
        argv = ["torchserve", "--start", f"--model-store={folder}/model-store"]
        argv += [f"--ts-config={folder}/config/config.properties"]
    settings = load_settings(argv, {})
    opened = sockets(settings)
    assert opened["http://0.0.0.0:8080"] == "inference"
    assert opened["grpc://0.0.0.0:8081"] == "oip"
    assert opened["grpc://0.0.0.0:7070"] == "inference"
    assert any(notice.startswith("http_port: reachable from other") for notice in settings.notices)
    asked = load_settings([*argv, "--http_port", "8080"], {})
    assert not any(notice.startswith("http_port") for notice in asked.notices)
    closed = sockets(load_settings(argv, {"TS_INFERENCE_ADDRESS": "http://127.0.0.1:8085"}))
    assert not any("0.0.0.0:80" in address and "8082" not in address for address in closed)


@pytest.mark.parametrize("options", [[], ["--http_port", "8080"]])
def test_in_kserves_layout_no_address_of_the_file_closes_http_port(
    tmp_path: Path, options: list[str]
) -> None:
    """TorchServe's own default for inference_address is http://127.0.0.1:8080."""
    folder = kserve_layout(tmp_path / "models", "inference_address=http://127.0.0.1:8080\n")
    argv = ["--model_dir", str(folder), *options]
    settings = load_settings(argv, {})
    assert sockets(settings)["http://0.0.0.0:8080"] == "inference management"
    assert settings.sources["inference_address"] == "KServe's layout"
    assert settings.notices == (
        "http_port: reachable from other machines, as KServe requires, although inference_address "
        "is http://127.0.0.1:8080; --inference_address http://127.0.0.1:8080 prevents it",
        "management_address: the management API is at http://0.0.0.0:8080, with which it shares "
        "the port",
    )
    closed = load_settings([*argv, "--inference_address", "http://127.0.0.1:8080"], {})
    assert sockets(closed)["http://127.0.0.1:8080"] == "inference management"


@pytest.mark.parametrize("name", ["management_address", "metrics_address"])
def test_what_would_close_http_port_in_kserves_layout_is_not_opened_to_all(
    tmp_path: Path, name: str
) -> None:
    local = kserve_layout(tmp_path / "local", f"{name}=http://127.0.0.1:8080\n")
    with pytest.raises(SettingError, match=rf"^{name}: http://127\.0\.0\.1:8080 closes http_port"):
        load_settings(["--model_dir", str(local)], {})
    anywhere = kserve_layout(tmp_path / "anywhere", f"{name}=http://0.0.0.0:8080\n")
    settings = load_settings(["--model_dir", str(anywhere)], {})
    assert name.removesuffix("_address") in sockets(settings)["http://0.0.0.0:8080"]


def test_an_http_port_that_was_asked_for_beats_a_default_address(load: Load) -> None:
    settings = load("--http_port", "8081", program="torchserve")
    assert sockets(settings)["http://0.0.0.0:8081"] == "inference management"
    assert (
        "management_address: the management API is at http://0.0.0.0:8081, with which it shares "
        "the port"
    ) in settings.notices
    argv = ("--http_port", "8081", "--management_address", "http://127.0.0.1:8081")
    settings = load(*argv, program="torchserve")
    assert sockets(settings)["http://127.0.0.1:8081"] == "inference management"
    assert not any(notice.startswith("management_address") for notice in settings.notices)


def test_registering_models_without_a_token_is_announced(load: Load) -> None:
    (notice,) = load("--enable_model_api").notices
    assert notice.startswith(
        "enable_model_api: whoever reaches http://0.0.0.0:8085 can register models"
    )
    for decided in ("true", "false"):
        argv = ("--enable_model_api", "--disable_token_authorization", decided)
        assert load(*argv).notices == ()
    local = ("--management_address", "http://127.0.0.1:8090")
    assert load("--enable_model_api", *local).notices == ()
    assert load().notices == ()


def test_a_grpc_port_that_was_asked_for_is_not_given_up(load: Load) -> None:
    fault = r"^grpc_port: grpc://0\.0\.0\.0:8081 and management_address http://127\.0\.0\.1:8081 "
    with pytest.raises(SettingError, match=fault):
        load("--grpc_port", "8081", program="torchserve")


def test_two_settings_with_one_port_share_its_socket(load: Load) -> None:
    settings = load("--http_port", "8085", "--metrics_address", "http://0.0.0.0:8085")
    assert sockets(settings)["http://0.0.0.0:8085"] == "inference management metrics"
    settings = load("--inference_address", "http://127.0.0.1:8080")
    assert sockets(settings)["http://127.0.0.1:8080"] == "inference management"


def test_a_socket_knows_the_settings_that_want_it(load: Load) -> None:
    named = [binding.settings for binding in load("--http_port", "8085").bindings()]
    assert named == [
        ("http_port", "inference_address", "management_address"),
        ("metrics_address",),
    ]


def test_grpc_services_may_share_a_port(load: Load) -> None:
    settings = load("--grpc_port", "7070", "--grpc_inference_port", "7070")
    assert sockets(settings)["grpc://0.0.0.0:7070"] == "inference oip"


def test_enable_grpc_closes_the_kserve_port_alone(load: Load) -> None:
    assert "grpc://0.0.0.0:8081" not in sockets(load("--enable_grpc", "false"))


def test_a_certificate_makes_http_port_https(load: Load) -> None:
    env = {"KSERVE_TLS_CERT_FILE": "cert.pem", "KSERVE_TLS_KEY_FILE": "key.pem"}
    assert sockets(load(**env))["https://0.0.0.0:8443"] == "inference"
    assert sockets(load("--http_port", "8080", **env))["https://0.0.0.0:8080"] == "inference"
    shared = sockets(load("--http_port", "8085", **env))
    assert shared["https://0.0.0.0:8085"] == "inference management"
    with pytest.raises(SettingError, match="ssl_certfile and ssl_keyfile"):
        load("--ssl_certfile", "cert.pem")


def test_a_certificate_needs_its_key(load: Load) -> None:
    address = ("--inference_address", "https://127.0.0.1:8443", "--certificate_file", "cert.pem")
    with pytest.raises(SettingError, match="certificate_file and private_key_file"):
        load(*address)
    settings = load(*address, "--private_key_file", "key.pem")
    assert sockets(settings)["https://127.0.0.1:8443"] == "inference management"


# --- what is loaded at start ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "argv", "files"),
    [
        ("", [], None),
        ("load_models=all", [], None),
        ("load_models=none", [], []),
        ("load_models=a.mar,x=b.mar", [], ["a.mar", "b.mar"]),
        ("load_models=a.mar", ["--models", "b.mar", "c=c.mar"], ["b.mar", "c.mar"]),
        ('models={"m":{"1.0":{}}}', [], ["m.mar"]),
        (KSERVE_CONFIG, [], ["mnist.mar"]),
        (KSERVE_CONFIG + "load_models=a.mar", [], ["mnist.mar"]),
        (KSERVE_CONFIG, ["--models", "a.mar"], ["a.mar"]),
        (KSERVE_CONFIG, ["--models", "all"], None),
    ],
)
def test_what_is_loaded_at_start(
    load: Load, file: str, argv: list[str], files: list[str] | None
) -> None:
    models = load(*argv, file=file).startup_models()
    assert (models and [model.file for model in models]) == files


@pytest.mark.parametrize("text", ["0", "-1", "inf", "soon"])
@pytest.mark.parametrize(
    "name", ["default_response_timeout", "default_startup_timeout", "receive_timeout"]
)
def test_a_time_limit_leaves_some_time(load: Load, name: str, text: str) -> None:
    with pytest.raises(SettingError, match=rf"{name}.*a number of seconds > 0"):
        load(file=f"{name}={text}")


def test_process_wide_defaults_give_way_to_the_yaml(load: Load) -> None:
    file = "default_workers_per_model=3\ndefault_response_timeout=7\njob_queue_size=9\n"
    settings = load(file=file)
    assert settings.limits_for("m", "1.0", {}) == Limits(
        min_workers=3, max_workers=3, response_timeout=7, queue_size=9
    )
    yaml = {"minWorkers": 1, "responseTimeout": 8, "jobQueueSize": 10}
    limits = settings.limits_for("m", "1.0", yaml)
    assert (limits.min_workers, limits.response_timeout, limits.queue_size) == (1, 8, 10)


@pytest.mark.parametrize(
    ("yaml", "workers"),
    [
        ({}, (3, 3)),
        ({"minWorkers": 2}, (2, 2)),
        ({"maxWorkers": 2}, (1, 2)),
        ({"maxWorkers": 0}, (3, 3)),
        ({"deviceType": "gpu", "deviceIds": [1, 2]}, (2, 2)),
        ({"deviceType": "cpu"}, (1, 1)),
    ],
)
def test_a_model_has_a_worker_on_each_gpu_unless_somebody_says_how_many(
    load: Load, yaml: dict[str, object], workers: tuple[int, int]
) -> None:
    limits = load().limits_for("m", "1.0", yaml, gpus=3)
    assert (limits.min_workers, limits.max_workers) == workers
    settings = load(file="default_workers_per_model=1")
    assert settings.limits_for("m", "1.0", {}, gpus=3).min_workers == 1


def test_limits_are_found_by_version_and_a_lone_snapshot_entry_by_name(load: Load) -> None:
    two = '{"m": {"1.0": {"batchSize": 2}, "2.0": {"batchSize": 4}}}'
    settings = load(file=f"models={two}")
    sizes = [settings.limits_for("m", version, {}).batch_size for version in ("1.0", "2.0", "3.0")]
    assert sizes == [2, 4, 1]
    lone = load(file=KSERVE_CONFIG)
    assert lone.limits_for("mnist", "7", {}).max_workers == 5
    assert lone.limits_for("other", "1.0", {}).max_workers == 1


# --- wrong settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("job_queue_size=many", "job_queue_size: 'many' is not an integer >= 1"),
        ("job_queue_size=0", "job_queue_size: '0' is not an integer >= 1"),
        ("default_workers_per_model=257", "'257' is not an integer from 0 to 256"),
        ("grpc_inference_address=http://0.0.0.0", "'http://0.0.0.0' is not a host without scheme"),
        ("grpc_inference_address=a/b", "'a/b' is not a host without scheme"),
        ("grpc_management_address=localhost:7071", "'localhost:7071' is not a host without scheme"),
        ("grpc_inference_port=70700", "'70700' is not an integer from 1 to 65535"),
        ("enable_metrics_api=maybe", "enable_metrics_api: 'maybe' is not true or false"),
        ("default_response_timeout=-1", "'-1' is not a number of seconds > 0"),
        ("default_response_timeout=nan", "'nan' is not a number of seconds > 0"),
        ("metrics_mode=loud", "metrics_mode: 'loud' is not one of prometheus, log, legacy"),
        ("inference_address=8085", "'8085' is not http://HOST[:PORT]"),
        ("allowed_urls=[", "allowed_urls: unterminated character set"),
        ("model_snapshot={", "model_snapshot: not JSON: it ends after '{'; does that line lack a"),
        ('models={"m": {\n"1": {}}}', """models: not JSON: it ends after '{"m": {'; does that"""),
        ('models={"m": 1 "n": 2}', """models: not JSON: Expecting ',' delimiter: '"n": 2}' ("""),
        ("certificate_file=/a\\u0000.pem", "certificate_file: has a NUL character"),
        ("metrics_address=unix:/a\\u0000", "metrics_address: has a NUL character"),
        ("load_models=x=", "load_models: 'x=' is not all, none or [NAME=]FILE"),
    ],
)
def test_a_wrong_value_is_one_line_with_key_value_and_what_is_allowed(
    load: Load, line: str, text: str
) -> None:
    with pytest.raises(SettingError) as caught:
        load(file=line)
    message = str(caught.value)
    assert text in message
    assert message.startswith(line.split("=")[0])
    assert message.endswith("(config.properties)")
    assert "\n" not in message


def test_more_processes_are_refused_with_what_to_do_instead(load: Load) -> None:
    assert load("--workers", "1").workers == 1
    with pytest.raises(SettingError, match="add replicas, or raise the model's maxWorkers"):
        load("--workers", "2")
    assert load(file="workers=4").unknown == ("workers",)


def test_something_must_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="Missing mandatory parameter --model-store"):
        load_settings([], {}, "torchserve")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"model_dir: /absent: no such folder \(command line"):
        load_settings(["--model_dir", "/absent"], {})


def test_a_model_store_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "m.mar"
    file.touch()
    with pytest.raises(SettingError, match=r"model_store: .*m.mar: not a folder \(command line"):
        load_settings(["--model-store", str(file)], {})


def test_a_folder_that_cannot_be_looked_into_is_one_line() -> None:
    with locked_folder() as folder, unprivileged():
        path = f"{folder}/config/config.properties"
        reason = rf"model_dir: {path}: Permission denied \(as user {os.geteuid()}\)"
        with pytest.raises(SettingError, match=reason):
            load_settings(["--model_dir", str(folder)], {})
        store = folder / "store"
        with pytest.raises(SettingError, match=f"model_store: {store}: Permission denied"):
            load_settings(["--model_store", str(store)], {})


def test_a_working_directory_that_cannot_be_looked_into_has_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked_folder() as folder:
        folder.chmod(0o700)
        monkeypatch.chdir(folder)
        folder.chmod(0)
        with unprivileged():
            assert load_settings(["--model_store", "/"], {}).ts_config is None
        monkeypatch.undo()


def test_unknown_and_ignored_settings_are_told_apart(load: Load) -> None:
    file = "vmargs=-Xmx1g\npython=/usr/bin/python3\ncolour=red"
    settings = load("--log-config", "log4j2.xml", "--brand-new", file=file)
    assert settings.ignored == ("log_config", "vmargs", "python")
    assert settings.unknown == ("--brand-new", "colour")


def test_a_snapshot_that_torchserve_wrote_is_a_file_like_others(load: Load) -> None:
    models = {"m": {"1.0": {"marName": "m.mar", "defaultVersion": True}}}
    snapshot = json.dumps({"modelCount": 1, "models": models}, indent=2)
    escaped = snapshot.replace("\n", "\\n").replace(":", "\\:")
    head = "#Saving snapshot\n#Mon Nov 23 08:00:00 UTC 2026\npython=/usr/bin/python3\n"
    tail = "tsConfigFile=config.properties\nversion=0.12.0\n"
    settings = load(file=f"{head}model_snapshot={escaped}\n{tail}")
    expected = StartupModel(name="m", file="m.mar", version="1.0", is_default=True)
    assert settings.startup_models() == [expected]
    assert settings.ignored == ("python",)
    assert settings.unknown == ()


def test_what_was_misspelt_is_guessed(load: Load) -> None:
    known = {"TS_NUM_WORKERS": "1", "TS_MODELS": "{", "TS_MODEL_STORE": "store"}
    ignored = {"TS_GRPC_INFERENCE_MAX_CONNECTION_AGE_GRACE_MS": "1"}
    assert load(**known, **ignored).unknown == ()
    file = "job_queue_sise=9\ncolour=red\n"
    file += 'models={"m": {"1.0": {"batch_size": 4, "runtimeType": "python"}}}\n'
    settings = load(
        *("--httpport", "1", "--numer-of-gpu=2", "--printsettings"),
        file=file,
        TS_MODELSTORE="x",
        TS_PORT="1",
        TS_TOKEN_EXPIRATION_MIN="1",
        MODEL_STORE="of another program",
    )
    assert settings.unknown == (
        "--httpport (did you mean --http_port?)",
        "--numer-of-gpu (did you mean --number_of_gpu?)",
        "--printsettings (did you mean --print-settings?)",
        "job_queue_sise (did you mean job_queue_size?)",
        "colour",
        "TS_MODELSTORE (did you mean TS_MODEL_STORE?)",
        "TS_TOKEN_EXPIRATION_MIN (did you mean TS_TOKEN_EXPIRATION_TIME_MIN?)",
        "models: m.1.0.batch_size (did you mean batchSize?)",
    )


def test_a_misspelt_store_is_named_where_one_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the repository has a model-store after `make serve`
    words = (
        r"^Missing mandatory parameter --model-store .*--modelstore \(did you mean --model_store\?"
    )
    with pytest.raises(SettingError, match=words):
        load_settings(["--modelstore", "X"], {}, "torchserve")
