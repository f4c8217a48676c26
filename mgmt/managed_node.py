"""A node as management sees it: its parts, its configuration and its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from warren.config import Config
from warren.core.node import Node
from warren.core.resources.disk_monitor import DiskMonitor
from warren.core.resources.memory_monitor import MemoryMonitor
from warren.mgmt.machine import Machine, look, open_files
from warren.mgmt.messages.jobs import MessageJobs
from warren.mgmt.sorted_queues import SortedQueues
from warren.mgmt.statistics.sampler import Statistics

if TYPE_CHECKING:
    from warren.cluster import Cluster
    from warren.federation.links import FederationLinks
    from warren.mgmt.peers import Peers
    from warren.mgmt.snapshot_service import SnapshotService
    from warren.persist.storage.storage import Storage
    from warren.shovel.shovels import Shovels


class SpanExporter(Protocol):
    """Counts spans since the node started. `dropped` ones were too many, or could not be sent."""

    @property
    def exported(self) -> int: ...

    @property
    def dropped(self) -> int: ...


FILES_FRESH_S = 1.0


class OpenListener(NamedTuple):
    """An address at which the node listens.

    `protocol` is named as in health checks: amqp, amqp/ssl, http, https, http/prometheus.
    """

    protocol: str
    host: str
    port: int


@dataclass
class ManagedNode:
    """Everything that the endpoints and metrics read or change.

    `listeners` is filled as listeners open. `stop` ends the node as SIGTERM does.
    """

    node: Node
    config: Config
    memory: MemoryMonitor
    disk: DiskMonitor | None
    storage: Storage | None
    data_directory: Path | None
    stop: Callable[[], None]
    stop_app: Callable[[], None]
    """End everything but the process and the control socket."""
    suspend_listeners: Callable[[bool], None]
    """Accept no new clients (True), or accept them again."""
    open_sockets: Callable[[], int]
    """How many AMQP clients are connected, logged in or not."""

    shovels: Shovels
    """Moves messages on behalf of operators."""

    federation: FederationLinks
    """Gets messages from other brokers."""

    cluster: Cluster | None = None
    """The cluster the node is in; None for a node that is alone."""

    peers: Peers | None = None
    """The management of the other nodes of the cluster."""

    span_exporter: SpanExporter | None = None
    """Exports spans of messages; None if that is not configured."""

    snapshots: SnapshotService | None = None
    """Makes and serves snapshots; None on a node without a data directory."""

    listeners: list[OpenListener] = field(default_factory=list)
    suspended: bool = False
    """Whether new clients are refused."""
    drained: bool = False
    """Whether the node is in maintenance mode."""
    queues: SortedQueues = field(default_factory=SortedQueues)
    paused: str = ""
    """Why the node does not serve until its cluster is there again; empty while it serves."""
    _files: tuple[float, int] | None = None
    statistics: Statistics = field(init=False)
    message_jobs: MessageJobs = field(init=False)
    """Moves and deletes messages for operators."""

    def __post_init__(self) -> None:
        self.statistics = Statistics(self.node, self, self.config.stats_interval_ms / 1000)
        self.message_jobs = MessageJobs(self.node)

    @property
    def name(self) -> str:
        return self.node.name

    def machine(self) -> Machine:
        """The figures of this moment, except that the count of open files may be `FILES_FRESH_S`
        old, since to count them is slow."""
        now = self.node.clock.now()
        if self._files is None or now - self._files[0] > FILES_FRESH_S:
            self._files = (now, open_files())
        return look(self.memory, self.disk, self._files[1], self.open_sockets())
