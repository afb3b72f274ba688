"""Loads every model as the server does, tries the given requests and prints a report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from kserve_torch.check.samples import Sample, find_samples, warm_up_sample
from kserve_torch.check.trial import Finding, Trial, Verdict
from kserve_torch.children import SIGNALS, Children, keep_signals_from_forks
from kserve_torch.edges import application
from kserve_torch.errors import SettingError
from kserve_torch.metrics import Metrics
from kserve_torch.models.registry import Registry
from kserve_torch.models.state import State
from kserve_torch.models.version import ModelVersion
from kserve_torch.process import run_until_done
from kserve_torch.settings import Settings
from kserve_torch.settings.folders import naming
from kserve_torch.startup import (
    startup_models,
    warn_of_idle_limits,
    warn_of_missing_gpus,
    why_no_models,
)


def run(settings: Settings, requests: Path | None) -> int:
    """Check all models; returns 0 if all load and all requests have the right answers.

    Requests of which none is for a model fail as well.

    Args:
        settings: what was configured.
        requests: a folder of requests, see `find_samples`, or None.

    Raises:
        SettingError: a setting cannot be met, or there is no such folder.
    """
    if requests is not None:
        with naming("--check", requests):
            if not requests.is_dir():
                raise SettingError(f"--check: {requests}: not a folder of requests")
    return run_until_done(settings, lambda: Check(settings, requests).run())


class Check:
    """One check.

    Args:
        settings: as for `run`.
        requests: as for `run`.
    """

    def __init__(self, settings: Settings, requests: Path | None) -> None:
        self._settings = settings
        self._requests = requests
        self._registry = Registry(settings)
        self._failures = 0
        self._stream = sys.stdout  # a handler may put another one in its place

    async def run(self) -> int:
        """Print a line for each finding; returns the exit code."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in SIGNALS:
            loop.add_signal_handler(number, task.cancel)
        keep_signals_from_forks()
        children = Children()
        try:
            await self._models()
        except asyncio.CancelledError:
            self._say(Finding(Verdict.FAILED, "interrupted"))
        finally:
            for number in SIGNALS:  # it is ending; another signal would only leave files behind
                loop.add_signal_handler(number, lambda: None)
            await self._registry.close()
            children.end()
        return 1 if self._failures else 0

    async def _models(self) -> None:
        models = startup_models(self._settings)
        warn_of_missing_gpus(self._settings)
        if not models:
            self._say(Finding(Verdict.FAILED, f"no models: {why_no_models(self._settings)}"))
        await self._registry.start(models)
        warn_of_idle_limits(self._settings, self._registry.all())
        samples: dict[str, list[Sample]] = {}
        strange: Sequence[str] = ()
        if self._requests is not None:
            samples, strange = find_samples(self._requests, self._registry.names())
        metrics = Metrics(self._settings, self._registry)
        app = application(self._registry, metrics, self._settings, None, ())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://check", timeout=None
        ) as client:
            for version in self._registry.all():
                await self._try(version, samples.get(version.name, []), client)
        for name in strange:
            self._say(Finding(Verdict.NOTE, f"{name}: no model has this name"))
        if self._requests is not None and not any(samples.values()):  # a gate would pass untested
            text = f"{self._requests}: no request in it is for a model"
            self._say(Finding(Verdict.FAILED, text))
        self._print(f"models: {len(self._registry.all())}, failures: {self._failures}")

    async def _try(
        self, version: ModelVersion, samples: Sequence[Sample], client: httpx.AsyncClient
    ) -> None:
        self._say(_loaded(version))
        if not version.ready:
            return
        if version is not self._registry.present(version.name):
            text = "no request was tried: it is not the default version"
            self._say(Finding(Verdict.NOTE, text), indent=2)
            return
        if not samples and version.batches and version.archive is not None:
            samples = warm_up_sample(version.archive, self._settings)
        if not samples:
            self._say(Finding(Verdict.NOTE, "no request was tried"), indent=2)
        envelope = self._settings.service_envelope
        trial = Trial(version, client, self._registry.observers, envelope)
        async for finding in trial.findings(samples):
            self._say(finding, indent=2)

    def _say(self, finding: Finding, indent: int = 0) -> None:
        self._failures += finding.verdict is Verdict.FAILED
        text = finding.text if finding.text.isprintable() else repr(finding.text)[1:-1]
        self._print(f"{finding.verdict:<6}  {' ' * indent}{text}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _loaded(version: ModelVersion) -> Finding:
    name, limits = f"{version.name} {version.version}", version.limits
    state, reason = version.standing
    if state is not State.READY:
        return Finding(Verdict.FAILED, f"{name}: {reason}")
    return Finding(
        Verdict.OK,
        f"{name}: loaded in {version.load_seconds:.2f} s, batchSize {limits.batch_size}, "
        f"maxBatchDelay {1000 * limits.max_batch_delay:g} ms, workers {version.ready_workers}",
    )
