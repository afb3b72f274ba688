import pytest

from .calls import post, upload, v1

MODEL = "streaming"
pytestmark = pytest.mark.timeout(180)


def pieces(server, word):
    with (
        server.client() as client,
        client.stream("POST", f"/predictions/{MODEL}", content=word) as response,
    ):
        assert response.status_code == 200
        assert response.headers["transfer-encoding"] == "chunked"
        return [piece.decode() for piece in response.iter_raw()]


def test_words_come_one_by_one(server):
    sent = pieces(server, b"client")
    assert len(sent) > 2  # neighbours may reach the client as one
    assert len("".join(sent).split()) == 12


def test_a_client_that_does_not_stream_gets_one_text(server):
    assert upload(server, MODEL, b"client").text == "".join(pieces(server, b"client"))


def test_it_writes_on_from_the_last_word(server):
    assert upload(server, MODEL, b"The client").text == upload(server, MODEL, b"client").text
    assert upload(server, MODEL, b"client").text != upload(server, MODEL, b"at").text


@pytest.mark.parametrize("word", [b"zebra", b"", b"\xff"])
def test_it_starts_anew_after_a_word_that_it_does_not_know(server, word):
    assert upload(server, MODEL, word).text == upload(server, MODEL, b"a").text


def test_protocols_that_do_not_stream_answer_the_last_word(server):
    last = [upload(server, MODEL, word).text.split()[-1] for word in (b"client", b"at")]
    assert v1(server, MODEL, "client", "at") == last
    response = post(server, f"/v1/models/{MODEL}:predict", {"instances": ["client", "at"]})
    assert response.json() == {"predictions": last}


def test_a_request_without_instances_is_the_clients_mistake(server):
    assert post(server, f"/v1/models/{MODEL}:predict", {"instances": 3}).status_code == 400
