"""The command line: decides what to do, and imports the server only if it is needed.

``--help``, ``--version``, ``--print-settings`` and ``--stop`` import neither torch nor kserve.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from kserve_torch import __version__, pidfile, scratch
from kserve_torch.errors import SettingError
from kserve_torch.runtime.machine import set_thread_variables
from kserve_torch.settings import Settings, load_settings
from kserve_torch.settings.options import help_text, read_command_line
from kserve_torch.settings.report import settings_report

#: gRPC's variable for whether its clients work in forks; it is read once, when gRPC is imported.
_FORKS = "GRPC_ENABLE_FORK_SUPPORT"


def program(name: str | None = None) -> NoReturn:
    """Runs the program and ends the process, with ``os._exit``.

    A normal end would wait for handler threads that hang, would crash in those that compute, and
    would take 0.3 s to tear down torch.

    Args:
        name: as for `main`.
    """
    _open_standard_files()
    faulthandler.enable()  # a library that crashes ends all models: the log says in which call
    code = main(program=name)
    if threading.active_count() == 1:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a broken pipe, or closed
            stream.flush()
    os._exit(code)


def _open_standard_files() -> None:
    """Opens standard files that the caller closed: libuv aborts if a socket gets their number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def main(argv: Sequence[str] | None = None, program: str | None = None) -> int:
    """Runs the program and returns its exit code.

    Args:
        argv: the arguments, by default those of the process.
        program: ``torchserve`` or ``kserve_torch``, by default as the process was called.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    called = Path(sys.argv[0]).stem
    program = program or ("torchserve" if called == "torchserve" else "kserve_torch")
    try:
        return _act(arguments, program)
    except SettingError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 1


def _act(arguments: Sequence[str], program: str) -> int:
    line = read_command_line(arguments, program)
    if line.action == "stop":
        return _stop()
    if line.action == "help":
        _show(help_text(line.program))
    elif line.action == "version":
        _show(f"{line.program} {__version__}\n")
    else:
        settings = load_settings(arguments, os.environ, program)
        if line.action == "check":
            return _check(settings, line.requests)
        if line.action == "start":
            return _serve(settings)
        _show(f"{settings_report(settings)}\n")
    return 0


def _show(text: str) -> None:
    """Prints the text for a reader who may leave, as ``head`` does, before it ends.

    Raises:
        SettingError: standard output takes no more.
    """
    # Paths may be in no encoding; Python has such bytes as surrogates, which cannot be printed.
    text = text.encode(errors="backslashreplace").decode()
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        pass
    except OSError as error:
        raise SettingError(f"standard output: {error.strerror}") from error


def _stop() -> int:
    pid = pidfile.stop()
    if pid is None:
        print("No server that was started as torchserve is running.")
    else:
        print(f"The server (process {pid}) has stopped.")
    return 0


def _check(settings: Settings, requests: str) -> int:
    with _importing(interrupted=1):
        import kserve_torch.server  # noqa: F401 - what passes must start, too
        from kserve_torch.check.run import run
    return run(settings, Path(requests).absolute() if requests else None)


def _serve(settings: Settings) -> int:
    began = time.monotonic()
    with _importing(interrupted=0):
        from kserve_torch import server
    return server.run(settings, time.monotonic() - began)


@contextlib.contextmanager
def _importing(interrupted: int) -> Iterator[None]:
    """Prepares the process for the imports; nothing runs yet that a signal would have to stop.

    Args:
        interrupted: exit code if a signal arrives meanwhile.

    Raises:
        SettingError: there is no folder to write to, or a package cannot be imported.
    """
    scratch.clear()
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise SettingError(f"TMPDIR: a writable folder is needed: {error.strerror}") from error
    # A container's first process is sent no signal that it does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: os._exit(interrupted))
    # Importing kserve parses sys.argv with kserve's own parser (CONTRACT K25).
    sys.argv = sys.argv[:1]
    set_thread_variables()
    # Beside a server gRPC cannot prepare for forks, and would log that for each one of handlers.
    own = os.environ.get(_FORKS)
    os.environ[_FORKS] = own or "0"
    gc.disable()  # nothing of what an import makes is garbage, and to look for it takes 0.2 s
    try:
        yield
    except Exception as error:  # as where other versions were installed on top
        raise SettingError(f"the server's packages do not fit together: {error}") from error
    if own is None:
        del os.environ[_FORKS]  # programs that handlers start may have clients of their own
    gc.enable()
