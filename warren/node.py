"""Builds, runs and stops a node, as its configuration says.

`node_parts.py` makes the parts: definitions, messages, access, monitors, listeners, shovels and
federation links. This module joins them. Only these two modules, and `cluster.py` for clusters,
know the parts of a node.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial
from importlib import import_module
from random import SystemRandom
from typing import TYPE_CHECKING, TypeAlias

from warren.addresses import Purpose, opened
from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.server import AmqpListener
from warren.amqp.starting import StartingListener
from warren.clock import LoopClock
from warren.config import ClusterConfig, Config
from warren.config import Listener as Address
from warren.core.access.access_control import create_defaults
from warren.core.log_line import log_event, log_fault
from warren.core.node import Node
from warren.core.ports import MetadataStore
from warren.core.resources.alarms import Alarms, Resource
from warren.core.resources.memory_monitor import MemoryMonitor
from warren.core.scheduling.periodic import Periodic
from warren.expected_directory import expect_directory
from warren.faults import Faults, NodeFailed
from warren.federation.links import FederationLinks
from warren.listening import tls_files
from warren.message_storage import MessageStorage, RecoveryProgress
from warren.message_traces import MessageTraces
from warren.node_parts import (
    KeptMessages,
    Stores,
    access_control,
    amqp_listener,
    federation_of,
    in_memory,
    kept_messages,
    memory_monitor,
    new_token,
    own_metadata,
    server_properties,
    shovels_of,
)
from warren.open_files import descriptors
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.group_commit import OnFault
from warren.persist.recovery.recovery import Recovery
from warren.persist.storage.missing_store import begin_storage, expect_store
from warren.second_copy_thread import SecondCopyThread
from warren.shovel.assignments import OnlyNode
from warren.shovel.shovels import Shovels

if TYPE_CHECKING:
    from warren.cluster import Cluster
    from warren.management import Management
    from warren.mgmt.managed_node import ManagedNode

log = logging.getLogger("warren.node")

START_QUIETLY_S = 0.2
"""A recovery that takes longer than this is reported to clients while it lasts."""

GIVE_UP_S = 10.0
"""The time that each step of a stop may take after a fault."""

STOP_GRACE_S = 2.0
"""The time that clients may take to answer connection.close when the node stops."""


Joined: TypeAlias = Callable[[], Awaitable[None]]
"""Awaited when a starting node has joined its cluster."""


class NodeEnding(Enum):
    """How a node ends: for good (STOP), by a fault of its own (FAULT), all but its process
    (STOP_APP), or until its cluster is back (PAUSE)."""

    STOP = auto()
    FAULT = auto()
    STOP_APP = auto()
    PAUSE = auto()


class RunningNode:
    """A node with open listeners. `amqp_ports` and `tls_ports` are in the order configured."""

    def __init__(
        self,
        node: Node,
        listener: AmqpListener,
        monitors: list[Periodic],
        metadata: MetadataStore,
        directory: DataDirectory | None,
        kept: KeptMessages | None,
        memory: MemoryMonitor,
        cluster: Cluster | None,
        shovels: Shovels,
        federation: FederationLinks,
        faults: Faults,
    ) -> None:
        self.faults = faults
        self.shovels = shovels
        self.federation = federation
        self.node = node
        self.amqp_ports: list[int] = []
        self.tls_ports: list[int] = []
        self._listener = listener
        self._monitors = monitors
        self._metadata = metadata
        self._directory = directory
        self.messages = kept and kept.messages
        self._memory = memory
        self._disk = kept and kept.disk
        self.cluster = cluster
        self._traces = MessageTraces(
            node, None if directory is None else directory.path, faults.report
        )
        self._second_copy: SecondCopyThread | None = None
        self.management: Management | None = None
        # Set when an operator asks the node to stop; the second leaves its process running.
        self.stop_wanted = asyncio.Event()
        self.stop_app_wanted = asyncio.Event()
        self.left_unwritten = False  # The disk refused changes when the node stopped.
        self._clock: LoopClock  # The clock of all parts.

    @classmethod
    async def start(
        cls,
        config: Config,
        joined: Joined | None = None,
        new_clock: Callable[[asyncio.AbstractEventLoop], LoopClock] = LoopClock,
    ) -> RunningNode:
        """Open the data directory and the listeners, and join the cluster if one is configured.

        `joined` is awaited when the node is in its cluster, before it serves any client.
        `new_clock` makes the clock of the node.

        Raises `DataDirectoryRefused`, `NodeRefused`, `DefinitionsFileRefused`, `OSError` for
        addresses and files, `ssl.SSLError`, `NodeFailed`.
        """
        faults = Faults(asyncio.get_running_loop())
        faults.catch()
        clock = new_clock(asyncio.get_running_loop())
        starting = asyncio.ensure_future(cls._start(config, faults, joined, clock))
        failing = asyncio.ensure_future(faults.happened.wait())
        try:
            # After a fault, the start may wait for something that never comes.
            await asyncio.wait((starting, failing), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                assert faults.first is not None
                raise NodeFailed(faults.first)
            return starting.result()
        except BaseException:
            starting.cancel()
            await asyncio.wait((starting,))
            faults.release()
            raise
        finally:
            failing.cancel()

    @classmethod
    async def _start(
        cls, config: Config, faults: Faults, joined: Joined | None, clock: LoopClock
    ) -> RunningNode:
        loop = asyncio.get_running_loop()
        directory = None if config.data_dir is None else DataDirectory.open(config.data_dir)
        metadata: MetadataStore | None = None
        cluster: Cluster | None = None
        running: RunningNode | None = None
        try:
            if directory is not None:
                expect_directory(config, directory)
                begin_storage(directory)
            metadata, deleted_queues = own_metadata(directory, loop, clock, faults.report)
            if config.cluster is not None:
                cluster = await _join(
                    config, config.cluster, loop, clock, directory, metadata, faults.report
                )
                metadata = cluster.metadata
                deleted_queues = cluster.with_own_notes(deleted_queues)
            if joined is not None:
                await joined()
            recovery = None
            addresses = config.amqp_listeners
            if directory is not None:
                member = _name(config) if cluster is not None else None
                expect_store(directory, metadata.records(("queue",)), member)
                recovery, addresses = await _recover(config, directory)
            await _create_defaults(config, metadata)
            stores = Stores(metadata, deleted_queues, directory, recovery)
            running = cls._build(config, loop, clock, stores, cluster, faults)
            running._clock = clock
            if config.process is not None:
                running.node.is_one_of(config.process.count)
            await running._traces.start(config)
            if cluster is not None:
                await cluster.serve(running.node)
            elif directory is not None:
                running._second_copy = SecondCopyThread(
                    metadata, directory, loop, clock, faults.report
                )
            await running._define(config)
            await running._listen(config, addresses)
            if config.runs_links:
                running.shovels.start()
                running.federation.start()
            await running._manage(config)
        except BaseException:
            if running is not None:
                await running.stop()
            else:
                await _close(metadata, directory, cluster)
            if directory is not None and config.cluster is None and faults.first is None:
                directory.discard_new()
            raise
        return running

    @classmethod
    def _build(
        cls,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        clock: LoopClock,
        stores: Stores,
        cluster: Cluster | None,
        faults: Faults,
    ) -> RunningNode:
        """Make the parts of the node, and join them."""
        name, metadata = _name(config), stores.metadata
        alarms = Alarms(name)
        memory = memory_monitor(config, alarms)
        kept = kept_messages(config, loop, clock, stores, alarms, memory, faults)
        monitors = [Periodic(clock, memory.check), *(() if kept is None else kept.monitors)]
        new_backing_queue = in_memory if kept is None else kept.new_backing_queue
        faults.watch(lambda: alarms.report(Resource.FAULT, True))
        placement = None
        if cluster is not None:
            card_files = kept and kept.messages.storage.card_files
            placement = cluster.placement(alarms, card_files)
            new_backing_queue = cluster.backing_queues(new_backing_queue)
        node = Node(
            name,
            clock=clock,
            codec=AmqpContentCodec(),
            metadata=metadata,
            access=access_control(config, metadata),
            alarms=alarms,
            random=SystemRandom(),
            new_token=new_token,
            new_backing_queue=new_backing_queue,
            server_properties=server_properties(),
            placement=placement,
            cluster_name=config.cluster_name,
        )
        listener = amqp_listener(config, node, loop)
        memory.is_busy = listener.was_busy
        place = OnlyNode(name) if cluster is None else cluster
        shovels = shovels_of(node, place, listener, clock)
        federation = federation_of(node, place, listener, clock)
        if cluster is not None:
            cluster.on_nodes_changed = partial(_look_again, shovels, federation)
        if kept is not None:
            kept.messages.settle_unclaimed(node, metadata, stores.deleted_queues, cluster)
        for monitor in monitors:
            monitor.start()
        return cls(
            node,
            listener,
            monitors,
            metadata,
            stores.directory,
            kept,
            memory,
            cluster,
            shovels,
            federation,
            faults,
        )

    async def _listen(self, config: Config, addresses: tuple[Address, ...]) -> None:
        for host, port in addresses:
            address = Address(host, port)
            opening = self._listener.listen(host, port)
            self.amqp_ports.append(await opened(Purpose.AMQP, address, opening))
        if config.tls_listeners:
            tls = tls_files(config)
            for host, port in config.tls_listeners:
                address = Address(host, port)
                opening = self._listener.listen(host, port, tls)
                self.tls_ports.append(await opened(Purpose.AMQP_TLS, address, opening))

    async def _define(self, config: Config) -> None:
        """Load the definitions file of the configuration; its definitions replace the defaults."""
        if config.load_definitions is not None:
            module = import_module("warren.mgmt.definitions.at_start")
            await module.define(config, self.node, self.cluster and self.cluster.running)

    async def _manage(self, config: Config) -> None:
        """Start the HTTP listeners and the control socket, if any are configured."""
        wanted = (
            config.http_listeners
            or config.http_tls_listeners
            or config.metrics_listeners
            or config.metrics_tls_listeners
        )
        local = config.control_socket and self._directory is not None
        if not (wanted or local):
            return
        module = import_module("warren.management")
        listeners = [
            module.OpenListener(protocol, address.host, port)
            for protocol, addresses, ports in (
                ("amqp", config.amqp_listeners, self.amqp_ports),
                ("amqp/ssl", config.tls_listeners, self.tls_ports),
            )
            for address, port in zip(addresses, ports, strict=True)
        ]
        managed: ManagedNode = module.ManagedNode(
            node=self.node,
            config=config,
            memory=self._memory,
            disk=self._disk,
            storage=self.messages.storage if self.messages is not None else None,
            data_directory=self._directory.path if self._directory is not None else None,
            listeners=listeners,
            stop=self.stop_wanted.set,
            stop_app=self.stop_app_wanted.set,
            suspend_listeners=self._listener.suspend,
            open_sockets=lambda: self._listener.open_sockets,
            cluster=self.cluster,
            shovels=self.shovels,
            federation=self.federation,
            span_exporter=self._traces.exporter,
        )
        self.management = module.Management(managed)
        await self.management.start()

    @property
    def http_ports(self) -> list[tuple[str, int]]:
        """The protocols and ports of the HTTP listeners."""
        management = self.management
        if management is None:
            return []
        return [
            *(("http", port) for port in management.http_ports),
            *(("https", port) for port in management.https_ports),
            *(("metrics", port) for port in management.metrics_ports),
            *(("metrics over TLS", port) for port in management.metrics_tls_ports),
        ]

    def reload_certificates(self) -> None:
        self._listener.reload_certificates()
        if self.cluster is not None:
            self.cluster.reload_certificates()
        if self.management is not None:
            self.management.reload_certificates()

    async def ends(self) -> NodeEnding:
        """Wait until the node is to end; returns how."""
        events = [self.faults.happened, self.stop_wanted, self.stop_app_wanted]
        if self.cluster is not None:
            events.append(self.cluster.must_pause)
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.faults.happened.is_set():
            return NodeEnding.FAULT
        if self.stop_wanted.is_set():
            return NodeEnding.STOP
        return NodeEnding.STOP_APP if self.stop_app_wanted.is_set() else NodeEnding.PAUSE

    def as_before(self, config: Config) -> Config:
        """The configuration for starting again, with the ports that are open now."""
        cluster = config.cluster
        if cluster is not None:
            assert self.cluster is not None
            listener = cluster.listener._replace(port=self.cluster.link_port)
            cluster = dataclasses.replace(cluster, listener=listener)

        def same(addresses: tuple[Address, ...], ports: list[int]) -> tuple[Address, ...]:
            return tuple(
                address._replace(port=port) for address, port in zip(addresses, ports, strict=True)
            )

        management = self.management
        http = management.http_ports if management is not None else []
        https = management.https_ports if management is not None else []
        metrics = management.metrics_ports if management is not None else []
        metrics_tls = management.metrics_tls_ports if management is not None else []
        return dataclasses.replace(
            config,
            cluster=cluster,
            amqp_listeners=same(config.amqp_listeners, self.amqp_ports),
            tls_listeners=same(config.tls_listeners, self.tls_ports),
            http_listeners=same(config.http_listeners, http),
            http_tls_listeners=same(config.http_tls_listeners, https),
            metrics_listeners=same(config.metrics_listeners, metrics),
            metrics_tls_listeners=same(config.metrics_tls_listeners, metrics_tls),
        )

    async def stop(self, reason: str = "shutdown") -> None:
        """Tell the clients why, write pending definitions and messages, and release the directory.

        After a fault, messages are left on the disk as they are.
        """
        for monitor in self._monitors:
            monitor.stop()
        if self.faults.first is None:
            await self._stop_in_order(reason)
        else:
            await self._give_up()
        self.faults.release()

    async def _stop_in_order(self, reason: str) -> None:
        if self.management is not None:
            await self.management.stop()
        await asyncio.gather(self.shovels.stop(), self.federation.stop())
        if self.messages is not None:
            # Clients are to get the confirms of their publishes before they are disconnected.
            self.node.alarms.set_flow(True)
            await self.messages.settle(STOP_GRACE_S, lambda: self.node.all_buried)
        self.node.hold_burials()
        await self._listener.stop(STOP_GRACE_S, reason)
        if self.messages is not None:
            await self.messages.settle(STOP_GRACE_S, lambda: self.node.all_buried)
        if self.cluster is not None:
            self.node.stop_following()
            await self.cluster.stop_serving()
        self.node.stop()
        if self.cluster is not None:
            self.cluster.mirroring.stop()
        if self.messages is not None:
            self.left_unwritten |= self.messages.stop() > 0
        if self._second_copy is not None:
            self._second_copy.close()
        self._clock.end()
        await self._traces.stop()
        self.left_unwritten |= await _close(self._metadata, self._directory, self.cluster)

    async def show(self, config: Config) -> None:
        """After a stop for a pause: answer over HTTP with what the node knew; change nothing.

        `config` has the ports. Raises OSError, `ssl.SSLError`.
        """
        if self.management is not None:
            assert self.cluster is not None
            await self.management.show(config, self.cluster.pause_reason)

    async def show_nothing(self) -> None:
        """End the answers that `show` has begun."""
        management, self.management = self.management, None
        if management is not None:
            await management.stop()

    async def _give_up(self) -> None:
        """Stop as far as possible after a fault, when no part can be relied on."""
        self._clock.end()
        await _try_to_stop(self.shovels.stop())
        await _try_to_stop(self.federation.stop())
        await _try_to_stop(self._listener.stop(STOP_GRACE_S, "internal error"))
        if self.management is not None:
            await _try_to_stop(self.management.stop())
        if self.messages is not None:
            await _try_to_stop(asyncio.to_thread(self.messages.give_up))
        await _try_to_stop(_close(self._metadata, None, self.cluster))
        if self._directory is not None:
            self._directory.close()


async def _try_to_stop(step: Awaitable[object]) -> None:
    """Run a step of a stop; log its failure, and cancel it if it takes long."""
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await step
    except Exception:
        log_fault(log, "stop_failed")


def _look_again(shovels: Shovels, federation: FederationLinks) -> None:
    """Check shovels and federation again: nodes have come or gone, or this node has lost its
    lease."""
    shovels.look_again()
    federation.look_again()


def _name(config: Config) -> str:
    return config.node_name or f"warren@{socket.gethostname().split('.')[0]}"


async def _join(
    config: Config,
    options: ClusterConfig,
    loop: asyncio.AbstractEventLoop,
    clock: LoopClock,
    directory: DataDirectory | None,
    own: MetadataStore,
    on_fault: OnFault,
) -> Cluster:
    """Join the cluster, bringing the node's own definitions. Raises `NodeRefused`, OSError."""
    module = import_module("warren.cluster")
    try:
        definitions = list(own.records(()))
    finally:
        own.close()
    cluster: Cluster = await module.Cluster.open(
        options, _name(config), loop, clock, directory, definitions, on_fault
    )
    return cluster


async def _create_defaults(config: Config, metadata: MetadataStore) -> None:
    # The former users may be among the definitions that cannot be read.
    if config.load_definitions is not None or metadata.unreadable:
        return
    commit = create_defaults(
        metadata,
        random_bytes=os.urandom,
        user=config.default_user,
        password=config.default_pass,
        vhost=config.default_vhost,
        tags=config.default_user_tags,
        permissions=config.default_permissions,
    )
    if commit is not None and not commit.visible:
        decided = asyncio.Event()
        commit.then(decided.set)
        await decided.wait()


async def _recover(
    config: Config, directory: DataDirectory
) -> tuple[Recovery, tuple[Address, ...]]:
    """Recover the messages. If that takes long, clients are told its progress meanwhile.

    Returns the addresses to listen at: port 0 has been replaced by the port opened meanwhile.
    """
    progress = RecoveryProgress()
    recovering = asyncio.ensure_future(MessageStorage.recover(directory, progress.report))
    done, _ = await asyncio.wait((recovering,), timeout=START_QUIETLY_S)
    if done:
        return recovering.result(), config.amqp_listeners
    listener = StartingListener(
        server_properties(), progress.describe, descriptor_limit=descriptors().clients
    )
    # If the broker has other processes, clients should use those.
    tells = config.process is None
    clients = "told to come back" if tells else "at other processes"
    log_event(log, logging.INFO, "recovery_started", clients=clients)
    try:
        addresses = [
            address._replace(port=await opened(Purpose.AMQP, address, listener.listen(*address)))
            for address in (config.amqp_listeners if tells else ())
        ]
        return await recovering, tuple(addresses) if tells else config.amqp_listeners
    finally:
        await listener.close()
        # The recovery thread cannot be stopped, and the directory stays locked until it has ended.
        await asyncio.wait((recovering,))


async def _close(
    metadata: MetadataStore | None, directory: DataDirectory | None, cluster: Cluster | None
) -> bool:
    """Close what there is; returns whether definitions could not be written."""
    if cluster is not None:
        await cluster.close()
    lost = 0 if cluster is not None or metadata is None else metadata.close()
    if directory is not None:
        directory.close()
    return lost > 0
