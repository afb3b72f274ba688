import logging

import pytest
from grpc import StatusCode

from kserve_torch import errors
from kserve_torch.grpc.status import MAX_TEXT, code_of, status_of

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ServingError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_names_a_code_that_there_is(kind: type[errors.ServingError]) -> None:
    assert StatusCode[kind.grpc]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInput("x"), StatusCode.INVALID_ARGUMENT),
        (errors.VersionNotFound("x"), StatusCode.NOT_FOUND),
        (errors.PayloadTooLarge("x"), StatusCode.RESOURCE_EXHAUSTED),
        (errors.Overloaded("x"), StatusCode.RESOURCE_EXHAUSTED),
        (errors.NotReady("x"), StatusCode.UNAVAILABLE),
        (errors.LoadFailed("x"), StatusCode.UNAVAILABLE),
        (errors.DeadlineExceeded("x"), StatusCode.DEADLINE_EXCEEDED),
        (errors.OutOfMemory("x"), StatusCode.RESOURCE_EXHAUSTED),
        (errors.HandlerError("x"), StatusCode.INTERNAL),
        (errors.Unsupported("x"), StatusCode.UNIMPLEMENTED),
        (errors.PredictionError("x", 404), StatusCode.NOT_FOUND),
        (errors.PredictionError("x", 599), StatusCode.INTERNAL),
    ],
)
def test_errors_as_statuses(error: errors.ServingError, code: StatusCode) -> None:
    status = status_of(error, "s/M")
    assert (status.code, status.text) == (code, "x")


@pytest.mark.parametrize(
    ("code", "statuses"),
    [
        (StatusCode.INTERNAL, [302, 500, 502, 599]),
        (StatusCode.INVALID_ARGUMENT, [400, 402, 418]),
        (StatusCode.UNAUTHENTICATED, [401]),
        (StatusCode.PERMISSION_DENIED, [403]),
        (StatusCode.NOT_FOUND, [404]),
        (StatusCode.DEADLINE_EXCEEDED, [408, 504]),
        (StatusCode.ALREADY_EXISTS, [409]),
        (StatusCode.FAILED_PRECONDITION, [412]),
        (StatusCode.RESOURCE_EXHAUSTED, [413, 429, 507]),
        (StatusCode.OUT_OF_RANGE, [416]),
        (StatusCode.CANCELLED, [499]),
        (StatusCode.UNIMPLEMENTED, [501]),
        (StatusCode.UNAVAILABLE, [503]),
    ],
)
def test_http_codes_as_grpc_codes(code: StatusCode, statuses: list[int]) -> None:
    assert {code_of(status) for status in statuses} == {code}


def test_overload_says_when_to_come_back() -> None:
    assert status_of(errors.Overloaded("x"), "s/M").metadata == (
        ("grpc-retry-pushback-ms", "1000"),
    )
    assert status_of(errors.NotReady("x"), "s/M").metadata == ()


def test_unexpected_errors_are_logged_once_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        status = status_of(KeyError("/etc/secret"), "s/M")
    assert (status.code, status.text) == (StatusCode.INTERNAL, "internal server error")
    (record,) = caplog.records
    assert record.exc_info
    assert "s/M" in record.getMessage()


def test_long_texts_are_cut() -> None:
    assert len(status_of(errors.InvalidInput("x" * 10**6), "s/M").text) == MAX_TEXT


def test_texts_that_are_no_unicode_arrive() -> None:
    """Half of a character, as JSON can have it, cannot be sent."""
    assert status_of(errors.InvalidInput("a\ud83db"), "s/M").text == "a?b"
