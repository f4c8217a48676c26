"""Builds the management of a node: statistics, HTTP listeners, the control socket."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from warren.addresses import Purpose, opened
from warren.config import Config, Listener, SslOptions
from warren.core.log_line import log_event
from warren.mgmt.http.listeners import Audience, HttpListeners, ProtocolFactory
from warren.mgmt.managed_node import ManagedNode, OpenListener
from warren.mgmt.snapshot_service import SnapshotService
from warren.open_files import descriptors
from warren.persist.disk.data_directory import CONTROL_SOCKET
from warren.tls import server_context

log = logging.getLogger("warren.http")

if TYPE_CHECKING:
    from warren.mgmt.http.server import ManagementServer
    from warren.mgmt.passed_requests import PassedRequests

PURPOSES = {
    "http": Purpose.HTTP,
    "https": Purpose.HTTP_TLS,
    "http/prometheus": Purpose.METRICS,
    "https/prometheus": Purpose.METRICS_TLS,
}

SIBLINGS_SOCKET = "http.sock"
"""The socket on which this process takes requests that other processes of its broker pass on to
it."""


class Management:
    """The management of a node. `http_ports` and the other ports are in the order configured."""

    def __init__(self, managed: ManagedNode) -> None:
        self.managed = managed
        if managed.data_directory is not None:
            managed.snapshots = SnapshotService(
                managed.data_directory, managed.config.snapshot_rate, managed.node.clock.now
            )
        managed.node.global_parameters.cluster_id(os.urandom)
        self.http_ports: list[int] = []
        self.https_ports: list[int] = []
        self.metrics_ports: list[int] = []
        self.metrics_tls_ports: list[int] = []
        self._directory_fd: int | None = None
        self._listeners = self._new_listeners()
        self._server: ManagementServer | None = None
        self._passed: PassedRequests | None = None
        # The contexts of TLS listeners; they read their files again when these are renewed.
        self._tls: list[tuple[SslOptions, ssl.SSLContext]] = []

    def _new_listeners(self) -> HttpListeners:
        shares = descriptors()
        return HttpListeners(
            self._load_server,
            connections_max=shares.http,
            descriptor_limit=shares.clients,
            shared_ports=self.managed.config.process is not None,
        )

    async def start(self) -> None:
        """Start statistics and listeners. Raises OSError for addresses and files,
        `ssl.SSLError`."""
        self.managed.statistics.start()
        if self.managed.cluster is not None:
            module = await asyncio.to_thread(import_module, "warren.mgmt.api.endpoints")
            self._passed = module.join_peers(self.managed, self.managed.cluster)
        await self._listen(self.managed.config)

    async def show(self, config: Config, paused: str) -> None:
        """Listen again after `stop`, for requests that change nothing. Raises what `start` does.

        `config` has the same ports, `paused` is why the node serves no clients.
        """
        self.managed.paused = paused
        self.managed.listeners.clear()
        for ports in (
            self.http_ports,
            self.https_ports,
            self.metrics_ports,
            self.metrics_tls_ports,
        ):
            ports.clear()
        self._listeners = self._new_listeners()
        await self._listen(config)

    async def _listen(self, config: Config) -> None:
        if config.control_socket and self.managed.data_directory is not None:
            self._directory_fd = os.open(self.managed.data_directory, os.O_PATH)
            await self._listeners.listen_locally(control_socket(self._directory_fd))
            if config.process is not None:
                path = control_socket(self._directory_fd).with_name(SIBLINGS_SOCKET)
                await self._listeners.listen_locally(path, Audience.SIBLINGS)
        self._tls = [
            (options, server_context(options))
            for options, listeners in (
                (config.http_ssl, config.http_tls_listeners),
                (config.metrics_ssl, config.metrics_tls_listeners),
            )
            if listeners
        ]
        contexts = dict(self._tls)
        for protocol, addresses, ports, audience, context in (
            ("http", config.http_listeners, self.http_ports, Audience.NETWORK, None),
            (
                "https",
                config.http_tls_listeners,
                self.https_ports,
                Audience.NETWORK,
                contexts.get(config.http_ssl),
            ),
            (
                "http/prometheus",
                config.metrics_listeners,
                self.metrics_ports,
                Audience.METRICS,
                None,
            ),
            (
                "https/prometheus",
                config.metrics_tls_listeners,
                self.metrics_tls_ports,
                Audience.METRICS,
                contexts.get(config.metrics_ssl),
            ),
        ):
            for host, port in addresses:
                opening = self._listeners.listen(host, port, audience, context)
                ports.append(await opened(PURPOSES[protocol], Listener(host, port), opening))
                self.managed.listeners.append(OpenListener(protocol, host, ports[-1]))

    async def _load_server(self) -> Callable[[Audience], Awaitable[ProtocolFactory]]:
        """Import the server in a thread, so that messages go on meanwhile."""
        module = await asyncio.to_thread(import_module, "warren.http_server")
        self._server = cast("ManagementServer", module.new_server(self.managed))
        return self._server.protocols

    def reload_certificates(self) -> None:
        """Use the certificate files as they are now; a file that cannot be used is only logged."""
        for options, context in self._tls:
            assert options.certfile is not None
            try:
                context.load_cert_chain(options.certfile, options.keyfile, options.password)
            except (OSError, ssl.SSLError) as error:
                log_event(
                    log,
                    logging.ERROR,
                    "certificate_not_reloaded",
                    file=options.certfile,
                    reason=error,
                )

    async def stop(self) -> None:
        self._listeners.stop()
        await self.managed.message_jobs.stop()
        if self._passed is not None:
            await self._passed.stop()
        if self.managed.snapshots is not None:
            self.managed.snapshots.stop()
        if self._server is not None:
            await self._server.stop()
        if self._directory_fd is not None:
            for name in (CONTROL_SOCKET, SIBLINGS_SOCKET):
                # What stays on a file system that takes no changes is removed by the next start.
                with suppress(OSError):
                    control_socket(self._directory_fd).with_name(name).unlink()
            os.close(self._directory_fd)
            self._directory_fd = None
        await self.managed.statistics.stop()


def control_socket(directory_fd: int) -> Path:
    """The path of the control socket by way of an open directory: the directory's own path may be
    longer than a socket's path may be."""
    return Path(f"/proc/self/fd/{directory_fd}") / CONTROL_SOCKET
