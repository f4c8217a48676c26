"""Descriptions of TLS failures on a link, in words that lead to the file that is at fault.

OpenSSL's own words name constants of its source. Those that this file does not know are passed on
as they are.
"""

from __future__ import annotations

import ssl

TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""The first octets of an alert, and of the first message of a TLS client."""

REASONS = {
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "HTTP_REQUEST": "the peer does not speak TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has shown no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer demands a certificate, and we have shown none",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer refuses our certificate: it does not know its authority",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer refuses our certificate: it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the peer refuses our certificate: it is revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refuses our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer refuses our certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the peer refuses our certificate: it is of no use here",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer has no version of TLS in common with us",
    "UNSUPPORTED_PROTOCOL": "the peer has no version of TLS in common with us",
}


def describe(error: Exception) -> str:
    """One line that says why a link could not be secured."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        return f"certificate verify failed, that of the peer: {reason}"
    if isinstance(error, ssl.SSLError) and error.reason in REASONS:
        return REASONS[error.reason]
    if isinstance(error, ConnectionError):
        return "the peer closed the connection"
    return str(error) or type(error).__name__
