"""``ts.protocol.otf_message_handler``: the frames between TorchServe's worker and its front end.

This server has no such socket; intermediate results go straight to the request.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import torch

from kserve_torch.handler.tensors import save_tensor
from kserve_torch.runtime.context import Context

__all__ = [
    "create_load_model_response",
    "create_predict_response",
    "retrieve_msg",
    "send_intermediate_predict_response",
]

#: The length that ends a list.
_END = struct.pack("!i", -1)


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
    headers = context.get_response_headers(index)
    content_type = _sized(context.get_response_content_type(index) or "")
    head = content_type + struct.pack("!i", status) + _sized(phrase or "")
    pairs = b"".join(_sized(name) + _sized(value) for name, value in headers.items())
    return head + struct.pack("!i", len(headers)) + pairs


def _sized(value: bytes | bytearray | str) -> bytes:
    data = value.encode() if isinstance(value, str) else bytes(value)
    return struct.pack("!i", len(data)) + data


def _body(value: Any) -> bytes | bytearray | str:
    """A result as it goes out (CONTRACT R6)."""
    if isinstance(value, (bytes, bytearray, str)):
        return value
    if isinstance(value, torch.Tensor):
        return save_tensor(value)
    return json.dumps(value, indent=2)
