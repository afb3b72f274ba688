"""A handler that answers what it was given, or does what ``mode`` asks for.

That is a header, or over gRPC, where TorchServe has none, a member of the input.
"""

from collections import namedtuple

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.utils.util import PredictionException

Box = namedtuple("Box", "left right")


def handle(data, context):
    if data is None:
        return None
    if context.get_request_header(0, "describe") == "True":
        return [{"about": "echo"}]
    mode = mode_of(data[0]) or context.get_request_header(0, "mode")
    act = ACTS.get(mode, echo)
    if mode == "count":
        return [1, 2]
    if mode == "together":
        return [sum(row["shape"][-1] for row in data)]
    return [act(row, context, index) for index, row in enumerate(data)]


def mode_of(row):
    return bytes(row["mode"]).decode() if isinstance(row, dict) and "mode" in row else None


def echo(row, *_):
    return {k: repr(v) for k, v in row.items()} if isinstance(row, dict) else repr(row)


def status(row, context, index):
    context.set_response_status(507, "Own phrase", index)
    return "own body"


def content_type(row, context, index):
    context.set_response_content_type(index, "image/png")
    context.set_response_header(index, "x-own", "1")
    return b"\x89"


def refuse(row, context, index):
    raise PredictionException("own text", 599)


def fail(row, context, index):
    raise ValueError("broken")


def stream(row, context, index):
    for number in range(3):
        pieces = [f"part{number} "]
        send_intermediate_predict_response(pieces, context.request_ids, "part", 200, context)
    return "end"


def headers(row, context, index):
    """Those that the server makes itself."""
    known = ("explain", "url_path", "describe", "data", "body", "t", "a", "b", "z")
    found = {name: context.get_request_header(index, name) for name in known}
    return {name: value for name, value in found.items() if value is not None}


ACTS = {
    "status": status,
    "type": content_type,
    "refuse": refuse,
    "fail": fail,
    "stream": stream,
    "headers": headers,
    "bytes": lambda *_: b"raw",
    "text": lambda *_: "text",
    "none": lambda *_: None,
    "set": lambda *_: {1, 2},
    "tuple": lambda *_: {"box": Box(1, 2)},
    "large": lambda *_: {"id": 2**70},
}
