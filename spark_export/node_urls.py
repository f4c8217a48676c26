"""URLs of nodes: `warren://user:password@node:15672`, also with http and https."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from warren.spark_export.errors import OptionRefused

DEFAULT_LOGIN: Final = "guest"

SCHEMES: Final = {"warren": 15672, "http": 15672, "https": 15671}
"""The schemes, with their default ports."""


@dataclass(frozen=True)
class NodeAddress:
    """The address of a node's HTTP API. `ca_file` has the certificates to trust, for TLS."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    ca_file: str | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"


class NodeLogin(NamedTuple):
    user: str
    password: str

    @property
    def authorization(self) -> str:
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")


def is_node_url(text: str) -> bool:
    return text.partition("://")[0].lower() in SCHEMES and "://" in text


def without_login(url: str) -> str:
    """The URL without user and password, which may be shown and sent to tasks."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def parse_node_url(
    url: str, ca_file: str | None, username: str | None, password: str | None
) -> tuple[list[NodeAddress], NodeLogin]:
    """The nodes in `scheme://user:password@host:port,host:port/prefix`, which are asked in turn.

    User and password are in the URL or given beside it; otherwise both are `guest`. Raises
    `OptionRefused`.
    """
    scheme = url.partition("://")[0].lower()
    shown = without_login(url)
    parts = urlsplit(url)
    login_text, _, hosts = parts.netloc.rpartition("@")
    if parts.query or parts.fragment:
        raise OptionRefused(f"{shown} has a query: what to read is said by options")
    if ca_file is not None and scheme != "https":
        raise OptionRefused("option caFile is for https://")
    addresses = []
    for host in hosts.split(","):
        one = urlsplit(f"//{host}")
        try:
            port = SCHEMES[scheme] if one.port is None else one.port
        except ValueError:
            port = 0
        if not port:
            raise OptionRefused(f"{shown} has no port as it should be")
        if not one.hostname:
            raise OptionRefused(f"{shown} names no host; warren://node:15672 does")
        prefix = parts.path.rstrip("/")
        addresses.append(NodeAddress(one.hostname, port, scheme == "https", prefix, ca_file))
    if login_text and (username is not None or password is not None):
        raise OptionRefused(f"{shown} says who asks, and so do options username and password")
    if not login_text:
        return addresses, NodeLogin(username or DEFAULT_LOGIN, password or DEFAULT_LOGIN)
    user, _, secret = login_text.partition(":")
    return addresses, NodeLogin(unquote(user), unquote(secret))
