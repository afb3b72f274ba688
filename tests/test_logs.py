import asyncio
import json
import logging
import textwrap
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from kserve_torch import logs
from kserve_torch.archives.archive import open_archive
from kserve_torch.errors import HandlerError, LoadFailed, SettingError
from kserve_torch.events import BatchRan, Event, Responded
from kserve_torch.messages import Request, Timing
from kserve_torch.runtime import rootlog
from kserve_torch.runtime.instance import Instance
from kserve_torch.settings import Settings

from .makers import ECHO, make_archive

ANSWER = Responded(
    protocol="v2",
    model="mnist",
    version="1.0",
    status=200,
    seconds=0.01234,
    request_id="r1",
    rows=2,
    timing=Timing(queued=0.001, handler=0.0105, batch_rows=4),
)
Output = pytest.CaptureFixture[str]
LOGGERS = (None, "kserve_torch", "kserve_torch.access", "py.warnings", *logs._QUIET)


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Logging is one for the process; every test leaves it as it was."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    logging.captureWarnings(False)
    rootlog.release()
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


async def log(settings: Settings, *events: Event) -> None:
    """Have events logged, and what is kept written."""
    observer = logs.AccessLog(settings)
    for event in events:
        observer(event)
    observer.flush()


async def test_an_answer_is_one_line_of_text(capsys: Output) -> None:
    settings = Settings()
    logs.configure(settings)
    await log(settings, ANSWER)
    (line,) = capsys.readouterr().err.splitlines()
    time, rest = line.split(" ", 1)
    assert time.endswith("Z")
    assert rest == (
        "INFO kserve_torch.access: protocol=v2 model=mnist version=1.0 status=200 ms=12.34 rows=2 "
        "batch=4 queue_ms=1.0 handler_ms=10.5 id=r1"
    )


async def test_a_failure_is_named(capsys: Output) -> None:
    logs.configure(Settings())
    await log(Settings(), replace(ANSWER, status=500, error="HandlerError"))
    assert capsys.readouterr().err.endswith(" id=r1 error=HandlerError\n")


@pytest.mark.parametrize("json_lines", [False, True])
def test_what_a_handler_logs_names_its_model(capsys: Output, json_lines: bool) -> None:
    logs.configure(Settings(log_json=json_lines))
    handlers_own = logging.getLogger("kserve_torch_archive_3.handler.utils")
    name = "mnist 1.0 predict worker 9000"
    thread = threading.Thread(target=lambda: handlers_own.warning("loaded %s", "x"), name=name)
    thread.start()
    thread.join()
    line = capsys.readouterr().err
    if json_lines:
        said = json.loads(line)
        assert (said["logger"], said["worker"], said["message"]) == (
            "handler.utils",
            name,
            "loaded x",
        )
    else:
        assert line.endswith(f"Z WARNING handler.utils: [{name}] loaded x\n")


def test_a_line_that_begins_with_its_model_says_it_once(capsys: Output) -> None:
    logs.configure(Settings())
    ours = logging.getLogger("kserve_torch.engine.worker")
    name = "mnist 1.0 predict worker 9000"
    thread = threading.Thread(target=lambda: ours.info("mnist 1.0 predict: two"), name=name)
    thread.start()
    thread.join()
    assert capsys.readouterr().err.endswith(
        "Z INFO kserve_torch.engine.worker: mnist 1.0 predict: two\n"
    )


async def test_an_answer_is_one_json_object(capsys: Output) -> None:
    settings = Settings(log_json=True)
    logs.configure(settings)
    await log(settings, ANSWER)
    line = json.loads(capsys.readouterr().err)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "logger": "kserve_torch.access",
        "protocol": "v2",
        "model": "mnist",
        "version": "1.0",
        "status": 200,
        "ms": 12.34,
        "rows": 2,
        "batch": 4,
        "queue_ms": 1.0,
        "handler_ms": 10.5,
        "id": "r1",
    }


async def test_a_client_finds_its_own_id_in_json(capsys: Output) -> None:
    settings = Settings(log_json=True)
    logs.configure(settings)
    await log(settings, replace(ANSWER, request_id='order "7"\n'))
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["id"] == 'order "7"\n'


@pytest.mark.parametrize("name", ["a\nINFO fake: line", "a\x1b[2J", "two words", "\u2028"])
async def test_a_client_cannot_write_lines_of_its_own(capsys: Output, name: str) -> None:
    settings = Settings()
    logs.configure(settings)
    await log(settings, replace(ANSWER, model=name, request_id=name * 100))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert f"model={name!r}" in line
    assert len(line) < 1500


async def test_the_access_log_can_be_off_and_takes_nothing_else(capsys: Output) -> None:
    settings = Settings(access_log=False)
    logs.configure(settings)
    await log(settings, ANSWER)
    await log(Settings(), BatchRan("m", "1.0", 1, 1, 0.1))
    assert capsys.readouterr().err == ""


async def test_lines_are_written_together_after_a_moment(capsys: Output) -> None:
    logs.configure(Settings())
    observer = logs.AccessLog(Settings())
    observer(ANSWER)
    observer(ANSWER)
    assert capsys.readouterr().err == ""
    while not (written := capsys.readouterr().err):  # noqa: ASYNC110  # a stream tells nobody
        await asyncio.sleep(logs.FLUSH_SECONDS / 10)
    assert len(written.splitlines()) == 2


async def test_no_more_lines_are_kept_than_are_soon_written(capsys: Output) -> None:
    logs.configure(Settings())
    observer = logs.AccessLog(Settings())
    for _ in range(logs.FLUSH_LINES + 1):
        observer(ANSWER)
    assert len(capsys.readouterr().err.splitlines()) == logs.FLUSH_LINES
    while not (written := capsys.readouterr().err):  # noqa: ASYNC110  # a stream tells nobody
        await asyncio.sleep(logs.FLUSH_SECONDS / 10)
    assert len(written.splitlines()) == 1


@pytest.fixture
def full_disk() -> Iterator[TextIO]:
    """A file that nothing can be written to."""
    with suppress(OSError), open("/dev/full", "w", encoding="utf-8") as file:
        yield file


async def test_a_full_disk_fails_no_request(
    monkeypatch: pytest.MonkeyPatch, full_disk: TextIO
) -> None:
    logs.configure(Settings())
    monkeypatch.setattr("sys.stderr", full_disk)
    observer = logs.AccessLog(Settings())
    for _ in range(2 * logs.FLUSH_LINES):
        observer(ANSWER)


async def test_whoever_configures_logging_gets_every_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kserve_torch.access")
    logs.AccessLog(Settings(configure_logging=False))(ANSWER)
    (record,) = caplog.records
    assert record.getMessage().startswith("protocol=v2 model=mnist")
    assert record.__dict__["fields"]["rows"] == 2


async def test_levels(capsys: Output) -> None:
    logs.configure(Settings(log_level="warning"))
    await log(Settings(), ANSWER)
    logging.getLogger("kserve_torch.engine.worker").warning("slow")
    assert [line.split(": ")[-1] for line in capsys.readouterr().err.splitlines()] == ["slow"]


def test_what_the_settings_say_is_logged(capsys: Output) -> None:
    logs.configure(Settings(ignored=("vmargs", "io_ratio"), unknown=("colour",), notices=("n",)))
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "INFO kserve_torch: settings without an effect here: vmargs, io_ratio",
        "WARNING kserve_torch: unknown settings: colour",
        "WARNING kserve_torch: n",
    ]


def test_a_traceback_stays_within_its_json_object(capsys: Output) -> None:
    logs.configure(Settings(log_json=True))
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("kserve_torch").exception("it %s", "failed")
    line = json.loads(capsys.readouterr().err)
    assert line["message"] == "it failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: broken")


def test_no_line_of_a_traceback_begins_like_one_of_the_log(capsys: Output) -> None:
    logs.configure(Settings())
    fake = "2026-01-31T12:00:00.000Z INFO kserve_torch.server: all is well"
    try:
        raise ValueError(f"no\n{fake}\r{fake}\u2028{fake}\x1b[2K")
    except ValueError:
        logging.getLogger("kserve_torch.engine.worker").exception("failed")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("ERROR kserve_torch.engine.worker: failed")
    assert any("ValueError: no" in line for line in rest)
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_warnings_go_to_the_log(capsys: Output) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.configure(Settings())
        warnings.warn("old", UserWarning, stacklevel=1)
        logging.captureWarnings(False)
    assert "WARNING py.warnings: " in capsys.readouterr().err


def test_others_may_set_logging_up(capsys: Output) -> None:
    before = list(logging.getLogger().handlers)
    logs.configure(Settings(configure_logging=False))
    assert logging.getLogger().handlers == before


#: What archives' code does about logging while it is imported.
SET_UPS = {
    "fileConfig": """
        import io, logging.config
        logging.config.fileConfig(io.StringIO('''
        [loggers]
        keys=root
        [handlers]
        keys=
        [formatters]
        keys=
        [logger_root]
        level=ERROR
        handlers=
        '''.replace("        ", "")))
    """,
    "dictConfig": "import logging.config\nlogging.config.dictConfig({'version': 1, 'root': {}})",
    "disable": "import logging\nlogging.disable(logging.CRITICAL)",
    "level": "import logging\nlogging.getLogger().setLevel(logging.CRITICAL)",
    "force": "import logging, sys\nlogging.basicConfig(stream=sys.stdout, force=True)",
}


CALL = "def handle(data, context):\n    if data is not None:\n"


@pytest.mark.parametrize("text", SET_UPS.values(), ids=SET_UPS)
@pytest.mark.parametrize("end", ["", "raise ValueError"])
@pytest.mark.parametrize("late", [False, True], ids=["loading", "called"])
def test_an_archive_cannot_silence_the_server(
    tmp_path: Path, capsys: Output, text: str, end: str, late: bool
) -> None:
    logs.configure(Settings())
    neighbour = logging.getLogger("kserve_torch_archive_3.handler")
    deed = f"{textwrap.dedent(text)}\n{end}\n"
    handler = CALL + textwrap.indent(f"{deed}return data", " " * 8) if late else deed + ECHO
    archive = open_archive(make_archive(tmp_path / "m.mar", {"handler.py": handler}), tmp_path)
    with suppress(LoadFailed, HandlerError), ExitStack() as opened:
        instance = Instance.load(archive, name="m", version="1.0", measure=print)
        opened.enter_context(closing(instance)).run([Request(id="r", model="m", rows=[1])])
    logs.logger.info("one")
    neighbour.info("two")
    assert [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "INFO kserve_torch: one",
        "INFO handler: two",
    ]


def test_a_handlers_own_log_stays(capsys: Output) -> None:
    logs.configure(Settings())
    added = logging.NullHandler()
    logging.getLogger().addHandler(added)
    rootlog.restore()
    assert logging.getLogger().handlers[-1] is added
    logs.logger.info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_a_file_may_set_logging_up(tmp_path: Path) -> None:
    file = tmp_path / "logging.yaml"
    text = "version: 1\ndisable_existing_loggers: false\nloggers:\n  kserve_torch: {level: ERROR}\n"
    file.write_text(text)
    logs.configure(Settings(log_config_file=file))
    assert logging.getLogger("kserve_torch").level == logging.ERROR


@pytest.mark.parametrize("text", [None, "{", "just words", "version: 2", "[]"])
def test_a_file_that_cannot_is_named(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "logging.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingError, match=f"log_config_file: {file}: "):
        logs.configure(Settings(log_config_file=file))
