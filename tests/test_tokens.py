"""Keys that clients show."""

import json
import logging
import re
import stat
from pathlib import Path

import pytest

from kserve_torch.errors import SettingError
from kserve_torch.settings import Settings
from kserve_torch.tokens import Access, InvalidKey, Tokens, tokens_for


def keys(folder: Path) -> dict[str, dict[str, str]]:
    content: dict[str, dict[str, str]] = json.loads((folder / "key_file.json").read_text())
    return content


def bearer(folder: Path, which: str) -> str:
    return f"Bearer {keys(folder)[which]['key']}"


def refused(tokens: Tokens, access: Access, authorization: str | None) -> str:
    with pytest.raises(InvalidKey) as caught:
        tokens.check(access, authorization)
    return caught.value.message


def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "key_file.json"
    file.write_text("{}")
    file.chmod(0o644)
    Tokens(tmp_path, lifetime=60, clock=lambda: 0.5)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = keys(tmp_path)
    assert list(content) == ["inference", "management", "API"]
    assert content["inference"]["expiration time"] == "1970-01-01T00:01:00.500000Z"
    assert all(re.fullmatch(r"[\w-]{8}", entry["key"]) for entry in content.values())
    assert len({entry["key"] for entry in content.values()}) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["key_file.json"]


@pytest.mark.parametrize("access", list(Access))
def test_a_key_opens_its_own_routes_only(tmp_path: Path, access: Access) -> None:
    tokens = Tokens(tmp_path, lifetime=60)
    tokens.check(access, bearer(tmp_path, access))
    other = next(one for one in Access if one is not access)
    for wrong in (
        bearer(tmp_path, other),
        bearer(tmp_path, "API"),
        None,
        "",
        "Bearer ",
        "Bearer é",
    ):
        assert refused(tokens, access, wrong) == (
            "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
        )
    right = bearer(tmp_path, access)
    key = right.removeprefix("Bearer ")
    other = (f"Bearer {key.swapcase()}", f"Basic {key}")
    for wrong in (key, key.swapcase(), *other, " " + right):
        refused(tokens, access, wrong)
    for written in (f"bearer {key}", f"Bearer  {key}", f"{right} "):
        tokens.check(access, written)


def test_a_key_may_live_for_ever(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path, lifetime=60e10)
    shown = keys(tmp_path)["inference"]
    assert shown["expiration time"].startswith("9999-12-31")
    tokens.check(Access.INFERENCE, f"Bearer {shown['key']}")


def test_a_key_expires(tmp_path: Path) -> None:
    now = 1000.0
    tokens = Tokens(tmp_path, lifetime=60, clock=lambda: now)
    key = bearer(tmp_path, "inference")
    now = 1059.9
    tokens.check(Access.INFERENCE, key)
    now = 1060.0
    refused(tokens, Access.INFERENCE, key)


def test_the_log_says_why_a_call_was_refused_and_the_client_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kserve_torch.tokens")
    now = 0.0
    tokens = Tokens(tmp_path, lifetime=60, clock=lambda: now)
    key = bearer(tmp_path, "inference")
    now = 60.0
    caplog.clear()
    told = {refused(tokens, Access.INFERENCE, shown) for shown in (key, "Bearer secret", None)}
    assert len(told) == 1
    assert caplog.messages == [
        "refused a call for inference: its key has expired",
        *["refused a call for inference: it shows no key for that"] * 2,
    ]
    with pytest.raises(InvalidKey):
        tokens.renew("inference", key)
    assert caplog.messages[3:] == [
        "refused a call for a new key: it shows no API key, or names no kind of key"
    ]


def test_renewal_changes_one_key(tmp_path: Path) -> None:
    now = 0.0
    tokens = Tokens(tmp_path, lifetime=60, clock=lambda: now)
    before = keys(tmp_path)
    now = 100.0
    tokens.renew("inference", bearer(tmp_path, "API"))
    after = keys(tmp_path)
    assert after["inference"]["key"] != before["inference"]["key"]
    assert after["inference"]["expiration time"] == "1970-01-01T00:02:40Z"
    assert (after["management"], after["API"]) == (before["management"], before["API"])
    tokens.check(Access.INFERENCE, bearer(tmp_path, "inference"))
    refused(tokens, Access.INFERENCE, f"Bearer {before['inference']['key']}")


def test_a_key_that_nobody_could_read_replaces_none(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path, lifetime=60)
    before = {which: bearer(tmp_path, which) for which in keys(tmp_path)}
    (tmp_path / "key_file.json").unlink()
    (tmp_path / "key_file.json").mkdir()
    with pytest.raises(IsADirectoryError):
        tokens.renew("inference", before["API"])
    tokens.check(Access.INFERENCE, before["inference"])
    assert [path.name for path in tmp_path.iterdir()] == ["key_file.json"]


@pytest.mark.parametrize("access", ["", "API", "INFERENCE", "x"])
def test_renewal_of_what_is_no_key(tmp_path: Path, access: str) -> None:
    tokens = Tokens(tmp_path, lifetime=60)
    with pytest.raises(InvalidKey, match="Token Authentication failed"):
        tokens.renew(access, bearer(tmp_path, "API"))


@pytest.mark.parametrize("which", ["inference", "management"])
def test_renewal_takes_the_api_key(tmp_path: Path, which: str) -> None:
    tokens = Tokens(tmp_path, lifetime=60)
    before = keys(tmp_path)
    with pytest.raises(InvalidKey):
        tokens.renew("inference", bearer(tmp_path, which))
    assert keys(tmp_path) == before


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match="disable_token_authorization: false needs a writable folder"
    ):
        Tokens(tmp_path / "absent", lifetime=60)


def test_off_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tokens_for(Settings()) is None
    assert not list(tmp_path.iterdir())
    assert tokens_for(Settings(disable_token_authorization=False)) is not None
    assert (tmp_path / "key_file.json").exists()
