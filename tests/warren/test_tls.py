"""The TLS contexts of listeners."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from warren.config import SslOptions
from warren.tls import server_context

PASSWORD = "between us"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def options(authority: trustme.CA, tmp_path: Path) -> SslOptions:
    issued = authority.issue_cert("localhost")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    return SslOptions(certfile=tmp_path / "cert.pem", keyfile=tmp_path / "key.pem")


def with_password(options: SslOptions, **changes: object) -> ssl.SSLContext:
    chosen = {"certfile": options.certfile, "keyfile": options.keyfile, "password": PASSWORD}
    return server_context(SslOptions(**{**chosen, **changes}))  # type: ignore[arg-type]


def handshake(server: ssl.SSLContext, authority: trustme.CA) -> ssl.SSLObject:
    """A handshake in memory; returns the client's side. Raises `ssl.SSLError`."""
    client = ssl.create_default_context()
    authority.configure_trust(client)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours


def test_a_key_with_a_password_needs_it(options: SslOptions, authority: trustme.CA) -> None:
    with pytest.raises(ssl.SSLError):
        server_context(options)
    assert handshake(with_password(options), authority).version() == "TLSv1.3"


def test_versions_can_be_narrowed(options: SslOptions, authority: trustme.CA) -> None:
    context = with_password(options, versions=("tlsv1.1", "tlsv1.2"))
    assert handshake(context, authority).version() == "TLSv1.2"
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_ciphers_can_be_narrowed(options: SslOptions, authority: trustme.CA) -> None:
    wanted = "ECDHE-ECDSA-AES256-GCM-SHA384"
    context = with_password(
        options, versions=("tlsv1.2",), ciphers=("TLS_AES_256_GCM_SHA384", wanted)
    )
    cipher = handshake(context, authority).cipher()
    assert cipher is not None and cipher[0] == wanted
    with pytest.raises(ssl.SSLError):
        with_password(options, ciphers=("NO-SUCH-CIPHER",))


def test_clients_cannot_renegotiate(options: SslOptions) -> None:
    context = with_password(options, honor_cipher_order=True)
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_CIPHER_SERVER_PREFERENCE


@pytest.mark.parametrize(
    ("demand", "mode"), [(True, ssl.CERT_REQUIRED), (False, ssl.CERT_OPTIONAL)]
)
def test_certificates_of_clients_are_verified(
    options: SslOptions, demand: bool, mode: ssl.VerifyMode
) -> None:
    context = with_password(options, verify_peer=True, fail_if_no_peer_cert=demand)
    assert context.verify_mode == mode
    assert with_password(options, fail_if_no_peer_cert=demand).verify_mode == ssl.CERT_NONE
