import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPE = {"name": "m", "version": "2.5", "handler": "handler.py"}


def build(*arguments, cwd, epoch=None):
    environment = {} if epoch is None else {"SOURCE_DATE_EPOCH": epoch}
    return subprocess.run(
        [sys.executable, "-I", ROOT / "handlers" / "build_archive.py", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def folder(path, recipe=None, **files):
    path.mkdir(exist_ok=True)
    (path / "archive.json").write_text(json.dumps({**RECIPE, **(recipe or {})}))
    (path / "handler.py").write_text("def handle(data, context): ...\n")
    for name, content in files.items():
        (path / name.replace("__", ".")).write_text(content)
    return path


def archived(path):
    done = build(path.name, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(path.parent / done.stdout.strip()) as mar:
        contents = {name: mar.read(name) for name in mar.namelist()}
    return contents, json.loads(contents["MAR-INF/MANIFEST.json"])


def test_mnist_is_archived_as_the_stock_archiver_does(tmp_path):
    done = build("mnist", "--output", "made/store", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "made/store/mnist.mar") as mar:
        names = mar.namelist()
        manifest = mar.read("MAR-INF/MANIFEST.json").decode()
    assert sorted(names) == [
        "MAR-INF/MANIFEST.json",
        "mnist.py",
        "mnist_cnn.pt",
        "mnist_handler.py",
        "warmup.json",
    ]
    assert manifest == (
        "{\n"
        '  "createdOn": "01/01/1980 00:00:00",\n'
        '  "runtime": "python",\n'
        '  "model": {\n'
        '    "modelName": "mnist",\n'
        '    "serializedFile": "mnist_cnn.pt",\n'
        '    "handler": "mnist_handler.py",\n'
        '    "modelFile": "mnist.py",\n'
        '    "modelVersion": "1.0"\n'
        "  },\n"
        '  "archiverVersion": "0.12.0"\n'
        "}"
    )


def test_the_same_folder_gives_the_same_bytes(tmp_path):
    for copy in ("a", "b"):
        (tmp_path / copy).mkdir()
        extras = folder(tmp_path / copy / "m", {"extra_files": ["x.txt"]}, x__txt="x")
        assert build(extras, cwd=tmp_path / copy).returncode == 0
    (tmp_path / "b/m/x.txt").touch()
    assert (tmp_path / "a/m.mar").read_bytes() == (tmp_path / "b/m.mar").read_bytes()


def test_source_date_epoch_dates_the_archive(tmp_path):
    folder(tmp_path / "m")
    assert build("m", cwd=tmp_path, epoch="1700000000").returncode == 0
    with zipfile.ZipFile(tmp_path / "m.mar") as mar:
        assert json.loads(mar.read("MAR-INF/MANIFEST.json"))["createdOn"] == "14/11/2023 22:13:20"
        assert {entry.date_time for entry in mar.infolist()} == {(2023, 11, 14, 22, 13, 20)}


def test_all_members(tmp_path):
    recipe = {
        "model_file": "net.py",
        "serialized_file": "net.pt",
        "extra_files": ["labels.json", "tokenizer"],
        "requirements_file": "needs.txt",
        "config_file": "model.yaml",
    }
    files = {
        "net__py": "",
        "net__pt": "",
        "labels__json": "{}",
        "needs__txt": "",
        "model__yaml": "",
    }
    path = folder(tmp_path / "m", recipe, **files)
    for name in ("vocab.txt", "deep/merges.txt", "__pycache__/x.pyc", ".hidden/x"):
        (path / "tokenizer" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "tokenizer" / name).write_text(name)
    contents, manifest = archived(path)
    assert set(contents) == {
        "MAR-INF/MANIFEST.json",
        "handler.py",
        "net.py",
        "net.pt",
        "labels.json",
        "vocab.txt",
        "deep/merges.txt",
        "needs.txt",
        "model.yaml",
    }
    assert manifest["model"] == {
        "modelName": "m",
        "serializedFile": "net.pt",
        "handler": "handler.py",
        "modelFile": "net.py",
        "modelVersion": "2.5",
        "requirementsFile": "needs.txt",
        "configFile": "model.yaml",
    }


@pytest.mark.parametrize(
    ("handler", "files"),
    [("handler", {"handler.py"}), ("handler:handle", {"handler.py"}), ("image_classifier", set())],
)
def test_handler_forms(handler, files, tmp_path):
    contents, manifest = archived(folder(tmp_path / "m", {"handler": handler}))
    assert manifest["model"]["handler"] == handler
    assert set(contents) == files | {"MAR-INF/MANIFEST.json"}


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"name": "../m"}, "name: '../m' given"),
        ({"version": 1.0}, "version: a text expected, got 1.0"),
        ({"extra_files": "x.txt"}, 'extra_files: a list of texts expected, got "x.txt"'),
        ({"handlre": "x"}, "handlre: unknown"),
        ({"serialized_file": "m.pt"}, "serialized_file: m.pt: no such file"),
        ({"extra_files": ["a/labels.json", "b/labels.json"]}, "two files would become labels.json"),
        ({"extra_files": ["unpacked"]}, "two files would become MAR-INF/MANIFEST.json"),
    ],
)
def test_a_wrong_recipe_is_one_line_and_exit_2(recipe, message, tmp_path):
    path = folder(tmp_path / "m", recipe)
    for name in ("a", "b"):
        (path / name).mkdir()
        (path / name / "labels.json").write_text("{}")
    (path / "unpacked/MAR-INF").mkdir(parents=True)
    (path / "unpacked/MAR-INF/MANIFEST.json").write_text("{}")
    done = build("m", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*.mar*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "not found"), ("{", "not JSON"), ("[]", "an object expected"), ("{}", "name: missing")],
)
def test_an_unreadable_recipe_is_one_line_and_exit_2(content, message, tmp_path):
    (tmp_path / "m").mkdir()
    if content is not None:
        (tmp_path / "m/archive.json").write_text(content)
    done = build("m", cwd=tmp_path)
    assert done.returncode == 2
    assert f"m/archive.json: {message}" in done.stderr


@pytest.mark.parametrize("name", ["mnst", "m/archive.json"])
def test_a_folder_that_is_none_is_named_as_it_was_given(name, tmp_path):
    folder(tmp_path / "m")
    done = build(name, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"build_archive: {name}: no such folder, ")


def test_the_output_is_a_folder(tmp_path):
    """A server would take a folder ``m.mar`` with ``m.mar`` in it for a model of that name."""
    folder(tmp_path / "m")
    assert "a folder expected" in build("m", "--output", "store/m.mar", cwd=tmp_path).stderr
    assert not (tmp_path / "store").exists()


def test_missing_weights_name_the_script_that_makes_them(tmp_path):
    folder(tmp_path / "m", {"serialized_file": "m.pt"}, train__py="")
    assert "m/train.py makes it" in build("m", cwd=tmp_path).stderr


def test_a_wrong_source_date_is_one_line_and_exit_2(tmp_path):
    folder(tmp_path / "m")
    done = build("m", cwd=tmp_path, epoch="yesterday")
    assert done.returncode == 2
    assert "SOURCE_DATE_EPOCH: 'yesterday'" in done.stderr


def test_help_shows_the_recipe(tmp_path):
    assert '"serialized_file"' in build("--help", cwd=tmp_path).stdout


def test_missing_weights_of_torchvisions_networks_name_the_script_that_makes_them(tmp_path):
    shutil.copy(ROOT / "handlers" / "build_archive.py", tmp_path)
    folder(tmp_path / "m", {"serialized_file": "m.pt"})
    script = [sys.executable, "-I", tmp_path / "build_archive.py", "m"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=50, check=False)
    assert "m.pt: no such file; make_weights.py m makes it" in done.stderr
