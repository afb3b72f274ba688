"""A setting's description, carried by the field that holds its value.

`Settings` is the one table of keys: options, variables, ``--help``, ``--print-settings`` and the
reference page all come from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from kserve_torch.errors import SettingError
from kserve_torch.settings.kinds import Kind, Malformed

T = TypeVar("T")

#: The source of a value that nobody set.
DEFAULT = "default"
#: How sources on the command line begin.
COMMAND_LINE = "command line"

#: Options of kserve for transformers, threads and the access log.
KSERVES = (
    "access_log_format",
    "enable_latency_logging",
    "enable_predictor_health_check",
    "max_asyncio_workers",
    "max_threads",
    "predictor_host",
    "predictor_protocol",
    "predictor_request_retries",
    "predictor_request_timeout_seconds",
    "predictor_use_ssl",
    "protocol",
)

#: Accepted, with no effect: these, and keys and options for TorchServe's Java front end, its log
#: and its worker processes.
IGNORED = frozenset(
    (
        "NUM_WORKERS",
        "async_logging",
        "blacklist_env_vars",
        "cpp_log_config",
        "cpu_launcher_args",
        "cpu_launcher_enable",
        "enable_envvars_config",
        "grpc_inference_max_connection_age_grace_ms",
        "grpc_management_max_connection_age_grace_ms",
        "initial_distribution_port",
        "initial_worker_port",
        "io_ratio",
        "ipex_enable",
        "ipex_gpu_enable",
        "log_config",
        "metric_time_interval",
        "metrics_format",
        "model_server_home",
        "netty_client_threads",
        "number_of_netty_threads",
        "plugins_path",
        "ppath",
        "prefer_direct_buffer",
        "python",
        "system_metrics_cmd",
        "ts_open_inference_protocol",
        "use_native_io",
        "vmargs",
        "workflow_store",
        *KSERVES,
    )
)

#: No settings: what TorchServe's snapshots, which are such files too, say about themselves.
OF_SNAPSHOTS = ("tsConfigFile", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the table.

    Attributes:
        name: in ``Settings``, and usually everywhere else.
        help: a phrase that describes it.
        shown: the default in words, where they say more than the value.
        flags: options; each is also known with ``-`` for ``_``.
        env: environment variables; the first that is set wins.
        properties: names in ``config.properties``, likewise.
        many: whether the option takes several values, which are joined with commas.
        secret: whether the value must not be shown.
    """

    name: str
    default: Any
    kind: Kind[Any]
    help: str
    shown: str
    flags: tuple[str, ...]
    env: tuple[str, ...]
    properties: tuple[str, ...]
    many: bool
    secret: bool

    def parse(self, text: str, source: str) -> Any:
        """The value of ``text``.

        Raises:
            SettingError: it is invalid; one line with key, value, what is allowed and the source.
        """
        if "\0" in text:  # no path or host name has one, and what looks for one raises ValueError
            raise SettingError(f"{self.name}: has a NUL character ({source})")
        try:
            return self.kind.read(text.strip())
        except Malformed as error:
            raise SettingError(f"{self.name}: {error} ({source})") from error
        except ValueError as error:
            shown = "the value" if self.secret else repr(text)
            line = f"{self.name}: {shown} is not {self.kind.allowed} ({source})"
            raise SettingError(line) from error


def key(
    default: T,
    kind: Kind[T],
    help: str,
    *,
    shown: str = "",
    flags: tuple[str, ...] | None = None,
    env: tuple[str, ...] | None = None,
    properties: tuple[str, ...] | None = None,
    many: bool = False,
    secret: bool = False,
) -> T:
    """A field of the table.

    ``flags``, ``env`` and ``properties`` follow from the field's name; ``()`` closes that way in.
    """

    def named(name: str) -> Key:
        return Key(
            name=name,
            default=default,
            kind=kind,
            help=help,
            shown=shown,
            flags=(f"--{name}",) if flags is None else flags,
            env=(f"TS_{name.upper().removeprefix('TS_')}",) if env is None else env,
            properties=(name,) if properties is None else properties,
            many=many,
            secret=secret,
        )

    return field(default=default, metadata={"key": named})
