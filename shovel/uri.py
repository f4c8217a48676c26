"""AMQP URIs of brokers, as shovels and upstreams take them.

    amqp[s]://[user[:password]@][host[:port]][/vhost][?query]

A URI without a host means this cluster. `Uri.shown` is the URI without its secrets: user, password
and query are left out.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from warren.client.handshake import (
    CHANNELS_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    Mechanism,
    Tuning,
)
from warren.core.definitions.validation import string, term

PORTS = {"amqp": 5672, "amqps": 5671}
HEARTBEAT_S = 10
CONNECTION_TIMEOUT_MS = 60_000
DEFAULT_TUNING = Tuning(HEARTBEAT_S)
DEFAULT_USER = DEFAULT_PASSWORD = "guest"

INTEGERS = ("heartbeat", "connection_timeout", "channel_max", "frame_max", "depth")
BOOLEANS = ("fail_if_no_peer_cert",)
ELSEWHERE = ("host", "port", "username", "password_hash", "virtual_host")
"""Settings that belong in other parts of a URI than its query."""
NO_SERVER_NAME = "disable"


class InvalidUri(ValueError):
    """The text is not a URI of a broker; `str` is RabbitMQ's sentence for it."""

    def __init__(self, uri: Any, reason: str) -> None:
        shown = string(uri) if isinstance(uri, str) else term(uri)
        super().__init__(f"{shown} not a valid URI: {{{reason},{shown}}}")


@dataclass(frozen=True)
class TlsQuery:
    """The TLS settings in a query, for `amqps`."""

    cacertfile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = None
    verify: bool = False
    """Whether the broker has to present a certificate signed by a trusted authority."""
    server_name: str | None = None
    """The name that the certificate must have; None if the name is not checked."""

    def context(self) -> ssl.SSLContext:
        """A TLS context; reads the files. Raises OSError, `ssl.SSLError` among them."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verify and self.server_name is not None
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if self.cacertfile is not None:
            context.load_verify_locations(self.cacertfile)
        elif self.verify:
            context.load_default_certs()
        if self.certfile is not None:
            context.load_cert_chain(self.certfile, self.keyfile, self.password)
        return context


@dataclass(frozen=True)
class Uri:
    """A broker and the login there. `host` None: this cluster."""

    shown: str
    host: str | None
    port: int
    vhost: str
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    tls: TlsQuery | None
    mechanism: Mechanism = "PLAIN"
    tuning: Tuning = DEFAULT_TUNING
    timeout_s: float = CONNECTION_TIMEOUT_MS / 1000


def parse_uri(text: Any, vhost: str = "/") -> Uri:
    """The parsed URI; `vhost` is for a URI without a path. Raises `InvalidUri`."""
    if not isinstance(text, str):
        raise InvalidUri(text, "unable_to_parse_uri")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise InvalidUri(text, "unable_to_parse_uri") from None
    scheme = parts.scheme.lower()
    if not scheme or not text.lower().startswith(f"{scheme}://"):
        raise InvalidUri(text, "unable_to_parse_uri")
    if scheme not in PORTS:
        raise InvalidUri(text, f"{{unexpected_uri_scheme,{string(parts.scheme)}}}")
    port = _port(text, parts)
    query = _query(text, parts.query)
    host = parts.hostname or None
    tuning = Tuning(
        heartbeat_s=_bounded(query, "heartbeat", HEARTBEAT_S, 0, 65_535),
        channel_max=_bounded(query, "channel_max", CHANNELS_MAX, 1, 65_535),
        frame_max=_bounded(query, "frame_max", FRAME_BYTES_MAX, FRAME_BYTES_MIN, FRAME_BYTES_MAX),
    )
    return Uri(
        shown=_shown(parts),
        host=host,
        port=port if port is not None else PORTS[scheme],
        vhost=_vhost(text, parts.path) if parts.path else vhost,
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        tls=_tls(query, host) if scheme == "amqps" else None,
        mechanism="EXTERNAL" if query.get("auth_mechanism") == "external" else "PLAIN",
        tuning=tuning,
        timeout_s=_bounded(query, "connection_timeout", CONNECTION_TIMEOUT_MS, 1, 1 << 31) / 1000,
    )


def _port(text: str, parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError as error:
        in_range = "out of range" in str(error)
        reason = "port_out_of_range" if in_range else "unable_to_parse_uri"
        raise InvalidUri(text, reason) from None
    if port == 0:
        raise InvalidUri(text, "port_out_of_range")
    return port


def _vhost(text: str, path: str) -> str:
    name = path[1:]
    if "/" in name:
        raise InvalidUri(text, f"{{invalid_vhost,{string(path)}}}")
    return unquote(name)


def _query(text: str, query: str) -> Mapping[str, str]:
    found = dict(parse_qsl(query, keep_blank_values=True))
    for name in ELSEWHERE:
        if name in found:
            raise InvalidUri(text, f"{{parameter_unconfigurable_in_query,{name}}}")
    for name in INTEGERS:
        if name in found and not (found[name].isascii() and found[name].isdigit()):
            raise InvalidUri(text, f"{{not_an_integer,{string(found[name])}}}")
    for name in BOOLEANS:
        if name in found and found[name] not in ("true", "false"):
            raise InvalidUri(text, f"{{require_boolean,'{found[name]}'}}")
    return found


def _bounded(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """A number of the query, at most `most`; the default if it is missing or below `least`, as AMQP
    reads 0 as a wish for the default."""
    # The first 20 digits are enough: they already exceed every allowed number.
    value = int(query[name][:20]) if name in query else default
    if value < least:
        return default
    return min(value, most)


def _tls(query: Mapping[str, str], host: str | None) -> TlsQuery:
    name = query.get("server_name_indication", host or "")
    return TlsQuery(
        cacertfile=query.get("cacertfile"),
        certfile=query.get("certfile"),
        keyfile=query.get("keyfile"),
        password=query.get("password"),
        verify=query.get("verify") == "verify_peer",
        server_name=None if name in ("", NO_SERVER_NAME) else name,
    )


def _shown(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
