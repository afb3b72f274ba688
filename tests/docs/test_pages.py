"""The documentation: what it shows is tried, its links lead somewhere, its lists are complete."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kserve_torch.errors import ServingError
from kserve_torch.settings.limits import LIMITS
from kserve_torch.settings.report import reference
from kserve_torch.settings.table import KEYS

from ..server import ROOT, Server
from ..test_floors import FLOORS, NOUNS
from .session import Example, Session, matches, steps

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md"])
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
#: Files of the repository that a page names in its text.
_NAMED = re.compile(r"`((?:deploy|handlers|kf_request_json|scripts|benchmarks|tests)/[\w./-]*)`")


#: Has tests of its own.
_CLIENTS = re.compile(r"^## Clients$.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def content(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return _CLIENTS.sub(lambda section: "\n" * section[0].count("\n"), text)


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Of the headings, as mkdocs and GitHub both make them of plain words."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
    return {re.sub(r"[\s-]+", "-", title) for title in words}


def descendants(kind: type[ServingError]) -> set[type[ServingError]]:
    return {kind}.union(*map(descendants, kind.__subclasses__()))


@pytest.mark.docs
@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path, mnist_store: Path) -> None:
    with Session(tmp_path, mnist_store) as session:
        for step in steps(content(page)):
            if not isinstance(step, Example):
                session.write(step)
                continue
            got = session.try_out(step)
            if step.answer and not matches(step.answer, got):
                pytest.fail(f"{page.name}:{step.line}: $ {step.command}\n{got[:2000]}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_are_named_are_there(page: Path) -> None:
    missing = [name for name in _NAMED.findall(prose(page)) if not (ROOT / name).exists()]
    assert missing == []


def test_modules_that_are_named_are_there() -> None:
    table = re.findall(r"^\| \d .*$", prose(DOCS / "architecture.md"), re.MULTILINE)
    assert len(table) == len(FLOORS)
    names = {name.partition(".")[0] for name in NOUNS}
    assert [n for n in re.findall(r"`([\w.]+)`", "".join(table)) if n not in NOUNS | names] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", DOCS / "architecture.md"], ids=lambda page: page.stem
)
def test_a_readers_way_through_the_code_is_there(page: Path) -> None:
    way = re.findall(r"`(?:kserve_torch/)?([\w/]+\.py)`(?= →)", prose(page))
    assert len(way) > 8
    assert [file for file in way if not (ROOT / "kserve_torch" / file).is_file()] == []


def test_the_reference_is_what_the_settings_say() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert page.endswith(reference()), "run: make reference"


def test_every_limit_of_a_model_is_explained() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert [name for name in LIMITS if f"| `{name}` |" not in page] == []


def test_the_table_of_limits_has_the_defaults() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    section = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    row = re.compile(r"^\| [^|]+ \| ([\d,]+)( MiB)?[^|]* \| (.+) \| [^|]+ \|$", re.MULTILINE)
    listed = 0
    for number, mebi, names in row.findall(section):
        for name in re.findall(r"`(\w+)`", names):
            assert name in KEYS or name in LIMITS
            if name in KEYS:
                size = int(number.replace(",", "")) * (2**20 if mebi else 1)
                assert size == KEYS[name].default, name
                listed += 1
    assert listed > 10


def test_the_table_of_statuses_is_what_the_errors_say() -> None:
    kinds = {(str(kind.http), str(kind.native), kind.grpc) for kind in descendants(ServingError)}
    row = re.compile(r"^\|.*\| (\d{3})\b[^|]*\| (\d{3})\b[^|]*\| `(\w+)` \|$", re.MULTILINE)
    listed = row.findall(prose(DOCS / "protocols.md"))
    assert len(listed) > 5
    assert set(listed) - kinds == set()


def test_every_metric_is_explained(mnist_store: Path) -> None:
    with Server(mnist_store) as server, server.client() as client:
        picture = (ROOT / "handlers/mnist/test_data/2.png").read_bytes()
        client.put("/predictions/mnist", content=picture)
        exported = set(re.findall(r"^# TYPE (\w+)", client.get("/metrics").text, re.MULTILINE))
    interpreter = {name for name in exported if name.startswith(("python_", "process_"))}
    listed = set(re.findall(r"^\| `(\w+)`", prose(DOCS / "operating.md"), re.MULTILINE))
    created = {name for name in exported if name.endswith("_created")}
    assert exported - interpreter - created - listed == set()
    assert listed - exported == set()


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_the_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'href="site.css"' in (tmp_path / "index.html").read_text(), "tables would be cut off"
