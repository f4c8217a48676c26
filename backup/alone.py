"""Turns the restored data directory of a cluster's member into that of a node without a cluster.

A member has a copy of the cluster's definitions, and the messages of the queues that it led or
mirrored. From these this module makes the definitions of a node that has these queues and needs no
etcd.
Queues of which the member had no copy exist, and are empty. Definitions that end with a node, such
as exclusive queues, are left out.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from warren.core.definitions.records import ExchangeRecord, QueueRecord
from warren.core.ports import Stored
from warren.persist.definitions.database import MAP_BYTES_FIRST, Database, open_environment
from warren.persist.definitions.definitions_copy import read_definitions, read_deleted_queues
from warren.persist.definitions.deleted_queues import NO_STORAGES, NOTED, note_key, own_storage
from warren.persist.definitions.metadata import DIRECTORY, encode_definition
from warren.persist.definitions.metadata_replica import DIRECTORY as REPLICA_DIRECTORY
from warren.persist.disk.cluster_file import FILE, KnownCluster, read_known_cluster
from warren.persist.disk.data_directory import create_directory, sync_directory

KINDS = (
    "vhost",
    "user",
    "permission",
    "topic_permission",
    "exchange",
    "queue",
    "policy",
    "operator_policy",
    "parameter",
    "global_parameter",
)
"""The kinds of definitions that are taken first. Bindings are taken later, when it is known which
exchanges and queues exist."""

FIRST_VERSION = 1


def make_alone(directory: Path) -> list[str]:
    """Turn a directory that no node uses into that of a node without a cluster.

    The directory of a node without a cluster is left unchanged. Returns the queues of which there
    is no copy, as `vhost/name`. Raises `DamagedMetadata` and OSError.
    """
    known = read_known_cluster(directory)
    if known is None:
        return []
    definitions = [
        stored
        for kind in KINDS
        for stored in read_definitions(directory, kind, pause=time.sleep)
        if _lasts(stored.record)
    ]
    there = {stored.key for stored in definitions}
    for stored in read_definitions(directory, "binding", pause=time.sleep):
        _, vhost, source, kind, destination, *_ = stored.key
        ends = {("exchange", vhost, source), (kind, vhost, destination)}
        # The exchanges that every virtual host has are not in the definitions.
        if all(end in there or _is_predeclared(end) for end in ends):
            definitions.append(stored)
    deleted = read_deleted_queues(directory, pause=time.sleep)
    puts = [encode_definition(_of_one_node(stored, known)) for stored in definitions]
    notes = [(note_key(queue_id), NOTED) for queue_id in deleted]
    path = directory / DIRECTORY
    create_directory(path)
    database = Database(path, open_environment, MAP_BYTES_FIRST, lambda key, value: NO_STORAGES)
    try:
        database.clear()
        database.write([[*notes, *puts]])
    finally:
        database.close()
    shutil.rmtree(directory / REPLICA_DIRECTORY)
    (directory / FILE).unlink()
    sync_directory(directory)
    return [*_without_copy(definitions, known)]


def _lasts(record: object) -> bool:
    """Whether a definition outlives its node."""
    if isinstance(record, QueueRecord):
        return record.durable and not record.exclusive
    return not isinstance(record, ExchangeRecord) or record.durable


def _is_predeclared(key: tuple[str, ...]) -> bool:
    kind, _, name = key
    return kind == "exchange" and (not name or name.startswith("amq."))


def _of_one_node(stored: Stored, known: KnownCluster) -> Stored:
    record = stored.record
    if isinstance(record, QueueRecord):
        own = own_storage(record, known.node)
        record = QueueRecord(
            record.auto_delete,
            record.arguments,
            next(iter(own), record.queue_id),
            declared_by=record.declared_by,
        )
    return Stored(stored.key, record, FIRST_VERSION)


def _without_copy(definitions: list[Stored], known: KnownCluster) -> Iterator[str]:
    for stored in definitions:
        if isinstance(stored.record, QueueRecord) and not own_storage(stored.record, known.node):
            yield f"{stored.key[1]}/{stored.key[2]}"
