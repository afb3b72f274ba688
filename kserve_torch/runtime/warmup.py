"""The archive's own sample request, which a model must answer before it counts as ready."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from kserve_torch.archives.archive import Archive
from kserve_torch.codec import v1, v2
from kserve_torch.codec.mapping import MAPPINGS
from kserve_torch.codec.signature import Signature, seen
from kserve_torch.errors import ClientError, LoadFailed, OutOfMemory, ServingError
from kserve_torch.messages import NOTHING, Reply, Request, Row
from kserve_torch.runtime.context import Context, sequence_header
from kserve_torch.runtime.fault import RequestFault
from kserve_torch.runtime.torchstate import compiles

log = logging.getLogger(__name__)

FILE = "warmup.json"
KEY = "warmup"


def warm_up(
    run: Callable[[Sequence[Request]], list[Reply]],
    archive: Archive,
    context: Context,
    v2_rows: str,
) -> Signature:
    """Run an archive's sample, if there is one.

    A compiled model is also given two of them at once, if it forms batches: the first batch of
    several rows compiles it once more, for all sizes.

    Returns:
        The signature that follows from the sample; empty if there is none.

    Raises:
        LoadFailed: the handler cannot answer it.
        OutOfMemory: it does not fit.
    """
    sample = _sample(archive, context.model_name, v2_rows)
    if sample is None:
        return NOTHING
    try:
        (reply,) = run([sample])
        signature = seen(sample.rows, reply.results, batch=v2_rows == "batch")
    except OutOfMemory:
        raise
    except (ServingError, RequestFault) as error:
        raise LoadFailed(f"warm-up sample: {error}") from error
    if compiles() and 2 * len(sample.rows) <= context.system_properties["batch_size"]:
        try:
            run([sample.anew(), sample.anew()])
        except (ServingError, RequestFault) as error:
            log.warning("warm-up: two samples in one batch: %s", error)
    return signature


def _sample(archive: Archive, model: str, v2_rows: str) -> Request | None:
    """The Request in ``warmup.json``, or under ``warmup`` in model-config.yaml; None if neither is.

    It is a v1 body (``instances``), a v2 body (``inputs``, read by ``v2_rows``), or one native row.

    Raises:
        LoadFailed: it cannot be read.
    """
    body = sample_body(archive)
    if body is None:
        return None
    try:
        if isinstance(body, dict) and isinstance(body.get("instances"), list):
            return _request(archive, model, body["instances"], v1.ELEMENT)
        if isinstance(body, dict) and isinstance(body.get("inputs"), list):
            mapping, read = MAPPINGS[v2_rows], v2.from_document({"inputs": body["inputs"]})
            return _request(archive, model, mapping.rows(read.inputs), mapping.element)
    except ClientError as error:
        raise LoadFailed(f"warm-up sample: {error.message}") from error
    return _request(archive, model, [body], "row {}")


def _request(archive: Archive, model: str, rows: Sequence[Row], element: str) -> Request:
    headers: Mapping[str, str] = NOTHING
    if archive.config.get("sequenceBatching"):  # its handler needs a sequence id (CONTRACT C4)
        headers = {sequence_header("id"): KEY}
    again = partial(deepcopy, rows)
    return Request(id=KEY, model=model, rows=again(), again=again, element=element, headers=headers)


def sample_body(archive: Archive) -> Any:
    """The sample as written: any JSON value; None if there is none.

    Raises:
        LoadFailed: there is one that cannot be read.
    """
    try:
        return json.loads((archive.root / FILE).read_bytes())
    except FileNotFoundError:
        return archive.yaml.get(KEY)
    except (OSError, ValueError, RecursionError) as error:
        raise LoadFailed(f"{FILE}: cannot be read as JSON") from error
