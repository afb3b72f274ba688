"""What one model does to its process does not change what another one answers."""

import signal
from collections.abc import Iterator

import pytest

from ..makers import make_archive
from .actor import ACTOR, V1, Client, add_actor, talking_to, until

#: Answers with all that a neighbour could have changed under it.
WITNESS = """
import gc, json, logging, os, random, sys, threading
import numpy
import torch

class Witness:
    def initialize(self, context):
        self.home = os.getcwd()

    def handle(self, data, context):
        print("heard", file=sys.stderr)
        print("heard", flush=True)
        out = {
            "cwd": os.getcwd() == self.home,
            "file": os.path.exists("witness.txt"),
            "dtype": str(torch.get_default_dtype()),
            "device": str(torch.empty(0).device),
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "module": __import__("shared").OWNER,
            "garbage": gc.isenabled(),
            "sum": float(torch.tensor([1.0, 2.0]).sum()),
        }
        return [json.dumps(out)] * len(data)
"""

#: Each does its worst, while it loads or on every call.
MISDEEDS = {
    "raises": "raise ValueError('boom')",
    "exits": "raise SystemExit(1)",
    "exits from a thread": "import threading; threading.Thread(target=sys.exit).start()",
    "interrupts": "raise KeyboardInterrupt",
    "changes the directory": "os.chdir('/')",
    "dtype": "torch.set_default_dtype(torch.float64)",
    "device": "torch.set_default_device('meta')",
    "grad": "torch.set_grad_enabled(False)",
    "inference": "self.mode = torch.inference_mode(); self.mode.__enter__()",
    "threads": "torch.set_num_threads(7)",
    "seed": "torch.manual_seed(1); random.seed(1)",
    "path": "sys.path.insert(0, '/villain'); sys.argv.append('x')",
    "recursion": "(lambda f: f(f))(lambda f: f(f))",
    "log flood": "[logging.getLogger().warning('flood %s', 'x' * 200) for _ in range(2000)]",
    "output flood": "[print('x' * 200) for _ in range(2000)]",
    "closed output": "sys.stdout.close(); sys.stderr.close()",
    "wrapped output": "import io; sys.stdout = io.TextIOWrapper(sys.stdout.buffer)",
    "memory": "bytearray(1 << 50)",
    "signal": "__import__('signal').signal(15, print)",
    "modules": "sys.modules.pop('shared', None)",
    "thread locals": "threading.current_thread().name = 'villain'",
    "garbage": "import gc; gc.disable()",
    "event loop": "import asyncio; asyncio.set_event_loop(asyncio.new_event_loop())",
}
VILLAIN = """
import logging, os, random, sys, threading
import shared
import torch

class Villain:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        {deed}
        return ["done"] * len(data)
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    store = tmp_path_factory.mktemp("store")
    own = {"shared.py": "OWNER = 'witness'", "witness.txt": "here"}
    witness = {"modelName": "witness", "handler": "handler.py"}
    make_archive(store / "witness.mar", {"handler.py": WITNESS, **own}, **witness)
    for i, deed in enumerate(MISDEEDS.values()):
        files = {"handler.py": VILLAIN.format(deed=deed), "shared.py": "OWNER = 'villain'"}
        make_archive(store / f"villain{i}.mar", files, modelName=f"villain{i}")
    add_actor(store, "m", handler=ACTOR)
    with talking_to(store) as client:
        yield client
        # A handler has taken SIGTERM for itself by now.
        assert client.server.stop(signal.SIGTERM) == 0


def witness_says(client: Client) -> str:
    answer = client.ask(V1, "witness", "x")
    assert answer.ok, answer
    return answer.text


@pytest.mark.parametrize("name", MISDEEDS)
def test_a_neighbour_misbehaves(client: Client, name: str) -> None:
    before = witness_says(client)
    villain = f"villain{list(MISDEEDS).index(name)}"
    for _ in range(2):
        client.ask(V1, villain, "x")
        assert witness_says(client) == before
    assert client.ask(V1, "m", "say on").ok
    assert client.http.get("/v2/health/live").json() == {"live": True}
    until(lambda: client.http.get("/v2/health/ready").json() == {"ready": True})
    assert client.http.get("/metrics").status_code == 200


def test_they_do_it_all_at_once(client: Client) -> None:
    before = witness_says(client)
    deeds = [client.begin(V1, f"villain{i}", "x") for i in range(len(MISDEEDS))]
    for _ in range(20):
        assert witness_says(client) == before
    for deed in deeds:
        deed.result()
