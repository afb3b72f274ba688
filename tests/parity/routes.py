"""Requests over every route of the inference API and of the management API.

The steps of `INFERENCE` may be sent in any order. Those of `MANAGEMENT` are a story: each finds the
servers as the ones before have left them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from .exchange import Step

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PARTS = {"Content-Type": "multipart/form-data; boundary=B"}
MULTIPART = (
    b'--B\r\nContent-Disposition: form-data; name="data"; filename="a.png"\r\n'
    b"Content-Type: image/png\r\n\r\nPNG\r\n"
    b'--B\r\nContent-Disposition: form-data; name="t"\r\n\r\n7\r\n'
    b'--B\r\nContent-Disposition: form-data; name="a"\r\n'
    b'Content-Type: application/json\r\n\r\n{"k":1}\r\n'
    b'--B\r\nContent-Disposition: form-data; name="b"; filename="b"\r\n\r\nb\r\n--B--\r\n'
)


def _step(
    port: str,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    note: str = "",
) -> Step:
    return Step(port=port, method=method, path=path, body=body, headers=headers or {}, note=note)


inference, management = partial(_step, "inference"), partial(_step, "management")

ROUTES = [
    ask(method, path)
    for ask in (inference, management)
    for method, path in [
        ("GET", "/"),
        ("OPTIONS", "/"),
        ("GET", "/api-description"),
        ("POST", "/api-description"),
        ("GET", "/ping"),
        ("POST", "/ping"),
        ("GET", "/ping/"),
        ("GET", "/nowhere"),
        ("OPTIONS", "/nowhere"),
        ("GET", "/predictions"),
        ("GET", "/predictions/"),
        ("GET", "/predictions/echo"),
        ("POST", "/predictions/nope"),
        ("POST", "/predictions/echo/9.9"),
        ("OPTIONS", "/predictions/echo"),
        ("OPTIONS", "/predictions/nope"),
        ("OPTIONS", "/models/echo"),
        ("GET", "/models"),
        ("GET", "/models/echo"),
        ("GET", "/models/echo/"),
        ("PATCH", "/models/echo"),
        ("GET", "/models/echo/invoke"),
        ("GET", "/echo/predict"),
        ("GET", "/echo/1.0/predict"),
        ("GET", "/invocations"),
        ("GET", "/invocations?model_name=echo&a=b"),
        ("GET", "/invocations?model_name=nope"),
        ("GET", "/v1/models/echo"),
        ("GET", "/v1/models/nope"),
    ]
]

MODES = [
    inference("POST", "/predictions/echo", b"x", {**TEXT, "mode": mode}, f"mode {mode}")
    for mode in (
        *("status", "type", "refuse", "fail", "stream", "headers"),
        *("count", "bytes", "text", "none", "set", "tuple", "large"),
    )
]

BODIES = [
    inference("POST", "/predictions/echo", b"x", TEXT, "text"),
    inference("POST", "/predictions/echo", b"\xff", TEXT, "text that is not UTF-8"),
    inference("POST", "/predictions/echo", b'{"a":1}', JSON, "JSON"),
    inference("POST", "/predictions/echo", b'{"a":', JSON, "half of a JSON text"),
    inference("POST", "/predictions/echo", b'{"id":18446744073709551616}', JSON, "2 to the 64th"),
    inference(
        "POST",
        "/predictions/echo",
        b'{"a":1}',
        {"Content-Type": "application/json; charset=utf-8"},
        "JSON with a charset",
    ),
    inference("POST", "/predictions/echo", b"a=1&b=2&a=3", FORM, "form"),
    inference("POST", "/predictions/echo?q=1", b"zz"),
    inference("PUT", "/predictions/echo/1.0/x/y", b"zz", {"mode": "headers"}, "headers"),
    inference("DELETE", "/predictions/echo", b"zz"),
    inference("PATCH", "/predictions/echo", b"zz"),
    inference("POST", "/predictions/echo", MULTIPART, PARTS, "multipart"),
    inference(
        "POST", "/predictions/echo", MULTIPART, {**PARTS, "mode": "headers"}, "multipart headers"
    ),
    inference("POST", "/explanations/echo", b"zz", {"mode": "headers"}),
    inference("POST", "/explanations/echo/1.0/a", b"zz", {"mode": "headers"}),
    inference("POST", "/explanations", b"zz"),
    inference("POST", "/explanations/nope", b"zz"),
    inference("POST", "/models/echo/invoke?z=1", b"zz"),
    inference("POST", "/models/echo/invoke?z=1", b"zz", {"mode": "headers"}, "headers"),
    inference("POST", "/echo/predict?z=1", b"zz"),
    inference("POST", "/echo/1.0/predict?z=1", b"zz"),
    inference("POST", "/echo/7/predict", b"zz"),
    inference("POST", "/a/b/c/predict", b"zz"),
    inference("POST", "/predictions/echo", b"z" * 7_000_000, note="7 MB"),
    inference("GET", "//ping"),
    inference("GET", "/predictions//echo"),
    inference("GET", "/predictions/e%63ho"),
]

INFERENCE = ROUTES + MODES + BODIES

LISTS = [
    management("GET", path)
    for path in (
        *("/models/echo/1.0", "/models/echo/9", "/models/nope"),
        *("/models/echo/all", "/models/nope/all", "/models/nope/1.0", "/models/echo/1.0/x"),
        *("/models?limit=1", "/models?limit=0", "/models?limit=1001", "/models?limit=x"),
        *("/models?limit=-1", "/models?next_page_token=5", "/models?next_page_token=-5"),
        *("/models?next_page_token=x", "/models/echo?customized=true"),
        *("/models/echo?customized=x", "/models/echo/all?customized=true"),
    )
]

WRONG = [
    management(method, path)
    for method, path in [
        ("POST", "/models/echo"),
        ("POST", "/models/echo/1.0"),
        ("DELETE", "/models"),
        ("PUT", "/models"),
        ("GET", "/models/echo/1.0/set-default"),
        ("POST", "/models/echo/1.0/set-default"),
        ("PUT", "/models/echo/9.0/set-default"),
        ("PUT", "/models/nope/9.0/set-default"),
        ("PUT", "/models/echo/1.0/other"),
        ("PUT", "/models/echo/1.0/set-default/x"),
        ("POST", "/models"),
        ("POST", "/models?url="),
        ("POST", "/models?url=nope.mar"),
        ("POST", "/models?url=../x.mar"),
        ("POST", "/models?url=a..b.mar"),
        ("POST", "/models?url=file:///tmp/nope.mar"),
        ("POST", "/models?url=ftp://x/y.mar"),
        ("POST", "/models?url=http://127.0.0.1:1/y.mar"),
        ("POST", "/models?url=echo.mar"),
        ("POST", "/models?url=echo2.mar&runtime=ruby"),
        ("PUT", "/models/echo?min_worker=3&max_worker=2"),
        ("PUT", "/models/nope?min_worker=1"),
        ("PUT", "/models/echo/7?min_worker=1"),
        ("DELETE", "/models/nope"),
        ("DELETE", "/models/echo/9"),
        ("GET", "/token"),
        ("GET", "/token?type=management"),
    ]
]

STORY = [
    management("PUT", "/models/echo/1.0/set-default"),
    management("POST", "/models?url=echo2.mar&initial_workers=0"),
    management("GET", "/models/echo/2.0", note="no workers"),
    management("GET", "/models/echo/all", note="two versions"),
    management("PUT", "/models/echo/2.0?min_worker=1&synchronous=true"),
    inference("POST", "/predictions/echo/2.0", b"x"),
    management("GET", "/models/echo/2.0", note="one worker"),
    management("DELETE", "/models/echo/1.0", note="the default"),
    management("PUT", "/models/echo/2.0/set-default"),
    management("GET", "/models/echo", note="the new default"),
    management("GET", "/models", note="the new default"),
    management("PUT", "/models/echo?min_worker=2&synchronous=true"),
    management("GET", "/models/echo", note="two workers"),
    management("PUT", "/models/echo?min_worker=x&synchronous=true"),
    management("GET", "/models/echo", note="scaled by no number"),
    management("PUT", "/models/echo/1.0?min_worker=0&max_worker=0&synchronous=true"),
    management("GET", "/models/echo/1.0", note="scaled to none"),
    inference("POST", "/predictions/echo/1.0", b"x", note="scaled to none"),
    management("DELETE", "/models/echo/1.0"),
    management("DELETE", "/models/echo/2.0"),
    management("GET", "/models", note="empty"),
    management("DELETE", "/models/echo", note="gone"),
    inference("GET", "/ping", note="empty"),
    inference("POST", "/predictions/echo", b"x", note="gone"),
    management("POST", "/models", b'{"url":"echo.mar","initial_workers":0}', JSON, "JSON"),
    management("GET", "/models/echo", note="registered by JSON"),
    management("DELETE", "/models/echo", note="registered by JSON"),
    management("POST", "/models", b'{"url":', JSON, "half of a JSON text"),
    management("POST", "/models", b"{}", JSON, "an empty object"),
    management("POST", "/models?url=echo.mar&model_name=other&initial_workers=1&synchronous=true"),
    inference("POST", "/predictions/other", b"x"),
    management("GET", "/models/other"),
    management("DELETE", "/models/other"),
    management("POST", "/models?url=echo.mar&batch_size=x&max_batch_delay=y&initial_workers=q"),
    management("GET", "/models/echo", note="registered with no numbers"),
    management("DELETE", "/models/echo", note="registered with no numbers"),
    management("POST", "/models?url=echo.mar&batch_size=4&max_batch_delay=50&initial_workers=0"),
    management("GET", "/models/echo", note="batches of 4"),
    management("DELETE", "/models/echo", note="batches of 4"),
    management("POST", "/models?url=echo.mar&handler=nosuch&initial_workers=1"),
    management("GET", "/models/echo", note="failed to load"),
    management("POST", "/models?url=broken.mar&initial_workers=1"),
    management("GET", "/models/broken", note="failed to load"),
    management("POST", "/models?url=large.mar&initial_workers=1"),
    management("POST", "/models?url=.mar"),
    management("POST", "/models?url=/etc/passwd"),
    management("POST", "/models?url=sub/echo.mar"),
]

MANAGEMENT = LISTS + WRONG + STORY
