"""TorchServe's keys of ``config.properties``, by their own names (CONTRACT §3.15)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kserve_torch.settings.addresses import ANYWHERE, LOCAL, Address, address_kind
from kserve_torch.settings.keys import key
from kserve_torch.settings.kinds import (
    BOOLEAN,
    ENVELOPE,
    MINUTES,
    PATH,
    PORT,
    REGEXES,
    SECONDS,
    TEXT,
    TIME_LIMIT,
    choice,
    integer,
)
from kserve_torch.settings.models import LOAD_MODELS, MODELS, SNAPSHOT, Entries, StartupModel

_EVERY_URL = tuple(re.compile(text, re.IGNORECASE) for text in ("file://.*", "http(s)?://.*"))
_HTTP_8085 = Address(host=ANYWHERE, port=8085)
_HTTP_8082 = Address(host=ANYWHERE, port=8082)
_LOCAL_8081 = Address(host=LOCAL, port=8081)
_BODY_BYTES = 6_553_500


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchServeKeys:
    """Keys of TorchServe's that have an effect here."""

    # --- models -----------------------------------------------------------------------------------
    ts_config: Path | None = key(
        None,
        PATH,
        "the config.properties to read",
        shown="MODEL_DIR/config/config.properties, then ./config.properties",
        env=("TS_CONFIG_FILE", "CONFIG_PATH"),
        properties=(),
    )
    model_store: Path | None = key(
        None, PATH, "folder of model archives", shown="MODEL_DIR/model-store, if it is there"
    )
    load_models: str | tuple[StartupModel, ...] = key(
        "all",
        LOAD_MODELS,
        "what to load at start: all, none or files of the model store, with names before them",
        flags=("--models", "--load_models"),
        many=True,
    )
    models: Entries = key((), MODELS, "models and their limits", shown="none", flags=(), env=())
    model_snapshot: Entries = key(
        (), SNAPSHOT, "models to load, and their limits", shown="none", flags=(), env=()
    )
    default_workers_per_model: int = key(0, integer(0), "workers of a model; 0: 1 at start")
    default_response_timeout: float = key(120.0, TIME_LIMIT, "longest call of a handler")
    default_startup_timeout: float = key(120.0, TIME_LIMIT, "longest load of a model")
    unregister_model_timeout: float = key(120.0, SECONDS, "longest wait for a leaving model")
    job_queue_size: int = key(100, integer(1), "requests of a model that may wait")
    number_of_gpu: int | None = key(None, integer(0), "GPUs to use", shown="all")
    install_py_dep_per_model: bool = key(False, BOOLEAN, "install archives' requirements")

    # --- handlers ---------------------------------------------------------------------------------
    service_envelope: str | None = key(None, ENVELOPE, "form of native bodies", shown="none")
    default_service_handler: str | None = key(
        None, TEXT, "handler of archives without a manifest", shown="none"
    )
    decode_input_request: bool = key(True, BOOLEAN, "parse JSON and text for handlers")
    limit_max_image_pixels: bool = key(True, BOOLEAN, "refuse images of suspicious size")
    ts_header_key_sequence_id: str = key(
        "ts_request_sequence_id",
        TEXT,
        "header with the id of a sequence",
        env=("TS_HEADER_KEY_SEQUENCE_ID", "TS_REQUEST_SEQUENCE_ID"),
    )
    ts_header_key_sequence_start: str = key(
        "ts_request_sequence_start",
        TEXT,
        "header at the start of a sequence",
        env=("TS_HEADER_KEY_SEQUENCE_START", "TS_REQUEST_SEQUENCE_START"),
    )
    ts_header_key_sequence_end: str = key(
        "ts_request_sequence_end",
        TEXT,
        "header at the end of a sequence",
        env=("TS_HEADER_KEY_SEQUENCE_END", "TS_REQUEST_SEQUENCE_END"),
    )

    # --- ports ------------------------------------------------------------------------------------
    inference_address: Address = key(_HTTP_8085, address_kind(80, 443), "the same as http_port")
    management_address: Address = key(
        _LOCAL_8081,
        address_kind(8081, 8444),
        "the same, and the management API",
        shown="inference_address; as torchserve http://127.0.0.1:8081",
    )
    metrics_address: Address = key(_HTTP_8082, address_kind(8082, 8445), "/metrics only")
    grpc_inference_address: str = key(
        ANYWHERE,
        TEXT,
        "host of grpc_inference_port",
        shown="the host of inference_address; 0.0.0.0 in KServe's layout",
    )
    grpc_inference_port: int = key(7070, PORT, "TorchServe's inference gRPC, and KServe's")
    grpc_management_address: str = key(LOCAL, TEXT, "host of grpc_management_port")
    grpc_management_port: int = key(7071, PORT, "TorchServe's management gRPC")
    grpc_inference_max_connection_age_ms: int | None = key(
        None, integer(1), "longest life of an inference gRPC connection", shown="no limit"
    )
    grpc_management_max_connection_age_ms: int | None = key(
        None, integer(1), "longest life of a management gRPC connection", shown="no limit"
    )

    # --- transport --------------------------------------------------------------------------------
    max_request_size: int = key(_BODY_BYTES, integer(1), "bytes of a request body")
    max_response_size: int = key(
        _BODY_BYTES, integer(1), "bytes of an answer on TorchServe's routes and gRPC ports"
    )
    certificate_file: Path | None = key(
        None,
        PATH,
        "certificate of https addresses",
        shown="keystore, then ssl_certfile, then one made up, which clients refuse",
    )
    private_key_file: Path | None = key(None, PATH, "private key of it", shown="none")
    keystore: Path | None = key(None, PATH, "certificate and key in one file", shown="none")
    keystore_pass: str = key("changeit", TEXT, "password of the keystore", flags=(), secret=True)
    keystore_type: str = key("pkcs12", choice("pkcs12"), "format of the keystore")
    enable_grpc_ssl: bool = key(False, BOOLEAN, "TLS on TorchServe's gRPC ports")
    cors_allowed_origin: str | None = key(None, TEXT, "CORS header", shown="none")
    cors_allowed_methods: str | None = key(None, TEXT, "CORS header", shown="none")
    cors_allowed_headers: str | None = key(None, TEXT, "CORS header", shown="none")

    # --- management -------------------------------------------------------------------------------
    enable_model_api: bool = key(False, BOOLEAN, "allow registering and unregistering")
    disable_token_authorization: bool = key(
        True,
        BOOLEAN,
        "ask for no tokens",
        flags=("--disable_token_auth", "--dt", "--disable_token_authorization"),
    )
    token_expiration_min: float = key(
        60.0, MINUTES, "how long a token lasts", env=("TS_TOKEN_EXPIRATION_TIME_MIN",)
    )
    allowed_urls: tuple[re.Pattern[str], ...] = key(
        _EVERY_URL, REGEXES, "where models may be registered from"
    )
    use_env_allowed_urls: bool = key(False, BOOLEAN, "let TS_ALLOWED_URLS count")

    # --- metrics ----------------------------------------------------------------------------------
    enable_metrics_api: bool = key(True, BOOLEAN, "serve /metrics")
    metrics_mode: str = key(
        "prometheus",
        choice("prometheus", "log", "legacy"),
        "where metrics go",
        properties=("metrics_mode", "metrics_format"),
    )
    metrics_config: Path | None = key(None, PATH, "metrics.yaml", shown="built in")
    model_metrics_auto_detect: bool = key(False, BOOLEAN, "take metrics it does not name")
    disable_system_metrics: bool = key(False, BOOLEAN, "no CPU, memory and disk metrics")
