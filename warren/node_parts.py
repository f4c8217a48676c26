"""The parts of a node, each made from its configuration. `node.py` joins them."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

from warren import __version__
from warren.allocator import release_freed_memory
from warren.amqp.certificate import login_name
from warren.amqp.field_table import encode_table
from warren.amqp.server import AmqpListener
from warren.clock import LoopClock
from warren.config import Config
from warren.core.access.access_control import AccessControl
from warren.core.access.password import Passwords
from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.paging import Pager
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.field import Table
from warren.core.node import Node, default_server_properties
from warren.core.ports import MetadataStore
from warren.core.resources.alarms import Alarms, Resource
from warren.core.resources.disk_monitor import DiskMonitor
from warren.core.resources.memory_monitor import MemoryMonitor, limit_bytes, total_memory
from warren.core.scheduling.periodic import Periodic
from warren.faults import Faults
from warren.federation.links import FederationLinks
from warren.federation.sets import COMPONENT as UPSTREAM_SET
from warren.federation.upstream import COMPONENT as UPSTREAM
from warren.listening import connection_settings, proxy_reader, socket_options
from warren.message_storage import MessageStorage
from warren.open_files import descriptors
from warren.persist.definitions.deleted_queues import DeletedQueues, no_notes
from warren.persist.definitions.metadata import LmdbMetadataStore
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.group_commit import OnFault, SyncThread
from warren.persist.log.store_context import StorageSizes
from warren.persist.recovery.recovery import Recovery
from warren.persist.storage.missing_store import free_bytes
from warren.shovel.assignments import ClusterPlace
from warren.shovel.shovels import COMPONENT as SHOVEL
from warren.shovel.shovels import Shovels


class Stores(NamedTuple):
    """The stores of a node. `directory` is its data directory, and `recovery` has the messages that
    were found there; both are None on a node without a disk."""

    metadata: MetadataStore
    deleted_queues: DeletedQueues
    directory: DataDirectory | None
    recovery: Recovery | None


class KeptMessages(NamedTuple):
    """The parts that keep the messages of a node on disk. The caller starts the `monitors`."""

    messages: MessageStorage
    disk: DiskMonitor
    monitors: list[Periodic]
    new_backing_queue: Callable[[BackingSpec], BackingQueue]


def own_metadata(
    directory: DataDirectory | None,
    loop: asyncio.AbstractEventLoop,
    clock: LoopClock,
    on_fault: OnFault,
) -> tuple[MetadataStore, DeletedQueues]:
    """The definitions of a node without a cluster, and its notes of deleted queues."""
    if directory is None:
        return VolatileMetadataStore(), no_notes()
    store = LmdbMetadataStore(
        directory,
        call_on_loop=loop.call_soon_threadsafe,
        call_later=clock.call_later,
        sync_thread=SyncThread("metadata-sync", on_fault),
        on_fault=on_fault,
    )
    return store, store.deleted_queues


def in_memory(spec: BackingSpec) -> BackingQueue:
    return MemoryQueue()


def memory_monitor(config: Config, alarms: Alarms) -> MemoryMonitor:
    return MemoryMonitor(
        _read_file,
        alarms,
        config.memory_watermark,
        release_free=release_freed_memory,
        total_bytes=config.total_memory_bytes,
        blocks_all=config.alarms_block_all,
    )


def kept_messages(
    config: Config,
    loop: asyncio.AbstractEventLoop,
    clock: LoopClock,
    stores: Stores,
    alarms: Alarms,
    memory: MemoryMonitor,
    faults: Faults,
) -> KeptMessages | None:
    """Start the storage of messages, and make its other parts; None on a node without a disk."""
    metadata, deleted_queues, directory, recovery = stores
    if directory is None or recovery is None:
        return None
    disk = _disk_monitor(config, directory, alarms)
    pager = Pager(
        clock,
        lambda: memory.used_ratio,
        disk_alarm=lambda: any(alarm.resource is Resource.DISK for alarm in alarms.local()),
        paging_ratio=config.memory_paging_ratio,
    )
    messages = MessageStorage.start(
        directory,
        recovery,
        clock=clock,
        call_on_loop=loop.call_soon_threadsafe,
        metadata=metadata,
        deleted_queues=deleted_queues,
        on_flow=alarms.set_flow,
        on_trouble=lambda error: disk.writes_fail(error is not None),
        on_fault=faults.report,
        limits=StorageSizes(config.store_file_bytes_max, config.embed_below)._replace(
            open_files_max=descriptors().log_files
        ),
        pinned_max=lambda: _pinned_max(config, directory.path),
    )
    faults.watch(messages.storage.abandon)
    pins = messages.storage.pins
    disk.pinned_bytes = lambda: pins.pinned.octets
    monitors = [Periodic(clock, check) for check in (disk.check, pager.check, pins.check)]
    return KeptMessages(messages, disk, monitors, messages.backing_queues(pager))


def access_control(config: Config, metadata: MetadataStore) -> AccessControl:
    rule = config.password_rule
    return AccessControl(
        metadata,
        random_bytes=os.urandom,
        loopback_users=config.loopback_users,
        passwords=Passwords(config.password_hashing, rule.length_min, rule.pattern),
    )


def amqp_listener(config: Config, node: Node, loop: asyncio.AbstractEventLoop) -> AmqpListener:
    return AmqpListener(
        node,
        connection_settings(config),
        loop=loop,
        certificate_login=login_name(
            config.ssl_cert_login_from,
            config.ssl_cert_login_san_type,
            config.ssl_cert_login_san_index,
        ),
        read_proxy_header=proxy_reader(config),
        connection_max=config.connection_max,
        descriptor_limit=descriptors().clients,
        backlog=config.tcp.backlog,
        sockets=socket_options(config),
        tls_handshake_timeout_s=config.ssl_handshake_timeout_ms / 1000,
    )


def shovels_of(
    node: Node, place: ClusterPlace, listener: AmqpListener, clock: LoopClock
) -> Shovels:
    """The shovels of a node; they run when they are started."""
    shovels = Shovels(
        node.name,
        store=node.metadata,
        access=node.access,
        place=place,
        connect_within=listener.connect_within,
        cluster_name=lambda: node.cluster_name,
        clock=clock,
        random=SystemRandom(),
    )
    node.parameters.register(SHOVEL, shovels.check)
    return shovels


def federation_of(
    node: Node, place: ClusterPlace, listener: AmqpListener, clock: LoopClock
) -> FederationLinks:
    """The federation links of a node; they run when they are started."""
    links = FederationLinks(
        node,
        place=place,
        connect_within=listener.connect_within,
        encode_table=encode_table,
        clock=clock,
        random=SystemRandom(),
    )
    node.parameters.register(UPSTREAM, links.check_upstream)
    node.parameters.register(UPSTREAM_SET, links.check_set)
    return links


def server_properties() -> Table:
    return default_server_properties(__version__, f"Python {platform.python_version()}")


def new_token() -> str:
    """22 characters that cannot be guessed, safe in names and addresses."""
    return secrets.token_urlsafe(16)


def _disk_monitor(config: Config, directory: DataDirectory, alarms: Alarms) -> DiskMonitor:
    return DiskMonitor(
        lambda: free_bytes(directory),
        alarms,
        config.disk_free_limit,
        total_memory_bytes=lambda: config.total_memory_bytes or total_memory(_read_file),
        blocks_all=config.alarms_block_all,
    )


def _pinned_max(config: Config, path: Path) -> int:
    """The most octets that all snapshots together may keep on the disk. Raises OSError."""
    status = os.statvfs(path)
    return limit_bytes(config.snapshot_limit, status.f_blocks * status.f_frsize)


def _read_file(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
