"""The keys of token authorisation (CONTRACT D7, G8, G22, T-31).

There are three: one for inference and one for management, which expire, and the API key, which
renews them. Which of the first two a call needs depends on its route, not on its port.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from kserve_torch.errors import ClientError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kserve_torch.settings import Settings

log = logging.getLogger(__name__)

FILE_NAME = "key_file.json"
#: Random bytes of a key; they make 8 url-safe characters.
_KEY_BYTES = 6


class Access(StrEnum):
    """What a token gives access to."""

    INFERENCE = "inference"
    MANAGEMENT = "management"


class InvalidKey(ClientError):
    """No key, a wrong one or one that has expired; the text does not say which."""

    grpc = "PERMISSION_DENIED"
    kind = "InvalidKeyException"

    def __init__(self, act: str) -> None:
        super().__init__(
            f"Token {act} failed. Token either incorrect, expired, or not provided correctly"
        )


@dataclass(frozen=True, slots=True)
class Token:
    """A key and when it expires, in seconds since the epoch."""

    key: str
    expires: float


class Tokens:
    """The keys of this process, in a file that only its user can read.

    Args:
        folder: where ``key_file.json`` is written; an existing one is replaced.
        lifetime: seconds after which an inference or management key expires.
        clock: seconds since the epoch.

    Raises:
        SettingError: the file cannot be written.
    """

    def __init__(
        self, folder: Path, lifetime: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = folder / FILE_NAME
        self._lifetime = lifetime
        self._clock = clock
        self._api_key = _fresh()
        self._tokens = {access: self._issue() for access in Access}
        try:
            self._save(self._tokens)
        except OSError as error:
            raise SettingError(
                f"disable_token_authorization: false needs a writable folder for {FILE_NAME}; "
                f"{folder}: {error.strerror}"
            ) from None
        log.info("token authorization is on; the keys are in %s", self._path)

    def check(self, access: Access, authorization: str | None) -> None:
        """Check that a call has the key for ``access``.

        Args:
            access: what the call's route needs.
            authorization: the ``Authorization`` header: ``Bearer <key>``.

        Raises:
            InvalidKey: it has not, or the key has expired.
        """
        token = self._tokens[access]
        good = _shows(authorization, token.key)
        if not good or self._clock() >= token.expires:
            why = "its key has expired" if good else "it shows no key for that"
            log.info("refused a call for %s: %s", access, why)
            raise InvalidKey("Authorization")

    def renew(self, access: str, authorization: str | None) -> None:
        """Replace a key and rewrite the file, for a client that has the API key.

        Raises:
            InvalidKey: it has not, or there is no key named ``access``.
            OSError: the file cannot be written; the keys stay.
        """
        good = _shows(authorization, self._api_key)
        if not good or access not in list(Access):
            log.info("refused a call for a new key: it shows no API key, or names no kind of key")
            raise InvalidKey("Authentication")
        renewed = {**self._tokens, Access(access): self._issue()}
        self._save(renewed)
        self._tokens = renewed

    def _issue(self) -> Token:
        return Token(_fresh(), self._clock() + self._lifetime)

    def _save(self, tokens: Mapping[Access, Token]) -> None:
        content: dict[str, dict[str, str]] = {
            access.value: {"key": token.key, "expiration time": _instant(token.expires)}
            for access, token in tokens.items()
        }
        content["API"] = {"key": self._api_key}
        draft = self._path.with_name(f"{FILE_NAME}.{secrets.token_hex(4)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
            draft.replace(self._path)
        finally:
            draft.unlink(missing_ok=True)


def tokens_for(settings: Settings) -> Tokens | None:
    """The keys, in the current folder as TorchServe keeps them; None if authorisation is off.

    Raises:
        SettingError: the folder cannot be written to.
    """
    if settings.disable_token_authorization:
        return None
    return Tokens(Path.cwd(), settings.token_expiration_min * 60)


def _fresh() -> str:
    return secrets.token_urlsafe(_KEY_BYTES)


def _shows(authorization: str | None, key: str) -> bool:
    """Whether a header has this key; compares in constant time.

    Neither the scheme's case nor spaces around the key matter (RFC 9110 11.4, 5.5).
    """
    scheme, _, shown = (authorization or "").partition(" ")
    shown = shown.strip(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.encode(), key.encode())


def _instant(seconds: float) -> str:
    """A time since the epoch as text; of one that is too far off, the last that has one."""
    seconds = min(seconds, datetime.max.replace(tzinfo=UTC).timestamp() - 1)
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
