"""Imports definitions as RabbitMQ 3.10.8 does, in its order (management_api.md section 4).

Objects that exist and cannot be changed (queues, exchanges, bindings) stay as they are, without an
error; others are overwritten; nothing is removed. The first refused item ends the import, and items
before it stay imported. `importer.py` says what becomes of an item.

An import of a hundred thousand queues takes seconds. It is done in slices between which the loop
serves the clients, so definitions may change meanwhile: an item's objects are looked up at its
turn. On return everything is on disk.
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
"""Items imported before a wait until all of them are on disk. To complete a commit takes the loop a
microsecond, and the commits of a batch complete together."""

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
"""The sections in the order in which they are imported. Limits of queues are checked after the
import of virtual hosts, with the limits as they were before."""

OF_VHOST = ("exchanges", "policies", "parameters", "queues", "bindings")


class Imported(NamedTuple):
    """How many items were imported, and how many bindings ignored for lack of one of their ends."""

    items: int
    bindings_ignored: int


async def import_definitions(
    node: Node, definitions: Any, *, vhost: str | None = None, acting_user: str | None = None
) -> Imported:
    """Import definitions parsed from JSON. Raises `DefinitionsRefused`.

    With a `vhost` only the sections of virtual hosts are imported, and all their items into this
    one; raises `NoSuchVhost`. `acting_user` is the user who asked, if there is one: it gets full
    permissions in virtual hosts that the import creates.
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
        # Items imported before stay, so they are waited for as well.
        await durable(node.metadata)
        raise
    await durable(node.metadata)
    imported = Imported(sum(map(len, found.values())), importer.bindings_ignored)
    log_event(log, logging.INFO, "definitions_imported", **imported._asdict())
    return imported


async def parsed(octets: bytes, clock: Clock) -> dict[str, Any]:
    """The same as `parse`, but other tasks run meanwhile."""
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
    """End a slice.

    The objects made in it stay. The cycle collector looks at them now, which takes part of a
    millisecond; to look at many of them together later would stop the node for longer.
    """
    await asyncio.sleep(0)
    gc.collect(1)


class _Slices:
    """Works through many items so that neither the loop nor the disk waits for long."""

    def __init__(self, clock: Clock, store: MetadataStore) -> None:
        self._clock = clock
        self._store = store
        self._began = clock.now()
        self._uncommitted = 0

    async def each(self, work: list[Item], do: Import) -> None:
        """Import the items; on return they are visible."""
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
    """Wait for the commits; import an item again if another node was faster to change it."""
    for item, first in unseen:
        commit: Commit | None = first
        while commit is not None:
            await visible(commit)
            commit = do(item) if commit.refused else None
