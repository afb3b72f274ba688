"""``ts.protocol.otf_message_handler``: the frames between TorchServe's worker and its front end.

This server has no such socket; intermediate results go straight to the request.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import torch

from kserve_torch.runtime.context import Context

__all__ = [
    "END_OF_LIST",
    "LOAD_MSG",
    "PREDICT_MSG",
    "RESPONSE",
    "bool_size",
    "create_load_model_response",
    "create_predict_response",
    "encode_response_headers",
    "int_size",
    "retrieve_msg",
    "send_intermediate_predict_response",
]

#: Sizes of values in a frame, in bytes; lower case as archives import them.
bool_size, int_size = 1, 4
#: The length that ends a list.
END_OF_LIST = -1
#: The commands of the front end, and the answer to them.
LOAD_MSG, PREDICT_MSG, RESPONSE = b"L", b"I", 3

_END = struct.pack("!i", END_OF_LIST)


def send_intermediate_predict_response(
    ret: Any, req_id_map: Mapping[int, str], message: str, code: int, context: Context
) -> None:
    """Send an intermediate result per row of ``req_id_map`` while ``handle()`` runs (CONTRACT R10).

    Args:
        ret: results by row index, a list or a mapping.
        req_id_map: whose rows: ``context.request_ids``, or a part or an earlier copy of it.
        message: unused, like ``code``: a row's status is what the handler set on the context.
        code: see ``message``.
        context: the Context of the running call.
    """
    context.emit(ret, req_id_map)


def create_predict_response(
    ret: Any,
    req_id_map: Mapping[int, str],
    message: str,
    code: int,
    context: Context | None = None,
    ts_stream_next: bool = False,
) -> bytes:
    """A response frame: code, message, and per row its id, content type, status, headers, body."""
    frame = [struct.pack("!i", code), _sized(message)]
    for index, request_id in req_id_map.items():
        if context is not None and ts_stream_next:
            context.set_response_header(index, "ts_stream_next", "true")
        frame += [_sized(request_id), _response_head(index, code, context)]
        frame.append(_sized(b"error" if ret is None else _body(ret[index])))
    return b"".join([*frame, _END])


def create_load_model_response(code: int, message: str) -> bytes:
    """The frame with the result of loading."""
    return struct.pack("!i", code) + _sized(message) + _END


def encode_response_headers(resp_hdr_map: Mapping[str, str]) -> bytearray:
    """The part of a response frame with a row's headers: their number, each name and value."""
    pairs = b"".join(_sized(name) + _sized(value) for name, value in resp_hdr_map.items())
    return bytearray(_counted(resp_hdr_map, pairs))


def retrieve_msg(conn: Any) -> None:
    """Read a frame from TorchServe's front end.

    Raises:
        RuntimeError: always; there is no front end here.
    """
    raise RuntimeError("retrieve_msg: this server has no socket to a TorchServe front end")


def _response_head(index: int, code: int, context: Context | None) -> bytes:
    if context is None:
        return struct.pack("!iiii", 0, code, 0, 0)
    status, phrase = context.get_response_status(index)
    headers = encode_response_headers(context.get_response_headers(index))
    content_type = _sized(context.get_response_content_type(index) or "")
    return content_type + struct.pack("!i", status) + _sized(phrase or "") + headers


def _counted(items: Any, data: bytes) -> bytes:
    return struct.pack("!i", len(items)) + data


def _sized(value: bytes | bytearray | str) -> bytes:
    data = value.encode() if isinstance(value, str) else bytes(value)
    return _counted(data, data)


def _body(value: Any) -> bytes | bytearray | str:
    """A result as it goes out (CONTRACT R6)."""
    if isinstance(value, (bytes, bytearray, str)):
        return value
    if isinstance(value, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return buffer.getvalue()
    return json.dumps(value, indent=2)
