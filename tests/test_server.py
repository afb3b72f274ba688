"""What is loaded at start, by the layout of the model folder."""

import asyncio
import multiprocessing
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from starlette.types import Send

from kserve_torch import server
from kserve_torch.edges import HttpServer, uvicorn_config
from kserve_torch.errors import SettingError
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings, load_settings
from kserve_torch.settings.addresses import Address, Binding
from kserve_torch.sockets import Listener
from kserve_torch.startup import (
    startup_models,
    warn_of_idle_limits,
    warn_of_missing_gpus,
    why_no_models,
)

from .forks import Forks
from .makers import ECHO, make_archive, write
from .server import free_ports, taken_port
from .unprivileged import locked_folder, unprivileged


def found(folder: Path, *options: str) -> list[tuple[str | None, str]]:
    settings = load_settings(["--model_dir", str(folder), *options], {}, "kserve_torch")
    return [(model.name, Path(model.file).name) for model in startup_models(settings)]


def on_free_ports(folder: Path) -> Settings:
    http, native, metrics, *grpc = (str(port) for port in free_ports(6))
    env = {
        "TS_INFERENCE_ADDRESS": f"http://127.0.0.1:{native}",
        "TS_MANAGEMENT_ADDRESS": f"http://127.0.0.1:{native}",
        "TS_METRICS_ADDRESS": f"http://127.0.0.1:{metrics}",
        "TS_GRPC_INFERENCE_PORT": grpc[0],
        "TS_GRPC_MANAGEMENT_PORT": grpc[1],
    }
    options = ["--model_dir", str(folder), "--http_port", http, "--grpc_port", grpc[2]]
    return load_settings(options, env, "kserve_torch")


def test_kserves_layout(tmp_path: Path) -> None:
    make_archive(tmp_path / "model-store/a.mar", {"handler.py": ECHO})
    write(tmp_path, {"config/config.properties": "model_store=/elsewhere\n"})
    assert found(tmp_path) == [(None, "a.mar")]


def test_a_model_store(tmp_path: Path) -> None:
    for name in ("b.mar", "a.tar.gz", "c"):
        make_archive(tmp_path / name, {"handler.py": ECHO})
    write(tmp_path, {"notes.txt": "no model", "d/handler.py": ECHO})
    make_archive(tmp_path / "e/e.mar", {"handler.py": ECHO})
    assert found(tmp_path) == [
        *((None, name) for name in ("a.tar.gz", "b.mar", "c", "d")),
        ("e", "e"),
    ]


#: What KServe's agent leaves beside what it has downloaded (pkg/agent/downloader.go).
MARK = "SUCCESS." + "0123456789abcdef" * 4


async def test_folders_of_trained_models_keep_their_names_when_the_server_starts_again(
    tmp_path: Path,
) -> None:
    make_archive(tmp_path / "m1/mnist.mar", {"handler.py": ECHO}, modelName="mnist")
    make_archive(tmp_path / "m4", {"handler.py": ECHO}, modelName="mnist")
    make_archive(tmp_path / "m5/mnist", {"handler.py": ECHO}, modelName="mnist")
    make_archive(tmp_path / "m8/other.mar", {"handler.py": ECHO}, modelName="other")
    names = ["m1", "m4", "m5", "m8"]
    settings = load_settings(["--model_store", str(tmp_path)], {}, "kserve_torch")
    for name in names:
        write(tmp_path / name, {MARK: "{}"})
        registry = Registry(settings)
        assert (await registry.load(name)).ready
        await registry.close()
    registry = Registry(settings)
    await registry.start(startup_models(settings))
    assert [v.name for v in registry.all() if v.ready] == registry.names() == names
    await registry.close()


def test_folders_that_nobody_marked_are_named_by_their_archives(tmp_path: Path) -> None:
    make_archive(tmp_path / "m4", {"handler.py": ECHO}, modelName="mnist")
    make_archive(tmp_path / "m 1/m.mar", {"handler.py": ECHO})
    assert found(tmp_path) == [(None, "m 1"), (None, "m4")]


def test_model_name_goes_before_a_folders(tmp_path: Path) -> None:
    make_archive(tmp_path / "m1/mnist.mar", {"handler.py": ECHO}, modelName="mnist")
    assert found(tmp_path, "--model_name", "digits") == [("digits", "m1")]


def test_one_unpacked_archive(tmp_path: Path) -> None:
    make_archive(tmp_path / "m", {"handler.py": ECHO})
    assert found(tmp_path / "m") == [(None, "m")]


def test_a_bare_folder(tmp_path: Path) -> None:
    write(tmp_path / "m", {"handler.py": ECHO})
    assert found(tmp_path / "m") == [(None, "m")]
    assert found(tmp_path / "m", "--model_name", "digits") == [("digits", "m")]


def test_one_archive_file(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    assert found(tmp_path / "m.mar") == [(None, "m.mar")]
    assert found(tmp_path / "m.mar", "--model_name", "digits") == [("digits", "m.mar")]


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    write(tmp_path, {"notes.txt": "no model"})
    with pytest.raises(
        SettingError, match=r"notes\.txt: neither a folder nor an archive \(\*\.mar"
    ):
        found(tmp_path / "notes.txt")
    with pytest.raises(SettingError, match=r"model_store: .*notes\.txt: not a folder"):
        load_settings(["--model_store", str(tmp_path / "notes.txt")], {}, "kserve_torch")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert found(tmp_path) == []


def test_nothing_to_load_has_its_reason(tmp_path: Path) -> None:
    settings = load_settings(["--model_dir", str(tmp_path)], {}, "kserve_torch")
    assert why_no_models(settings) == (
        f"no archives or model folders in {tmp_path} (looked for *.mar, *.model, *.tar.gz, *.tgz, "
        "folders with MAR-INF/MANIFEST.json and folders with a handler)"
    )
    settings = load_settings(["--model_dir", str(tmp_path), "--models", "none"], {}, "kserve_torch")
    assert why_no_models(settings) == "load_models is none (command line --models)"


def test_a_model_in_a_relative_folder_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "handler.py").write_text(ECHO)
    monkeypatch.chdir(tmp_path.parent)
    settings = load_settings(["--model_dir", tmp_path.name], {}, "kserve_torch")
    [model] = startup_models(settings)
    assert model.file == tmp_path


def test_a_store_that_cannot_be_read_is_one_line() -> None:
    with locked_folder() as folder:
        folder.chmod(0o111)  # KServe's layout would be found in it
        with unprivileged(), pytest.raises(SettingError, match=f"model_dir: {folder}: Permission"):
            found(folder)


def test_what_cannot_be_read_in_a_store_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    with locked_folder() as folder:
        folder.chmod(0o755)
        (folder / "lost+found").mkdir(0)
        make_archive(folder / "a.mar", {"handler.py": ECHO})
        with unprivileged():
            assert found(folder) == [(None, "a.mar")]
    assert "lost+found: Permission denied; skipped" in caplog.text


def test_model_name_names_the_one_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_archive(tmp_path / "a.mar", {"handler.py": ECHO})
    name = ("--model_name", "x")
    assert found(tmp_path, *name) == [("x", "a.mar")]
    assert found(tmp_path, *name, "--models", "x=a.mar") == [("x", "a.mar")]
    assert caplog.messages == []
    assert found(tmp_path, *name, "--models", "y=a.mar") == [("y", "a.mar")]
    make_archive(tmp_path / "b.mar", {"handler.py": ECHO})
    assert found(tmp_path, *name) == [(None, "a.mar"), (None, "b.mar")]
    found(tmp_path, *name, "--models", "http://me:secret@host/a.mar,b.mar")
    found(tmp_path, *name, "--models", "x=a.mar,y=b.mar")
    text = "model_name: x has no effect on {}: it is for a single model without a name"
    on = ("y", "a.mar, b.mar", "http://host/a.mar, b.mar")
    assert caplog.messages == [text.format(each) for each in on]


def test_what_is_in_the_store_instead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_archive(tmp_path / "sub/a.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "b.mar", {"handler.py": ECHO})
    there = ("sub/a.mar", "else/b.mar", "http://host/a.mar")
    found(tmp_path, "--models", *there)
    assert caplog.messages == []
    found(tmp_path, "--models", *there, "c.mar", "d=d.mar")
    found(tmp_path / "b.mar", "--models", "c.mar")
    assert caplog.messages == [f"not in {tmp_path}: c.mar, d.mar; it has b.mar, sub"]


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="has as many GPUs")
def test_gpus_that_are_not_there_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = ["--model_dir", str(tmp_path)]
    warn_of_missing_gpus(load_settings(folder, {}, "kserve_torch"))
    assert caplog.messages == []
    warn_of_missing_gpus(load_settings([*folder, "--number_of_gpu", "8"], {}, "kserve_torch"))
    count = torch.cuda.device_count()
    assert caplog.messages == [f"number_of_gpu: 8 requested, but this machine has {count}"]


@pytest.mark.parametrize(
    ("config", "idle"),
    [
        ('models={"a": {"1.0": {}, "2.0": {}}, "A": {"1.0": {}}}', "a 2.0, A 1.0"),
        ('models={"a": {"1.0": {}}, "bad": {"2.0": {}}}', ""),
        ('model_snapshot={"models": {"a": {"2.0": {}}}}', ""),
        ('model_snapshot={"models": {"a": {"1.0": {}, "2.0": {}}}}', "a 2.0"),
    ],
)
async def test_limits_of_what_is_not_loaded_are_said_to_have_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: str, idle: str
) -> None:
    make_archive(tmp_path / "a.mar", {"handler.py": ECHO})
    (tmp_path / "bad.mar").write_bytes(b"no archive")
    (tmp_path / "config.properties").write_text(config)
    options = ["--model_store", str(tmp_path), "--ts-config", str(tmp_path / "config.properties")]
    settings = load_settings([*options, "--models", "a=a.mar,bad.mar"], {}, "kserve_torch")
    registry = Registry(settings)
    try:
        await registry.start(startup_models(settings))
        warn_of_idle_limits(settings, registry.all())
    finally:
        await registry.close()
    said = [text for text in caplog.messages if "no effect" in text]
    loaded = "loaded are a 1.0, bad 1.0"
    assert said == ([f"models: the settings of {idle} have no effect; {loaded}"] if idle else [])


def test_named_models(tmp_path: Path) -> None:
    make_archive(tmp_path / "a.mar", {"handler.py": ECHO})
    assert found(tmp_path, "--models", "x=a.mar") == [("x", "a.mar")]


async def test_a_listener_that_dies_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(self: object, sockets: list[socket.socket]) -> None:
        raise OSError("gone")

    monkeypatch.setattr(server.HttpServer, "serve", dies)
    with pytest.raises(OSError, match="gone"):
        await server.Server(on_free_ports(tmp_path)).serve()


async def test_a_port_that_is_taken_is_said_with_its_setting(tmp_path: Path) -> None:
    settings = on_free_ports(tmp_path)
    callers = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    callers.start()
    try:
        with (
            taken_port(settings.http_port),
            pytest.raises(SettingError, match=r"^http_port: cannot listen on .* in use"),
        ):
            await server.Server(settings).serve()
        assert callers.exitcode is None  # it is none of a handler's
    finally:
        callers.kill()
        callers.join()


#: A program whose server ends, here because it cannot have its port.
PROGRAM = """
import signal, socket
from kserve_torch import serve
from kserve_torch.errors import SettingError

handlers = [lambda *_: None, signal.default_int_handler]
for number, handler in zip((signal.SIGTERM, signal.SIGINT), handlers):
    signal.signal(number, handler)  # a shell's background processes ignore SIGINT
with socket.create_server(("", 0)) as taken:
    try:
        serve("{folder}", "--http_port", str(taken.getsockname()[1]))
    except SettingError as error:
        assert "in use" in str(error), error
assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == handlers
"""


async def test_where_serve_cannot_work_it_says_so(tmp_path: Path) -> None:
    """In a notebook, whose cells run in an event loop, and on a thread, which gets no signals."""
    with pytest.raises(RuntimeError, match="needs the main thread, outside of any event loop"):
        server.serve(tmp_path)
    with pytest.raises(RuntimeError, match="in a notebook, start 'python -m kserve_torch'"):
        await asyncio.to_thread(server.serve, tmp_path)


def test_a_programs_signals_are_its_own_again(tmp_path: Path, forks: Forks) -> None:
    forks.run(PROGRAM.replace("{folder}", str(tmp_path)))


async def test_a_second_server_leaves_the_keys_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = tmp_path / "key_file.json"
    keys.write_text("the first server's")
    settings = replace(on_free_ports(tmp_path), disable_token_authorization=False)
    with taken_port(settings.grpc_inference_port), pytest.raises(SettingError, match="in use"):
        await server.Server(settings).serve()
    assert keys.read_text() == "the first server's"


async def test_grpc_ports_are_tried_before_the_models_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.Server, "_load_models", None)
    settings = on_free_ports(tmp_path)
    with (
        taken_port(settings.grpc_inference_port),
        pytest.raises(SettingError, match=r"^grpc_inference_port: cannot listen on .* in use"),
    ):
        await server.Server(settings).serve()
    elsewhere = replace(settings, grpc_inference_address="192.0.2.1")
    with pytest.raises(SettingError, match=r"^grpc_inference_port: .* assign requested address"):
        await server.Server(elsewhere).serve()


async def test_a_grpc_port_that_is_taken_while_the_models_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP listens by then: its servers end too, and its ports are free again."""
    settings = on_free_ports(tmp_path)
    taken: list[socket.socket] = []

    async def takes_a_while(self: object, models: object) -> None:
        taken.append(socket.create_server(("127.0.0.1", settings.grpc_inference_port)))

    monkeypatch.setattr(server.Server, "_load_models", takes_a_while)
    before = asyncio.all_tasks()
    try:
        with pytest.raises(SettingError, match=r"^grpc_inference_port: cannot listen on "):
            await server.Server(settings).serve()
    finally:
        taken[0].close()
    assert asyncio.all_tasks() == before
    socket.create_server(("127.0.0.1", settings.http_port)).close()


def test_uvicorn_which_counts_whole_seconds_leaves_the_grace_period_to_the_server() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    config = uvicorn_config(app, Settings(grace_period=0.9), None)
    assert config.timeout_graceful_shutdown is None


async def test_who_has_connected_before_the_listening_ends_is_answered() -> None:
    async def app(scope: object, receive: object, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})

    config = uvicorn_config(app, Settings(), None)  # type: ignore[arg-type]
    http = HttpServer(config)
    http.lifespan = config.lifespan_class(config)
    place = ("127.0.0.1", free_ports(1)[0])
    address = Address(host=place[0], port=place[1])
    listener = Listener(Binding(address=address, roles=frozenset(), settings=("http_port",)))
    listener.listen(60.0)
    await http.startup(listener.copies)
    # The event loop does not turn before it is told to stop.
    clients = [socket.create_connection(place) for _ in range(8)]
    for client in clients:
        client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    await http.shutdown(listener.copies)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    for client in clients:
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        client.close()
    listener.close()


def test_variables_that_are_for_uvicorns_own_command_do_not_end_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    monkeypatch.setenv("WEB_CONCURRENCY", "auto")
    assert uvicorn_config(app, Settings(), None).workers == 1
