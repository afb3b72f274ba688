"""A handler that does what its rows say, and the tools to break a server with it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx

from kserve_torch.grpc import oip
from kserve_torch.grpc.protos import open_inference_pb2 as pb

from ..grpc.serving import Stub
from ..makers import make_archive
from ..server import Server

#: Each row is a command and its argument: ``pipe PATH`` waits until a `Gate` is opened, ``long N``
#: answers N letters.
ACTOR = """
import time
from kserve_torch.errors import BadRow
from ts.utils.util import PredictionException


def command(row):
    value = row.get("data", row.get("body")) if isinstance(row, dict) else row
    if isinstance(value, list):
        value = value[0]
    text = value.decode() if isinstance(value, (bytes, bytearray)) else str(value)
    verb, _, argument = text.partition(" ")
    return verb, argument


class Actor:
    def initialize(self, context):
        self.calls = 0

    def handle(self, data, context):
        self.calls += 1
        commands = [command(row) for row in data]
        for index, (verb, argument) in enumerate(commands):
            self.act(index, verb, argument, len(data), context)
        if any(verb == "short" for verb, _ in commands):
            return ["too few"] * (len(data) - 1)
        return [
            "x" * int(argument) if verb == "long" else f"{verb} {argument}".strip()
            for verb, argument in commands
        ]

    def act(self, index, verb, argument, rows, context):
        if verb == "pipe":
            with open(argument) as pipe:
                pipe.read()
        elif verb == "raise":
            raise ValueError(argument)
        elif verb == "bad":
            raise BadRow(index, "data: unreadable")
        elif verb == "exit":
            raise SystemExit(3)
        elif verb == "memory" or (verb == "big" and rows > 2):
            raise MemoryError(argument)
        elif verb == "code":
            raise PredictionException("chosen", int(argument))
        elif verb == "status":
            context.set_response_status(int(argument), "chosen", index)
        elif verb == "header":
            name, _, value = argument.partition("=")
            context.set_response_header(index, name, value.encode().decode("unicode_escape"))
        elif verb == "burn":
            ends = time.perf_counter() + float(argument)
            while time.perf_counter() < ends:
                pass
"""

V1, V2, NATIVE, GRPC = "v1", "v2", "native", "grpc"
PROTOCOLS = (V1, V2, NATIVE, GRPC)


def store_of(folder: Path, **yaml: str) -> Path:
    """A model store with an actor per name, each with its ``model-config.yaml``."""
    for name, config in yaml.items():
        add_actor(folder, name, config)
    return folder


def add_actor(folder: Path, name: str, config: str = "", handler: str = ACTOR, **more: Any) -> Path:
    """One more archive in a store."""
    files = {"handler.py": handler, "model-config.yaml": config or "{}"}
    more = {"modelName": name, "configFile": "model-config.yaml", **more}
    return make_archive(folder / f"{name}.mar", files, **more)


class Gate:
    """A named pipe that a handler waits at: the handler runs no further until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end: int | None = None
        os.mkfifo(path)

    @property
    def command(self) -> str:
        """What a row says to wait here."""
        return f"pipe {self.path}"

    def reached(self) -> None:
        """Wait until a handler stands here."""
        self._end = os.open(self.path, os.O_WRONLY)

    def open(self) -> None:
        """Let it go on."""
        if self._end is None:
            self.reached()
        assert self._end is not None
        os.close(self._end)
        self._end = None

    def release(self) -> None:
        """Open it if a handler stands there, and do not wait for one."""
        with suppress(OSError):
            self._end = self._end or os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            self.open()


class Answer:
    """What a protocol answered, in words that are the same for all."""

    def __init__(self, status: Any, text: str, headers: Mapping[str, str]) -> None:
        self.status = status
        self.text = text
        self.headers = headers

    @property
    def ok(self) -> bool:
        """Whether it is a result and no error."""
        return self.status in (200, grpc.StatusCode.OK)

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.text!r})"


class Client:
    """Sends commands to a server's actors, in any protocol, from as many threads as it takes."""

    def __init__(self, server: Server) -> None:
        self.server = server
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        self.http = httpx.Client(base_url=server.url, timeout=50, trust_env=False, limits=limits)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.ports['grpc']}")
        self.grpc = Stub(self.channel, oip.SERVICE, oip.NAMES[0])  # type: ignore[arg-type]
        self._threads = ThreadPoolExecutor(64)

    def ask(self, protocol: str, model: str, command: str, **more: Any) -> Answer:
        """Send one command and wait for what comes."""
        if protocol == GRPC:
            return self._ask_grpc(model, command, **more)
        path, body = {
            V1: (f"/v1/models/{model}:predict", {"instances": [{"data": command}]}),
            V2: (f"/v2/models/{model}/infer", {"inputs": [tensor(command)]}),
            NATIVE: (f"/predictions/{model}", command),
        }[protocol]
        sent: dict[str, Any] = {"content": body} if isinstance(body, str) else {"json": body}
        answer = self.http.post(path, **sent, **more)
        return Answer(answer.status_code, answer.text, answer.headers)

    def _ask_grpc(self, model: str, command: str, **more: Any) -> Answer:
        contents = pb.InferTensorContents(bytes_contents=[command.encode()])
        tensor = pb.ModelInferRequest.InferInputTensor(
            name="data", shape=[1], datatype="BYTES", contents=contents
        )
        request = pb.ModelInferRequest(model_name=model, inputs=[tensor])
        try:
            reply = self.grpc.ModelInfer(request, **more)
        except grpc.RpcError as error:
            trailing = {str(k): str(v) for k, v in error.trailing_metadata() or ()}
            return Answer(error.code(), error.details() or "", trailing)
        [text] = reply.outputs[0].contents.bytes_contents or [reply.raw_output_contents[0][4:]]
        return Answer(grpc.StatusCode.OK, text.decode(), {})

    def begin(self, protocol: str, model: str, command: str, **more: Any) -> Future[Answer]:
        """Send one command from a thread of its own."""
        return self._threads.submit(self.ask, protocol, model, command, **more)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all series of a metric that have these labels."""
        lines = self.http.get("/metrics").text.splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if re.match(rf"{name}(_total)?[{{ ]", line) and all(word in line for word in wanted)
        )

    def queued(self, model: str) -> float:
        """Requests that wait for a worker."""
        return self.metric("queue_depth", model_name=model)

    def shed(self, model: str, reason: str) -> float:
        """Requests that no handler saw, for one reason."""
        return self.metric("requests_shed", model_name=model, reason=reason)

    def close(self) -> None:
        self._threads.shutdown()
        self.channel.close()
        self.http.close()


def tensor(command: str) -> dict[str, Any]:
    """A v2 input."""
    return {"name": "data", "shape": [1], "datatype": "BYTES", "data": [command]}


@contextmanager
def talking_to(store: Path | None, *options: str, **more: Any) -> Iterator[Client]:
    """A server over ``store`` and a client of it."""
    with Server(store, *options, **more) as server:
        client = Client(server)
        try:
            yield client
        finally:
            client.close()


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Ask again until ``condition`` holds, where nothing announces it."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"{condition} does not come to hold"
        time.sleep(0.005)
