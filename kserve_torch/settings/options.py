"""The command line, built from the table of keys. Nothing here is imported from kserve or torch."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from kserve_torch.errors import SettingError
from kserve_torch.settings.keys import IGNORED, KSERVES, Key
from kserve_torch.settings.kinds import BOOLEAN
from kserve_torch.settings.kserve_keys import KServeKeys
from kserve_torch.settings.report import default_of
from kserve_torch.settings.table import KEYS, Settings
from kserve_torch.settings.torchserve_keys import TorchServeKeys

_GROUPS = {
    Settings: "options",
    KServeKeys: "options of kserve.ModelServer",
    TorchServeKeys: "options of TorchServe and keys of config.properties",
}
_CHECK = (
    "load the models, report whether each can be served, and exit; REQUESTS is a folder of "
    "requests to send, alone and batched: MODEL.json, MODEL.png, ... or files in MODEL/; "
    "x.answer.json next to x.json holds the expected response"
)
#: Options that say what to do instead of serving, with their help; the first in this order counts.
ACTIONS = {
    "help": (("-h", "--help"), "show this help"),
    "version": (("-v", "--version"), "show the version"),
    "print_settings": (
        ("--print-settings", "--print_settings"),
        "show every effective setting and its source",
    ),
    "stop": (("--stop",), "stop the server that was started with torchserve"),
    "check": (("--check",), _CHECK),
}
#: What the server does anyway: it starts, in the foreground, and writes no snapshots.
_GRANTED = ("--start", "--foreground", "--ncs", "--no_config_snapshots")
#: TorchServe's options without effect here; all other names in `IGNORED` are keys of its file.
_TORCHSERVES = ("--log-config", "--cpp-log-config", "--plugins-path", "--ppath", "--workflow-store")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What the arguments say.

    Attributes:
        program: ``torchserve`` or ``kserve_torch``.
        action: ``start``, ``stop``, ``help``, ``version``, ``print_settings`` or ``check``.
        requests: the folder that ``--check`` names, or "".
        values: name of the key -> text.
        ignored: names of options that have no effect here.
        unknown: names of unknown options; not their values, which may be secret.
    """

    program: str
    action: str
    requests: str
    values: dict[str, str]
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]


class _Formatter(argparse.HelpFormatter):
    """Breaks no line at the hyphen of an option."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.fill(
            text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingError(f"command line: {message}")


def read_command_line(argv: Sequence[str], program: str) -> CommandLine:
    """Reads ``argv``; a first word ``torchserve``, as containers pass it, names the program.

    Raises:
        SettingError: an option without its value.
    """
    words = list(argv)
    if words[:1] == ["torchserve"]:
        program = words.pop(0)
    found, unknown = _parser(program).parse_known_args(words)
    given: dict[str, Any] = vars(found)
    return CommandLine(
        program=program,
        action=next((name for name in ACTIONS if name in given), "start"),
        requests=given.get("check", ""),
        values={name: _joined(given[name]) for name in KEYS if name in given},
        ignored=tuple(sorted(IGNORED & given.keys())),
        unknown=tuple(_names(unknown)),
    )


def _names(words: Sequence[str]) -> Iterator[str]:
    """The options among ``words``; a word behind one is its value."""
    for place, word in enumerate(words):
        if word.startswith("-") or place == 0:
            yield word.partition("=")[0]


def _joined(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def help_text(program: str) -> str:
    """What ``--help`` prints."""
    return _parser(program).format_help()


def _parser(program: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        usage="%(prog)s [--model_dir DIR | --model-store DIR] [option ...]",
        description="Serves TorchServe archives on KServe. Precedence of settings: command line, "
        "TS_* environment variables, config.properties, model-config.yaml, default.",
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_Formatter,
    )
    groups = {table: parser.add_argument_group(title) for table, title in _GROUPS.items()}
    for name, (flags, text) in ACTIONS.items():
        how: dict[str, Any] = {"action": "store_true"}
        if name == "check":
            how = {"nargs": "?", "const": "", "metavar": "REQUESTS"}
        groups[Settings].add_argument(*flags, dest=name, help=text, **how)
    for key in KEYS.values():
        if key.flags:
            _add(parser, groups[_table_of(key)], key)
    without_effect = ", ".join((*_GRANTED, *_TORCHSERVES, *(f"--{name}" for name in KSERVES)))
    parser.add_argument_group("accepted, but without effect", without_effect)
    granted = [spelling for flag in _GRANTED for spelling in _spellings(flag)]
    parser.add_argument(*granted, dest="start", action="store_true", help=argparse.SUPPRESS)
    for name in sorted(IGNORED):
        flags = tuple(_spellings(f"--{name}"))
        parser.add_argument(*flags, dest=name, nargs="?", help=argparse.SUPPRESS)
    return parser


def _table_of(key: Key) -> type[TorchServeKeys]:
    return next(table for table in reversed(_GROUPS) if key.name in table.__dataclass_fields__)


def _add(parser: argparse.ArgumentParser, group: Any, key: Key) -> None:
    """Adds an option; only its first spelling is in ``--help``."""
    how: dict[str, Any] = {"dest": key.name, "metavar": key.kind.metavar}
    if key.many:
        how["nargs"] = "+"
    elif key.kind is BOOLEAN:  # alone it means true
        how |= {"nargs": "?", "const": "true"}
    first, *others = dict.fromkeys(name for flag in key.flags for name in _spellings(flag))
    text = f"{key.help} (default: {default_of(key)})"
    group.add_argument(first, help=text.replace("%", "%%"), **how)
    if others:
        parser.add_argument(*others, help=argparse.SUPPRESS, **how)


def _spellings(flag: str) -> Iterator[str]:
    yield flag
    yield "--" + flag.removeprefix("--").replace("_", "-")
