import pytest

from kserve_torch.codec.replies import check_rows, row_headers, sendable
from kserve_torch.errors import HandlerError, PredictionError
from kserve_torch.messages import Reply, RowReply


def reply(**row):
    return Reply(model="m", version="1.0", rows=[RowReply(result=1), RowReply(**row)])


@pytest.mark.parametrize("status", [None, "400", 199, 600])
def test_a_status_that_no_answer_has(status):
    with pytest.raises(HandlerError, match="it must be a number from 200 to 599"):
        check_rows(reply(result=1, status=status))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"result": "no", "phrase": "full"}, "no"),
        ({"result": {"a": 1}, "phrase": "full"}, "full"),
        ({"result": {"a": 1}, "phrase": KeyError("a")}, "'a'"),
        ({"result": {"a": 1}}, "the handler answered status 400"),
    ],
)
def test_an_error_status_of_one_row_is_the_calls(row, text):
    with pytest.raises(PredictionError) as caught:
        check_rows(reply(**row, status=400))
    assert (caught.value.message, caught.value.http) == (text, 400)


@pytest.mark.parametrize(("name", "value"), [("x own", "1"), ("x-own", "1\r\nset-cookie: a=b")])
def test_headers_that_cannot_be_sent(name: str, value: str) -> None:
    with pytest.raises(
        HandlerError, match=f"the handler set header '{name}': its name or value has char"
    ):
        sendable({name: value})


def test_the_body_of_several_rows_is_the_servers_and_so_are_headers_about_it() -> None:
    own = {"Content-Encoding": "gzip", "x-own": 1}
    rows = [RowReply(result=1, headers=each) for each in ({"x-first": "2"}, {"Date": "x", **own})]
    sent = row_headers(Reply(model="m", version="1.0", rows=rows))
    assert sent == [("x-first", "2"), ("x-own", "1")]
    assert sendable(own) == [("Content-Encoding", "gzip"), ("x-own", "1")]


def test_white_space_around_a_header_is_no_part_of_it() -> None:
    assert sendable({"x-own": " 1\n"}) == [("x-own", "1")]
