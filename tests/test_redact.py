"""What clients and the log see of URLs."""

import pytest

from kserve_torch.redact import redacted


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host:1/x/a%20b.mar", "https://host:1/x/a%20b.mar"),
        ("https://me:secret@host/a.mar?sig=secret#secret", "https://host/a.mar"),
        ("https://me:sec@ret@host/a@b.mar", "https://host/a@b.mar"),
        ("https://host?to=me@secret", "https://host"),
        ("s3://me:secret@bucket/a.mar", "s3://bucket/a.mar"),
        ("HTTP://host/a.mar?sig=se\ncret", "HTTP://host/a.mar"),
        ("file:///models/a.mar", "file:///models/a.mar"),
    ],
)
def test_secrets_are_left_out(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    "url", ["http://me:x#secret@host/a.mar", "http://me:x/secret@host/a.mar", "http://[::1/secret"]
)
def test_of_what_cannot_be_read_only_the_scheme_is_left(url: str) -> None:
    assert redacted(url) == "http://(unreadable)"


@pytest.mark.parametrize("name", ["a.mar", "/models/a?b#c.mar", "me@x/a.mar", ""])
def test_names_and_paths_stay(name: str) -> None:
    assert redacted(name) == name
