"""How cipher suites and certificates are shown."""

from __future__ import annotations

import ssl

import pytest

from warren.amqp.tls_session import TlsSession, suite_parts, tls_session


@pytest.mark.parametrize(
    ("suite", "parts"),
    [
        ("TLS_AES_256_GCM_SHA384", ("any", "aes_256_gcm", "aead")),
        ("TLS_CHACHA20_POLY1305_SHA256", ("any", "chacha20_poly1305", "aead")),
        ("ECDHE-RSA-AES256-GCM-SHA384", ("ecdhe_rsa", "aes_256_gcm", "aead")),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", ("ecdhe_ecdsa", "chacha20_poly1305", "aead")),
        ("DHE-RSA-AES128-SHA256", ("dhe_rsa", "aes_128_cbc", "sha256")),
        ("ECDHE-ECDSA-AES128-CCM8", ("ecdhe_ecdsa", "aes_128_ccm_8", "aead")),
        ("AES256-SHA", ("rsa", "aes_256_cbc", "sha")),
        ("AES128-GCM-SHA256", ("rsa", "aes_128_gcm", "aead")),
        ("ECDHE-PSK-AES256-CBC-SHA384", ("ecdhe_psk", "aes_256_cbc", "sha384")),
        ("SRP-RSA-AES-128-CBC-SHA", ("srp_rsa", "aes_128_cbc", "sha")),
        ("NEW-THING", ("undefined", "new-thing", "undefined")),
    ],
)
def test_a_suite_is_shown_by_its_parts(suite: str, parts: tuple[str, str, str]) -> None:
    assert suite_parts(suite) == parts


def test_every_suite_that_openssl_offers_is_understood() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for cipher in context.get_ciphers():
        assert "undefined" not in suite_parts(cipher["name"]), cipher["name"]


def test_a_certificate_is_shown_with_its_issuer_and_its_times() -> None:
    certificate = {
        "subject": ((("organizationName", "people"),), (("commonName", "ann"),)),
        "issuer": ((("commonName", "authority"),),),
        "notBefore": "Jan  1 00:00:00 2026 GMT",
        "notAfter": "Feb  3 04:05:06 2027 GMT",
    }
    assert tls_session("TLSv1.3", "TLS_AES_128_GCM_SHA256", certificate) == TlsSession(
        "tlsv1.3",
        "any",
        "aes_128_gcm",
        "aead",
        "CN=ann,O=people",
        "CN=authority",
        "2026-01-01T00:00:00Z - 2027-02-03T04:05:06Z",
    )
    assert tls_session("TLSv1.2", "AES256-SHA", None).subject is None
