import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kserve_torch import __version__
from kserve_torch.cli import main

from .makers import write
from .server import ROOT, Server

Output = pytest.CaptureFixture[str]


def test_version(capsys: Output) -> None:
    assert main(["--version"], "torchserve") == 0
    assert capsys.readouterr().out == f"torchserve {__version__}\n"


def test_help_beats_whatever_else_is_said(capsys: Output) -> None:
    assert main(["--http_port", "nonsense", "--help"], "kserve_torch") == 0
    assert capsys.readouterr().out.startswith("usage: kserve_torch [--model_dir DIR")


def test_print_settings_starts_nothing(capsys: Output, tmp_path: Path) -> None:
    assert main(["--print-settings", "--model-store", str(tmp_path)], "torchserve") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith(f"model_store={tmp_path} ")
        and line.endswith("# command line --model_store")
        for line in lines
    )


def test_a_wrong_setting_is_one_line_and_exit_code_1(capsys: Output, tmp_path: Path) -> None:
    assert main(["--model_dir", str(tmp_path), "--http_port", "99999"], "kserve_torch") == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        "kserve_torch: error: http_port: '99999' is not an integer from 1 to 65535 "
        "(command line --http_port)\n"
    )


def test_a_path_in_no_encoding_is_shown(capsys: Output, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"m\xfc")
    folder.mkdir()
    assert main(["--print-settings", "--model-store", str(folder)], "torchserve") == 0
    assert f"model_store={tmp_path}/m\\udcfc " in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--help", "--version", "--print-settings"])
def test_a_reader_that_has_left_is_no_error(tmp_path: Path, option: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "kserve_torch", "--model_dir", str(tmp_path), option]
    run = subprocess.run(
        command, check=False, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    os.close(writing)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_full_disk_is_one_line(option: str) -> None:
    command = [sys.executable, "-m", "kserve_torch", option]
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
    reason = "standard output: No space left on device"
    assert (run.returncode, run.stderr) == (1, f"kserve_torch: error: {reason}\n")


def test_without_a_folder_to_write_to(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose root file system is read-only and that has no volume at /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    assert main(["--model_dir", str(tmp_path)], "kserve_torch") == 1
    assert capsys.readouterr().err == (
        "kserve_torch: error: TMPDIR: a writable folder is needed: "
        "No usable temporary directory found in ['/proc']\n"
    )


def test_a_folder_that_a_killed_server_has_filled_is_cleared_before_it_is_tried(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "kserve_torch-left"
    left.mkdir()
    (left / ".lock").touch()

    def tried() -> str:
        assert not left.exists()
        raise FileNotFoundError(2, "full")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "gettempdir", tried)
    assert main(["--model_dir", str(tmp_path)], "kserve_torch") == 1
    assert "full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("action", "error"),
    [([], "ImportError"), (["--check"], "ImportError"), ([], "Exception")],  # protobuf's is its own
)
def test_a_package_of_another_version_is_one_line_when_checked_as_well(
    tmp_path: Path, action: list[str], error: str
) -> None:
    write(tmp_path / "on_top", {"uvicorn.py": f"raise {error}('too old')"})
    code = "from kserve_torch.cli import main; raise SystemExit(main(program='torchserve'))"
    run = subprocess.run(
        [sys.executable, "-c", code, "--model-store", str(tmp_path), *action],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'on_top'}:{ROOT}"},
        text=True,
    )
    assert run.returncode == 1
    assert run.stderr == "torchserve: error: the server's packages do not fit together: too old\n"


@pytest.mark.parametrize(
    ("name", "argv", "shown"),
    [
        ("torchserve", ["-v"], "torchserve"),
        ("kserve-torch", ["-v"], "kserve_torch"),
        ("kserve-torch", ["torchserve", "-v"], "torchserve"),
    ],
)
def test_the_name_it_is_called_by_decides(
    tmp_path: Path, name: str, argv: list[str], shown: str
) -> None:
    script = tmp_path / name  # as pip writes it for a console script
    script.write_text("from kserve_torch.cli import program\nprogram()\n")
    command = [sys.executable, str(script), *argv]
    run = subprocess.run(command, capture_output=True, check=True, text=True)
    assert run.stdout == f"{shown} {__version__}\n"


def test_stop_without_a_server(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["--stop"], "torchserve") == 0
    assert capsys.readouterr().out == "No server that was started as torchserve is running.\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_libraries_are_imported(tmp_path: Path, number: int) -> None:
    """The first process of a container would not even get it, if nothing handled it."""
    libraries = write(
        tmp_path / "libraries", {"torch.py": f"import os\nos.kill(os.getpid(), {number})"}
    )
    with Server(
        tmp_path, env={"PYTHONPATH": f"{libraries}:{ROOT}"}, fresh=True, wait=False
    ) as server:
        assert (server.wait(), server.log) == (0, "")


def test_grpc_does_not_log_that_a_handler_forks() -> None:
    """A line each, which is not JSON with ``log_json``."""
    code = (
        "import asyncio, os\n"
        "from kserve_torch import cli\n"
        "with cli._importing(0):\n"
        "    import grpc.aio\n"
        "async def fork():\n"
        "    server = grpc.aio.server()\n"
        "    port = server.add_insecure_port('127.0.0.1:0')\n"
        "    await server.start()\n"
        "    await grpc.aio.insecure_channel(f'127.0.0.1:{port}').channel_ready()\n"
        "    for _ in range(5):\n"
        "        os.fork() or os._exit(0)\n"
        "        os.wait()\n"
        "    os._exit(cli._FORKS in os.environ)\n"
        "asyncio.run(fork())\n"
    )
    # Python 3.12 and later warn of forks beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    run = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_what_handlers_have_registered_for_the_end_is_done() -> None:
    code = (
        "import atexit\n"
        "from kserve_torch import cli\n"
        "cli.main = lambda program: atexit.register(print, 'the end') and 3\n"
        "cli.program()\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, check=False, text=True, env=env)
    assert (run.returncode, run.stdout) == (3, "the end\n")


def test_a_crash_says_where_it_was() -> None:
    """The process ends, whichever of its models is to blame."""
    code = (
        "import ctypes\n"
        "from kserve_torch import cli\n"
        "def handle(program):\n"
        "    ctypes.string_at(0)\n"
        "cli.main = handle\n"
        "cli.program()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert run.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in run.stderr
    assert 'File "<string>", line 4 in handle' in run.stderr


def test_no_socket_takes_the_place_of_a_standard_file(tmp_path: Path) -> None:
    """A supervisor may start programs without them."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from kserve_torch import cli\n"
        "cli.main = lambda program: os.open('/', 0) + sys.stdout.write('') + sys.stderr.write('')\n"
        "assert sys.stdout is sys.stderr is None\n"
        "cli.program()\n"
    )
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, str(script)]
    assert subprocess.run(closed, check=False).returncode == 3
