"""Floors of the package: imports point down, and siblings know each other only where marked."""

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "kserve_torch"

#: Floor by floor, each module or sub-package with the siblings that it may import.
FLOORS: list[dict[str, str]] = [
    {
        "errors": "messages",
        "events": "frozen messages",
        "frozen": "",
        "messages": "frozen",
        "redact": "",
    },
    {
        "codec": "",
        "settings": "",
        "engine.pacing": "",
        "engine.patience": "",
        "engine.trial": "",
        "engine.tuner": "engine.trial",
        "engine.window": "",
    },
    {
        "archives.archive": (
            "archives.bare archives.config archives.extract archives.folders archives.manifest"
        ),
        "archives.bare": "archives.config archives.folders archives.manifest",
        "archives.config": "archives.text",
        "archives.download": "",
        "archives.extract": "",
        "archives.folders": "archives.manifest",
        "archives.manifest": "archives.text",
        "archives.store": "archives.download archives.folders",
        "archives.text": "archives.extract",
        "namespace.aliases": "namespace.scopes namespace.searchpath",
        "namespace.bindings": "",
        "namespace.collectors": "namespace.importhooks namespace.scopes",
        "namespace.compiled": "namespace.aliases namespace.bindings",
        "namespace.exits": "",
        "namespace.importhooks": "",
        "namespace.importlock": "",
        "namespace.imports": (
            "namespace.aliases namespace.compiled namespace.importhooks namespace.importlock "
            "namespace.scopes namespace.searchpath"
        ),
        "namespace.loader": (
            "namespace.aliases namespace.collectors namespace.exits namespace.imports "
            "namespace.loggers namespace.openmmlab namespace.pretrained namespace.processes "
            "namespace.protobuf namespace.pyplot namespace.registrations namespace.resolver "
            "namespace.rewriting namespace.scopes namespace.searchpath namespace.stdlib "
            "namespace.workdir"
        ),
        "namespace.loggers": "namespace.scopes",
        "namespace.modules": "namespace.aliases namespace.scopes",
        "namespace.openmmlab": "namespace.importhooks namespace.scopes",
        "namespace.packages": "archives.archive namespace.loader",
        "namespace.portions": "",
        "namespace.pretrained": "namespace.importhooks",
        "namespace.processes": "namespace.importhooks namespace.scopes",
        "namespace.protobuf": "namespace.importhooks",
        "namespace.pyplot": "namespace.importhooks namespace.scopes",
        "namespace.registrations": "namespace.importhooks namespace.scopes",
        "namespace.resolver": (
            "namespace.aliases namespace.portions namespace.scopes namespace.searchpath"
        ),
        "namespace.rewriting": "namespace.scopes",
        "namespace.scopes": "namespace.exits",
        "namespace.searchpath": "",
        "namespace.spawned": "namespace.importhooks namespace.loader namespace.scopes",
        "namespace.stdlib": "namespace.imports namespace.modules namespace.scopes",
        "namespace.workdir": "",
        "scratch": "",
    },
    {
        "handler": (
            "runtime.context runtime.devices runtime.profiler runtime.torchload "
            "runtime.paramdata runtime.torchstate runtime.tying"
        ),
        "ts": (
            "handler runtime.context runtime.devices runtime.entry runtime.processor "
            "runtime.profiler"
        ),
        "runtime.compiler": "",
        "runtime.context": "runtime.processor",
        "runtime.devices": "",
        "runtime.embeddings": "",
        "runtime.entry": "handler runtime.context",
        "runtime.fault": "",
        "runtime.fxtrace": "",
        "runtime.instance": (
            "handler runtime.context runtime.devices runtime.entry runtime.fault runtime.output "
            "runtime.reasons runtime.rootlog runtime.sharing runtime.torchstate runtime.warmup"
        ),
        "runtime.loading": (
            "runtime.context runtime.devices runtime.embeddings runtime.fxtrace runtime.instance "
            "runtime.matmul runtime.operators runtime.oplibraries runtime.paramdata "
            "runtime.reasons runtime.torchload runtime.torchstate ts"
        ),
        "runtime.machine": "",
        "runtime.matmul": "",
        "runtime.operators": "",
        "runtime.oplibraries": "",
        "runtime.output": "",
        "runtime.paramdata": "",
        "runtime.processor": "",
        "runtime.profiler": "",
        "runtime.reasons": "handler ts",
        "runtime.rootlog": "",
        "runtime.sharing": "runtime.paramdata runtime.tying",
        "runtime.torchload": "",
        "runtime.torchstate": "runtime.machine",
        "runtime.tying": "",
        "runtime.warmup": "runtime.context runtime.fault runtime.torchstate",
    },
    {
        "engine.aside": "",
        "engine.backoff": "",
        "engine.concurrent": "engine.failures engine.ticket engine.worker",
        "engine.courtesy": "",
        "engine.emissions": "",
        "engine.failures": "",
        "engine.gate": "",
        "engine.intake": "engine.pacing engine.pool engine.queues engine.ticket",
        "engine.isolation": "engine.failures engine.lane engine.ticket",
        "engine.lane": "engine.gate engine.ticket",
        "engine.loads": "",
        "engine.place": "",
        "engine.pool": (
            "engine.courtesy engine.failures engine.lane engine.place engine.roster "
            "engine.staffing engine.threads engine.ticket engine.worker"
        ),
        "engine.queues": (
            "engine.concurrent engine.courtesy engine.lane engine.pool engine.ticket engine.worker"
        ),
        "engine.roster": "engine.ticket engine.worker",
        "engine.sequences": "",
        "engine.staffing": (
            "engine.backoff engine.lane engine.loads engine.roster engine.ticket engine.worker"
        ),
        "engine.tasks": "",
        "engine.threads": "",
        "engine.ticket": "",
        "engine.worker": (
            "engine.courtesy engine.isolation engine.lane engine.threads engine.ticket"
        ),
    },
    {
        "models.catalogue": "models.state models.version",
        "models.configured": (
            "models.factory models.retries models.state models.stock models.version"
        ),
        "models.describe": "models.registry models.state models.version",
        "models.factory": "models.firsts models.version",
        "models.firsts": "",
        "models.registration": "models.registry models.version",
        "models.registry": (
            "models.configured models.factory models.reloads models.stock models.version"
        ),
        "models.reloads": ("models.factory models.retries models.stock models.version"),
        "models.report": "models.registry",
        "models.retries": "models.catalogue models.state models.version",
        "models.state": "",
        "models.stock": "models.catalogue models.version",
        "models.v2": "models.version",
        "models.version": "models.firsts models.state",
    },
    {
        "accesslog": "logs",
        "grpc": "tokens",
        "grpc.management": "grpc http",
        "grpc.server": "grpc grpc.management tls tokens",
        "http": "tokens",
        "logs": "",
        "metrics": "",
        "pidfile": "",
        "sockets": "",
        "tls": "",
        "tokens": "",
        "tracing": "",
        "sdk.errors": "grpc",
        "sdk.infer_types": "",
        "sdk.loading": "",
        "sdk.model": "sdk.errors sdk.infer_types sdk.loading",
        "sdk.repository": "sdk.model",
    },
    {
        "__main__": "cli",
        "check": "children edges process startup",
        "children": "",
        "cli": "check server",
        "edges": "",
        "garbage": "",
        "process": "garbage",
        "server": "children edges process startup",
        "startup": "",
    },
]

NOUNS = {noun for nouns in FLOORS for noun in nouns}

_TRANSPORT = {"grpc", "starlette", "fastapi", "uvicorn", "kserve", "prometheus_client"}
_PURE = _TRANSPORT | {"torch", "torchvision", "captum", "asyncio", "threading", "time"}
#: Packages of others that a floor must do without.
FOREIGN = [_PURE, _PURE, *[_TRANSPORT] * 4, set(), set()]


def modules() -> list[Path]:
    """Every source file but the facade and those that only say what a package is."""
    files = (path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
    return sorted(path for path in files if path.name != "__init__.py" or imports_of(path))


def noun_of(parts: Sequence[str]) -> str:
    """What of the table the module with a dotted name, or something in it, belongs to."""
    module = ".".join(parts[:2])
    return module if module in NOUNS else parts[0]


def home_of(path: Path) -> str:
    """What of the table a source file belongs to."""
    return noun_of(path.relative_to(PACKAGE).with_suffix("").parts)


def floor_of(noun: str) -> int:
    floors = [number for number, nouns in enumerate(FLOORS) if noun in nouns]
    assert len(floors) == 1, f"{noun} is on {len(floors)} floors of the table"
    return floors[0]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All of what is written in a file."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports_of(path: Path) -> list[str]:
    """Dotted names of what ``path`` imports, wherever in the file it does."""
    names: list[str] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return names


def nouns_imported(path: Path) -> set[str]:
    names = (name.split(".") for name in imports_of(path) if name.startswith("kserve_torch."))
    return {noun_of(parts[1:]) for parts in names} - {"__version__", home_of(path)}


def test_every_module_is_on_exactly_one_floor() -> None:
    listed = [noun for nouns in FLOORS for noun in nouns]
    assert sorted(listed) == sorted({home_of(path) for path in modules()})


def test_imports_point_down() -> None:
    wrong = []
    for path in modules():
        floor = floor_of(home_of(path))
        below = {name for nouns in FLOORS[:floor] for name in nouns}
        strange = nouns_imported(path) - below - set(FLOORS[floor][home_of(path)].split())
        wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in strange]
    assert wrong == []


def test_no_siblings_import_each_other_in_a_circle() -> None:
    for nouns in FLOORS:
        rest = {noun: set(siblings.split()) for noun, siblings in nouns.items()}
        while free := {noun for noun, siblings in rest.items() if not siblings & rest.keys()}:
            rest = {noun: siblings for noun, siblings in rest.items() if noun not in free}
        assert rest == {}


def test_every_marked_sibling_is_imported() -> None:
    marked = {(noun, name) for nouns in FLOORS for noun in nouns for name in nouns[noun].split()}
    imported = {(home_of(path), name) for path in modules() for name in nouns_imported(path)}
    assert marked - imported == set()


def test_each_floor_does_without_some_foreign_packages() -> None:
    wrong = []
    for path in modules():
        roots = {name.split(".")[0] for name in imports_of(path)}
        strange = roots & FOREIGN[floor_of(home_of(path))]
        wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in strange]
    assert wrong == []


def test_only_the_command_line_reads_the_arguments() -> None:
    readers = {
        home_of(path)
        for path in modules()
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr == "argv"
    }
    assert readers <= {"cli"}
