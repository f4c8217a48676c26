"""The parameters that TLS agreed on with a client, under the names that RabbitMQ shows.

OpenSSL names a cipher suite in one word, such as ECDHE-RSA-AES256-GCM-SHA384; RabbitMQ shows its
parts under Erlang's names: `ecdhe_rsa`, `aes_256_gcm`, and `aead` if the cipher needs no hash of
its own.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Any, NamedTuple

from warren.amqp.certificate import distinguished_name

AEAD = "aead"
SUITE_13 = re.compile(r"TLS_(?P<cipher>\w+)_SHA\d+")
SUITE_12 = re.compile(
    r"(?:(?P<exchange>[A-Z]+(?:-[A-Z]+)*?)-)?"
    r"(?:(?P<whole>CHACHA20-POLY1305)|(?P<name>AES|CAMELLIA|ARIA)-?(?P<bits>128|256)"
    r"(?:-(?:CBC|(?P<mode>GCM|CCM8?)))?)"
    r"(?:-(?P<hash>SHA\d*))?"
)


class TlsSession(NamedTuple):
    """The TLS parameters of a connection. `key_exchange`, `cipher` and `hash` are the parts of the
    suite; `subject`, `issuer` and `validity` describe the client's certificate, and are None
    without one."""

    protocol: str
    key_exchange: str
    cipher: str
    hash: str
    subject: str | None = None
    issuer: str | None = None
    validity: str | None = None


def tls_session(version: str, suite: str, certificate: dict[str, Any] | None) -> TlsSession:
    """The session for `version` and `suite` as OpenSSL names them, and `certificate` as returned by
    `getpeercert`."""
    found = TlsSession(version.lower(), *suite_parts(suite))
    if not certificate:
        return found
    times = [
        datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate[name]), UTC)
        for name in ("notBefore", "notAfter")
    ]
    return found._replace(
        subject=distinguished_name(certificate),
        issuer=distinguished_name({"subject": certificate.get("issuer", ())}),
        validity=" - ".join(time.strftime("%Y-%m-%dT%H:%M:%SZ") for time in times),
    )


def suite_parts(suite: str) -> tuple[str, str, str]:
    """Key exchange, cipher and hash; for an unknown suite the whole name is the cipher."""
    modern = SUITE_13.fullmatch(suite)
    if modern is not None:
        return "any", modern["cipher"].lower(), AEAD
    older = SUITE_12.fullmatch(suite)
    if older is None:
        return "undefined", suite.lower(), "undefined"
    exchange = (older["exchange"] or "rsa").replace("-", "_").lower()
    if older["whole"]:
        return exchange, older["whole"].replace("-", "_").lower(), AEAD
    mode = older["mode"]
    cipher = f"{older['name']}_{older['bits']}_{mode or 'cbc'}".lower().replace("ccm8", "ccm_8")
    return exchange, cipher, AEAD if mode else (older["hash"] or "sha").lower()
