import io
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy
import pytest

from kserve_torch.archives.archive import Archive, open_archive
from kserve_torch.errors import LoadFailed
from kserve_torch.messages import Request
from kserve_torch.namespace import packages
from kserve_torch.runtime.instance import Instance
from kserve_torch.runtime.loading import LoadOptions, load_instance

from ..hosts import hosting
from ..makers import make_archive, write
from ..server import free_ports

OPTIONS = "--no-index\n--find-links wheels\n"
HANDLER = """
from importlib.metadata import version
import demo
NAME = version("kt-demo")
def handle(data, context):
    return data and [[NAME, demo.VALUE] for row in data]
"""


def wheel(
    name: str, version: str, text: str, requires: str = "", prefix: str = "kt_"
) -> dict[str, bytes]:
    """A pure-Python wheel ``kt-<name>`` with the module ``<name>``, as a file of an archive."""
    file, info = io.BytesIO(), f"{prefix}{name}-{version}.dist-info"
    called = f"{prefix}{name}".replace("_", "-")
    more = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {called}\nVersion: {version}\n{more}",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return {f"wheels/{prefix}{name}-{version}-py3-none-any.whl": file.getvalue()}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    for namespace in packages._namespaces.values():
        namespace.close()
    packages._namespaces.clear()


def opened(
    tmp_path: Path, requirements: str, *wheels: Mapping[str, str | bytes], name: str = "a"
) -> Archive:
    files: dict[str, Any] = {"handler.py": HANDLER, "requirements.txt": requirements}
    for one in wheels:
        files |= one
    source = make_archive(tmp_path / f"{name}.mar", files, requirementsFile="requirements.txt")
    return open_archive(source, tmp_path / "the work")  # a path with a space


def load(archive: Archive, tmp_path: Path, **options: Any) -> Instance:
    return load_instance(
        archive,
        name="m",
        measure=lambda event: None,
        options=LoadOptions(workdir=tmp_path / "work", **options),
    )


@pytest.mark.parametrize("pinned", ["kt-demo\n", "kt-demo\nnumpy==1.0\n"])
def test_numpy_is_the_environments_whatever_is_pinned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pinned: str
) -> None:
    archive = opened(
        tmp_path,
        OPTIONS + pinned,
        wheel("demo", "1.0", "import numpy\nVALUE = numpy.__version__", "numpy<2"),
        wheel("numpy", "1.0", "raise ImportError('a second one')", prefix=""),
    )
    instance = load(archive, tmp_path, install_packages=True)
    answer = instance.run([Request(id="r", model="m", rows=[1])])[0].results
    assert answer == [["1.0", numpy.__version__]]
    said = f"numpy==1.0: the environment's version, {numpy.__version__}, is used"
    assert said in caplog.text
    instance.close()


@pytest.mark.parametrize("pin", ["torch==1.13.1", "Pillow==9.5.0"])
def test_pins_of_what_the_environment_has_once_are_not_installed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pin: str
) -> None:
    archive = opened(tmp_path, f"{pin}\ntorchvision @ https://localhost/tv.whl\n")
    assert packages.packages_of(archive, "m", tmp_path / "work") is None
    assert f"{pin}: the environment's version" in caplog.text


def test_two_models_with_two_versions_of_a_package(tmp_path: Path) -> None:
    for number in ("1.0", "2.0"):
        archive = opened(
            tmp_path,
            OPTIONS + f"kt-demo=={number}  # pinned\n",
            wheel("demo", number, f"from helper import V\nVALUE = V + '{number}'", "kt-helper>=1"),
            wheel("helper", "1.5", "V = 'v'"),
            name=number,
        )
        one, two = (load(archive, tmp_path, install_packages=True) for _ in range(2))
        answer = one.run([Request(id="r", model="m", rows=[1])])[0].results
        assert answer == [[number, f"v{number}"]]
        assert two.run([Request(id="r", model="m", rows=[1])])[0].results == answer
        assert not (archive.root / "demo.py").exists()
        one.close()
        two.close()
    assert "demo" not in sys.modules
    assert len(list((tmp_path / "work/site-packages").iterdir())) == 2


@pytest.mark.parametrize(
    "text",
    ["-f wheels\nkt-demo", "--find-links=./wheels\nkt-demo", "-fwheels\nkt-demo", "-r more.txt"],
)
def test_versions_of_a_model_with_versions_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Unlike those from an index, which a new version of the model takes over from the old one."""
    monkeypatch.setattr(
        packages, "install", lambda lines, target, folder: target.mkdir(0o777, True)
    )
    folders = []
    for number in "1223":
        index = "--extra-index-url https://host/" + 300 * "x"  # no name of a file
        files = {"wheels/kt_demo-1.0.whl": f"{number}".encode(), "more.txt": f"{number}\n".encode()}
        archive = opened(tmp_path, f"{index}\n{text}\n", files, name=f"{len(folders)}")
        namespace = packages.packages_of(archive, "m", tmp_path / "work")
        assert namespace is not None
        folders.append(namespace.path[0])
    assert folders[1] == folders[2]
    assert len({*folders}) == 3


def test_without_the_setting_nothing_is_installed(tmp_path: Path) -> None:
    archive = opened(tmp_path, OPTIONS + "kt-demo\n", wheel("demo", "1.0", ""))
    words = "'demo' is neither in the archive nor installed; install_py_dep_per_model=true installs"
    with pytest.raises(LoadFailed, match=words):
        load(archive, tmp_path)
    assert not (tmp_path / "work/site-packages").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# a comment\n\n",
        "torch>=2\nnumpy",
        "torch \\\n  >=2",
        "no-such-package; python_version < '3'",
        "--index-url http://localhost:1/\nnumpy  # fine",
        "numpy>=1 --hash=sha256:0",
    ],
)
def test_what_is_there_needs_no_pip(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(subprocess, "run")
    assert packages.packages_of(opened(tmp_path, text), "m", tmp_path / "work") is None


def test_only_what_is_missing_is_installed_whatever_pips_own_settings_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_VERBOSE", "1")
    monkeypatch.setenv("PIP_USER", "1")
    archive = opened(
        tmp_path,
        OPTIONS + "numpy\nkt-demo\n",
        wheel("demo", "1.0", "", "torch"),
        wheel("helper", "1.0", ""),
    )
    namespace = packages.packages_of(archive, "m", tmp_path / "work")
    assert namespace is not None
    folder = Path(namespace.path[0])
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == [
        "demo.py",
        "kt_demo-1.0.dist-info",
    ]
    # dill takes a module elsewhere for the user's: datasets' `map` pickled all of pyarrow.
    assert "/site-packages/" in str(namespace.import_module("demo").__file__)


def test_what_an_extra_needs_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: kt-base\nVersion: 1.0\nProvides-Extra: more\n"
        'Requires-Dist: kt-demo; extra == "more"\n',
        "RECORD": "",
    }
    write(site, {f"kt_base-1.0.dist-info/{name}": content for name, content in info.items()})
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    archive = opened(tmp_path, OPTIONS + "kt-base[more]\n", wheel("demo", "1.0", ""))
    namespace = packages.packages_of(archive, "m", tmp_path / "work")
    assert namespace is not None
    assert [path.name for path in Path(namespace.path[0]).glob("*.dist-info")] == [
        "kt_demo-1.0.dist-info"
    ]


def test_a_second_version_of_a_package_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = tmp_path / "site"
    info = {"METADATA": "Metadata-Version: 2.1\nName: kt-demo\nVersion: 1.0\n", "RECORD": ""}
    write(site, {f"kt_demo-1.0.dist-info/{name}": content for name, content in info.items()})
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    wheels = wheel("demo", "2.0", "VALUE = 2", "kt-helper"), wheel("helper", "1.0", "")
    archive = opened(tmp_path, OPTIONS + "kt-demo==2.0\n", *wheels)
    instance = load(archive, tmp_path, install_packages=True)
    assert instance.run([Request(id="r", model="m", rows=[1])])[0].results == [["2.0", 2]]
    instance.close()
    (message,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert message.endswith(": kt-demo 2.0 (1.0)")


def test_an_installation_that_takes_long_keeps_no_other_model_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = (opened(tmp_path, f"kt-{name}", name=name) for name in ("slow", "quick"))
    begun, done = threading.Event(), threading.Event()

    def install(lines: Sequence[str], target: Path, folder: Path) -> None:
        target.mkdir(parents=True)
        if lines == ["kt-slow"]:
            begun.set()
            done.wait(30)

    monkeypatch.setattr(packages, "install", install)
    first, second = (
        threading.Thread(target=packages.packages_of, args=(archive, "m", tmp_path))
        for archive in (slow, quick)
    )
    first.start()
    assert begun.wait(10)
    second.start()
    second.join(10)
    waits = second.is_alive()
    done.set()
    for thread in (first, second):
        thread.join()
    assert not waits


def test_further_files_and_wheels_are_found_by_every_form_of_the_options(tmp_path: Path) -> None:
    forms = {"": "--find-links .", "b": "-f b", "c": "--find-links=c", "d": "-f./d"}
    wheels = {
        f"{folder}/{Path(name).name}".lstrip("/"): content
        for folder in forms
        for name, content in wheel(f"demo{folder}", "1.0", "").items()
    }
    later = wheel("demo", "2.0", "")
    more = {
        "more.txt": "\n".join(f"kt-demo{folder}" for folder in forms),
        "limits.txt": "kt-demo<2",
    }
    lines = ["--no-index", *forms.values(), "-f wheels", "-r more.txt", "-c limits.txt"]
    archive = opened(tmp_path, "\n".join(lines), wheels, later, more)
    namespace = packages.packages_of(archive, "m", tmp_path / "work")
    assert namespace is not None
    for folder in forms:
        assert Path(namespace.path[0], f"kt_demo{folder}-1.0.dist-info").is_dir()


@pytest.mark.parametrize(
    ("line", "anchored"),
    [
        ("--no-index -f wheels", "--no-index -f '/m 1'/wheels"),
        ("-f https://host/simple", "-f https://host/simple"),
        ("--find-links=https://host/simple", "--find-links=https://host/simple"),
        ("-c file:///limits.txt", "-c file:///limits.txt"),
        ("-r ${HERE}/more.txt", "-r ${HERE}/more.txt"),
        ("-f '.'", "-f '.'"),
        ("-f .", "-f '/m 1'/."),
        ("-f./", "-f '/m 1'/./"),
        ("--find-links=.", "--find-links '/m 1'/."),
        ("-f /wheels", "-f /wheels"),
        ("--find-links=/wheels", "--find-links=/wheels"),
        ("demo-c >= 1", "demo-c >= 1"),
    ],
)
def test_paths_start_from_the_folder_of_their_file(line: str, anchored: str) -> None:
    assert packages._anchored(line, Path("/m 1")) == anchored


def test_a_file_of_the_archive_as_requirement(tmp_path: Path) -> None:
    text = "./wheels/kt_demo-1.0-py3-none-any.whl\n"
    archive = opened(tmp_path, text, wheel("demo", "1.0", "VALUE = 1"))
    instance = load(archive, tmp_path, install_packages=True)
    assert instance.run([Request(id="r", model="m", rows=[1])])[0].results == [["1.0", 1]]
    instance.close()


class Private(BaseHTTPRequestHandler):
    """A wheel, and a page that links to it, for those who have the password."""

    def do_GET(self) -> None:
        known = self.headers["authorization"] == "Basic dXNlcjpwYXNz"
        content = b"<a href='wheels/kt_demo-1.0-py3-none-any.whl'>kt_demo-1.0</a>"
        for name, file in wheel("demo", "1.0", "VALUE = 1").items():
            content = file if self.path.endswith(name) else content
        self.send_response(200 if known else 401)
        self.send_header("content-type", "text/html")
        self.send_header("www-authenticate", "Basic realm=private")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    "text", ["kt-demo @ {}/wheels/kt_demo-1.0-py3-none-any.whl", "--no-index\n-f {}/\nkt-demo"]
)
def test_a_host_with_a_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    caplog.set_level("INFO")
    with hosting(Private) as url:
        archive = opened(tmp_path, text.format(url.replace("//", "//user:pass@")))
        namespace = packages.packages_of(archive, "m", tmp_path / "work")
    assert namespace is not None
    assert namespace.import_module("demo").VALUE == 1
    assert "installing for this model only: kt-demo @ http://127.0.0.1:" in caplog.text
    assert "pass" not in caplog.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kt-demo>=9", "kt-demo>=9"),
        ("kt_demo ==== 1", "kt_demo ==== 1"),
        ("-r absent.txt", "absent.txt"),
        ("-e .", "does not appear to be a Python project"),
        ("numpy\nkt-more\nkt-demo<1", "Cannot install kt-more and kt-demo<1 because"),
    ],
)
def test_failures_name_the_package(tmp_path: Path, text: str, reason: str) -> None:
    wheels = (
        wheel("demo", "1.0", ""),
        wheel("demo", "0.9", ""),
        wheel("more", "1", "", "kt-demo>=1"),
    )
    archive = opened(tmp_path, OPTIONS + text, *wheels)
    with pytest.raises(LoadFailed) as caught:
        load(archive, tmp_path, install_packages=True)
    assert caught.value.message.startswith("packages cannot be installed: ")
    assert reason in caught.value.message
    assert str(tmp_path) not in caught.value.message
    assert list((tmp_path / "work/site-packages").iterdir()) == []


def test_an_index_that_cannot_be_reached_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    archive = opened(tmp_path, "kt-demo")
    with pytest.raises(LoadFailed) as caught:
        load(archive, tmp_path, install_packages=True)
    why = "No matching distribution found for kt-demo (the package index cannot be reached)"
    assert caught.value.message == f"packages cannot be installed: {why}"


def test_a_package_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    """Old versions of pip end with a note that this is no problem with pip."""
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]'
    backend = "def build_wheel(*args, **more): raise RuntimeError('no compiler')"
    files = {"own/pyproject.toml": project, "own/backend.py": backend}
    archive = opened(tmp_path, OPTIONS + "./own", files)
    with pytest.raises(LoadFailed, match=r"no compiler|Failed to build"):
        load(archive, tmp_path, install_packages=True)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("ERROR: Exception:\nTraceback\n  File ...\nTimeoutError: read\n\n", "TimeoutError: read"),
        ("error: no-download\n\n\u00d7 Download failed\n-> URL\n\nhint: more\n", "Download failed"),
        ("error: no-download\n\nx Download failed\n-> URL\n\nhint: more\n", "Download failed"),
        ("/bin/python: No module named pip\n", "No module named pip"),
        ("", "pip gives no reason"),
    ],
)
def test_failures_for_which_pip_has_no_error_line(said: str, reason: str) -> None:
    assert packages._reason(said).startswith(reason)


def test_a_missing_requirements_file(tmp_path: Path) -> None:
    source = make_archive(tmp_path / "a.mar", {"handler.py": ""}, requirementsFile="r.txt")
    archive = open_archive(source, tmp_path / "work")
    with pytest.raises(LoadFailed, match=r"^r\.txt: named in the manifest, not in the archive$"):
        load(archive, tmp_path, install_packages=True)


def test_pip_may_not_take_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "TIMEOUT", 0.01)
    archive = opened(tmp_path, OPTIONS + "kt-demo", wheel("demo", "1.0", ""))
    with pytest.raises(LoadFailed, match=r"^installing packages took longer than 0 s$"):
        load(archive, tmp_path, install_packages=True)


def test_an_environment_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    archive = opened(tmp_path, OPTIONS + "kt-demo", wheel("demo", "1.0", ""))
    with pytest.raises(LoadFailed) as caught:
        load(archive, tmp_path, install_packages=True)
    assert caught.value.message == "packages cannot be installed: No module named pip"
