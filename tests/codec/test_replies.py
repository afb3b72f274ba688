import pytest

from kserve_torch.codec.replies import sendable
from kserve_torch.errors import HandlerError


@pytest.mark.parametrize(("name", "value"), [("x own", "1"), ("x-own", "1\r\nset-cookie: a=b")])
def test_headers_that_cannot_be_sent(name: str, value: str) -> None:
    with pytest.raises(
        HandlerError, match=f"the handler set header '{name}': its name or value has char"
    ):
        sendable({name: value})


def test_white_space_around_a_header_is_no_part_of_it() -> None:
    assert sendable({"x-own": " 1\n"}) == [("x-own", "1")]
