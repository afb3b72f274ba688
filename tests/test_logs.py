import json
import logging
import textwrap
import threading
import warnings
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from kserve_torch import logs
from kserve_torch.archives.archive import open_archive
from kserve_torch.codec.multipart import parse_multipart
from kserve_torch.errors import HandlerError, InvalidInput, LoadFailed, SettingError
from kserve_torch.messages import Request
from kserve_torch.runtime import rootlog
from kserve_torch.runtime.loading import LoadOptions, load_instance
from kserve_torch.settings import Settings, load_settings

from .makers import ECHO, make_archive

Output = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("untouched_logging")


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


def test_the_level_may_have_its_name_in_java(capsys: Output) -> None:
    logs.configure(load_settings(["--model-store", "/"], {"TS_LOG_LEVEL": "WARN"}))
    logging.getLogger("kserve_torch.server").info("ready")
    logging.getLogger("kserve_torch.server").warning("full")
    assert capsys.readouterr().err.endswith("Z WARNING kserve_torch.server: full\n")
    assert logging.getLogger().level == logging.WARNING


def test_what_a_handler_logs_may_have_several_lines_and_our_own_messages_one(
    capsys: Output,
) -> None:
    logs.configure(Settings())
    for name in ("kserve_torch_archive_3.handler", "handlers.library", "kserve_torch.server"):
        logging.getLogger(name).warning("Net(\n\t(fc): Linear\n)")
    lines = capsys.readouterr().err.split("\n")
    assert [line.partition(" WARNING ")[2] or line for line in lines] == [
        *("handler: Net(", "\t(fc): Linear", ")"),
        *("handlers.library: Net(", "\t(fc): Linear", ")"),
        "kserve_torch.server: Net(\\n\\t(fc): Linear\\n)",
        "",
    ]


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


def test_what_the_settings_say_is_logged(capsys: Output) -> None:
    logs.configure(Settings(ignored=("vmargs", "io_ratio"), unknown=("colour",), notices=("n",)))
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "INFO kserve_torch: settings with no effect here: vmargs, io_ratio",
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
    assert line.keys() == {"time", "level", "logger", "message", "exception"}
    assert line["message"] == "it failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: broken")


def test_a_failed_request_is_found_by_its_id_in_json(capsys: Output) -> None:
    logs.configure(Settings(log_json=True))
    fields = {"model": "m", "id": "abc-1"}
    logging.getLogger("kserve_torch.engine.isolation").error("failed", extra={"fields": fields})
    line = json.loads(capsys.readouterr().err)
    assert (line["message"], line["model"], line["id"]) == ("failed", "m", "abc-1")


@pytest.mark.parametrize("fields", [{"user": 1}, "a,b"])
def test_what_a_handler_adds_to_its_record_takes_nothing_from_its_json_object(
    capsys: Output, fields: object
) -> None:
    logs.configure(Settings(log_json=True))
    handlers_own = logging.getLogger("handler")
    handlers_own.warning("it %s", "works", extra={"fields": fields}, stack_info=True)
    line = json.loads(capsys.readouterr().err)
    assert line["message"] == "it works"
    assert "in test_what_a_handler_adds" in line["stack"]


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


@pytest.mark.parametrize("json_lines", [False, True])
def test_a_traceback_quotes_little_of_a_request(capsys: Output, json_lines: bool) -> None:
    logs.configure(Settings(log_json=json_lines))
    try:
        float("x" * 10**6)
    except ValueError:
        logging.getLogger("kserve_torch.engine.worker").exception("failed")
    said = capsys.readouterr().err
    assert "ValueError: could not convert string to float: 'xxx" in said
    assert len(said) < 3000


def test_malformed_forms_do_not_fill_the_log(capsys: Output) -> None:
    logs.configure(Settings())
    with pytest.raises(InvalidInput):
        parse_multipart(b"--x", "boundary")
    assert capsys.readouterr().err == ""


def test_warnings_go_to_the_log(capsys: Output) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.configure(Settings())
        warnings.warn("old", UserWarning, stacklevel=1)
        logging.captureWarnings(False)
    assert "WARNING py.warnings: " in capsys.readouterr().err


def test_libraries_that_repeat_the_access_log_are_quiet(capsys: Output) -> None:
    logs.configure(Settings())
    for name in logs._QUIET:
        logging.getLogger(name).info("HTTP Request: GET http://x")
    assert capsys.readouterr().err == ""


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
    "levels": (
        "import logging\nfor name in [*logging.root.manager.loggerDict]:\n"
        "    logging.getLogger(name).setLevel(60)"
    ),
    "propagation": (
        "import logging\nfor name in [*logging.root.manager.loggerDict]:\n"
        "    logging.getLogger(name).propagate = False"
    ),
    "format": (
        "import logging\nfor each in logging.getLogger().handlers:\n"
        "    each.setFormatter(logging.Formatter('%(nothing)s'))\n    each.setLevel(60)"
    ),
    "filter": (
        "import logging\nfor each in logging.getLogger().handlers:\n"
        "    each.addFilter(lambda record: record.nothing)"
    ),
    "factory": "import logging\nlogging.setLogRecordFactory(lambda *args, **options: 1 / 0)",
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
        options = LoadOptions(workdir=tmp_path)
        instance = load_instance(archive, name="m", measure=print, options=options)
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


@pytest.mark.parametrize("configure_logging", [True, False])
def test_a_file_may_set_logging_up(tmp_path: Path, configure_logging: bool) -> None:
    file = tmp_path / "logging.yaml"
    text = "version: 1\ndisable_existing_loggers: false\nloggers:\n  kserve_torch: {level: ERROR}\n"
    file.write_text(text)
    logs.configure(Settings(log_config_file=file, configure_logging=configure_logging))
    assert logging.getLogger("kserve_torch").level == logging.ERROR


def test_a_file_silences_nothing_by_default_and_metrics_only_go_where_metrics_mode_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = logging.getLogger("ts.metrics")
    monkeypatch.setattr(metrics, "level", logging.NOTSET)
    file = tmp_path / "logging.yaml"
    file.write_text("version: 1\nroot: {level: INFO}\n")
    logs.configure(Settings(log_config_file=file))
    assert logs.logger.isEnabledFor(logging.INFO)
    assert not metrics.isEnabledFor(logging.INFO)
    file.write_text("version: 1\nloggers: {ts.metrics: {level: INFO}}\n")
    logs.configure(Settings(log_config_file=file))
    assert metrics.isEnabledFor(logging.INFO)


@pytest.mark.parametrize("text", [None, "{", "just words", "version: 2", "[]", "a: !!bool x"])
def test_a_file_that_cannot_is_named_in_one_line(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "logging.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingError, match=f"log_config_file: {file}: ") as caught:
        logs.configure(Settings(log_config_file=file))
    assert "\n" not in str(caught.value)
    assert "Errno" not in str(caught.value)
    assert "None" not in str(caught.value)


def test_a_file_that_needs_a_package_says_which(tmp_path: Path) -> None:
    file = tmp_path / "logging.yaml"
    file.write_text("version: 1\nformatters: {json: {(): missing.JsonFormatter}}\n")
    with pytest.raises(SettingError, match=r"formatter 'json': .*No module named 'missing'"):
        logs.configure(Settings(log_config_file=file))
