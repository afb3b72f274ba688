"""tritonclient, in an interpreter of its own.

Its gRPC messages and kserve's cannot be imported into one (CONTRACT T-12).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..server import ROOT, Server


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_tritonclient(server: Server, transport: str) -> None:
    tests = Path(__file__).with_name(f"triton_{transport}.py")
    addresses = {
        "TRITON_HTTP": f"127.0.0.1:{server.ports['http']}",
        "TRITON_GRPC": f"127.0.0.1:{server.ports['grpc']}",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests],
        cwd=ROOT,
        env={**os.environ, **addresses},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
