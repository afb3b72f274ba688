"""JSON texts to Python values and the checks that every JSON body shares."""

from __future__ import annotations

import binascii
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from kserve_torch.codec import pieces
from kserve_torch.errors import InvalidInput
from kserve_torch.messages import NOTHING

JSON = "application/json"

#: Characters of a value in an error's text.
_BRIEF = 60
#: Not Python's ``repr``, which writes all of a value and raises RecursionError on deep nesting.
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxdict = _BRIEF // 2
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 4 * _BRIEF


def parse_object(body: bytes | bytearray | memoryview | str) -> dict[str, Any]:
    """The JSON object in a text; of duplicate keys the last one counts.

    Raises:
        InvalidInput: the text is not JSON, is not UTF-8 or nests too deeply (CONTRACT K10), or is
            no object (CONTRACT K12).
    """
    try:
        value = pieces.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"Unrecognized request format: {_fault(body, error)}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"Expected a JSON object, got {kind_of(value)}")
    return value


def _fault(body: bytes | bytearray | memoryview | str, error: Exception) -> str:
    """What is wrong with a text; orjson's own message about bytes that are not UTF-8 is obscure."""
    if not isinstance(body, str):
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as wrong:
            return f"not UTF-8 text, from byte {wrong.start} on"
    return str(error)


def kind_of(value: object) -> str:
    """What JSON calls a value like this one, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def brief(value: object) -> str:
    """``value`` for an error's text, cut short."""
    text = _REPR.repr(value)
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 3]}..."


def parameters_of(value: Mapping[str, Any], where: str = "") -> Mapping[str, Any]:
    """The ``parameters`` member; absent and null are empty (CONTRACT T-09).

    Raises:
        InvalidInput: it is not an object.
    """
    parameters = value.get("parameters")
    if parameters is None:
        return NOTHING
    if not isinstance(parameters, dict):
        member = f"{where}.parameters" if where else "parameters"
        raise InvalidInput(f"{member}: expected an object, got {kind_of(parameters)}")
    return parameters


def from_base64(text: str) -> bytes | None:
    """Base64 text decoded, None if it is none; line breaks and other white space are allowed.

    Strict, because Python else skips wrong letters, and the handler would get what nobody sent.
    """
    with suppress(ValueError):
        return binascii.a2b_base64(text, strict_mode=True)
    with suppress(ValueError):  # also for characters outside of ASCII
        return binascii.a2b_base64("".join(text.split()), strict_mode=True)
    return None


def is_sendable(text: str) -> bool:
    """Whether ``text`` can be sent as UTF-8: it holds no lone surrogates."""
    return text.isascii() or text == text.encode("utf-8", "replace").decode()
