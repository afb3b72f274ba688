"""What is sent is what the server's own codec reads, and wrong answers are seen."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.workloads import HEADER_LENGTH, Workload, alike, workloads
from kserve_torch.codec import v1, v2

WORKLOADS = workloads()
V1 = [WORKLOADS[name] for name in ("v1", "explain", "resnet")]
V2 = [WORKLOADS[name] for name in ("v2", "mean-json", "mean-binary")]


@pytest.mark.parametrize("workload", V1, ids=lambda workload: workload.name)
def test_v1_bodies_hold_the_rows(workload: Workload) -> None:
    for body, row in zip(workload.bodies, workload.rows, strict=True):
        decoded = v1.decode(body.content, body.headers["Content-Type"])
        assert isinstance(decoded, v1.V1Request)
        assert decoded.instances == [row]


@pytest.mark.parametrize("workload", V2, ids=lambda workload: workload.name)
def test_v2_bodies_hold_the_rows(workload: Workload) -> None:
    for index, (body, row) in enumerate(zip(workload.bodies, workload.rows, strict=True)):
        decoded = v2.decode(body.content, body.headers.get(HEADER_LENGTH))
        assert decoded.id == str(index)
        np.testing.assert_array_equal(decoded.inputs[0].array, row["data"])


def test_all_requests_of_a_workload_differ() -> None:
    for workload in WORKLOADS.values():
        assert len({body.content for body in workload.bodies}) == len(workload.bodies) >= 8


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (7, 7, True),
        (7, 8, False),
        (1.00001, 1.0, True),
        (1.1, 1.0, False),
        ([[1.0, 2.0]], [[1.0, 2.0001]], True),
        ([[1.0, 2.0]], [1.0, 2.0], False),
        ([1.0, "x"], [1.0, 2.0], False),
        ([1.0, [2.0]], [1.0, 2.0], False),
        ({"3": 0.5}, {"3": 0.50001}, True),
        ({"3": 0.5}, {"4": 0.5}, False),
        ([3], {"3": 0.5}, False),
        (None, 1.0, False),
        (float("nan"), 1.0, False),
    ],
)
def test_alike(got: object, expected: object, same: bool) -> None:
    assert alike(got, expected) is same


def test_faults_of_v1_answers() -> None:
    digits = WORKLOADS["v1"]
    assert digits.fault(3, 200, b'{"predictions":[3]}', 3) is None
    assert digits.fault(3, 200, b'{"predictions":[4]}', 3) == "4 instead of 3"
    for status, body, text in (
        (503, b"full", "status 503: b'full'"),
        (200, b"{", "JSONDecodeError"),
        (200, b"[]", "TypeError"),
        (200, b'{"error":"no"}', "KeyError"),
        (200, b'{"predictions":[3,3]}', "ValueError"),
    ):
        assert (digits.fault(3, status, body, 3) or "").startswith(text)


def test_a_v2_answer_is_known_by_its_id() -> None:
    digits = WORKLOADS["v2"]
    body = {"id": "3", "outputs": [{"name": "o", "shape": [1], "datatype": "INT64", "data": [5]}]}
    assert digits.fault(3, 200, json.dumps(body).encode(), 5) is None
    assert "id: '3' instead of '4'" in (digits.fault(4, 200, json.dumps(body).encode(), 5) or "")
