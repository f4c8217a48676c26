"""The source or the target: a broker's management API and its AMQP address."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from warren.client.connection import BrokerTarget, network
from warren.client.handshake import Login
from warren.core.policies.parameters import INTERNAL_CLUSTER_ID
from warren.mgmt.ctl.control_client import ControlClient, RemoteTarget
from warren.mgmt.migrate.errors import MigrateError, WrongAddress

HTTP_S = 600.0
"""Time for a request: it may be an import of thousands of queues."""

CONNECT_S = 15.0

AMQP_PORTS = {"amqp": 5672, "amqps": 5671}
PROTOCOLS = {"amqp": "amqp", "amqp/ssl": "amqps"}
"""The protocol of a listener in the management API, and the scheme of its URL."""

CONNECTION_NAME = "warren migrate"


@dataclass(frozen=True)
class AmqpAddress:
    scheme: str
    host: str
    port: int


@dataclass
class Side:
    """A broker. `role` is its name in errors, such as `source`; `url` is without the password."""

    role: str
    url: str
    username: str
    password: str = field(repr=False)
    amqp: AmqpAddress | None = None
    ca_file: str | None = None
    insecure: bool = False

    def get(self, *path: str, **query: str) -> Any:
        return self._ask("GET", path, query=query)

    def post(self, *path: str, body: Any) -> Any:
        return self._ask("POST", path, body=body)

    def put(self, *path: str, body: Any) -> Any:
        return self._ask("PUT", path, body=body)

    def _ask(self, method: str, path: tuple[str, ...], **options: Any) -> Any:
        # A new connection each time, as a broker closes one that is idle for a minute.
        client = ControlClient(
            RemoteTarget(self.url, self.username, self.password, self.ca_file, self.insecure),
            HTTP_S,
        )
        try:
            return client.request(method, *path, **options)
        finally:
            client.close()

    def find_amqp(self) -> AmqpAddress:
        """The AMQP address: the one that was given, or the one in the management API."""
        if self.amqp is None:
            self.amqp = amqp_listener(self.url, self.get("overview"), self.role)
        return self.amqp

    def target(self, vhost: str) -> BrokerTarget:
        """How to connect to a virtual host."""
        address = self.find_amqp()
        tls = self._tls() if address.scheme == "amqps" else None
        return BrokerTarget(
            f"{address.scheme}://{address.host}:{address.port}",
            network(address.host, address.port, tls, address.host if tls else None),
            Login(self.username, self.password, vhost, CONNECTION_NAME),
            timeout_s=CONNECT_S,
        )

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def side(
    role: str,
    url: str,
    amqp_url: str | None = None,
    *,
    ca_file: str | None = None,
    insecure: bool = False,
) -> Side:
    """Read a management URL, and an AMQP URL if there is one. Raises `WrongAddress`."""
    parts = _parts(url, ("http", "https"), "http://user:password@host:15672")
    username, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme, host, parts.path, "", ""))
    amqp = None
    if amqp_url is not None:
        there = _parts(amqp_url, tuple(AMQP_PORTS), "amqp://host:5672")
        if there.username is not None:
            raise WrongAddress(f"the login belongs into the management URL, not into {role}-amqp")
        assert there.hostname is not None
        amqp = AmqpAddress(there.scheme, there.hostname, there.port or AMQP_PORTS[there.scheme])
    return Side(role, bare, username, password, amqp, ca_file, insecure)


def refuse_one_broker(source: Side, target: Side) -> None:
    """Raise `MigrateError` if both are the same broker, or nodes of one cluster: a queue would be
    read to be published to itself.

    The cluster's id alone does not decide that: it is in exported definitions and in backups, so
    another broker may have it. One broker has the same nodes in the same processes, and listens at
    the same ports.
    """
    if _running_nodes(source) & _running_nodes(target) and _ports(source) == _ports(target):
        raise MigrateError("the source and the target are the same broker")


def _running_nodes(side: Side) -> set[tuple[str, str, str]]:
    """Each node with its cluster's id and its process id."""
    parameters = {one["name"]: str(one["value"]) for one in side.get("global-parameters")}
    cluster_id = parameters.get(INTERNAL_CLUSTER_ID, "")
    return {
        (cluster_id, node["name"], str(node["os_pid"]))
        for node in side.get("nodes")
        if node.get("os_pid")
    }


def _ports(side: Side) -> set[tuple[str, int]]:
    """The protocols and ports of all listeners."""
    return {(one["protocol"], one["port"]) for one in side.get("overview")["listeners"]}


def amqp_listener(url: str, overview: Mapping[str, Any], role: str) -> AmqpAddress:
    """The AMQP listener of the node that gave this overview. Raises `MigrateError`.

    The host is the one of the management URL: the addresses of listeners are often `::`. With
    https, a listener with TLS is preferred; with http, one without.
    """
    parts = urlsplit(url)
    found: dict[str, int] = {}
    for one in overview.get("listeners", ()):
        scheme = PROTOCOLS.get(one.get("protocol"))
        if scheme is not None and one.get("node") == overview.get("node"):
            found.setdefault(scheme, one["port"])
    order = ("amqps", "amqp") if parts.scheme == "https" else ("amqp", "amqps")
    for scheme in order:
        if scheme in found:
            assert parts.hostname is not None
            return AmqpAddress(scheme, parts.hostname, found[scheme])
    raise MigrateError(
        f"the {role} {url} tells of no AMQP listener (its user needs the tag monitoring):"
        f" give --{role}-amqp"
    )


def _parts(url: str, schemes: tuple[str, ...], example: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        # The URL may hold a password, so it is not shown.
        raise WrongAddress(f"a URL such as {example} was wanted")
    return parts
