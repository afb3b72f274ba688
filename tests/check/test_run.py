"""``--check`` as a command, on archives of every kind."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kserve_torch.check.run import run
from kserve_torch.errors import SettingError
from kserve_torch.settings import Settings

from ..forks import servers
from ..makers import ECHO, make_archive, write
from ..server import ROOT

LIMITS = "batchSize: {}\nmaxBatchDelay: 60000\n"

#: Handlers, each with its configuration.
HANDLERS = {
    "broken": ("import a_package_that_is_nowhere", ""),
    "echo": (ECHO.replace('"data"', '"body"'), ""),
    "first": ("def handle(data, context): return [data[0]['body']] if data else None", ""),
    "mixes": (
        "def handle(data, context): return [data[0]['body']] * len(data) if data else None",
        LIMITS.format(4),
    ),
    "dice": (
        "import random\ndef handle(data, context): return [random.random() for _ in data or ()]",
        "",
    ),
    "late": (
        "def handle(data, context):\n"
        "    rows = [row['body'] for row in data or ()]\n"
        "    return rows[:1] if 5 in rows else rows\n",
        "",
    ),
    "refuses": ("def handle(data, context): return [1 / 0] if data else None", ""),
    "parent": (
        "import os, signal, time\n"
        "def handle(data, context):\n"
        "    if not data:\n"
        "        return None\n"
        "    if not (child := os.fork()):\n"
        "        signal.alarm(5)\n"
        "        time.sleep(60)\n"
        "    os.kill(child, signal.SIGTERM)\n"
        "    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]\n",
        "",
    ),
    "prints": (f"import io, sys\nsys.stdout = io.StringIO()\n{ECHO}", ""),
    "queue": (ECHO, f"jobQueueSize: 2\n{LIMITS.format(8)}"),
    "sequences": (ECHO, "sequenceBatching: true\n"),
    "stops": (
        "import threading\n"
        "def handle(data, context):\n"
        "    if data and len(data) > 1:\n"
        "        threading.Event().wait()\n"
        "    return [1] if data else None\n",
        "responseTimeout: 1\n",
    ),
    "streams": (
        "from ts.protocol.otf_message_handler import send_intermediate_predict_response\n"
        "def handle(data, context):\n"
        "    if data:\n"
        "        send = send_intermediate_predict_response\n"
        "        send(['a'], context.request_ids, 'part', 200, context)\n"
        "        return [1 / 0]\n",
        "",
    ),
    "wide": (ECHO, LIMITS.format(3)),
    "silent": (ECHO, ""),
    "warm": (ECHO, LIMITS.format(2)),
    "yaml": (ECHO, "warmup: {day: 2026-11-22}\n"),
}
REQUESTS = {
    "echo/a.json": '{"a": 1}',
    "echo/b.json": '{"a": 2}',
    "echo/b.answer.json": '{"a": 3}',
    "echo/c.json": '{"a"',
    "first.json": '"x"',
    **{f"late/{number}.json": f"{number}" for number in range(1, 6)},
    "mixes/a.json": '{"a": 1}',
    "mixes/a.answer": '{"a": 1.0}',
    "mixes/b.json": '{"a": 2}',
    "dice.json": "1",
    "parent.json": "1",
    "parent.answer.json": "-15",
    "queue.json": '{"instances": [1]}',
    "refuses/a.json": "1",
    "refuses/b.json": '{"a"',
    "stops.json": "1",
    "streams.json": "1",
    "wide.json": '{"instances": [1, 2]}',
    "silent/1.json": '{"instances": [1]}',
    "silent/2.json": '{"instances": []}',
    "nobody.json": "1",
}


def lines_of(report: str) -> Sequence[str]:
    """The report without what is different each time: times, and random numbers."""
    shown = []
    for line in report.splitlines():
        words = line.split(" answered in ")
        if len(words) == 2:
            line = f"{words[0]} answered{words[1].partition(' ms')[2]}"
        shown.append(line.partition(" each time: ")[0].rstrip())
    return shown


def test_what_is_found(tmp_path: Path) -> None:
    for name, (handler, config) in HANDLERS.items():
        files = {"handler.py": handler, "model-config.yaml": config}
        if name == "warm":
            files["warmup.json"] = '{"instances": [1]}'
        model = {"modelName": name, "configFile": "model-config.yaml"}
        make_archive(tmp_path / "store" / f"{name}.mar", files, **model)
    requests = write(tmp_path / "requests", REQUESTS)
    Path(os.fsdecode(os.fsencode(requests) + b"/\xff.json")).touch()
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    command = [sys.executable, "-m", "kserve_torch", "--model_dir", str(tmp_path / "store")]
    command += ["--check", str(requests)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    report, log = done.stdout, done.stderr

    assert done.returncode == 1, log
    found = [line for line in lines_of(report) if ": loaded in " not in line]
    assert found == [
        "FAILED  broken 1.0: handler.py, line 1: the package 'a_package_that_is_nowhere' is "
        "neither in the archive nor installed",
        "note      dice.json: answered, differently",
        "ok        echo/a.json: answered",
        "FAILED    echo/b.json: answered, not as recorded: a: 2, not 3",
        "ok        echo/c.json (not valid JSON: Expecting ':' delimiter: line 1 column 5 "
        "(char 4)): answered",
        "ok        same answers in batches of 4 requests: batchSize may be raised",
        "ok        first.json: answered",
        "note      the handler fails in batches of 4 requests, each is then run alone: "
        "use batchSize 1",
        *(f"ok        late/{number}.json: answered" for number in range(1, 6)),
        "note      the handler fails in batches of 4 requests, each is then run alone: "
        "use batchSize 1",
        "ok        mixes/a.json: answered, as recorded",
        "ok        mixes/b.json: answered",
        "FAILED    mixes/b.json in batches of 4 requests: a: 1, not 2: it needs batchSize 1",
        "ok        parent.json: answered, as recorded",
        "note      the handler fails in batches of 4 requests, each is then run alone: "
        "use batchSize 1",
        "note      no request was tried",
        "ok        queue.json: answered",
        "ok        same answers in batches of 2 requests",
        "FAILED    refuses/a.json: 503 ZeroDivisionError: division by zero",
        "FAILED    refuses/b.json (not valid JSON: Expecting ':' delimiter: line 1 column 5 "
        "(char 4)): 503 ZeroDivisionError: division by zero",
        "note      no request was tried",
        "ok        silent/1.json: answered",
        "ok        silent/2.json: answered",
        "ok        same answers in batches of 4 requests: batchSize may be raised",
        "ok        stops.json: answered",
        "note      stops.json in batches of 4 requests: 500 the handler did not answer within 1 s "
        "(responseTimeout)",
        "FAILED    streams.json: 500 the handler failed with status 503 in mid-stream",
        "ok        its warm-up: answered",
        "ok        same answers in batches of 2 requests",
        "ok        wide.json: answered",
        "note      batches not tried: batchSize 3, jobQueueSize 100, 2 rows per request",
        "note      no request was tried",
        "note    nobody.json: no model has this name",
        r"note    \udcff.json: no model has this name",
        "models: 17, failures: 6",
    ]
    loaded = [line for line in report.splitlines() if ": loaded in " in line]
    assert [line.split()[1] for line in loaded] == sorted(HANDLERS.keys() - {"broken"})
    assert loaded[-2].endswith(" s, batchSize 3, maxBatchDelay 60000 ms, workers 1")
    assert report.count(" (random numbers, or no model.eval()?)") == 1
    assert "Traceback" not in report
    assert "ZeroDivisionError" in log
    assert list(temporary.iterdir()) == []


def report_of(*arguments: object) -> tuple[str, int]:
    """What a check in a process of its own prints, without the log, and its exit code."""
    code = (
        "import os, sys\n"
        "from kserve_torch.cli import main\n"
        "sys.stderr = open(os.devnull, 'w')\n"
        f"print('exit code', main({[*map(str, arguments)]}, 'kserve_torch'))\n"
    )
    report, _, number = servers().run(code).rpartition("exit code ")
    return report, int(number)


def test_all_is_well(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    report, number = report_of("--model_dir", tmp_path, "--check")
    assert (number, report.splitlines()[1:]) == (
        0,
        ["note      no request was tried", "models: 1, failures: 0"],
    )


def test_requests_of_which_none_is_for_a_model_fail(tmp_path: Path) -> None:
    make_archive(tmp_path / "store/m.mar", {"handler.py": ECHO})
    requests = write(tmp_path / "requests", {"misspelt/a.json": "1"})
    report, number = report_of("--model_dir", tmp_path / "store", "--check", requests)
    assert (number, report.splitlines()[1:]) == (
        1,
        [
            "note      no request was tried",
            "note    misspelt: no model has this name",
            f"FAILED  {requests}: no request in it is for a model",
            "models: 1, failures: 1",
        ],
    )


def test_only_default_versions_are_tried(tmp_path: Path) -> None:
    for number in ("1.0", "2.0"):
        files = {"handler.py": ECHO, "warmup.json": '{"instances": [1]}'}
        make_archive(tmp_path / f"store/{number}.mar", files, modelVersion=number)
    report, code = report_of("--model_dir", tmp_path / "store", "--check")
    assert [line.partition(": loaded ")[0] for line in lines_of(report)] == [
        "ok      m 1.0",
        "ok        its warm-up: answered",
        "ok        same answers in batches of 4 requests: batchSize may be raised",
        "ok      m 2.0",
        "note      no request was tried: it is not the default version",
        "models: 2, failures: 0",
    ]
    assert code == 0


def test_nothing_to_check(tmp_path: Path) -> None:
    report, number = report_of("--model_dir", tmp_path, "--check")
    assert number == 1
    assert report.startswith("FAILED  no models: no archives or model folders in ")


def test_a_folder_of_requests_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"^--check: {tmp_path}/no: not a folder of requests$"):
        run(Settings(), tmp_path / "no")
    with pytest.raises(SettingError, match=r"^--check: .*: File name too long "):
        run(Settings(), tmp_path / ("a" * 300))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_check_that_is_interrupted_has_failed(tmp_path: Path, number: int) -> None:
    handler = (
        "import os, time\n"
        "for _ in range(20):\n"
        f"    os.kill(os.getpid(), {number})\n"
        "    time.sleep(0.01)\n"
        "time.sleep(60)\n"
    )
    make_archive(tmp_path / "m.mar", {"handler.py": handler})
    report = report_of("--model_dir", tmp_path, "--check")
    assert report == ("FAILED  interrupted\n", 1)
