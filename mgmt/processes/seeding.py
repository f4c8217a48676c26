"""Fills the store of shared definitions from one process's copy.

This is needed after a restore, or when the file of shared definitions was damaged and removed. The
copy may lack the changes of the last moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

import msgspec

from warren.core.definitions.definition_replica import Replicated
from warren.core.log_line import log_event
from warren.mgmt.processes.plan import STORE_PREFIX
from warren.mirror.definitions.codec import Keys, encode_definition
from warren.mirror.definitions.etcd_messages import Operation, Txn, put
from warren.mirror.definitions.key_gateway import KeyGateway
from warren.mirror.definitions.key_store import OPERATIONS_MAX
from warren.mirror.links.ports import PROTOCOL_VERSION
from warren.mirror.members.directory import identity_key, member_key
from warren.mirror.members.membership import FORMAT
from warren.mirror.members.presence import ClusterIdentity, ClusterMember
from warren.persist.definitions.metadata_replica import LmdbReplica
from warren.persist.disk.cluster_file import KnownCluster
from warren.persist.disk.data_directory import DataDirectory

log = logging.getLogger("warren.node")


def seed(gateway: KeyGateway, directory: DataDirectory, known: KnownCluster) -> None:
    """Fill an empty store from the first process's copy. Raises OSError."""
    replicated = _copy_of(directory, known.node)
    definitions = list(replicated.definitions) if replicated is not None else []
    keys = Keys(STORE_PREFIX)
    identity = ClusterIdentity(known.cluster_id, FORMAT, PROTOCOL_VERSION)
    member = ClusterMember(directory.node_id, time.time(), machine=known.node)
    operations = [
        put(identity_key(STORE_PREFIX), msgspec.json.encode(identity)),
        put(member_key(STORE_PREFIX, known.node), msgspec.json.encode(member)),
        *(
            put(
                keys.key(change.key),
                encode_definition(change.key, change.stored.record),
            )
            for change in definitions
            if change.stored is not None
        ),
    ]
    for part in _parts(operations):
        gateway.change(Txn(success=part))
    log_event(
        log,
        logging.WARNING,
        "shared_definitions_from_copy",
        node=known.node,
        definitions=len(definitions),
    )


def _copy_of(directory: DataDirectory, node: str) -> Replicated | None:
    loop = asyncio.get_running_loop()
    replica = LmdbReplica(
        directory,
        node,
        call_on_loop=loop.call_soon_threadsafe,
        call_later=loop.call_later,
        sync_thread=None,
    )
    try:
        return replica.load()
    finally:
        replica.close()


def _parts(operations: list[Operation]) -> Iterable[list[Operation]]:
    for at in range(0, len(operations), OPERATIONS_MAX):
        yield operations[at : at + OPERATIONS_MAX]
