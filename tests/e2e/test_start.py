"""What the log says of a start."""

import re
from pathlib import Path

import pytest

from ..makers import ECHO, make_archive
from ..server import STARTED, Server


def said(server: Server, *words: str) -> list[str]:
    """The lines with one of ``words``, without their time."""
    lines = [line for line in server.lines if any(word in line for word in words)]
    return [line.partition("kserve_torch.")[2] or line for line in lines]


def test_a_start_without_models_says_why_once_and_which_sockets_are_open(tmp_path: Path) -> None:
    with Server(tmp_path, fresh=True) as server:
        first, last = said(server, "model", "ready", STARTED)
        (line,) = [line for line in server.lines if "listening on" in line]
        ports = server.ports
    assert first.startswith(
        f"server: no models to load: no archives or model folders in {tmp_path}"
    )
    assert first.endswith("the server is live but not ready")
    assert last == STARTED
    assert line.partition("listening on ")[2] == (
        f"http://0.0.0.0:{ports['http']} (inference), "
        f"http://127.0.0.1:{ports['inference']} (inference, management), "
        f"http://127.0.0.1:{ports['metrics']} (metrics), "
        f"grpc://127.0.0.1:{ports['native_grpc']} (inference), "
        f"grpc://127.0.0.1:{ports['management_grpc']} (management), "
        f"grpc://0.0.0.0:{ports['grpc']} (oip)"
    )


def test_a_start_of_which_nothing_is_ready_says_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_archive(
            tmp_path / f"{name}.mar", {"handler.py": "import absent_package"}, modelName=name
        )
    with Server(tmp_path) as server:
        lines = said(server, "ready:", "ready after", STARTED)
    assert lines == ["server: not ready: 2 of 2 models failed to load", STARTED]


@pytest.mark.parametrize("then", ["", "sys.stdout.close()"])
def test_a_handler_that_replaces_standard_output_does_not_hide_the_start(
    tmp_path: Path, then: str
) -> None:
    replaces = f"import io, sys\nsys.stdout = io.StringIO()\n{then}\n"
    make_archive(tmp_path / "m.mar", {"handler.py": replaces + ECHO})
    with Server(tmp_path) as server:
        assert server.lines[-1] == STARTED


def test_one_archive_is_served_by_its_path(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO}, modelName="m")
    make_archive(tmp_path / "other.mar", {"handler.py": ECHO})
    with Server(tmp_path / "m.mar") as server, server.client() as client:
        assert client.get("/v1/models").json() == {"models": ["m"]}
        assert client.get("/v2/health/ready").json() == {"ready": True}
        line = next(line for line in server.lines if "server: ready after" in line)
    said = re.search(r"ready after (\S+) s: imports in (\S+) s, m 1\.0 in (\S+) s$", line)
    assert said, line
    whole, imports, model = map(float, said.groups())
    assert whole >= imports + model - 0.02  # rounding
