"""`Settings`: every effective value in one frozen object, and what follows from them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kserve_torch.settings.addresses import ANYWHERE, Address, Binding, Wish, share
from kserve_torch.settings.keys import DEFAULT, Key, key
from kserve_torch.settings.kinds import BOOLEAN, PATH, SECONDS, TIME_LIMIT, choice, integer
from kserve_torch.settings.kserve_keys import KServeKeys
from kserve_torch.settings.limits import Limits, merge
from kserve_torch.settings.models import Entry, StartupModel

_LEVEL = choice("debug", "info", "warn", "warning", "error", "critical")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(KServeKeys):
    """Every effective value. Fields are named as TorchServe's keys and kserve's flags.

    Attributes:
        program: ``torchserve`` or ``kserve_torch``; ``management_address`` depends on it.
        sources: per key, where its value came from, in words; begins with ``default`` if nobody
            set it.
        ignored: keys and options that were given but have no effect.
        unknown: unknown keys and options and misspelt variables, each with a guess at what was
            meant.
        notices: further lines for the log at start.
        http_host: the host of ``http_port``, which names none.
        grpc_host: the host of ``grpc_port``, likewise.
    """

    program: str = "kserve_torch"
    sources: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    http_host: str = ANYWHERE
    grpc_host: str = ANYWHERE

    model_dir: Path | None = key(
        None,
        PATH,
        "models to serve: KServe's layout, a model store, an archive or a folder with a handler",
        properties=(),
    )
    open_early: bool = key(False, BOOLEAN, "open the ports before the models have loaded")
    drain_seconds: float = key(
        5.0, SECONDS, "how long new connections are still accepted after SIGTERM"
    )
    grace_period: float = key(
        30.0, SECONDS, "how long after SIGTERM until requests in flight are dropped"
    )
    receive_timeout: float = key(
        60.0,
        TIME_LIMIT,
        "how long to wait for a request to arrive, or for a client that reads none of its response",
    )
    max_connections: int = key(
        4096,
        integer(1),
        "maximum open HTTP connections, and gRPC calls per port; further ones are refused",
    )
    access_log: bool = key(True, BOOLEAN, "log one line per request")
    log_json: bool = key(False, BOOLEAN, "write the log as JSON objects")
    log_level: str = key("info", _LEVEL, "minimum level of log messages")

    def given(self, name: str) -> bool:
        """Whether somebody set ``name``."""
        return not self.sources.get(name, DEFAULT).startswith(DEFAULT)

    def bindings(self) -> list[Binding]:
        """The HTTP sockets to open.

        Raises:
            SettingError: two addresses name one port on different hosts.
        """
        roles = ("inference", "management", "metrics")
        wishes = [self._wish(f"{role}_address", role) for role in roles]
        scheme = "https" if self.ssl_certfile else "http"
        rest = Address(scheme=scheme, host=self.http_host, port=self.http_port)
        # http_port names no host, so an address that was given has precedence if it has the same
        # port; a default address has it only if http_port is a default, too.
        wish = Wish("http_port", rest, "inference", given=False)
        return share([wish, *wishes] if self.given("http_port") else [*wishes, wish])

    def _wish(self, setting: str, role: str) -> Wish:
        return Wish(setting, getattr(self, setting), role, given=self.given(setting))

    def grpc_bindings(self) -> list[Binding]:
        """The gRPC sockets to open; roles ``oip``, ``inference`` and ``management``.

        Raises:
            SettingError: two settings name one port on different hosts.
        """
        return share(self._grpc_wishes())

    def _grpc_wishes(self) -> Iterator[Wish]:
        for role in ("inference", "management"):
            host = getattr(self, f"grpc_{role}_address")
            address = Address(scheme="grpc", host=host, port=getattr(self, f"grpc_{role}_port"))
            yield Wish(f"grpc_{role}_port", address, role, given=True)
        if self.grpc_port is not None:
            address = Address(scheme="grpc", host=self.grpc_host, port=self.grpc_port)
            yield Wish("grpc_port", address, "oip", given=False)

    def startup_models(self) -> list[StartupModel] | None:
        """What to load at start; None means every archive of the store.

        In one file ``model_snapshot`` beats ``load_models`` (CONTRACT F4); from the command line
        or the environment, ``load_models`` beats both files' keys.
        """
        entries = self.model_snapshot or self.models
        same_file = self.sources.get("load_models") == self.sources.get("model_snapshot")
        if self.given("load_models") and not (self.model_snapshot and same_file):
            if isinstance(self.load_models, str):
                return None if self.load_models == "all" else []
            return list(self.load_models)
        return [entry.model for entry in entries] or None

    def limits_for(
        self, name: str, version: str, config: Mapping[str, Any], gpus: int = 0
    ) -> Limits:
        """Limits of one version; ``config`` is its archive's ``model-config.yaml``, checked.

        Unless ``default_workers_per_model`` is set, a model's default is one worker on each of the
        ``gpus`` that may be used, or one.
        """
        defaults = Limits(
            min_workers=max(1, self.default_workers_per_model),
            response_timeout=self.default_response_timeout,
            startup_timeout=self.default_startup_timeout,
            queue_size=self.job_queue_size,
        )
        entry = self._entry_for(name, version)
        given = {} if entry is None else entry.limits
        return merge(defaults, config, given, 0 if self.default_workers_per_model else gpus)

    def idle(self, loaded: Collection[tuple[str, str]]) -> list[StartupModel]:
        """The models in ``models`` and ``model_snapshot`` whose limits are for none of these.

        Args:
            loaded: names and versions.
        """
        used = [self._entry_for(*each) for each in loaded]
        entries = (*self.model_snapshot, *self.models)
        return [entry.model for entry in entries if not any(entry is one for one in used)]

    def _entry_for(self, name: str, version: str) -> Entry | None:
        snapshot = [entry for entry in self.model_snapshot if entry.model.name == name]
        if len(snapshot) == 1:  # its version is not compared with the archive's (CONTRACT F4)
            return snapshot[0]
        for entry in (*snapshot, *self.models):
            if (entry.model.name, entry.model.version) == (name, version):
                return entry
        return None


#: Every key of the table, by name.
KEYS: Mapping[str, Key] = MappingProxyType(
    {f.name: f.metadata["key"](f.name) for f in fields(Settings) if "key" in f.metadata}
)
