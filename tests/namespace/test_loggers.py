import io
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.namespace import loggers
from kserve_torch.namespace.loader import Namespace

from ..makers import write

Make = Callable[..., Namespace]

#: Says on its root logger's handler what is logged; a test adds how it is added.
HANDLER = """
import logging, logging.config, threading
log = logging.getLogger(__name__)
said = []
class Said(logging.Handler):
    closed = False
    def emit(self, record):
        said.append(record.getMessage())
    def close(self):
        super().close()
        self.closed = True
said_by = Said()
"""
ADDS = {
    "addHandler": "logging.getLogger().addHandler(said_by)",
    "basicConfig": "logging.basicConfig(handlers=[said_by], force=True)",
    "dictConfig": """
        logging.config.dictConfig({
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"it": {"()": lambda: said_by}},
            "root": {"handlers": ["it"], "level": "INFO"},
        })
    """,
}


@pytest.fixture
def make(tmp_path: Path, shared_logging: None) -> Iterator[Callable[..., Any]]:
    """Makes a namespace whose ``handler.py`` is `HANDLER` and more."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    made: list[Namespace] = []

    def make_one(more: str = ADDS["addHandler"]) -> Namespace:
        text = HANDLER + textwrap.dedent(more)
        made.append(Namespace(write(tmp_path / str(len(made)), {"handler.py": text})))
        return made[-1]

    loggers.separate(root.handlers)
    root.setLevel(logging.INFO)
    yield make_one
    for namespace in made:
        namespace.close()
    root.setLevel(level)
    root.handlers[:] = before


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An installed module that logs on its own, as soon as an archive imports it."""
    text = f"{HANDLER}log.addHandler(said_by)\nlog.propagate = False\nsay = log.info\n"
    monkeypatch.syspath_prepend(write(tmp_path / "installed", {"talkative.py": text}))
    yield Library()
    del sys.modules["talkative"]


class Library:
    """The module, once it is imported."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["talkative"], name)


@pytest.mark.parametrize("add", ADDS.values(), ids=ADDS)
def test_an_archives_handler_gets_what_the_archive_logs(make: Make, add: str) -> None:
    one, two = make(add), make()
    first, second = (namespace.import_module("handler") for namespace in (one, two))
    library, server = logging.getLogger("library"), logging.getLogger("kserve_torch.test")
    server.info("from the server")
    first.log.info("from one")
    second.log.info("from two")
    with two.activate():
        library.info("for two")
        server.info("from the server, for two")
    assert first.said == ["from one"]
    assert second.said == ["from two", "for two"]


def test_each_archive_writes_its_own_lines_of_a_logger_that_all_have(make: Make) -> None:
    add = (
        "app = logging.getLogger('app')\napp.addHandler(said_by)\nsay = lambda text: app.info(text)"
    )
    first, second = (make(add).import_module("handler") for _ in "12")
    first.say("one")
    second.say("two")
    assert (first.said, second.said) == (["one"], ["two"])


def test_a_librarys_handler_gets_what_it_logs_for_any_archive(make: Make, library: Any) -> None:
    first, second = (make("import talkative").import_module("handler") for _ in "12")
    first.talkative.say("one")
    second.talkative.say("two")
    assert library.said == ["one", "two"]


def test_filters_of_an_archives_handler_see_its_own_records_only(make: Make) -> None:
    blind = "blind = lambda record: record.getMessage() == 'its own' or 1 / 0\n"
    adds = f"said_by.addFilter(blind)\n{ADDS['addHandler']}"
    handler = make(blind + adds).import_module("handler")
    logging.getLogger("kserve_torch.test").info("from the server")
    handler.log.info("its own")
    assert handler.said == ["its own"]
    handler.said_by.removeFilter(handler.blind)
    handler.log.info("something else")
    assert handler.said == ["its own", "something else"]


def test_its_threads_count_as_the_archives(make: Make) -> None:
    handler = make(
        f"{ADDS['addHandler']}\n"
        "thread = threading.Thread(target=lambda: logging.getLogger('library').info('aside'))"
    ).import_module("handler")
    handler.thread.start()
    handler.thread.join()
    assert handler.said == ["aside"]


def test_a_handler_that_is_added_twice_is_filtered_once(make: Make) -> None:
    twice = f"{ADDS['addHandler']}\n{ADDS['addHandler']}"
    handler = make(twice).import_module("handler")
    assert len(handler.said_by.filters) == 1
    handler.log.info("once")
    assert handler.said == ["once"]


def test_the_servers_handlers_get_everything(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    handler = make().import_module("handler")
    added = logging.NullHandler()
    logging.getLogger().addHandler(added)
    assert added.filters == []
    handler.log.info("from an archive")
    assert "from an archive" in caplog.messages


@pytest.fixture
def servers() -> Iterator[logging.StreamHandler[io.StringIO]]:
    """A handler of the server."""
    handler = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("filter", ["1 / 0", "'secret' not in record.getMessage()"])
def test_an_archives_filter_of_the_servers_handler_sees_its_own_records_only(
    make: Make, servers: logging.StreamHandler[io.StringIO], filter: str
) -> None:
    loggers.separate([servers])
    add = (
        "for each in logging.getLogger().handlers:\n"
        "    if type(each) is logging.StreamHandler: each.addFilter(lambda record: {})"
    )
    namespace = make(add.format(filter))
    archive = namespace.import_module("handler")
    servers.addFilter(lambda record: "nobody" not in record.getMessage())
    for text in ("a secret of the server", "for nobody"):
        logging.getLogger("kserve_torch.test").info(text)
    with suppress(ZeroDivisionError):
        archive.log.info("a secret of its own")
    make(add.format(True)).import_module("handler").log.info("of another")
    assert servers.stream.getvalue() == "a secret of the server\nof another\n"
    assert len(servers.filters) == 3
    namespace.close()
    assert len(servers.filters) == 2


#: As handlers make records that know of the running request.
FACTORY = """
before = logging.getLogRecordFactory()
running = threading.local()
def factory(*args, **options):
    record = before(*args, **options)
    record.request = running.request
    return record
logging.setLogRecordFactory(factory)
def say(text):
    running.request = "r1"
    log.info(text)
"""


def test_a_record_factory_makes_the_archives_records_only(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = make(FACTORY)
    archive, other = namespace.import_module("handler"), make(FACTORY).import_module("handler")
    logging.getLogger("kserve_torch.test").info("from the server")
    archive.say("one")
    with pytest.raises(AttributeError):
        other.log.info("too early")
    requests = [getattr(record, "request", None) for record in caplog.records]
    assert requests == [None, "r1"]
    namespace.close()
    archive.log.info("after the end")
    assert not hasattr(caplog.records[-1], "request")
    assert not loggers._factories.keys() & {namespace.name}  # it would keep the archive in memory


def test_a_factory_of_the_servers_own_stays(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    class Record(logging.LogRecord):
        pass

    class Other(Record):
        pass

    logging.setLogRecordFactory(Record)
    loggers.separate([])
    make(FACTORY).import_module("handler").say("one")
    logging.getLogger("kserve_torch.test").info("from the server")
    assert [type(record) for record in caplog.records] == [Record, Record]
    logging.setLogRecordFactory(Other)  # as a library does
    assert logging.getLogRecordFactory() is Other
    logging.getLogger("kserve_torch.test").info("from the server")
    assert type(caplog.records[-1]) is Other


def test_closing_takes_the_archives_handlers_away(make: Make) -> None:
    one, two = make(), make()
    first, second = (namespace.import_module("handler").said_by for namespace in (one, two))
    one.close()
    assert first.closed
    assert not second.closed
    assert first not in logging.getLogger().handlers
    assert second in logging.getLogger().handlers


def test_a_handler_that_cannot_be_closed_is_taken_away(make: Make) -> None:
    namespace = make(f"said_by.close = lambda: 1 / 0\n{ADDS['addHandler']}")
    handler = namespace.import_module("handler").said_by
    namespace.close()
    assert handler not in logging.getLogger().handlers


def test_closing_forgets_the_loggers_of_its_modules_only(make: Make) -> None:
    one, two = make(), make()
    names = [namespace.import_module("handler").__name__ for namespace in (one, two)]
    one.close()
    known = {*logging.root.manager.loggerDict}
    assert {*names} & known == {names[1]}
    assert "kserve_torch" in {name.partition(".")[0] for name in known}
