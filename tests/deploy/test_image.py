import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from . import manifests

ROOT = Path(__file__).parents[2]
DOCKERFILES = ["Dockerfile", "Dockerfile.dev", "deploy/transformer/Dockerfile"]


def instructions(name):
    """The instructions of a Dockerfile, continued lines joined, comments left out."""
    lines = [x for x in (ROOT / name).read_text().splitlines() if not x.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def last(name, word):
    return [rest for instruction, rest in instructions(name) if instruction == word][-1]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_image_runs_as_an_ordinary_user_from_an_exec_form_entry_point(name):
    assert last(name, "USER") == "1000:1000"
    assert isinstance(json.loads(last(name, "ENTRYPOINT")), list)
    words = {word for word, _ in instructions(name)}
    assert "HEALTHCHECK" not in words
    assert "ADD" not in words


@pytest.mark.parametrize("name", DOCKERFILES)
def test_base_image_is_an_argument_and_installs_are_constrained(name):
    assert instructions(name)[0] == ("ARG", "PYTHON_IMAGE=python:3.12-slim")
    runs = " && ".join(rest for word, rest in instructions(name) if word == "RUN")
    installs = [c for c in re.split(r"&&|;", runs) if "pip install" in c]
    assert installs
    for install in installs:
        assert "--constraint" in install or "--no-deps" in install


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_copied_exists_and_is_not_ignored(name):
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    for word, rest in instructions(name):
        sources = [s for s in shlex.split(rest)[:-1] if not s.startswith("--")]
        if word != "COPY" or "--from=" in rest or sources == ["."]:
            continue
        for source in sources:
            assert f"!{source.split('/')[0]}" in kept


@pytest.mark.parametrize("name", DOCKERFILES)
def test_any_user_gets_at_what_is_copied(name):
    # OpenShift chooses the uid, and derived images install as model-server. Debian 13 closes homes,
    # and COPY keeps the modes of the checkout.
    assert "--key HOME_MODE=0755" in " ".join(r for _, r in instructions(name) if "useradd" in r)
    for word, rest in instructions(name):
        target = shlex.split(rest)[-1]
        if word == "COPY" and "--from=" not in rest and target.startswith("/"):
            assert "--chmod=" in rest


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.dev"])
def test_first_process_reaps_what_others_leave_and_handlers_find_a_compiler(name):
    assert json.loads(last(name, "ENTRYPOINT"))[:2] == ["/usr/bin/tini", "-s"]
    tools = next(rest for word, rest in instructions(name) if word == "RUN" and "apt-get" in rest)
    assert {"g++", "tini"} <= set(tools.split())


def test_user_without_an_entry_in_passwd_has_a_name():
    assert "USER=model-server" in last("Dockerfile", "ENV").split()


def test_gpus_are_those_that_a_pod_asks_for():
    environ = dict(word.split("=", 1) for word in last("Dockerfile", "ENV").split())
    assert "compute" in environ["NVIDIA_DRIVER_CAPABILITIES"].split(",")
    assert "NVIDIA_VISIBLE_DEVICES" not in environ


def test_packages_that_a_derived_image_installs_as_its_user_outlive_the_volumes():
    environ = dict(word.split("=", 1) for word in last("Dockerfile", "ENV").split())
    base = Path(environ["PYTHONUSERBASE"])
    assert f":{base}/bin" in environ["PATH"]
    (runtime,) = manifests.read(manifests.DEPLOY / "runtime/kserve-torch.yaml")
    (server,) = runtime["spec"]["containers"]
    assert not any(base.is_relative_to(m["mountPath"]) for m in server["volumeMounts"])
    owned = next(rest for word, rest in instructions("Dockerfile") if "useradd" in rest)
    assert "site --user-site" in owned  # Python looks for it when it starts
    assert base.is_relative_to(owned.split("chown --recursive 1000:1000 ")[1].split()[0])


def test_dockerfiles_for_the_images_of_torchserve_find_its_paths():
    made = next(rest for word, rest in instructions("Dockerfile") if "useradd" in rest)
    assert "/home/model-server/model-store " in made
    entry = "/usr/local/bin/dockerd-entrypoint.sh"  # they name it, or copy their own over it
    assert last("Dockerfile", "COPY").split()[-1] == entry
    assert json.loads(last("Dockerfile", "ENTRYPOINT"))[-1] == entry


def test_what_is_developed_is_in_the_image_to_develop_in():
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"!scripts", "!tests", "!docs", "!mkdocs.yml", "!Makefile"} <= set(kept)


def test_image_to_develop_in_has_what_make_installs():
    runs = " ".join(rest for word, rest in instructions("Dockerfile.dev") if word == "RUN")
    extras = set(re.search(r"'\.\[(.*)\]'", runs)[1].split(","))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = {*project["dependencies"]}.union(*map(project["optional-dependencies"].get, extras))
    make = runpy.run_path(str(ROOT / "scripts/venv.py"))
    assert needs == set(make["requirements"]())


def test_server_image_has_what_archives_import_without_listing_it():
    (listing,) = [rest for _, rest in instructions("Dockerfile") if "tomllib" in rest]
    command = [sys.executable, *shlex.split(listing.partition(" > ")[0])[1:]]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).split("\n")
    assert {"kserve==0.21.*", "setuptools<82", "transformers"} <= set(listed)
    assert any(need.startswith("opentelemetry-") for need in listed)


def test_server_image_exposes_the_ports_and_has_labels():
    ports = set(last("Dockerfile", "EXPOSE").split())
    assert ports == {"8080", "8081", "8082", "8085", "7070", "7071"}
    assert "org.opencontainers.image.version" in last("Dockerfile", "LABEL")
    assert json.loads(last("Dockerfile", "CMD")) == ["serve"]


# --- the entry point and the build script, with stand-ins for the programs that they run ---


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder on PATH whose programs print their name and arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("torchserve", "kserve-torch", "docker"):
        script = folder / name
        script.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in ("TORCH_INDEX", "PYTHON_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd="/")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            ["torchserve", "--start", "--model-store=/a b"],
            ["torchserve", "--start", "--model-store=/a b"],
        ),
        (["--model_dir=/mnt/models"], ["kserve-torch", "--model_dir=/mnt/models"]),
        ([], ["kserve-torch"]),
        (["kserve-torch", "--help"], ["kserve-torch", "--help"]),
        (["docker", "-c", "id"], ["docker", "-c", "id"]),  # any other program
    ],
)
def test_entry_point_takes_stock_arguments_and_bare_options(programs, arguments, command):
    done = run(ROOT / "deploy/image/entrypoint.sh", *arguments)
    assert done.stdout.splitlines() == command


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["torchserve", "--models", "$NAME=$NAME.mar"], ["torchserve", "--models", "net=net.mar"]),
        (["torchserve --models ${NAME}.mar"], ["torchserve", "--models", "net.mar"]),
        (
            ["torchserve", "--models", "a=a.mar b.mar"],
            ["torchserve", "--models", "a=a.mar", "b.mar"],
        ),
        (
            ["torchserve", "--start", "--model-store models", "--models a=a.mar"],
            ["torchserve", "--start", "--model-store", "models", "--models", "a=a.mar"],
        ),
        (["N=$(echo 2)", "&&", "torchserve", "--workers", "$N"], ["torchserve", "--workers", "2"]),
        (["N=2", "torchserve", "--start"], ["torchserve", "--start"]),
        (
            ["docker", "pull", "&&", "torchserve", "--start"],
            ["docker", "pull", "torchserve", "--start"],
        ),
        (["cd", "/;", "torchserve", "--start", "|", "tail", "-n1"], ["--start"]),
        (["docker", "x=$NAME y"], ["docker", "x=$NAME y"]),  # no shell for any other program
        (["docker", "-c", "cd /; id &&", ";"], ["docker", "-c", "cd /; id &&", ";"]),
        (["docker", "-c", "cd /; id;"], ["docker", "-c", "cd /; id;"]),
    ],
)
def test_entry_point_evaluates_what_the_images_of_torchserve_evaluate(
    programs, monkeypatch, arguments, command
):
    monkeypatch.setenv("NAME", "net")
    done = run(ROOT / "deploy/image/entrypoint.sh", *arguments)
    assert done.stdout.splitlines() == command


@pytest.mark.parametrize("arguments", [["torchserve"], ["torchserve --models $HOME"]])
def test_entry_point_becomes_the_program(programs, arguments):
    (programs / "torchserve").write_text("#!/bin/sh\necho $$\n")
    with subprocess.Popen(
        [ROOT / "deploy/image/entrypoint.sh", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.read().strip() == str(process.pid)


@pytest.fixture
def inside():
    """What a command begins with so that its mounts are its own."""
    command = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or run(*command, "true").returncode:
        pytest.skip("no namespaces here")
    return command


@pytest.mark.parametrize("configured", [True, False])
def test_entry_point_serves_what_is_configured_if_there_is_no_command(programs, inside, configured):
    """As the images of TorchServe do, whose Compose files mount their configuration."""
    folder = "/home/model-server"
    made = f"mkdir {folder} && {f'touch {folder}/config.properties' if configured else 'true'}"
    command = " ".join(json.loads(last("Dockerfile", "CMD")))
    script = f"mount -t tmpfs none /home && {made} && {ROOT}/deploy/image/entrypoint.sh {command}"
    expected = (
        ["torchserve", "--start", "--ts-config", f"{folder}/config.properties"]
        if configured
        else ["kserve-torch", "--model_dir=/mnt/models"]
    )
    assert run(*inside, "sh", "-c", script).stdout.splitlines() == expected


@pytest.mark.parametrize("comes", [True, False])
def test_entry_point_waits_for_a_model_that_is_an_image(programs, inside, monkeypatch, comes):
    """KServe sets the variable where the model's container starts after the server's."""
    sleep = programs / "sleep"
    sleep.write_text(f"#!/bin/sh\n{'mkdir /mnt/models' if comes else ''}\n")
    sleep.chmod(0o755)
    (programs / "torchserve").write_text("#!/bin/sh\nls /mnt\necho started\n")
    monkeypatch.setenv("MODEL_INIT_MODE", "async")
    script = f"mount -t tmpfs none /mnt && {ROOT}/deploy/image/entrypoint.sh torchserve"
    done = run(*inside, "sh", "-c", script)
    assert done.stdout.split() == [*(["models"] if comes else []), "started"]


def built(*options):
    done = run(ROOT / "build_image.sh", *options)
    assert done.returncode == 0, done.stderr
    *command, said = done.stdout.splitlines()
    return command, said


def test_default_build_is_the_cpu_image_of_this_version(programs):
    from kserve_torch import __version__

    command, said = built()
    tag = f"kserve-torch:{__version__}"
    assert command[:6] == ["docker", "build", "--file", "Dockerfile", "--tag", tag]
    assert "VARIANT=cpu" in command
    assert command[-1] == "."
    assert said == f"Built {tag}"


@pytest.mark.parametrize(
    ("options", "file", "tag"),
    [
        (["-g"], "Dockerfile", "kserve-torch:0.1.0-gpu"),
        (["--gpu", "--tag", "team/torch:1-gpu"], "Dockerfile", "team/torch:1-gpu"),
        (["-d"], "Dockerfile.dev", "kserve-torch:0.1.0-dev"),
        (["-t", "team/torch:1"], "Dockerfile", "team/torch:1"),
        (["-g", "-t", "team/torch:1"], "Dockerfile", "team/torch:1"),
    ],
)
def test_options_choose_file_variant_and_tag(programs, options, file, tag):
    command, _ = built(*options)
    assert command[3] == file
    assert command[5] == tag
    assert ("VARIANT=gpu" in command) == ("-g" in options or "--gpu" in options)


def test_torch_index_is_passed_for_cpu_images_alone(programs, monkeypatch):
    monkeypatch.setenv("TORCH_INDEX", "file:///wheels")
    assert "TORCH_INDEX=file:///wheels" in built()[0]
    assert "TORCH_INDEX=file:///wheels" not in built("-g")[0]


def test_help_names_the_options_and_builds_nothing(programs):
    done = run(ROOT / "build_image.sh", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ./build_image.sh [-g] [-d] [-t repository/image:tag]")
    # A tag that is given stays as it is.
    assert re.findall(r"(\S+) tag ends in (-\w+)", done.stdout) == [
        ("(default", "-gpu"),
        ("(default", "-dev"),
    ]


@pytest.mark.parametrize("options", [["-x"], ["-t"], ["image"]])
def test_wrong_options_are_refused_with_one_line(programs, options):
    done = run(ROOT / "build_image.sh", *options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("build_image.sh: ")
    assert done.stderr.count("\n") == 1
