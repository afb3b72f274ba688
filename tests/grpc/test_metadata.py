from __future__ import annotations

from kserve_torch.grpc.metadata import metadata_of


def test_what_metadata_cannot_carry_is_left_out() -> None:
    headers = {
        "X-Own": "1",
        "grpc-status": "0",
        "x-bin": "1",
        "a b": "1",
        "x-e": "é",
        "x-n": "a\nb",
    }
    assert metadata_of(headers) == (("x-own", "1"),)


def test_metadata_that_would_be_too_long_together_is_left_out() -> None:
    headers = {"x-1": "1" * 4000, "x-2": "2" * 4000, "x-3": "3"}
    assert metadata_of(headers) == (("x-1", "1" * 4000), ("x-3", "3"))
