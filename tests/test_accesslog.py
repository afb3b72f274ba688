import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from kserve_torch import accesslog
from kserve_torch.accesslog import AccessLog
from kserve_torch.events import Responded
from kserve_torch.logs import configure
from kserve_torch.messages import Timing
from kserve_torch.settings import Settings

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
pytestmark = pytest.mark.usefixtures("untouched_logging")


async def log(settings: Settings, *events: Responded) -> None:
    """Have events logged, and what is kept written."""
    observer = AccessLog(settings)
    for event in events:
        observer(event)
    observer.flush()


async def written(capsys: Output, every: float) -> list[str]:
    """The first lines of the access log that come out together."""
    while True:
        lines = capsys.readouterr().err.splitlines()
        if found := [line for line in lines if "kserve_torch.access" in line]:
            return found
        await asyncio.sleep(every)


async def test_an_answer_is_one_line_of_text(capsys: Output) -> None:
    settings = Settings()
    configure(settings)
    await log(settings, ANSWER)
    (line,) = capsys.readouterr().err.splitlines()
    time, rest = line.split(" ", 1)
    assert time.endswith("Z")
    assert rest == (
        "INFO kserve_torch.access: protocol=v2 model=mnist version=1.0 status=200 ms=12.34 rows=2 "
        "batch=4 queue_ms=1.0 handler_ms=10.5 id=r1"
    )


async def test_a_failure_is_named(capsys: Output) -> None:
    configure(Settings())
    await log(Settings(), replace(ANSWER, status=500, error="HandlerError"))
    assert capsys.readouterr().err.endswith(" id=r1 error=HandlerError\n")
    await log(Settings(log_json=True), replace(ANSWER, status=500, error="HandlerError"))
    assert json.loads(capsys.readouterr().err)["error"] == "HandlerError"


async def test_what_is_not_known_is_a_dash(capsys: Output) -> None:
    configure(Settings())
    await log(Settings(), replace(ANSWER, model="", version="", request_id=""))
    line = capsys.readouterr().err
    assert " model=- version=- " in line
    assert line.endswith(" id=-\n")


async def test_an_answer_is_a_line_with_a_json_object(capsys: Output) -> None:
    settings = Settings(log_json=True)
    configure(settings)
    await log(settings, ANSWER, ANSWER)
    line, _ = map(json.loads, capsys.readouterr().err.splitlines())
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
    configure(settings)
    await log(settings, replace(ANSWER, request_id='order "7"\n'))
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["id"] == 'order "7"\n'


@pytest.mark.parametrize("name", ["a\nINFO fake: line", "a\x1b[2J", "two words", "\u2028"])
async def test_a_client_cannot_write_lines_of_its_own(capsys: Output, name: str) -> None:
    settings = Settings()
    configure(settings)
    await log(settings, replace(ANSWER, model=name, version=name, request_id=name * 100))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert f"model={name!r} version={name!r} " in line
    assert len(line) < 1500


async def test_the_access_log_can_be_off(capsys: Output) -> None:
    settings = Settings(access_log=False)
    configure(settings)
    await log(settings, ANSWER)
    assert capsys.readouterr().err == ""


async def test_lines_are_written_together_after_a_moment(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accesslog, "SOON_SECONDS", 60.0)  # for many lines only
    configure(Settings())
    observer = AccessLog(Settings())
    for _ in range(2):
        observer(ANSWER)
        observer(ANSWER)
        assert capsys.readouterr().err == ""
        assert len(await written(capsys, accesslog.FLUSH_SECONDS / 10)) == 2


async def test_many_lines_are_written_soon_but_not_while_others_wait(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accesslog, "FLUSH_SECONDS", 60.0)
    configure(Settings())
    observer = AccessLog(Settings())
    for _ in range(accesslog.FLUSH_LINES + 1):
        observer(ANSWER)
    assert capsys.readouterr().err == ""
    lines = await written(capsys, accesslog.SOON_SECONDS)
    assert len(lines) == accesslog.FLUSH_LINES + 1


@pytest.fixture
def full_disk() -> Iterator[TextIO]:
    """A file that nothing can be written to."""
    with suppress(OSError), open("/dev/full", "w", encoding="utf-8") as file:
        yield file


async def test_a_full_disk_fails_no_request(
    monkeypatch: pytest.MonkeyPatch, full_disk: TextIO
) -> None:
    configure(Settings())
    monkeypatch.setattr("sys.stderr", full_disk)
    observer = AccessLog(Settings())
    observer(ANSWER)
    observer.flush()


@pytest.mark.parametrize(
    "settings", [Settings(configure_logging=False), Settings(log_config_file=Path("logging.yaml"))]
)
async def test_whoever_configures_logging_gets_every_line(
    caplog: pytest.LogCaptureFixture, capsys: Output, settings: Settings
) -> None:
    caplog.set_level(logging.INFO, "kserve_torch.access")
    await log(settings, ANSWER)
    assert capsys.readouterr().err == ""
    (record,) = caplog.records
    assert record.getMessage().startswith("protocol=v2 model=mnist")
    assert record.__dict__["fields"]["rows"] == 2


async def test_levels(capsys: Output) -> None:
    configure(Settings(log_level="warning"))
    await log(Settings(), ANSWER)
    logging.getLogger("kserve_torch.engine.worker").warning("slow")
    assert [line.split(": ")[-1] for line in capsys.readouterr().err.splitlines()] == ["slow"]
