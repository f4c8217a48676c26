"""The history of a cluster's definitions, read from etcd: snapshots and the revisions after them.

Answerable for giving every revision once, whole and in order, from one and the same etcd.

An etcd that comes back with less history than was read from it, or as another cluster, has lost
its data. It is refused (`EtcdHistoryLost`): nodes that still have the lost definitions must not
drop them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from warren.core.definitions.definition_table import Change
from warren.core.definitions.record_format import UNREADABLE, decode_path
from warren.core.log_line import log_event
from warren.core.ports import Key
from warren.mirror.definitions.cluster_log import logger
from warren.mirror.definitions.codec import (
    Keys,
    NewerDefinition,
    UnreadableDefinition,
    decode_definition,
    decode_deletion,
)
from warren.mirror.definitions.etcd import EtcdClient, EtcdHistoryLost, WatchStream
from warren.mirror.definitions.etcd_messages import (
    Header,
    KeyValue,
    Range,
    WatchCreate,
    WatchEvent,
    end_of,
)

PAGE_DEFINITIONS = 5000
"""Definitions asked for at once. For each page etcd looks at all remaining keys, so smaller pages
take much longer: 100,000 definitions take 6 s in pages of 1000."""
SLICE_DEFINITIONS = 500
"""Definitions handed on at once, which takes some 3 ms."""


class Unread(NamedTuple):
    """A definition that was put and cannot be read; `key` is None if its key is unreadable, too."""

    path: bytes
    key: Key | None
    version: int
    reason: str


class Revision(NamedTuple):
    """The changes of one revision of etcd; there are none if only a writer's head changed."""

    number: int
    changes: Sequence[Change]
    unread: Sequence[Unread] = ()


class HistoryProgress(NamedTuple):
    """`changed_at` is the revision of the youngest batch of any node, `now` that of etcd."""

    changed_at: int
    now: int


class DefinitionHistory:
    """Reads definitions below a prefix."""

    def __init__(self, etcd: EtcdClient, keys: Keys) -> None:
        self._etcd = etcd
        self._keys = keys
        self.etcd_cluster = 0

    async def progress(self, at_least: int = 0) -> HistoryProgress:
        """How far etcd is, as agreed on by a majority of its members. Raises `EtcdHistoryLost` if
        its revision is before `at_least`."""
        answer = await self._etcd.range(
            Range(
                self._keys.writers,
                end_of(self._keys.writers),
                limit=1,
                sort_order="DESCEND",
                sort_target="MOD",
                keys_only=True,
            )
        )
        self._expect_same(answer.header, at_least)
        changed_at = answer.kvs[0].mod_revision if answer.kvs else 0
        return HistoryProgress(changed_at, answer.header.revision)

    async def snapshot(self) -> AsyncIterator[Revision]:
        """All definitions of one revision, in slices. Raises `NewerDefinition`."""
        start, end = self._keys.definitions, end_of(self._keys.definitions)
        revision = 0
        more = True
        while more:
            page = await self._etcd.range(
                Range(start, end, limit=PAGE_DEFINITIONS, revision=revision)
            )
            self._expect_same(page.header)
            revision = revision or page.header.revision
            for place in range(0, max(len(page.kvs), 1), SLICE_DEFINITIONS):
                kvs = page.kvs[place : place + SLICE_DEFINITIONS]
                yield self._slice(revision, kvs)
            more = page.more
            if more:
                start = page.kvs[-1].key + b"\0"

    def _slice(self, revision: int, kvs: Sequence[KeyValue]) -> Revision:
        changes: list[Change] = []
        unread: list[Unread] = []
        for kv in kvs:
            try:
                changes.append(self._put(kv))
            except NewerDefinition:
                # The cluster runs a later version of Warren: this node cannot be part of it.
                raise
            except UnreadableDefinition as error:
                unread.append(self._unread(kv, error))
        return Revision(revision, changes, unread)

    @asynccontextmanager
    async def after(self, revision: int) -> AsyncIterator[HistoryStream]:
        """The revisions after this one. Raises `EtcdCompacted` when it is too long ago."""
        key, range_end = self._keys.watched
        async with await self._etcd.watch(WatchCreate(key, range_end, revision + 1)) as stream:
            self._expect_same(stream.created.header, revision)
            yield HistoryStream(self, stream)

    def revisions(self, events: Sequence[WatchEvent]) -> list[Revision]:
        """The events of a watch by revision; etcd never splits a revision over two answers."""
        return [
            self._revision(number, together)
            for number, together in groupby(events, attrgetter("kv.mod_revision"))
        ]

    def _revision(self, number: int, events: Iterator[WatchEvent]) -> Revision:
        changes: list[Change] = []
        unread: list[Unread] = []
        for event in events:
            key = event.kv.key
            if not key.startswith(self._keys.definitions):
                continue
            try:
                if event.type == "DELETE":
                    changes.append(decode_deletion(self._keys.path(key)))
                else:
                    changes.append(self._put(event.kv))
            except UnreadableDefinition as error:
                # Other nodes can read the definition and repair it; this node keeps the one it has.
                unread.append(self._unread(event.kv, error))
        return Revision(number, changes, unread)

    def _unread(self, kv: KeyValue, error: UnreadableDefinition) -> Unread:
        path = self._keys.path(kv.key)
        try:
            key = decode_path(path)
        except UNREADABLE:
            key = None
        shown = "/".join(key) if key is not None else repr(path)
        log_event(
            logger,
            logging.ERROR,
            "definition_unreadable",
            key=shown,
            error=error,
            action="passed over until it is defined anew",
        )
        return Unread(path, key, kv.mod_revision, str(error))

    def _put(self, kv: KeyValue) -> Change:
        return decode_definition(self._keys.path(kv.key), kv.value, kv.mod_revision)

    def _expect_same(self, header: Header, at_least: int = 0) -> None:
        if self.etcd_cluster not in (0, header.cluster_id):
            raise EtcdHistoryLost(
                f"etcd is cluster {header.cluster_id:x}, it was {self.etcd_cluster:x}"
            )
        if header.revision < at_least:
            raise EtcdHistoryLost(f"etcd is at revision {header.revision}, it was at {at_least}")
        self.etcd_cluster = header.cluster_id


class HistoryStream:
    """The revisions as they come."""

    def __init__(self, history: DefinitionHistory, stream: WatchStream) -> None:
        self._history = history
        self._stream = stream

    async def next_revisions(self) -> list[Revision]:
        """The next revisions: none, one or many, as etcd sends them."""
        answer = await self._stream.next_answer()
        return self._history.revisions(answer.events)

    def close(self) -> None:
        """End the stream; a task that waits for the next revisions gets `EtcdUnreachable`."""
        self._stream.close()
