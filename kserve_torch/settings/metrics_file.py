"""The ``metrics_config`` file: metrics of handlers, listed by name (CONTRACT M1, X3)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from kserve_torch.errors import SettingError
from kserve_torch.settings.folders import naming

T = TypeVar("T", dict[Any, Any], list[Any])

KINDS = ("counter", "gauge", "histogram")
#: Names that Prometheus takes.
METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class ListedMetric(NamedTuple):
    """One entry of the file.

    Attributes:
        kind: one of `KINDS`.
        name: what handlers and Prometheus call it.
        unit: as the file writes it.
        dimensions: names of its labels, without the host's.
    """

    kind: str
    name: str
    unit: str
    dimensions: tuple[str, ...]


#: Reported by every base handler, listed in TorchServe's default file (CONTRACT M6, X2).
AUTOMATIC = tuple(
    ListedMetric("gauge", name, "ms", ("ModelName", "Level"))
    for name in ("HandlerTime", "PredictionTime")
)


def read_metrics_file(path: Path) -> list[ListedMetric]:
    """The file's ``model_metrics`` section.

    Its ``ts_metrics`` is not read: the server's own families are always those of CONTRACT X2.

    Raises:
        SettingError: no such file, not YAML, or an entry that is not a metric; it is named.
    """
    place = f"metrics_config: {path}"
    with naming("metrics_config", path):
        text = path.read_bytes()
    try:
        content = yaml.safe_load(text)
    except Exception as error:  # PyYAML also raises Python's own, as KeyError for "!!bool x"
        raise SettingError(f"{place}: {' '.join(str(error).split())}") from error
    section = _typed(content, dict, f"{place}: the file").get("model_metrics")
    place += ": model_metrics"
    listed: list[ListedMetric] = []
    for kind, entries in _typed(section, dict, place).items():
        if kind not in KINDS:
            raise SettingError(f"{place}.{kind}: not one of {', '.join(KINDS)}")
        of_kind = enumerate(_typed(entries, list, f"{place}.{kind}"))
        listed += [_metric(f"{place}.{kind}[{number}]", kind, entry) for number, entry in of_kind]
    return listed


def _metric(place: str, kind: str, entry: Any) -> ListedMetric:
    name = _typed(entry, dict, place).get("name")
    if not isinstance(name, str) or not METRIC_NAME.fullmatch(name):
        raise SettingError(f"{place}.name: {name!r} does not match {METRIC_NAME.pattern}")
    dimensions = _typed(entry.get("dimensions"), list, f"{place}.dimensions")
    if not all(isinstance(each, str) for each in dimensions):
        raise SettingError(f"{place}.dimensions: {dimensions!r} is not a list of names")
    return ListedMetric(kind, name, str(entry.get("unit", "unit")), tuple(dimensions))


def _typed(value: Any, kind: type[T], place: str) -> T:
    """``value`` if it is of this kind, an empty one for nothing."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        noun = "mapping" if kind is dict else "list"
        raise SettingError(f"{place}: {value!r} is not a {noun}")
    return value
