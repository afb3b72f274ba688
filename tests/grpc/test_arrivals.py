import asyncio
import gc
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc

from kserve_torch.grpc import arrivals

from .serving import Serving

#: In a process of its own, where nothing of grpc.aio was made before: calls come while the loop is
#: busy. What then happens is a test's own.
CALLS = """
import array, asyncio, fcntl, json, termios, threading, time
import grpc
from kserve_torch.grpc import arrivals

CALLS = 50
reads, began, turns = [], [], [0]

class Announcements(arrivals._Announcements):
    def recv(self, *args):
        data = super().recv(*args)
        reads.append((self, len(data)))
        return data

async def answer(request, context):
    return request

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        began.append(turns[0])
        return grpc.unary_unary_rpc_method_handler(answer)

def announced(end):
    size = array.array("i", [0])
    fcntl.ioctl(end, termios.FIONREAD, size)
    return size[0]

async def main():
    arrivals._Announcements = Announcements
    arrivals.take_together()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    call = channel.unary_unary("/s/m")
    await asyncio.to_thread(call, b"first")
    end, _ = reads[0]
    reads.clear()
    began.clear()
    futures = []
    ask = threading.Thread(target=lambda: futures.extend(call.future(b"x") for _ in range(CALLS)))
    ask.start()
    until = time.monotonic() + 10
    while announced(end) < CALLS and time.monotonic() < until:  # the loop is busy meanwhile
        time.sleep(0.001)
    ask.join()
    print(json.dumps(await meanwhile(server, futures)))
"""
BEGIN = """
def count_turns(loop):
    turns[0] += 1
    if len(began) < CALLS:
        loop.call_soon(count_turns, loop)

async def meanwhile(server, futures):
    count_turns(asyncio.get_running_loop())
    while len(began) < CALLS:
        await asyncio.sleep(0)
    assert [await asyncio.to_thread(future.result) for future in futures] == [b"x"] * CALLS
    await server.stop(None)
    return {"read at once": reads[0][1], "turns": len(set(began))}

asyncio.run(main())
"""
END = """
async def meanwhile(server, futures):
    stopping = asyncio.create_task(server.stop(60))
    for future in futures:
        await asyncio.to_thread(future.exception, 10)  # raises an error if it waits for longer
    await stopping
    return {"codes": [future.code().name for future in futures], "began": len(began)}

asyncio.run(main())
"""


def meanwhile(script: str) -> dict[str, Any]:
    """What the script tells after so many calls."""
    run = subprocess.run(
        [sys.executable, "-c", CALLS + script], capture_output=True, check=False, text=True
    )
    assert not run.returncode, run.stderr
    told: dict[str, Any] = json.loads(run.stdout)
    return told


def test_calls_that_come_while_the_loop_is_busy_begin_in_one_turn() -> None:
    told = meanwhile(BEGIN)
    assert told["read at once"] >= 50
    assert told["turns"] < 5  # the first call may have had events left that were counted


def test_calls_that_came_as_the_server_stops_end() -> None:
    """Else their clients, and the server, would wait until the grace period is over."""
    told = meanwhile(END)
    assert told["codes"].count("UNAVAILABLE") == 50 - told["began"]
    assert told["codes"].count("OK") == told["began"]


async def test_a_server_that_stops_says_nothing_of_the_calls_that_did_not_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    arrivals.take_together()
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await asyncio.sleep(0)
    await server.stop(None)
    del server
    gc.collect()
    assert not caplog.records


async def test_the_servers_of_all_ports_take_calls_together(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cygrpc, "AioServer", arrivals._Server.__base__)  # other tests change it
    serving = Serving(store)
    await serving.start([])
    servers = [server._server for server in serving.server._servers]
    assert len(servers) == 3
    assert all(isinstance(server, arrivals._Server) for server in servers)
    await serving.stop()
