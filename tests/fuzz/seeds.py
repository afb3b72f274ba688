"""Good input to start from, per target: most random bytes fail at the first character."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence

from ..makers import ECHO, manifest

_TENSOR = {"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [1.5, 2, -3, 4e9]}
_TEXTS = {"name": "b", "shape": [-1], "datatype": "BYTES", "data": ["é", "x"]}
_V2 = {"id": "1", "parameters": {"p": 1}, "inputs": [_TENSOR, _TEXTS], "outputs": [{"name": "o"}]}


def _binary(datatype: str, shape: list[int], data: bytes) -> bytes:
    size = {"binary_data_size": len(data)}
    tensor = {"name": "a", "shape": shape, "datatype": datatype, "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    return b"%d\n%s%s" % (len(head), head, data)


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("MAR-INF/MANIFEST.json", manifest(configFile="model-config.yaml"))
        archive.writestr("handler.py", ECHO)
        archive.writestr("model-config.yaml", "minWorkers: 1\nmaxBatchDelay: 5\n")
        archive.writestr("folder/", "")
    return buffer.getvalue()


def _tar(mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in (("MAR-INF/MANIFEST.json", manifest()), ("handler.py", ECHO)):
            info = tarfile.TarInfo(f"model/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))
        link = tarfile.TarInfo("model/link")
        link.type, link.linkname = tarfile.SYMTYPE, "handler.py"
        archive.addfile(link)
    return buffer.getvalue()


_EVENT = {
    "specversion": "1.0",
    "id": "1",
    "type": "t",
    "source": "s",
    "data": {"instances": [1]},
}
_PART = (
    b'--b\r\ncontent-disposition: form-data; name="data"; filename=x\r\ncontent-type: text/plain'
)

SEEDS: Mapping[str, Sequence[bytes]] = {
    "read_v1": [
        b'{"instances": [{"data": "x"}, [1, 2.5, null, true]], "parameters": {"a": "b"}}',
        json.dumps(_V2).encode(),
    ],
    "read_v1_as": [
        b"application/cloudevents+json\n" + json.dumps(_EVENT).encode(),
        b"text/plain; charset=latin-1\nx\xe9",
        b'application/octet-stream\n{"instances": [1]}',
    ],
    "read_v2": [json.dumps(_V2).encode()],
    "read_v2_binary": [
        _binary("FP32", [2, 2], bytes(16)),
        _binary("BYTES", [2], b"\x01\0\0\0a\x02\0\0\0bc"),
        _binary("BF16", [-1], bytes(6)),
        b"0\nraw",
    ],
    "read_native": [
        b"application/json\n[1, NaN]",
        b"multipart/form-data; boundary=b\n" + _PART + b"\r\n\r\nx\r\n--b--\r\n",
        b"application/x-www-form-urlencoded\na=1&b=%20x",
    ],
    "read_multipart": [_PART + b"\r\n\r\nx\r\n" + _PART + b"\r\n\r\n\r\n--b--\r\n"],
    "inflate": [
        b"gzip\n" + gzip.compress(b"text" * 100),
        b"deflate\n" + zlib.compress(bytes(5_000_000)),
        b"gzip, deflate, identity\n" + zlib.compress(gzip.compress(b"x")),
    ],
    "read_archive": [_zip(), _tar("w:gz"), _tar("w:")],
}
