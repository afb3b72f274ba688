"""What the server sets up in its process, as a handler finds it."""

import sys
from pathlib import Path

import httpx

from ..makers import make_archive
from ..server import Server, ports_of_a_server

#: Pages are those that twenty batches had to ask for; a garbage collection does not look at what is
#: frozen.
HANDLER = """
import gc, os, resource, sys, torch, torchvision
net = torch.nn.Sequential(torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3))

def batches():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    with torch.inference_mode():
        for _ in range(20):
            net(torch.ones(16, 1, 28, 28))
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

def handle(data, context):
    if data is None:
        return None
    batches()
    found = {
        "file": os.path.exists("labels.txt"),
        "compiler": "torch._dynamo" in sys.modules,
        "few pages": batches() < 2000,  # of some 28000
        "throttled": [type(callback).__name__ for callback in gc.callbacks],
        "frozen": gc.isenabled() and gc.get_freeze_count() > 100_000,
        "libraries": os.path.basename(torch.ops.load_library.__code__.co_filename),
        "sequences": context.header_key_sequence_id,
        "open files": len(set(resource.getrlimit(resource.RLIMIT_NOFILE))),
        "switches after": sys.getswitchinterval(),
        "arguments": sys.argv[1:],
    }
    return [found] * len(data)
"""
#: A server whose system refuses unshare, as containers do by default, and that may open few files.
WITHOUT_UNSHARE = """
import resource, sys
limit, files = resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(limit, (min(files, 1000), files))
from kserve_torch.namespace import workdir
workdir._unshare = lambda: False
from kserve_torch.cli import main
sys.exit(main())
"""


def without_unshare(model_dir: Path, **env: str) -> Server:
    ports = ports_of_a_server()
    command = [
        *(sys.executable, "-c", WITHOUT_UNSHARE, "--model_dir", str(model_dir)),
        *("--http_port", str(ports["http"]), "--grpc_port", str(ports["grpc"])),
        *("--drain_seconds", "0"),
    ]
    return Server(None, command=command, ports=ports, env=env)


def test_one_model_works_in_its_folder_in_a_process_that_is_prepared(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": HANDLER, "labels.txt": ""})
    with without_unshare(tmp_path, TS_HEADER_KEY_SEQUENCE_ID="x-sequence") as server:
        answer = httpx.post(f"{server.url}/v1/models/m:predict", json={"instances": [1]})
    assert answer.json()["predictions"] == [
        {
            "file": True,
            "compiler": False,
            "few pages": True,
            "throttled": ["Throttle"],
            "frozen": True,
            "libraries": "oplibraries.py",
            "sequences": "x-sequence",
            "open files": 1,
            "switches after": 0.001,
            "arguments": [],
        }
    ]


WRITES = """
import os
def handle(data, context):
    if data is None:
        return None
    os.close(os.open(context.model_name, os.O_CREAT))
    return [os.path.abspath(context.model_name)] * len(data)
"""


def test_several_models_write_by_relative_names_where_the_server_does(tmp_path: Path) -> None:
    """In a pod nothing but its temporary folder can be written to."""
    for name in ("a", "b"):
        make_archive(tmp_path / f"{name}.mar", {"handler.py": WRITES}, modelName=name)
    temporary = tmp_path / ".temporary"
    temporary.mkdir()
    with without_unshare(tmp_path, TMPDIR=str(temporary)) as server:
        for name in ("a", "b"):
            answer = httpx.post(f"{server.url}/v1/models/{name}:predict", json={"instances": [1]})
            [written] = answer.json()["predictions"]
            assert Path(written).is_relative_to(temporary)
            assert Path(written).exists()
