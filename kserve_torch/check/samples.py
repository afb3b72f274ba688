"""Requests in files: the model that each is for, and its recorded answer."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kserve_torch.archives.archive import Archive
from kserve_torch.codec.document import JSON
from kserve_torch.runtime.warmup import sample_body
from kserve_torch.settings import Settings
from kserve_torch.settings.folders import naming

_ANSWER = ".answer"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One request.

    Attributes:
        name: the file's path below the folder of requests.
        body: what is sent.
        content_type: by the file's extension.
        answer: its recorded answer, or None.
    """

    name: str
    body: bytes
    content_type: str
    answer: bytes | None = None

    def path(self, model: str, envelope: str | None) -> str:
        """The path to send it to: KServe's for v1 and v2 bodies, else TorchServe's.

        Args:
            model: the model that it is for.
            envelope: ``service_envelope``; with one, TorchServe's route takes no bare bodies.
        """
        if envelope is not None or self.is_kserves:
            return f"/v1/models/{model}:predict"
        return f"/predictions/{model}"

    @property
    def fault(self) -> str:
        """Why the body of a JSON file is no JSON; "" if it is, and for other files."""
        if self.content_type == JSON:
            try:
                json.loads(self.body)
            except (ValueError, RecursionError) as error:
                return f"not valid JSON: {error}"
        return ""

    @cached_property
    def is_kserves(self) -> bool:
        """Whether it is a v1 or v2 body; parsed once, because some are large and sent often."""
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            return False
        keys = ("instances", "inputs")  # in native rows these may be anything but lists
        return isinstance(document, dict) and any(isinstance(document.get(k), list) for k in keys)


def find_samples(
    folder: Path, models: Iterable[str]
) -> tuple[dict[str, list[Sample]], Sequence[str]]:
    """The requests in ``folder``: ``MODEL.json``, ``MODEL.png``, ... and files in ``MODEL/``.

    Beside a request ``x.png`` its answer is ``x.answer``, ``x.answer.png`` or, if there is no
    request ``x.json``, ``x.answer.json``.

    Returns:
        The requests by model, and the names of files that are for none.

    Raises:
        SettingError: the folder or a file cannot be read.
    """
    found: dict[str, list[Sample]] = {}
    strange = []
    names = sorted(models, key=len, reverse=True)  # a.b.png is for model a.b rather than a
    with naming("--check", folder):
        for path in sorted(folder.iterdir()):
            model = next((name for name in names if _belongs(path, name)), None)
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            if model is not None:
                samples = [_sample(file, folder) for file in files if _is_request(file)]
                found.setdefault(model, []).extend(samples)
            elif _is_request(path) or path.is_dir():
                strange.append(path.name)
    return found, strange


def warm_up_sample(archive: Archive, settings: Settings) -> list[Sample]:
    """The archive's warm-up sample, if there is one that a client could send."""
    body = sample_body(archive)
    try:
        text = json.dumps(body, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # YAML has dates, bytes and NaN
        return []
    sample = Sample(name="its warm-up", body=text.encode(), content_type=JSON)
    can_be_sent = sample.is_kserves or settings.service_envelope is None
    return [sample] if body is not None and can_be_sent else []


def _belongs(path: Path, model: str) -> bool:
    return path.name == model if path.is_dir() else path.name.startswith(f"{model}.")


def _is_request(path: Path) -> bool:
    answer = _ANSWER in path.suffixes[-2:]
    return path.is_file() and not answer and not path.name.startswith(".")


def _sample(path: Path, folder: Path) -> Sample:
    recorded = [path.with_suffix(_ANSWER), path.with_suffix(f"{_ANSWER}{path.suffix}")]
    if not path.with_suffix(".json").is_file():  # else it is that sample's answer
        recorded.append(path.with_suffix(f"{_ANSWER}.json"))
    answer = next((file for file in recorded if file.is_file()), None)
    return Sample(
        name=str(path.relative_to(folder)),
        body=path.read_bytes(),
        content_type=mimetypes.guess_type(path.name)[0] or "application/octet-stream",
        answer=answer.read_bytes() if answer else None,
    )
