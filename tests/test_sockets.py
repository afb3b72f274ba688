"""Sockets that are bound and later listen, and the files that some of them have."""

import asyncio
import resource
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from kserve_torch.errors import SettingError
from kserve_torch.settings.addresses import Address, Binding
from kserve_torch.sockets import Listener

from .makers import ECHO, make_archive
from .server import Server, free_ports, taken_port


def bound(address: Address, *settings: str) -> Listener:
    binding = Binding(address=address, roles=frozenset(), settings=settings or ("http_port",))
    return Listener(binding)


def test_a_port_that_is_taken_is_named() -> None:
    with taken_port() as port:
        names = ("inference_address", "http_port")
        fault = f"^inference_address and http_port: .*:{port}: Address already in use$"
        with pytest.raises(SettingError, match=fault):
            bound(Address(host="127.0.0.1", port=port), *names)


def _has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def test_clients_that_connect_at_once_are_accepted_at_once() -> None:
    accepted: list[asyncio.Protocol] = []

    class Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(self)

    async def turn() -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Noting, sock=sock) for sock in listener.copies]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for closing in (*servers, *clients):
            closing.close()

    port = free_ports(1)[0]
    listener = bound(Address(host="127.0.0.1", port=port))
    listener.listen(60.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(turn())
    listener.close()
    assert len(accepted) == 16


@pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here")
def test_anywhere_is_ipv4_and_ipv6() -> None:
    port = free_ports(1)[0]
    listener = bound(Address(host="0.0.0.0", port=port))
    listener.listen(60.0)
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as client:
            client.connect((host, port))
    listener.close()


@pytest.mark.skipif(not _has_ipv6(), reason="needs IPv6")
def test_a_number_of_ipv6_is_that_address_alone() -> None:
    listener = bound(Address(host="::1", port=free_ports(1)[0]))
    assert listener.sock.getsockname()[0] == "::1"
    listener.close()


def test_anywhere_is_ipv4_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    listener = bound(Address(host="0.0.0.0", port=free_ports(1)[0]))
    assert listener.sock.family == socket.AF_INET
    listener.close()


def test_a_host_that_nobody_knows_is_named() -> None:
    address = Address(host="nowhere.invalid", port=1)
    with pytest.raises(SettingError, match=r"^http_port: cannot listen on .*nowhere\.invalid"):
        bound(address, "http_port")


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example"])
def test_a_host_that_cannot_be_one_is_named(host: str) -> None:
    address = Address(scheme="grpc", host=host, port=1)
    with pytest.raises(SettingError, match=rf"^grpc_port: cannot listen on grpc://{host}:1: "):
        bound(address, "grpc_port")


def test_a_port_that_is_taken_while_the_models_load_is_named() -> None:
    address = Address(host="127.0.0.1", port=free_ports(1)[0])
    first, second = bound(address), bound(address)
    first.listen(60.0)
    with pytest.raises(SettingError, match=f"{address.port}.*in use"):
        second.listen(60.0)
    first.close()
    second.close()


def test_a_limit_of_open_files_that_is_too_low_is_named() -> None:
    listener = bound(Address(host="127.0.0.1", port=free_ports(1)[0]))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (listener.sock.fileno() + 1, limits[1]))
    try:
        with pytest.raises(SettingError, match=r"^http_port: .*Too many open files$"):
            listener.listen(60.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        listener.close()


def unix(path: Path) -> Address:
    return Address(scheme="unix", path=str(path))


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"x: AF_UNIX path too long$"):
        bound(unix(tmp_path / ("x" * 120)))


def test_the_file_of_a_server_that_is_gone_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    listener = bound(unix(path))
    listener.listen(60.0)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()
    assert not path.exists()


def test_the_socket_of_a_live_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = bound(unix(path))
    listener.listen(60.0)
    with pytest.raises(SettingError, match=f"unix:{path}: .*in use"):
        bound(unix(path))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_a_live_server_that_accepts_nobody_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket(socket.AF_UNIX))
        full.bind(str(path))
        full.listen(0)
        with suppress(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(path))
        with pytest.raises(SettingError, match=f"unix:{path}: Address already in use"):
            bound(unix(path))
        assert path.is_socket()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(SettingError, match=f"unix:{path}"):
        bound(unix(path))
    assert path.read_text() == "precious"


def test_the_file_of_another_server_is_not_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = bound(unix(path))
    path.unlink()
    second = bound(unix(path))
    first.close()
    assert path.is_socket()
    second.close()
    assert not path.exists()


def test_a_path_that_is_taken_while_the_models_load_is_named(tmp_path: Path) -> None:
    """What does not listen yet looks like the file of a server that is gone."""
    path = tmp_path / "s"
    first, second = bound(unix(path), "metrics_address"), bound(unix(path))
    with pytest.raises(SettingError, match=f"^metrics_address: .*unix:{path}: .*replaced"):
        first.listen(60.0)
    second.listen(60.0)
    first.close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    second.close()


def test_a_path_that_is_removed_while_the_models_load_is_named(tmp_path: Path) -> None:
    listener = bound(unix(tmp_path / "s"))
    (tmp_path / "s").unlink()
    with pytest.raises(SettingError, match="the socket file was removed"):
        listener.listen(60.0)
    listener.close()


def test_a_server_takes_its_socket_file_with_it(tmp_path: Path) -> None:
    make_archive(tmp_path / "store/m.mar", {"handler.py": ECHO})
    path = tmp_path / "s"
    with Server(tmp_path / "store", env={"TS_METRICS_ADDRESS": f"unix:{path}"}) as server:
        assert path.is_socket()
        assert server.stop() == 0
    assert not path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="what is asked of the kernel is Linux's")
@pytest.mark.parametrize(("patience", "milliseconds"), [(1.5, 1500), (1e9, 2**31 - 1)])
def test_how_long_the_kernel_waits_for_a_client(patience: float, milliseconds: int) -> None:
    address = Address(host="127.0.0.1", port=free_ports(1)[0])
    listener = bound(address)
    listener.listen(patience)
    with socket.create_connection((address.host, address.port)):
        accepted, _ = listener.sock.accept()
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds
        accepted.close()
    listener.close()
