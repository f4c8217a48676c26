"""User names in TLS client certificates, for SASL EXTERNAL (amqp_semantics.md section 1.3)."""

from __future__ import annotations

from typing import Any

_SHORT_NAMES = {
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "streetAddress": "STREET",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "commonName": "CN",
    "domainComponent": "DC",
    "userId": "UID",
}


def distinguished_name(certificate: dict[str, Any]) -> str | None:
    """The subject as RFC 4514 writes it, most specific name first."""
    names = [
        f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}"
        for part in certificate.get("subject", ())
        for name, value in part
    ]
    return ",".join(reversed(names)) or None


def common_name(certificate: dict[str, Any]) -> str | None:
    """The common names of the subject, joined by commas."""
    names = [
        value
        for part in certificate.get("subject", ())
        for name, value in part
        if name == "commonName"
    ]
    return ",".join(names) or None


def alternative_name(certificate: dict[str, Any]) -> str | None:
    """The first subject alternative name."""
    names = certificate.get("subjectAltName", ())
    return str(names[0][1]) if names else None


LOGIN_FROM = {
    "distinguished_name": distinguished_name,
    "common_name": common_name,
    "subject_alternative_name": alternative_name,
}
"""The functions by their names in `ssl_cert_login_from`."""


def _escaped(value: str) -> str:
    """RFC 4514 section 2.4."""
    escaped = "".join(f"\\{letter}" if letter in '",+;<>\\' else letter for letter in value)
    if escaped[:1] in (" ", "#"):
        escaped = f"\\{escaped}"
    if escaped.endswith(" ") and not escaped.endswith("\\ "):
        escaped = f"{escaped[:-1]}\\ "
    return escaped
