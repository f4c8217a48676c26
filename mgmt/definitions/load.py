"""Imports definitions: what RabbitMQ 3.10.8 does with them, in its order (management_api.md 4).

What exists and cannot be changed (queues, exchanges, bindings) stays as it is and is no error; what
can be changed is overwritten; nothing is removed. The first item that is refused ends the import,
and what came before stays. `importer.py` says what becomes of an item.

An import of a hundred thousand queues takes seconds. It is done in slices between which the loop
serves the clients, so definitions may change meanwhile: everything is looked up when its turn has
come. On return all of it is on disk.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any, NamedTuple

from warren.core.definitions.validation import NoSuchVhost
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.ports import Clock, Commit, MetadataStore
from warren.mgmt.definitions import items
from warren.mgmt.definitions.errors import DefinitionsRefused
from warren.mgmt.definitions.importer import Import, Importer
from warren.mgmt.definitions.items import Item
from warren.mgmt.definitions.parsing import parse_in_steps
from warren.mgmt.waiting import durable, visible

log = logging.getLogger("warren.definitions")

SLICE_S = 0.005
"""How long the clients of the node wait at most; a twentieth of what a person notices."""

UNCOMMITTED_MAX = 1000
"""Items imported before all of them must be on disk. Completing a commit takes a microsecond on the
loop, and a batch completes in one piece."""

OF_NODE = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "exchanges",
    "global_parameters",
    "policies",
    "parameters",
    "queues",
    "bindings",
)
"""The sections in the order in which they are imported. The limits of queues are checked after the
virtual hosts, with the limits as they were before."""

OF_VHOST = ("exchanges", "policies", "parameters", "queues", "bindings")


class Imported(NamedTuple):
    """What became of the items: how many were taken, and how many bindings led nowhere."""

    items: int
    bindings_ignored: int


async def import_definitions(
    node: Node, definitions: Any, *, vhost: str | None = None, acting_user: str | None = None
) -> Imported:
    """Import definitions as JSON gave them. Raises `DefinitionsRefused`.

    With a `vhost` only what is in virtual hosts is imported, and all of it into this one; raises
    `NoSuchVhost`. `acting_user` is who asked, if it was a user: it gets full permissions in virtual
    hosts that are made.
    """
    if vhost is not None and vhost not in node.vhosts:
        raise NoSuchVhost(f"vhost '{vhost}' does not exist")
    found = items.sections(definitions, OF_NODE if vhost is None else OF_VHOST)
    importer = Importer(node, definitions, vhost, acting_user)
    slices = _Slices(node.clock, node.metadata)
    try:
        for section, what in (
            ("users", "users"),
            ("users", "user_limits"),
            ("vhosts", "vhosts"),
            ("vhosts", "in_vhosts"),
        ):
            await slices.each(found.get(section, []), importer.of(what))
        importer.check_queue_limits(found.get("queues", []))
        for section in OF_NODE[2:]:
            await slices.each(found.get(section, []), importer.of(section))
    except DefinitionsRefused:
        # What was imported before stays, so it is waited for as well.
        await durable(node.metadata)
        raise
    await durable(node.metadata)
    imported = Imported(sum(map(len, found.values())), importer.bindings_ignored)
    log_event(log, logging.INFO, "definitions_imported", **imported._asdict())
    return imported


async def parsed(octets: bytes, clock: Clock) -> dict[str, Any]:
    """What `parse` returns and raises, while the loop goes on."""
    parsing = parse_in_steps(octets)
    began = clock.now()
    while True:
        try:
            next(parsing)
        except StopIteration as end:
            definitions: dict[str, Any] = end.value
            return definitions
        if clock.now() - began >= SLICE_S:
            await _pause()
            began = clock.now()


async def _pause() -> None:
    """End a slice. What was made in it stays, and is looked at now, which takes part of a
    millisecond: left to the collector, which waits for 100,000 objects, it would stop the node for
    40."""
    await asyncio.sleep(0)
    gc.collect(1)


class _Slices:
    """Works through many items without keeping the loop, or the disk, waiting for long."""

    def __init__(self, clock: Clock, store: MetadataStore) -> None:
        self._clock = clock
        self._store = store
        self._began = clock.now()
        self._uncommitted = 0

    async def each(self, work: list[Item], do: Import) -> None:
        """Import the items; on return they can be seen."""
        unseen: list[tuple[Item, Commit]] = []
        for item in work:
            commit = do(item)
            if commit is not None and not commit.visible:
                unseen.append((item, commit))
            self._uncommitted += 1
            if self._uncommitted >= UNCOMMITTED_MAX:
                await durable(self._store)
                self._uncommitted = 0
                await _until_seen(unseen, do)
                unseen = []
            elif self._clock.now() - self._began < SLICE_S:
                continue
            await _pause()
            self._began = self._clock.now()
        await _until_seen(unseen, do)


async def _until_seen(unseen: list[tuple[Item, Commit]], do: Import) -> None:
    """Wait for the other nodes; what one of them was faster to change is imported anew."""
    for item, first in unseen:
        commit: Commit | None = first
        while commit is not None:
            await visible(commit)
            commit = do(item) if commit.refused else None
