"""The list of differences is about requests that are sent, once each."""

from collections import Counter

import pytest

from . import calls, test_envelopes, test_handlers
from .differences import DIFFERENCES
from .routes import INFERENCE, MANAGEMENT

pytestmark = pytest.mark.parity


def test_every_request_has_a_name_of_its_own():
    assert [name for name, count in Counter(sent()).items() if count > 1] == []


def test_every_difference_is_of_a_request_that_is_sent():
    listed = {step for difference in DIFFERENCES for step in difference.steps}
    assert sorted(listed - set(sent())) == []


def sent():
    of_envelopes = [step for _, step in test_envelopes.STEPS]
    steps = INFERENCE + MANAGEMENT + test_handlers.STEPS + of_envelopes
    return [step.name for step in [*steps, *calls.INFERENCE, *calls.MANAGEMENT]]
