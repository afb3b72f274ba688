"""Where the certificate of https comes from, and that clients can verify it."""

import datetime
import os
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from kserve_torch.errors import SettingError
from kserve_torch.settings import Settings
from kserve_torch.tls import Identity, Renewal, identity

from .faults.actor import until
from .makers import ECHO, make_archive
from .server import Server, free_ports


def keystore(path: Path, password: bytes = b"changeit", issuer: Path | None = None) -> Path:
    """A PKCS#12 file as keytool and openssl make them, also with the issuer's certificate."""
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
    issuers = [x509.load_pem_x509_certificate(issuer.read_bytes())] if issuer else None
    store = pkcs12.serialize_key_and_certificates(b"x", key, certificate, issuers, encryption)
    path.write_bytes(store)
    return path


@pytest.fixture
def pem(tmp_path: Path) -> Identity:
    """Files with a certificate and its key."""
    return identity(Settings(), tmp_path)


def test_relative_pem_files_are_found_from_anywhere(
    tmp_path: Path, pem: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = Settings(ssl_certfile=Path(pem.certificate.name), ssl_keyfile=Path(pem.key.name))
    assert identity(names, tmp_path / "other") == pem


def test_pem_files_are_used_as_they_are(tmp_path: Path, pem: Identity) -> None:
    settings = Settings(certificate_file=pem.certificate, private_key_file=pem.key)
    assert identity(settings, tmp_path / "other") == pem


@pytest.mark.parametrize(
    "key", ["ssl_certfile", "ssl_keyfile", "certificate_file", "private_key_file"]
)
def test_a_pem_file_that_is_missing_is_named(tmp_path: Path, pem: Identity, key: str) -> None:
    own = key.startswith("ssl_")
    names = ("ssl_certfile", "ssl_keyfile") if own else ("certificate_file", "private_key_file")
    files = dict(zip(names, (pem.certificate, pem.key), strict=True))
    with pytest.raises(SettingError, match=f"^{key}: .*nothing.pem: No such file"):
        identity(Settings(**{**files, key: tmp_path / "nothing.pem"}), tmp_path, http_port=own)


def test_addresses_have_the_files_of_http_port_where_they_have_none(
    tmp_path: Path, pem: Identity
) -> None:
    settings = Settings(ssl_certfile=pem.certificate, ssl_keyfile=pem.key)
    assert identity(settings, tmp_path / "other") == pem


@pytest.mark.parametrize("stored", [True, False])
def test_http_port_and_the_other_ports_each_have_their_own(
    tmp_path: Path, pem: Identity, stored: bool
) -> None:
    """KServe mounts the one, config.properties names the other."""
    (tmp_path / "other").mkdir()
    other = identity(Settings(keystore=keystore(tmp_path / "s.p12")), tmp_path / "other")
    lines = [f"certificate_file={other.certificate}", f"private_key_file={other.key}"]
    lines = [f"keystore={tmp_path / 's.p12'}"] if stored else lines
    config = tmp_path / "config.properties"
    config.write_text("\n".join([*lines, "enable_grpc_ssl=true", "load_models=none"]))
    (port,) = free_ports(1)
    env = {
        "KSERVE_TLS_CERT_FILE": str(pem.certificate),
        "KSERVE_TLS_KEY_FILE": str(pem.key),
        "TS_METRICS_ADDRESS": f"https://127.0.0.1:{port}",
    }
    with Server(tmp_path, "--ts-config", str(config), env=env) as running:
        ports = (running.ports["http"], port, running.ports["native_grpc"])
        shown = [ssl.get_server_certificate(("127.0.0.1", each)) for each in ports]
    assert shown == [file.read_text() for file in (pem.certificate, *[other.certificate] * 2)]


def test_pem_files_that_are_none_or_do_not_belong_together(tmp_path: Path, pem: Identity) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "junk.pem").write_text("junk")
    other = identity(Settings(), tmp_path / "other")
    for certificate, key, reason in (
        (tmp_path / "junk.pem", pem.key, "PEM"),
        (pem.certificate, tmp_path / "junk.pem", "PEM"),
        (pem.certificate, other.key, "mismatch"),
        (pem.certificate, _locked(pem.key), "passphrase"),
    ):
        settings = Settings(ssl_certfile=certificate, ssl_keyfile=key)
        with pytest.raises(SettingError, match=rf"^ssl_certfile, ssl_keyfile: .*\(.*{reason}"):
            identity(settings, tmp_path)


def _locked(path: Path) -> Path:
    """The same key, with a password that nobody knows."""
    key = load_pem_private_key(path.read_bytes(), None)
    encryption = BestAvailableEncryption(b"secret")
    locked = path.with_name("locked.pem")
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return locked


@pytest.mark.parametrize("grpc", [False, True])
def test_a_server_without_its_key_says_so_and_ends(
    tmp_path: Path, pem: Identity, grpc: bool
) -> None:
    lines = [f"certificate_file={pem.certificate}", f"private_key_file={tmp_path / 'none.pem'}"]
    lines += ["enable_grpc_ssl=true"] if grpc else []
    (tmp_path / "config.properties").write_text("\n".join(lines))
    make_archive(tmp_path / "store/m.mar", {"handler.py": "raise SystemExit(3)"})
    address = "http" if grpc else "https"
    env = {"TS_METRICS_ADDRESS": f"{address}://127.0.0.1:{free_ports(1)[0]}"}
    options = ("--ts-config", str(tmp_path / "config.properties"))
    with Server(tmp_path / "store", *options, env=env, wait=False) as running:
        assert running.wait() == 1
    assert running.lines[-1].startswith("kserve_torch: error: private_key_file: ")
    assert "Traceback" not in running.log
    assert "loading" not in running.log


@pytest.mark.parametrize("stored", [True, False])
def test_what_is_made_is_good_for_tls_and_private(tmp_path: Path, stored: bool) -> None:
    store = keystore(tmp_path / "store.p12") if stored else None
    files = identity(Settings(keystore=store), tmp_path)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)
    assert files.key.stat().st_mode & 0o777 == 0o600
    written = files.certificate.read_bytes()
    assert identity(Settings(keystore=store), tmp_path) == files
    assert files.certificate.read_bytes() == written


def test_a_keystores_chain_is_complete(tmp_path: Path, pem: Identity) -> None:
    (tmp_path / "made").mkdir()
    store = keystore(tmp_path / "store.p12", issuer=pem.certificate)
    made = identity(Settings(keystore=store), tmp_path / "made")
    own, issuer = x509.load_pem_x509_certificates(made.certificate.read_bytes())
    assert own.serial_number == 1
    assert issuer == x509.load_pem_x509_certificate(pem.certificate.read_bytes())


def test_a_keystore_without_a_key(tmp_path: Path, pem: Identity) -> None:
    path = tmp_path / "store.p12"
    trusted = x509.load_pem_x509_certificate(pem.certificate.read_bytes())
    certificates = [pkcs12.PKCS12Certificate(trusted, b"x")]
    path.write_bytes(
        pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(b"changeit"))
    )
    with pytest.raises(SettingError, match="does not hold a certificate and its private key"):
        identity(Settings(keystore=path), tmp_path / "made")


@pytest.mark.parametrize("content", [b"", b"no keystore", None])
def test_a_keystore_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "store.p12"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match="keystore: "):
        identity(Settings(keystore=path), tmp_path)


def test_a_keystore_of_another_password(tmp_path: Path) -> None:
    path = keystore(tmp_path / "store.p12", b"other")
    with pytest.raises(SettingError, match="keystore_pass is wrong"):
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


@pytest.mark.parametrize("wish", ["keep-alive", "close"])
def test_a_connection_ends_without_its_client(tmp_path: Path, pem: Identity, wish: str) -> None:
    """Pools of idle connections do not look at them: that delayed the end of the server by 30 s."""
    options = ("--ssl_certfile", str(pem.certificate), "--ssl_keyfile", str(pem.key))
    context = ssl.create_default_context(cafile=pem.certificate)
    with (
        Server(tmp_path, "--load_models", "none", *options) as running,
        socket.create_connection(("127.0.0.1", running.ports["http"])) as plain,
        socket.socket(fileno=os.dup(plain.fileno())) as below,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        head = f"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: {wish}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        if wish == "close":
            while connection.recv(4096):
                pass
            below.settimeout(15)
            assert below.recv(4096) == b""  # TCP's end after that of TLS
        assert running.stop(timeout=15) == 0


def test_files_are_renewed_once_both_are_there(tmp_path: Path, pem: Identity) -> None:
    renewal, aside = Renewal(pem), tmp_path / "aside"
    assert not renewal.is_due()
    pem.key.rename(aside)
    assert not renewal.is_due()
    aside.rename(pem.key)
    assert not renewal.is_due()
    pem.key.touch()
    assert [renewal.is_due(), renewal.is_due()] == [True, False]


def test_renewed_files_are_used_without_a_restart(tmp_path: Path, pem: Identity) -> None:
    """First what cannot be used: a certificate whose key is yet to come."""
    (tmp_path / "new").mkdir()
    new = identity(Settings(), tmp_path / "new")
    texts = [files.certificate.read_text() for files in (pem, new)]
    lines = ["enable_grpc_ssl=true", "load_models=none"]
    (tmp_path / "config.properties").write_text("\n".join(lines))
    options = ("--ssl_certfile", str(pem.certificate), "--ssl_keyfile", str(pem.key))
    config = ("--ts-config", str(tmp_path / "config.properties"))
    with Server(tmp_path, *config, *options) as running:

        def shown() -> list[str]:
            ports = [running.ports[name] for name in ("http", "native_grpc", "management_grpc")]
            return [ssl.get_server_certificate(("127.0.0.1", port)) for port in ports]

        assert shown() == [texts[0]] * 3
        new.certificate.replace(pem.certificate)
        until(lambda: shown() and running.log.count("the certificate is not renewed: ") == 3)
        assert shown() == [texts[0]] * 3
        new.key.replace(pem.key)
        until(lambda: shown() == [texts[1]] * 3)
    assert running.log.count("the certificate is renewed from ") == 3
    assert "Traceback" not in running.log
