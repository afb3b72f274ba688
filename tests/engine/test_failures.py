"""Lines about failed requests."""

import logging

import pytest

from kserve_torch.engine.failures import LONGEST_ID, LONGEST_TEXT, log_failed
from kserve_torch.errors import InvalidInput, PredictionError, ServingError, Unsupported
from kserve_torch.messages import Request


@pytest.mark.parametrize("kind", [InvalidInput, PredictionError])
def test_clients_cannot_make_long_lines(
    caplog: pytest.LogCaptureFixture, kind: type[ServingError]
) -> None:
    """A body's id may have megabytes, and handlers quote what they cannot read."""
    caplog.set_level(logging.INFO)
    log_failed("m 1.0 predict", Request(id="i" * 10**6, model="m", rows=[]), kind("t" * 10**6))
    (record,) = caplog.records
    assert f"request {'i' * LONGEST_ID} " in record.message
    assert record.message.endswith(f": {'t' * LONGEST_TEXT}")
    assert record.__dict__["fields"] == {"model": "m", "id": "i" * LONGEST_ID}


def test_what_a_model_does_not_support_is_no_failure_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    error = Unsupported("the model gives no gradients")
    log_failed("m 1.0 explain", Request(id="a", model="m", rows=[]), error, ValueError("cause"))
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert record.exc_info is None
    assert record.message == "m 1.0 explain: request a was refused: the model gives no gradients"
