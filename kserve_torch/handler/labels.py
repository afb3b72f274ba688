"""Class labels: ``index_to_name.json`` in its three forms, and results with labels as keys."""

from __future__ import annotations

import json
import logging
from itertools import repeat
from pathlib import Path
from typing import Any

from kserve_torch.errors import HandlerError, LoadFailed

log = logging.getLogger(__name__)


class NoLabel(HandlerError, KeyError):
    """The archive has no label for a class that the model answered."""


def load_label_mapping(mapping_file_path: str | Path) -> dict[str, str] | None:
    """Read class index -> label from a JSON file (CONTRACT 3.8).

    The three forms are ``{"0": "cat"}``, ``{"0": ["n02123045", "cat"]}``, of which the last element
    is the label, and ``{"object_type_names": ["cat", ...]}``.

    Returns:
        The mapping, or None if there is no such file.

    Raises:
        LoadFailed: the file is not JSON or has none of the three forms.
    """
    path = Path(mapping_file_path)
    if not path.is_file():
        log.info("no %s: results have no names of classes", path.name)
        return None
    try:
        mapping = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadFailed(f"{path.name}: not valid JSON: {error}") from error
    if not isinstance(mapping, dict):
        raise LoadFailed(
            f"{path.name}: expected an object of class index to label, got a list or a value"
        )
    names = mapping.get("object_type_names")
    if isinstance(names, list):
        mapping = dict(enumerate(names))
    return {str(key): _label(path.name, key, value) for key, value in mapping.items()}


def _label(file: str, key: Any, value: Any) -> str:
    label = value[-1] if isinstance(value, list) and value else value
    if not isinstance(label, str):
        raise LoadFailed(f"{file}: label of class {key} must be a string or a list of strings")
    return label


def map_class_to_label(
    probs: list[list[Any]],
    mapping: dict[str, str] | None = None,
    lbl_classes: Any = None,
) -> list[dict[str, Any]]:
    """Turn rows of values into dicts from label to value.

    Args:
        probs: per row, one value per class.
        mapping: class index, as a string, -> label; None for the index itself as the key.
        lbl_classes: per row, the class index of each value; None counts from 0.

    Raises:
        NoLabel: ``mapping`` lacks a class index.
        TypeError: ``probs`` is not a list, or ``mapping`` not a dict.
    """
    if not isinstance(probs, list):
        raise TypeError(f"probs: expected a list of lists, got {type(probs).__name__}")
    if mapping is not None and not isinstance(mapping, dict):
        raise TypeError(f"mapping: expected a dict, got {type(mapping).__name__}")
    if lbl_classes is None:
        lbl_classes = repeat(range(len(probs[0]) if probs else 0))
    return [
        {_name(mapping, index): value for index, value in zip(classes, values, strict=False)}
        for classes, values in zip(lbl_classes, probs, strict=False)
    ]


def _name(mapping: dict[str, str] | None, index: Any) -> str:
    if mapping is None:
        return str(index)
    try:
        return mapping[str(index)]
    except KeyError:
        raise NoLabel(f"index_to_name.json: no label for class {index}") from None
