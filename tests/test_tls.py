"""Where the certificate of https comes from, and that clients can verify it."""

import datetime
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from kserve_torch.errors import SettingError
from kserve_torch.settings import Settings
from kserve_torch.tls import identity

from .archives import ECHO, make_archive
from .server import Server, free_ports


def keystore(path: Path, password: bytes = b"changeit") -> Path:
    """A PKCS#12 file as keytool and openssl make them."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    encryption = BestAvailableEncryption(password)
    store = pkcs12.serialize_key_and_certificates(b"x", key, certificate, None, encryption)
    path.write_bytes(store)
    return path


def test_pem_files_are_used_as_they_are(tmp_path: Path) -> None:
    settings = Settings(certificate_file=Path("c.pem"), private_key_file=Path("k.pem"))
    files = identity(settings, tmp_path)
    assert (files.certificate, files.key) == (Path("c.pem"), Path("k.pem"))


@pytest.mark.parametrize("stored", [True, False])
def test_what_is_made_is_good_for_tls_and_private(tmp_path: Path, stored: bool) -> None:
    store = keystore(tmp_path / "store.p12") if stored else None
    files = identity(Settings(keystore=store), tmp_path)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)
    assert files.key.stat().st_mode & 0o777 == 0o600
    written = files.certificate.read_bytes()
    assert identity(Settings(keystore=store), tmp_path) == files
    assert files.certificate.read_bytes() == written


@pytest.mark.parametrize("content", [b"", b"no keystore", None])
def test_a_keystore_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "store.p12"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match="keystore: "):
        identity(Settings(keystore=path), tmp_path)


def test_a_keystore_of_another_password(tmp_path: Path) -> None:
    path = keystore(tmp_path / "store.p12", b"other")
    with pytest.raises(SettingError, match="password"):
        identity(Settings(keystore=path), tmp_path)


def test_https_beside_http(tmp_path: Path) -> None:
    make_archive(tmp_path / "store/m.mar", {"handler.py": ECHO})
    config = tmp_path / "config.properties"
    config.write_text(
        f"keystore={keystore(tmp_path / 's.p12')}\ncors_allowed_origin=https://a.example\n"
    )
    (port,) = free_ports(1)
    address = {
        f"TS_{name}_ADDRESS": f"https://127.0.0.1:{port}" for name in ("INFERENCE", "MANAGEMENT")
    }
    with Server(tmp_path / "store", "--ts-config", str(config), env=address) as running:
        body = {"instances": [{"data": 1}]}
        with httpx.Client(verify=False, trust_env=False) as client:  # self-signed
            url = f"https://127.0.0.1:{port}/v1/models/m:predict"
            answer = client.post(url, json=body, headers={"origin": "https://a.example"})
        assert answer.json() == {"predictions": [1]}
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        with running.client() as client:
            assert client.get("/v2/health/ready").json() == {"ready": True}
