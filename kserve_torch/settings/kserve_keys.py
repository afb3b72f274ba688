"""The flags of ``kserve.ModelServer``, with their names and defaults (CONTRACT K25).

They are repeated here because importing kserve takes seconds and reads ``sys.argv``; a test
compares them with kserve's parser.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kserve_torch.settings.keys import key
from kserve_torch.settings.kinds import BOOLEAN, PATH, PORT, TEXT, WORKERS, choice, integer
from kserve_torch.settings.torchserve_keys import TorchServeKeys

_MESSAGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class KServeKeys(TorchServeKeys):
    """Flags of kserve's model server that have an effect."""

    model_name: str | None = key(
        None,
        TEXT,
        "name of the model, if there is one and no other setting names it",
        shown="the archive's; without a manifest the folder's",
    )
    http_port: int = key(
        8080,
        PORT,
        "port for KServe v1 and v2 REST, TorchServe's inference API and /metrics; if not set, it "
        "uses the host of inference_address",
        shown="8080; 8443 with ssl_certfile",
    )
    grpc_port: int | None = key(
        8081,
        PORT,
        "port for KServe gRPC; if not set, it uses the host of grpc_inference_address",
    )
    enable_grpc: bool = key(True, BOOLEAN, "open grpc_port")
    ssl_certfile: Path | None = key(
        None,
        PATH,
        "TLS certificate for http_port",
        shown="none: plain HTTP",
        env=("TS_SSL_CERTFILE", "KSERVE_TLS_CERT_FILE"),
    )
    ssl_keyfile: Path | None = key(
        None, PATH, "private key for ssl_certfile", env=("TS_SSL_KEYFILE", "KSERVE_TLS_KEY_FILE")
    )
    grpc_max_send_message_length: int = key(
        _MESSAGE_BYTES, integer(1), "maximum size of a gRPC response, in bytes"
    )
    grpc_max_receive_message_length: int = key(
        _MESSAGE_BYTES, integer(1), "maximum size of a gRPC request on grpc_port, in bytes"
    )
    timeout_keep_alive: int = key(65, integer(0), "seconds until an idle connection is closed")
    event_loop: str = key("auto", choice("auto", "asyncio", "uvloop"), "event loop implementation")
    enable_docs_url: bool = key(False, BOOLEAN, "serve /docs and /openapi.json")
    configure_logging: bool = key(True, BOOLEAN, "configure logging")
    log_config_file: Path | None = key(
        None, PATH, "logging configuration file, YAML or JSON", shown="built in"
    )
    # TorchServe's performance guide praises a key ``workers``, which TorchServe does not read.
    workers: int = key(1, WORKERS, "number of processes", properties=())
