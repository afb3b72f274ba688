"""What the server sets up in its process, as a handler finds it."""

import sys
from pathlib import Path

import httpx

from ..makers import make_archive
from ..server import Server, ports_of_a_server

HANDLER = """
import gc, os, torch

def handle(data, context):
    return data and [
        {
            "file": os.path.exists("labels.txt"),
            "paced": any(type(each).__name__ == "Pace" for each in gc.callbacks),
            "frozen": gc.get_freeze_count() > 100_000,
            "libraries": os.path.basename(torch.ops.load_library.__code__.co_filename),
        }
    ]
"""
#: A server whose system refuses unshare, as containers do by default.
WITHOUT_UNSHARE = """
import sys
from kserve_torch.namespace import workdir
workdir._unshare = lambda: False
from kserve_torch.cli import main
sys.exit(main())
"""


def test_one_model_works_in_its_folder_and_garbage_is_collected_at_a_pace(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": HANDLER, "labels.txt": ""})
    ports = ports_of_a_server()
    command = [
        *(sys.executable, "-c", WITHOUT_UNSHARE, "--model_dir", str(tmp_path)),
        *("--http_port", str(ports["http"]), "--grpc_port", str(ports["grpc"])),
        *("--drain_seconds", "0"),
    ]
    with Server(None, command=command, ports=ports) as server:
        answer = httpx.post(f"{server.url}/v1/models/m:predict", json={"instances": [1]})
    assert answer.json()["predictions"] == [
        {
            "file": True,
            "paced": True,
            "frozen": True,
            "libraries": "oplibraries.py",
        }
    ]
