"""The status of a link, without secrets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from hashlib import blake2b
from typing import Any

from warren.core.policies.policy_set import Kind
from warren.federation.upstream import Upstream


class LinkState(Enum):
    """STARTING: the link connects. RUNNING: messages come as they are wanted. ERROR: the link could
    not be set up. SHUTDOWN: it ran and then failed. After ERROR and SHUTDOWN it is tried again."""

    STARTING = "starting"
    RUNNING = "running"
    ERROR = "error"
    SHUTDOWN = "shutdown"


DOWN = frozenset({LinkState.ERROR, LinkState.SHUTDOWN})


@dataclass(frozen=True)
class WantedLink:
    """The purpose of a link: `name` is the exchange or queue here, `policy` asks for it.

    `user` set the upstream, and this user's permissions count here; empty for an operator.
    `cluster` is the name of this cluster, by which the upstream knows it.
    """

    vhost: str
    kind: Kind
    name: str
    upstream: Upstream
    policy: str
    user: str
    cluster: str

    @property
    def remote_name(self) -> str:
        """The name of the exchange or queue at the upstream."""
        upstream = self.upstream
        return (upstream.exchange if self.kind == "exchange" else upstream.queue) or self.name

    @property
    def id(self) -> str:
        """An id that is the same on every node, as long as the purpose of the link is the same."""
        said = (self.vhost, self.kind, self.name, self.upstream.name, self.remote_name)
        return blake2b(repr(said).encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()

    @property
    def connection_name(self) -> str:
        return f"Federation link (upstream: {self.upstream.name}, policy: {self.policy})"


@dataclass
class LinkStatus:
    """The present state of one link. `since` is in seconds since 1970.

    `error` is the last failure, and empty while the link runs. `waiting_for` is why a running link
    cannot publish here.
    """

    since: float
    state: LinkState = LinkState.STARTING
    error: str = ""
    uri: str = ""
    received: int = 0
    pending: int = 0
    waiting_for: str = ""

    def become(self, state: LinkState, now: float, error: str = "") -> None:
        if state is not self.state:
            self.since = now
        self.state = state
        self.error = error


def row(wanted: WantedLink, node: str, status: LinkStatus) -> dict[str, Any]:
    """A link as the HTTP API shows it."""
    shown: dict[str, Any] = {
        "node": node,
        wanted.kind: wanted.name,
        f"upstream_{wanted.kind}": wanted.remote_name,
        "type": wanted.kind,
        "vhost": wanted.vhost,
        "upstream": wanted.upstream.name,
        "policy": wanted.policy,
        "id": wanted.id,
        "status": status.state.value,
        "uri": status.uri or ", ".join(uri.shown for uri in wanted.upstream.uris),
        "timestamp": datetime.fromtimestamp(status.since, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "messages_received": status.received,
        "messages_pending": status.pending,
    }
    if wanted.kind == "queue":
        shown["consumer_tag"] = wanted.upstream.consumer_tag
    if status.state is LinkState.RUNNING:
        shown["local_connection"] = wanted.connection_name
    if status.error:
        shown["error"] = status.error
    if status.waiting_for:
        shown["waiting_for"] = status.waiting_for
    return shown
