"""Puts the management of a running node together: statistics, HTTP, the control socket.

Imported only where it is wanted: the HTTP server costs start time and memory.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

from warren.config import Config, SslOptions
from warren.core.disk_monitor import DiskMonitor
from warren.core.memory_monitor import MemoryMonitor
from warren.core.node import Node
from warren.mgmt.api.endpoints import all_endpoints
from warren.mgmt.http.server import ManagementServer
from warren.mgmt.managed_node import ManagedNode, OpenListener
from warren.mgmt.metrics.routes import metric_routes
from warren.mgmt.statistics.sampler import Statistics
from warren.persist.storage import Storage

CONTROL_SOCKET = "control.sock"


class Management:
    """What was started. `http_ports` are in the order configured."""

    def __init__(
        self,
        config: Config,
        node: Node,
        *,
        memory: MemoryMonitor,
        disk: DiskMonitor | None,
        storage: Storage | None,
        data_directory: Path | None,
        listeners: list[OpenListener],
        stop: Callable[[], None],
        suspend_listeners: Callable[[bool], None],
    ) -> None:
        statistics = Statistics(node, config.stats_interval_ms / 1000)
        self.managed = ManagedNode(
            node=node,
            config=config,
            statistics=statistics,
            memory=memory,
            disk=disk,
            storage=storage,
            data_directory=data_directory,
            stop=stop,
            suspend_listeners=suspend_listeners,
            listeners=listeners,
        )
        statistics.managed = self.managed
        self.http_ports: list[int] = []
        self.https_ports: list[int] = []
        self._directory_fd: int | None = None
        self._server = ManagementServer(
            self.managed, all_endpoints, extra=metric_routes(self.managed)
        )

    async def start(self) -> None:
        """Raises OSError for addresses and files, `ssl.SSLError`."""
        config = self.managed.config
        self.managed.statistics.start()
        if config.control_socket and self.managed.data_directory is not None:
            self._directory_fd = os.open(self.managed.data_directory, os.O_PATH)
            await self._server.listen_locally(control_socket(self._directory_fd))
        for host, port in config.http_listeners:
            self.http_ports.append(await self._server.listen(host, port))
        if config.http_tls_listeners:
            context = tls_context(config.http_ssl)
            for host, port in config.http_tls_listeners:
                self.https_ports.append(await self._server.listen(host, port, context))

    async def stop(self) -> None:
        self.managed.statistics.stop()
        await self._server.stop()
        if self._directory_fd is not None:
            control_socket(self._directory_fd).unlink(missing_ok=True)
            os.close(self._directory_fd)
            self._directory_fd = None


def control_socket(directory_fd: int) -> Path:
    """The socket in an open directory: its path there may be longer than a socket's may be."""
    return Path(f"/proc/self/fd/{directory_fd}") / CONTROL_SOCKET


def tls_context(options: SslOptions) -> ssl.SSLContext:
    assert options.certfile is not None and options.keyfile is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certfile, options.keyfile)
    if options.cacertfile is not None:
        context.load_verify_locations(options.cacertfile)
    return context
