"""User names in TLS client certificates, for SASL EXTERNAL (amqp_semantics.md section 1.3)."""

from __future__ import annotations

from collections.abc import Callable
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
    """The subject in the notation of RFC 4514, most specific name first."""
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


NAME_TYPES = {
    "dns": "DNS",
    "ip": "IP Address",
    "email": "email",
    "uri": "URI",
    "other_name": "othername",
}
"""Python's names for the types of alternative names, by their names in the configuration."""


def alternative_name(certificate: dict[str, Any], kind: str | None, index: int) -> str | None:
    """The subject's alternative name with this index, from 0, among those of type `kind`, or among
    all if `kind` is None."""
    wanted = None if kind is None else NAME_TYPES[kind]
    names = [
        str(name)
        for found, name in certificate.get("subjectAltName", ())
        if wanted in (None, found)
    ]
    return names[index] if index < len(names) else None


def login_name(
    source: str, name_type: str | None = None, name_index: int = 0
) -> Callable[[dict[str, Any]], str | None]:
    """The function that finds the user's name in a certificate; `source` is a value of
    `ssl_cert_login_from`."""
    if source == "distinguished_name":
        return distinguished_name
    if source == "common_name":
        return common_name
    assert source == "subject_alternative_name", source
    return lambda certificate: alternative_name(certificate, name_type, name_index)


def _escaped(value: str) -> str:
    """The value, escaped as in RFC 4514 section 2.4."""
    escaped = "".join(f"\\{letter}" if letter in '",+;<>\\' else letter for letter in value)
    if escaped[:1] in (" ", "#"):
        escaped = f"\\{escaped}"
    if escaped.endswith(" ") and not escaped.endswith("\\ "):
        escaped = f"{escaped[:-1]}\\ "
    return escaped
