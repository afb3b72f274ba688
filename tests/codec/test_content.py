from __future__ import annotations

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.codec import content
from kserve_torch.errors import InvalidInput, PayloadTooLarge, UnsupportedContent

LIMIT = 1000


def raw_deflate(body):
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


CODINGS = {"gzip": gzip.compress, "deflate": zlib.compress, "x-gzip": gzip.compress}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", ("", {})),
        ("Application/JSON", ("application/json", {})),
        ("a/b; Charset=UTF-8 ;c", ("a/b", {"charset": "UTF-8"})),
        ('a/b; x="1;2"; y=3', ("a/b", {"x": "1;2", "y": "3"})),
        (r'a/b; x="q\"\\"', ("a/b", {"x": 'q"\\'})),
        (r'a/b; x="1\";2"; y=3', ("a/b", {"x": '1";2', "y": "3"})),
        ('a/b; x=""', ("a/b", {"x": ""})),
        ('a/b; x="open', ("a/b", {"x": '"open'})),
        ('a/b; x=shut"', ("a/b", {"x": 'shut"'})),
        ('a/b; x="', ("a/b", {"x": '"'})),
        (";;=;", ("", {"": ""})),
    ],
)
def test_media_types(value, expected):
    assert content.parse_media_type(value) == expected


def test_a_long_quoted_string_takes_no_time():
    """A form has thousands of headers; 2 MB took minutes when each letter copied those before."""
    value = ";" * 2_000_000
    assert content.parse_media_type(f'a/b; x="{value}"') == ("a/b", {"x": value})


@given(st.text())
def test_any_media_type_parses(value):
    media_type, _ = content.parse_media_type(value)
    assert media_type == media_type.strip()


@pytest.mark.parametrize("coding", CODINGS)
@given(body=st.binary(max_size=LIMIT))
def test_round_trip(coding, body):
    assert content.decode_body(CODINGS[coding](body), coding, LIMIT) == body


@given(st.binary(max_size=LIMIT))
def test_deflate_without_its_wrapper(body):
    assert content.decode_body(raw_deflate(body), "Deflate", LIMIT) == body


def test_deflate_without_its_wrapper_that_begins_as_with_one():
    """RFC 1951 3.2.4: the five bits behind a block's header mean nothing."""
    stored = b"\x08\x01\0\xfe\xffx"
    assert content.decode_body(stored + raw_deflate(b"y"), "deflate", LIMIT) == b"xy"


def test_codings_are_undone_from_the_last():
    sent = gzip.compress(zlib.compress(gzip.compress(zlib.compress(b"x"))))
    assert content.decode_body(sent, " deflate, gzip,deflate, identity , GZIP", LIMIT) == b"x"


def test_no_coding():
    assert content.decode_body(b"x", "", LIMIT) == b"x"
    assert content.decode_body(b"x", "identity", LIMIT) == b"x"


@pytest.mark.parametrize("coding", CODINGS)
def test_bombs_are_refused_before_they_unfold(coding):
    bomb = CODINGS[coding](bytes(5_000_000))
    for sent, codings in ((bomb, coding), (gzip.compress(bomb), f"{coding}, gzip")):
        with pytest.raises(PayloadTooLarge, match=f"over {LIMIT} bytes"):
            content.decode_body(sent, codings, LIMIT)
    assert len(content.decode_body(CODINGS[coding](bytes(LIMIT)), coding, LIMIT)) == LIMIT


def test_of_a_bomb_of_several_pieces_no_more_is_unfolded():
    bomb = gzip.compress(bytes(10_000_000), compresslevel=1)
    assert len(bomb) > 2 * content._PIECE
    assert len(content._undone(bomb, 31, LIMIT, 1)[0]) == LIMIT


@pytest.mark.parametrize(
    ("body", "coding", "error"),
    [
        (b"x", "br", UnsupportedContent),
        (b"x", "gzip, zstd", UnsupportedContent),
        (b"x", ", ".join(["gzip"] * 5), UnsupportedContent),
        (b"x", "gzip", InvalidInput),
        (b"", "gzip", InvalidInput),
        (b"", "deflate", InvalidInput),
        (gzip.compress(b"x", mtime=0)[:-1], "gzip", InvalidInput),
        (gzip.compress(b"x", mtime=0) + b"y", "gzip", InvalidInput),
        (gzip.compress(b"x", mtime=0) + gzip.compress(b"y", mtime=0)[:-1], "gzip", InvalidInput),
        (zlib.compress(b"x") * 2, "deflate", InvalidInput),
        (zlib.compress(b"x")[:-1] + b"\0", "deflate", InvalidInput),
    ],
)
def test_damaged_bodies(body, coding, error):
    with pytest.raises(error, match=r"^Content-Encoding: "):
        content.decode_body(body, coding, LIMIT)


@given(st.lists(st.binary(max_size=LIMIT // 4), min_size=1, max_size=4))
def test_gzip_data_may_have_several_members(members):
    """RFC 1952 2.2; bgzip and ``cat a.gz b.gz`` make such."""
    sent = b"".join(map(gzip.compress, members))
    assert content.decode_body(sent, "gzip", LIMIT) == b"".join(members)


def test_members_larger_than_what_is_read_at_once():
    members = [random.Random(i).randbytes(30_000) for i in range(5)]
    sent = b"".join(map(gzip.compress, members))
    assert content.decode_body(sent, "gzip", 150_000) == b"".join(members)
    with pytest.raises(PayloadTooLarge):
        content.decode_body(sent, "gzip", 149_999)


def test_members_have_one_limit_in_all_and_are_no_endless_work():
    sent = gzip.compress(bytes(LIMIT // 2)) * 2
    assert len(content.decode_body(sent, "gzip", LIMIT)) == LIMIT
    with pytest.raises(PayloadTooLarge):
        content.decode_body(sent + gzip.compress(b"x"), "gzip", LIMIT)
    with pytest.raises(InvalidInput, match="goes on after its end"):
        content.decode_body(gzip.compress(b"") * 10_001, "gzip", LIMIT)
