import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kserve_torch.namespace.loader import Namespace

from ..makers import write

THEIRS = {"theirs.py": "X = 'environment'", "deep/theirs.py": "X = 'environment'"}
OWN = {
    "own/__init__.py": "from kt_shared import theirs\nfrom kt_shared.deep.own import X",
    "deep/own.py": "import kt_shared.deep.theirs\nX = 'own', kt_shared.deep.theirs.X",
    "theirs.py": "X = 'another version'",
}


@pytest.fixture(params=["loaded", "not loaded yet"])
def packages(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Namespace]:
    """With portions of ``kt_shared``, which the environment has, too."""
    for folder, files in {"site": THEIRS, "packages": OWN}.items():
        write(tmp_path / folder, {f"kt_shared/{name}": text for name, text in files.items()})
    monkeypatch.syspath_prepend(tmp_path / "site")
    if request.param == "loaded":
        importlib.import_module("kt_shared.theirs")
    packages = Namespace(tmp_path / "packages")
    yield packages
    packages.close()
    for name in [name for name in sys.modules if name.startswith("kt_shared")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from kt_shared.own import X", ("own", "environment")),
        ("from kt_shared import own, theirs\nX = own.theirs is theirs and theirs.X", "environment"),
        ("import kt_shared.own, kt_shared.theirs\nX = kt_shared.own.X[0]", "own"),
        ("import kt_shared.theirs, kt_shared.deep.own\nX = kt_shared.theirs.X", "environment"),
        ("from kt_shared.deep import own, theirs\nX = own.X[0], theirs.X", ("own", "environment")),
        ("import kt_shared as k\nX = hasattr(k, 'absent'), hasattr(k, 'theirs')", (False, True)),
        (
            "import sys, kt_shared.own\nsys.modules['kt_shared'] = kt_shared\n"
            "from kt_shared.theirs import X",
            "environment",
        ),
    ],
)
def test_each_module_is_found_where_it_is(
    packages: Namespace, tmp_path: Path, text: str, found: object
) -> None:
    namespace = Namespace(write(tmp_path / "a", {"handler.py": text}), packages=packages)
    try:
        assert found == namespace.import_module("handler").X
        assert not [name for name in sys.modules if name.startswith("kt_shared") and "own" in name]
    finally:
        namespace.close()


def test_nobodys_modules_are_not_found(packages: Namespace, tmp_path: Path) -> None:
    user = Namespace(write(tmp_path / "a", {}), packages=packages)
    for name in ("kt_shared.absent", "kt_shared.deep.absent", "kt_shared.own.absent"):
        with pytest.raises(ModuleNotFoundError, match=f"^No module named '{name}'$"):
            packages.import_module(name)
    user.close()
