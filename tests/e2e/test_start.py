"""What the log says of a start."""

from pathlib import Path

from ..server import Server


def test_the_log_says_which_sockets_are_open(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        (line,) = [line for line in server.lines if "listening at" in line]
        ports = server.ports
    assert line.partition("listening at ")[2] == (
        f"http://127.0.0.1:{ports['inference']} (inference, management), "
        f"http://127.0.0.1:{ports['metrics']} (metrics), "
        f"http://0.0.0.0:{ports['http']} (inference), "
        f"grpc://127.0.0.1:{ports['native_grpc']} (inference), "
        f"grpc://127.0.0.1:{ports['management_grpc']} (management), "
        f"grpc://0.0.0.0:{ports['grpc']} (oip)"
    )
