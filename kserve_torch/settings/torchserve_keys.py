"""TorchServe's keys of ``config.properties``, under their own names (CONTRACT §3.15)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kserve_torch.settings.addresses import ANYWHERE, HOST, LOCAL, Address, address_kind
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
from kserve_torch.settings.limits import MOST_WORKERS
from kserve_torch.settings.models import LOAD_MODELS, MODELS, SNAPSHOT, Entries, StartupModel

_EVERY_URL = tuple(re.compile(text, re.IGNORECASE) for text in ("file://.*", "http(s)?://.*"))
_HTTP_8085 = Address(host=ANYWHERE, port=8085)
_HTTP_8082 = Address(host=ANYWHERE, port=8082)
_LOCAL_8081 = Address(host=LOCAL, port=8081)
_BODY_BYTES = 6_553_500


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchServeKeys:
    """TorchServe's keys that have an effect."""

    # --- models -----------------------------------------------------------------------------------
    ts_config: Path | None = key(
        None,
        PATH,
        "config.properties file to read",
        shown="MODEL_DIR/config/config.properties, else ./config.properties",
        env=("TS_CONFIG_FILE", "CONFIG_PATH"),
        properties=(),
    )
    model_store: Path | None = key(
        None,
        PATH,
        "folder of model archives",
        shown="MODEL_DIR/model-store, or without MODEL_DIR model-store beside ts_config or in ./, "
        "if it exists",
    )
    load_models: str | tuple[StartupModel, ...] = key(
        "all",
        LOAD_MODELS,
        "models to load at startup: all, none, or files in the model store, optionally named",
        flags=("--models", "--load_models"),
        many=True,
    )
    models: Entries = key((), MODELS, "models and their limits", flags=(), env=())
    model_snapshot: Entries = key((), SNAPSHOT, "models to load and their limits", flags=(), env=())
    default_workers_per_model: int = key(
        0, integer(0, MOST_WORKERS), "workers per model; 0: one per GPU, or 1, at startup"
    )
    default_response_timeout: float = key(120.0, TIME_LIMIT, "maximum duration of a handler call")
    default_startup_timeout: float = key(120.0, TIME_LIMIT, "maximum load time of a model")
    unregister_model_timeout: float = key(
        120.0, SECONDS, "maximum wait for the requests of a model that is being unregistered"
    )
    job_queue_size: int = key(100, integer(1), "maximum queued requests per model")
    number_of_gpu: int | None = key(None, integer(0), "number of GPUs to use", shown="all")
    install_py_dep_per_model: bool = key(
        False, BOOLEAN, "install the requirements in archives, each for its own model"
    )

    # --- handlers ---------------------------------------------------------------------------------
    service_envelope: str | None = key(
        None, ENVELOPE, "envelope of request bodies on TorchServe's routes"
    )
    default_service_handler: str | None = key(None, TEXT, "handler for archives without a manifest")
    decode_input_request: bool = key(
        True, BOOLEAN, "pass JSON and text bodies to handlers parsed, not as bytes"
    )
    limit_max_image_pixels: bool = key(
        True, BOOLEAN, "reject images with too many pixels (PIL's limit)"
    )
    ts_header_key_sequence_id: str = key(
        "ts_request_sequence_id",
        TEXT,
        "header that holds the sequence id",
        env=("TS_HEADER_KEY_SEQUENCE_ID", "TS_REQUEST_SEQUENCE_ID"),
    )
    ts_header_key_sequence_start: str = key(
        "ts_request_sequence_start",
        TEXT,
        "header that marks the start of a sequence",
        env=("TS_HEADER_KEY_SEQUENCE_START", "TS_REQUEST_SEQUENCE_START"),
    )
    ts_header_key_sequence_end: str = key(
        "ts_request_sequence_end",
        TEXT,
        "header that marks the end of a sequence",
        env=("TS_HEADER_KEY_SEQUENCE_END", "TS_REQUEST_SEQUENCE_END"),
    )

    # --- ports ------------------------------------------------------------------------------------
    inference_address: Address = key(
        _HTTP_8085, address_kind(80, 443), "a second address for everything on http_port"
    )
    management_address: Address = key(
        _LOCAL_8081,
        address_kind(8081, 8444),
        "address for the same and TorchServe's management API",
        shown="inference_address; if started as torchserve, http://127.0.0.1:8081",
    )
    metrics_address: Address = key(
        _HTTP_8082, address_kind(8082, 8445), "address for /metrics only"
    )
    grpc_inference_address: str = key(
        ANYWHERE,
        HOST,
        "host for grpc_inference_port",
        shown="the host of inference_address; 0.0.0.0 in KServe's layout",
    )
    grpc_inference_port: int = key(
        7070, PORT, "port for TorchServe's inference gRPC and KServe gRPC"
    )
    grpc_management_address: str = key(LOCAL, HOST, "host for grpc_management_port")
    grpc_management_port: int = key(7071, PORT, "port for TorchServe's management gRPC")
    grpc_inference_max_connection_age_ms: int | None = key(
        None,
        integer(1),
        "maximum age of an inference gRPC connection, on grpc_port too",
        shown="no limit",
    )
    grpc_management_max_connection_age_ms: int | None = key(
        None, integer(1), "maximum age of a management gRPC connection", shown="no limit"
    )

    # --- transport --------------------------------------------------------------------------------
    max_request_size: int = key(_BODY_BYTES, integer(1), "maximum size of a request body, in bytes")
    max_response_size: int = key(
        _BODY_BYTES,
        integer(1),
        "maximum size of a response on TorchServe's routes and gRPC ports, in bytes",
    )
    certificate_file: Path | None = key(
        None,
        PATH,
        "TLS certificate for https addresses",
        shown="keystore, else ssl_certfile, else self-signed",
    )
    private_key_file: Path | None = key(None, PATH, "private key for certificate_file")
    keystore: Path | None = key(
        None, PATH, "keystore with certificate and private key, instead of the two files"
    )
    keystore_pass: str = key(
        "changeit",
        TEXT,
        "password of the keystore",
        shown="TorchServe's",
        flags=(),
        secret=True,
    )
    keystore_type: str = key("pkcs12", choice("pkcs12"), "keystore format")
    enable_grpc_ssl: bool = key(False, BOOLEAN, "use TLS on TorchServe's gRPC ports")
    cors_allowed_origin: str | None = key(
        None,
        TEXT,
        "origins whose pages browsers let call this server (CORS), separated by commas; *: all",
    )
    cors_allowed_methods: str | None = key(
        None, TEXT, "methods that those pages may use", shown="GET, POST, PUT, OPTIONS"
    )
    cors_allowed_headers: str | None = key(
        None, TEXT, "headers that those pages may send; *: all", shown="Content-Type"
    )

    # --- management -------------------------------------------------------------------------------
    enable_model_api: bool = key(False, BOOLEAN, "allow registering and unregistering models")
    disable_token_authorization: bool = key(
        True,
        BOOLEAN,
        "do not require tokens",
        flags=("--disable_token_auth", "--dt", "--disable_token_authorization"),
    )
    token_expiration_min: float = key(
        60.0, MINUTES, "lifetime of a token", env=("TS_TOKEN_EXPIRATION_TIME_MIN",)
    )
    allowed_urls: tuple[re.Pattern[str], ...] = key(
        _EVERY_URL, REGEXES, "URLs that models may be registered from"
    )
    use_env_allowed_urls: bool = key(False, BOOLEAN, "read TS_ALLOWED_URLS")

    # --- metrics ----------------------------------------------------------------------------------
    enable_metrics_api: bool = key(True, BOOLEAN, "serve /metrics")
    metrics_mode: str = key(
        "prometheus",
        choice("prometheus", "log", "legacy"),
        "TorchServe's metrics: prometheus, all; legacy, three counters; log, those of handlers "
        "in the log",
    )
    metrics_config: Path | None = key(None, PATH, "metrics.yaml file", shown="built in")
    model_metrics_auto_detect: bool = key(
        False, BOOLEAN, "export handler metrics that metrics_config does not list"
    )
    disable_system_metrics: bool = key(
        False, BOOLEAN, "export no CPU, memory, disk and GPU metrics"
    )
