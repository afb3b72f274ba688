"""Certificate and key for https: PEM files, a keystore, or self-signed (CONTRACT F1)."""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from kserve_torch.errors import SettingError
from kserve_torch.settings import Settings

log = logging.getLogger(__name__)

_SELF_SIGNED_DAYS = 365
#: Seconds between two looks at the files.
LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Files with a certificate chain and its private key, both PEM."""

    certificate: Path
    key: Path


class Renewal:
    """Tells when somebody has replaced the files, as those who renew certificates do.

    Args:
        files: what has been read already.
    """

    def __init__(self, files: Identity) -> None:
        self._files = files
        self._seen = _stamps(files)

    def is_due(self) -> bool:
        """Whether there are new files that can be used; True once for each new pair of them."""
        stamps = _stamps(self._files)
        if not stamps or stamps == self._seen:
            return False
        self._seen = stamps
        try:
            _check(self._files, "certificate", "key")  # one of them may be yet to come
        except SettingError as error:
            log.warning("the certificate is not renewed: %s", error)
            return False
        log.info("the certificate is renewed from %s", self._files.certificate)
        return True


async def keep_current(context: ssl.SSLContext, files: Identity) -> None:
    """For ever: have new connections use the ``files`` that they find, from `LOOK_SECONDS` on."""
    renewal = Renewal(files)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if renewal.is_due():
            with suppress(OSError):  # replaced once more, which the next look sees
                context.load_cert_chain(files.certificate, files.key, password="")


def identity(settings: Settings, folder: Path, *, http_port: bool = False) -> Identity:
    """Who the server says it is where it speaks TLS.

    Args:
        settings: ``certificate_file`` and ``private_key_file``, else ``keystore``, else
            ``ssl_certfile`` and ``ssl_keyfile``; with none of them a certificate is made up.
        folder: PEM files that are made are put here, once, readable by this user alone.
        http_port: whether it is on that port, which has no other files than the last two.

    Raises:
        SettingError: a file or the keystore cannot be used.
    """
    if settings.certificate_file and not http_port:
        return _given(settings, "certificate_file", "private_key_file")
    if settings.ssl_certfile and (http_port or not settings.keystore):
        return _given(settings, "ssl_certfile", "ssl_keyfile")
    made = Identity(folder / "certificate.pem", folder / "key.pem")
    if made.key.exists():
        return made
    if settings.keystore is not None:
        return _written(made, *_from_keystore(settings.keystore, settings.keystore_pass))
    log.warning("https without a certificate: using a self-signed one, which clients will reject")
    return _written(made, *_self_signed())


def _stamps(files: Identity) -> list[tuple[int, int]]:
    """What changes with the files; empty while one is missing."""
    try:
        found = [path.stat() for path in (files.certificate, files.key)]
    except OSError:
        return []
    return [(file.st_ino, file.st_mtime_ns) for file in found]


def _given(settings: Settings, chain: str, secret: str) -> Identity:
    """The files that these two settings name."""
    files = Identity(getattr(settings, chain), getattr(settings, secret))
    _check(files, chain, secret)
    # They are read again later, when a model may have changed the working directory.
    return Identity(files.certificate.absolute(), files.key.absolute())


def _check(files: Identity, chain: str, secret: str) -> None:
    """Check that the files can be used for TLS.

    Args:
        files: the files.
        chain: the name of the setting for the certificate.
        secret: the name of the setting for the key.

    Raises:
        SettingError: one cannot be read, is damaged or encrypted, or they do not belong together.
    """
    for name, path in ((chain, files.certificate), (secret, files.key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise SettingError(f"{name}: {path}: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password, OpenSSL would ask on the terminal for that of an encrypted key.
        context.load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as error:
        reason = (error.reason or "").lower().replace("_", " ")
        reason = reason or "one is not a PEM file, or the key has a passphrase"
        raise SettingError(
            f"{chain}, {secret}: {files.certificate} and {files.key} are not a certificate and "
            f"its private key ({reason})"
        ) from None


def _from_keystore(path: Path, password: str) -> tuple[bytes, bytes]:
    """The certificate chain and the key of a PKCS#12 keystore, as PEM."""
    try:
        store = pkcs12.load_pkcs12(path.read_bytes(), password.encode())
    except OSError as error:
        raise SettingError(f"keystore: {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingError(
            f"keystore: {path} is not a PKCS12 file, or keystore_pass is wrong"
        ) from error
    if store.key is None or store.cert is None:
        raise SettingError(f"keystore: {path} does not hold a certificate and its private key")
    chain = [store.cert, *store.additional_certs]
    certificates = b"".join(entry.certificate.public_bytes(Encoding.PEM) for entry in chain)
    return certificates, store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _self_signed() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=_SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), private


def _written(files: Identity, certificate: bytes, key: bytes) -> Identity:
    for path, content in ((files.certificate, certificate), (files.key, key)):
        path.touch(mode=0o600)
        path.write_bytes(content)
    return files
