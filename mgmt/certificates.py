"""When the certificates in PEM files expire.

The standard library tells the expiry only of a peer's certificate, or of a trusted one. So this
module reads it from the DER, stepping over the few fields that come first (RFC 5280, 4.1):

    Certificate  ::= SEQUENCE { tbsCertificate SEQUENCE {
        [0] version OPTIONAL, serialNumber, signature, issuer,
        validity SEQUENCE { notBefore Time, notAfter Time }, ... }, ... }
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime

PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

VERSION = 0xA0
UTC_TIME = 0x17
GENERALIZED_TIME = 0x18
FIELDS_BEFORE_VALIDITY = 3


def expiry_times(pem: str) -> list[datetime]:
    """The expiry of each certificate, in their order. Raises ValueError if one cannot be read."""
    certificates: list[str] = PEM.findall(pem)
    if not certificates:
        raise ValueError("no certificate in it")
    return [not_after(ssl.PEM_cert_to_DER_cert(one)) for one in certificates]


def not_after(der: bytes) -> datetime:
    """When a certificate expires. Raises ValueError if it cannot be read."""
    _, certificate, _ = _element(der)
    _, signed, _ = _element(certificate)
    tag, _, rest = _element(signed)
    fields = signed if tag != VERSION else rest
    for _ in range(FIELDS_BEFORE_VALIDITY):
        _, _, fields = _element(fields)
    _, validity, _ = _element(fields)
    _, _, end = _element(validity)
    tag, octets, _ = _element(end)
    return _time(tag, octets.decode("ascii"))


def _time(tag: int, text: str) -> datetime:
    if tag == UTC_TIME:
        # RFC 5280, 4.1.2.5.1: two-digit years from 50 on are of the twentieth century.
        text = ("19" if text >= "50" else "20") + text
    elif tag != GENERALIZED_TIME:
        raise ValueError(f"a time was wanted, not an element 0x{tag:02X}")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """The tag and content of the first element, and the octets behind it."""
    if len(der) < 2:
        raise ValueError("the certificate is cut off")
    tag, length, start = der[0], der[1], 2
    if length >= 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start])
    end = start + length
    if end > len(der):
        raise ValueError("the certificate is cut off")
    return tag, der[start:end], der[end:]
