"""The PROXY protocol, versions 1 and 2: the address of the client behind a load balancer.

Loaded only if a listener is configured for it. A library reads the header; this module finds its
end, so that the octets after it stay AMQP.
"""

from __future__ import annotations

from proxyprotocol.detect import ProxyProtocolDetect
from proxyprotocol.result import ProxyResultIPv4, ProxyResultIPv6

HEADER_MAX = 4096
"""The longest header in octets: headers of version 2 with many extensions stay far below."""

_SIGNATURE_V2 = b"\r\n\r\n\x00\r\nQUIT\n"
_LINE_V1_MAX = 107
_PARSER = ProxyProtocolDetect()


class InvalidHeader(ValueError):
    """The octets are not a PROXY header."""


def read_proxy_header(data: bytes) -> tuple[tuple[str, int] | None, bytes] | None:
    """The host and port of the client, and the octets after the header.

    The address is None when the balancer speaks for itself. Returns None while the header is
    incomplete. Raises `InvalidHeader`.
    """
    end = _end_of_header(data)
    if end is None:
        return None
    try:
        result = _PARSER.unpack(data[:end])
    except Exception as error:
        # The library raises whatever its parsing runs into, from struct to socket errors.
        raise InvalidHeader(f"no PROXY header: {error}") from error
    if isinstance(result, ProxyResultIPv4 | ProxyResultIPv6):
        host, port = result.source
        return (str(host), int(port)), data[end:]
    return None, data[end:]


def _end_of_header(data: bytes) -> int | None:
    if _SIGNATURE_V2.startswith(data[:12]):
        if len(data) < 16:
            return None
        end = 16 + int.from_bytes(data[14:16], "big")
        if end > HEADER_MAX:
            raise InvalidHeader(f"a header of {end} octets")
        return end if len(data) >= end else None
    if not b"PROXY ".startswith(data[:6]):
        raise InvalidHeader(f"no PROXY header: {data[:16]!r}")
    line_end = data.find(b"\r\n", 0, _LINE_V1_MAX)
    if line_end >= 0:
        return line_end + 2
    if len(data) >= _LINE_V1_MAX:
        raise InvalidHeader("the first line does not end")
    return None
