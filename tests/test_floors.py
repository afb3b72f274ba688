"""Floors of the package: imports point down, and siblings know each other only where marked."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "kserve_torch"

#: Floor by floor, each module or sub-package with the siblings that it may import.
FLOORS: list[dict[str, str]] = [
    {
        "errors": "",
        "frozen": "",
        "messages": "frozen",
        "events": "frozen messages",
    },
    {
        "codec": "",
        "window": "",
        "tuner": "",
        "settings": "",
    },
    {
        "archive": "extract manifest",
        "manifest": "",
        "extract": "",
        "devices": "",
        "machine": "",
        "compiler": "",
        "workdir": "",
        "turns": "",
        "searchpath": "",
        "imports": "searchpath turns",
        "loader": "imports searchpath workdir",
        "instance": (
            "archive context devices entry loader operators preparation reasons rootlog torchload "
            "torchstate tying warmup"
        ),
        "preparation": "archive context loader packages ts",
        "entry": "context handler imports loader",
        "context": "processor",
        "processor": "",
        "handler": "context profiler torchload torchstate tying",
        "profiler": "",
        "ts": "context handler imports processor profiler",
        "packages": "archive loader",
        "reasons": "imports manifest ts",
        "tying": "",
        "torchstate": "machine",
        "torchload": "imports searchpath",
        "operators": "imports",
        "rootlog": "",
        "warmup": "archive context",
    },
    {
        "emissions": "",
        "background": "",
        "batcher": "statistics",
        "statistics": "",
        "courtesy": "",
        "isolation": "batcher",
        "worker": "batcher courtesy isolation",
        "roster": "worker",
        "backoff": "",
        "starts": "roster worker",
        "pool": "backoff background batcher courtesy roster starts worker",
        "intake": "batcher pool",
        "sequences": "",
        "watch": "pool",
        "origin": "",
        "version": "batcher courtesy intake origin pool sequences statistics watch worker",
        "catalogue": "version",
        "factory": "origin store version",
        "reloads": "background catalogue factory origin store version",
        "lineup": "version",
        "registry": "background catalogue emissions factory lineup reloads store version",
        "registration": "registry version",
        "manager": "background describe registration registry version",
        "store": "download",
        "download": "",
        "describe": "registry version worker",
        "tokens": "",
    },
    {
        "model": "grpc http infer_types",
        "infer_types": "",
        "repository": "model",
        "http": "",
        "grpc": "http tls",
        "tls": "",
        "metrics": "http",
        "logs": "",
        "pidfile": "",
        "sockets": "",
    },
    {
        "edges": "",
        "server": "edges startup",
        "startup": "",
        "cli": "server",
        "__main__": "cli",
    },
]

_TRANSPORT = {"grpc", "starlette", "fastapi", "uvicorn", "kserve", "prometheus_client"}
_PURE = _TRANSPORT | {"torch", "torchvision", "captum", "asyncio", "threading", "time"}
#: Packages of others that a floor must do without.
FOREIGN = [_PURE, _PURE, _TRANSPORT, _TRANSPORT, set(), set()]


def modules() -> list[Path]:
    """Every source file but the facade, which imports whatever it is asked for."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def noun_of(path: Path) -> str:
    """The module or sub-package directly under the package that ``path`` belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor_of(noun: str) -> int:
    floors = [number for number, nouns in enumerate(FLOORS) if noun in nouns]
    assert len(floors) == 1, f"{noun} is on {len(floors)} floors of the table"
    return floors[0]


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names of what ``path`` imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def nouns_imported(path: Path) -> set[str]:
    names = (name.split(".") for name in imports_of(path) if name.startswith("kserve_torch."))
    return {parts[1] for parts in names} - {"__version__", noun_of(path)}


def test_every_module_is_on_exactly_one_floor() -> None:
    listed = [noun for nouns in FLOORS for noun in nouns]
    assert sorted(listed) == sorted({noun_of(path) for path in modules()})


def test_imports_point_down() -> None:
    wrong = []
    for path in modules():
        floor = floor_of(noun_of(path))
        below = {name for nouns in FLOORS[:floor] for name in nouns}
        strange = nouns_imported(path) - below - set(FLOORS[floor][noun_of(path)].split())
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
    imported = {(noun_of(path), name) for path in modules() for name in nouns_imported(path)}
    assert marked - imported == set()


def test_each_floor_does_without_some_foreign_packages() -> None:
    wrong = []
    for path in modules():
        roots = {name.split(".")[0] for name in imports_of(path)}
        strange = roots & FOREIGN[floor_of(noun_of(path))]
        wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in strange]
    assert wrong == []


def test_only_the_command_line_reads_the_arguments() -> None:
    readers = {
        noun_of(path)
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "argv"
    }
    assert readers <= {"cli"}
