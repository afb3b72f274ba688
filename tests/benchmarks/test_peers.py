"""The peers' table and the configuration that this server and TorchServe are given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.peers import PEERS
from benchmarks.peers.program import Task, free_ports, properties
from benchmarks.rounds import SCENARIOS
from benchmarks.workloads import ROOT, workloads
from kserve_torch.settings import load_settings


def test_every_archive_gets_the_batch_settings(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.mar").touch()
    file = properties(Task(tmp_path, 18_085, tmp_path), 16, service_envelope="kserve")
    settings = load_settings(["--ts-config", str(file)], {}, "kserve_torch")
    assert settings.service_envelope == "kserve"
    assert settings.inference_address.port == 18_085
    assert {model.file for model in settings.startup_models() or ()} == {"a.mar", "b.mar"}
    for name in ("a", "b"):
        limits = settings.limits_for(name, "1.0", {})
        assert (limits.batch_size, limits.max_batch_delay) == (16, 0.001)
        assert (limits.min_workers, limits.max_workers) == (1, 1)


def test_every_peer_has_a_program_and_answers_something() -> None:
    routes = {workload.route for workload in workloads().values()}
    for peer in PEERS.values():
        assert (ROOT / "benchmarks" / "peers" / f"{peer.name}.py").is_file()
        assert routes & set(peer.routes)
    assert routes <= set(PEERS["ours"].routes)


def test_a_peer_with_packages_of_its_own_has_a_python_of_its_own() -> None:
    assert PEERS["ours"].python == Path(sys.executable)
    assert PEERS["mosec"].python != Path(sys.executable)
    assert len({peer.environment for peer in PEERS.values()}) == len(PEERS)


def test_scenarios_name_known_workloads() -> None:
    known = workloads()
    assert {name for scenario in SCENARIOS for name, _ in scenario.streams} <= set(known)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(5))) == 5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--peers", "ours,apache"], "'apache' is none of ours,"),
        (["--workloads", "v9"], "'v9' is none of v1,"),
        (["--rounds", "x"], "invalid int value"),
    ],
)
def test_wrong_options_are_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert text in capsys.readouterr().err
