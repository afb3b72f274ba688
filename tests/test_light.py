"""Importing the package and asking it for help costs little, and reads no arguments."""

import os
import subprocess
import sys

import pytest

import kserve_torch

from .forks import Forks

HEAVY = ("torch", "torchvision", "kserve", "captum", "numpy", "fastapi", "grpc", "asyncio")


def python(code: str, *argv: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, check=True, text=True
    )
    return run.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import kserve_torch",
        "from kserve_torch.cli import main; main(['--help'])",
        "from kserve_torch.cli import main; main(['--version'])",
        "from kserve_torch.cli import main; main(['--print-settings', '--model_dir', '.'])",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    show = f"import sys; print('heavy:', [name for name in {HEAVY} if name in sys.modules])"
    assert python(f"{code}; {show}").splitlines()[-1] == "heavy: []"


def test_importing_the_package_reads_no_arguments() -> None:
    code = "import sys; sys.argv = None; import kserve_torch; print(kserve_torch.__version__)"
    assert python(code, "--http_port", "nonsense") == f"{kserve_torch.__version__}\n"


def test_help_takes_less_than_half_a_second() -> None:
    """Of the processor's time: on a busy machine it waits for its turns."""

    def seconds() -> float:
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "kserve_torch", "--help"], check=True, stdout=subprocess.DEVNULL
        )
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    assert min(seconds() for _ in range(3)) < 0.5


def test_public_names_come_when_they_are_asked_for() -> None:
    from kserve_torch.handler.base import BaseHandler

    assert kserve_torch.BaseHandler is BaseHandler
    assert {"TorchModel", "TorchModelRepository", "serve"} <= set(kserve_torch.__all__)
    with pytest.raises(AttributeError, match="module 'kserve_torch' has no attribute 'absent'"):
        _ = kserve_torch.absent


def test_the_server_does_without_packages_that_few_need(forks: Forks) -> None:
    """They would take a fourth of the start.

    `TorchModel` imports kserve for those who embed it; archives are downloaded with httpx.
    """
    forks.run(
        "import sys, kserve_torch.server; assert not {'httpx', 'kserve'} & sys.modules.keys()"
    )
