"""Handlers of a few lines, and requests to them."""

import textwrap
from collections.abc import Callable
from typing import Any

from kserve_torch.messages import Request, Row
from kserve_torch.runtime.instance import Instance

Load = Callable[..., Instance]


def function(body: str) -> str:
    """A function handler that does ``body`` with ``data`` and ``context``."""
    lines = textwrap.indent(textwrap.dedent(body), "    ")
    return f"def handle(data, context):\n    if data is None:\n        return None\n{lines}\n"


def request(*rows: Row, **more: Any) -> Request:
    return Request(id=more.pop("id", "r"), model="reg", rows=rows, **more)


def results(instance: Instance, *rows: Row, **more: Any) -> list[Any]:
    return instance.run([request(*rows, **more)])[0].results


BAD_ROW = """
    from kserve_torch.errors import BadRow
    for index, row in enumerate(data):
        if row == "bad":
            raise BadRow(index, "data: not valid base64")
        if row == "worse":
            raise BadRow(index, "nothing to read")
    return data
"""
