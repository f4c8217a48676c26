"""The definitions of a cluster: a local copy of those in etcd, and sending transactions to etcd.

Answerable for a copy that follows etcd's history without a gap, for sending transactions until
they are decided, and for going on after any break. `shared_definitions.py` explains what a
transaction is and when its commit is done, `batch_writer.py` why it is done exactly once, and
`history.py` how etcd's history is read.

**Following.** One watch begins at the revision after the snapshot or the local replica. After a
break another begins at the next revision, so there is never a gap. If etcd has compacted that
revision, everything is read anew, and the differences are applied as one change. A stalled watch is
noticed by asking etcd, every `check_interval_s`, for the revision of the youngest batch.

**Without etcd** reads go on and transactions wait. An etcd that has lost its data counts as
unreachable; a node that is started anew takes the definitions that it finds in it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from warren.core.definitions.definition_replica import Replica
from warren.core.definitions.definition_table import Change
from warren.core.log_line import log_event
from warren.core.ports import Commit, Precondition, Write
from warren.mirror.definitions.batch_writer import BatchWriter, Decision, WriterSuperseded
from warren.mirror.definitions.cluster_log import logger
from warren.mirror.definitions.codec import Keys, NewerDefinition
from warren.mirror.definitions.ending import end_tasks
from warren.mirror.definitions.etcd import (
    EtcdClient,
    EtcdCompacted,
    EtcdError,
    EtcdNotAllowed,
    EtcdOutcomeUnknown,
    EtcdUnreachable,
)
from warren.mirror.definitions.history import (
    DefinitionHistory,
    HistoryProgress,
    HistoryStream,
    Revision,
    Unread,
)
from warren.mirror.definitions.reachability import Reachability
from warren.mirror.definitions.shared_definitions import SharedDefinitions, WritePiece

OPEN_ATTEMPTS = 5
OPEN_PAUSE_S = 1.0
CHECK_INTERVAL_S = 2.0
"""Seconds between the checks for a stalled watch or a lost etcd while nothing is written."""
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0
GATHER_S = 0.002
APPLYING_S = 0.002
"""Revisions are applied for so long before other tasks get their turn: what follows from a change
takes ten microseconds or five hundred."""
SLICE_CHANGES = 300
"""Definitions compared before other tasks get their turn."""
CLOSE_PATIENCE_S = 2.0
VERSIONS_ARE = "revisions"
"""The kind of versions that definitions in a replica have. Replicas that do not say have write
counts."""
REPLICA_LAG_MAX = 1000
"""Revisions without a change of definitions, such as those of membership, after which the replica
notes that they have passed. Otherwise a compaction would force a reload at the next start."""


class ClusterMetadata(SharedDefinitions):
    """Implements `core.ports.MetadataStore` over etcd. Made by `open`, on the loop it lives on."""

    def __init__(
        self,
        etcd: EtcdClient,
        prefix: str,
        writer: str,
        *,
        replica: Replica | None,
        cluster_id: str,
        on_reachable: Callable[[bool], None],
        on_superseded: Callable[[], None],
        check_interval_s: float,
    ) -> None:
        super().__init__()
        keys = Keys(prefix)
        self._etcd = etcd
        self._writer = BatchWriter(etcd, keys, writer, secrets.token_hex(8))
        self._history = DefinitionHistory(etcd, keys)
        self._replica = replica
        self._replica_revision = 0
        self._cluster_id = cluster_id
        self._reachability = Reachability(etcd.place, on_reachable)
        self._on_superseded = on_superseded
        self._check_interval_s = check_interval_s
        # No definition changed after `revision` and up to this revision.
        self._passed = 0
        self._work = asyncio.Event()
        # The number of pieces in the last batch.
        self._batch_size = 0
        self._stream: HistoryStream | None = None
        self._superseded: WriterSuperseded | None = None
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        etcd: EtcdClient,
        prefix: str,
        writer: str,
        *,
        replica: Replica | None = None,
        cluster_id: str = "",
        attempts: int = OPEN_ATTEMPTS,
        attempt_pause_s: float = OPEN_PAUSE_S,
        on_reachable: Callable[[bool], None] = lambda reachable: None,
        on_superseded: Callable[[], None] = lambda: None,
        check_interval_s: float = CHECK_INTERVAL_S,
    ) -> ClusterMetadata:
        """The store, returned when it holds all definitions that etcd has.

        `writer` is the name of this node, which no other process may use. `cluster_id` is the id of
        the cluster (`mirror/members/membership.py`); a replica of another cluster is dropped.
        `on_reachable` is called when etcd is lost and when it is back, `on_superseded` once, when
        this process must not write any more.

        Raises `EtcdUnreachable`, naming the endpoints, when no attempt succeeds; `EtcdNotAllowed`
        and `NewerDefinition` at once, as trying again does not help.
        """
        store = cls(
            etcd,
            prefix,
            writer,
            replica=replica,
            cluster_id=cluster_id,
            on_reachable=on_reachable,
            on_superseded=on_superseded,
            check_interval_s=check_interval_s,
        )
        failure = ""
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(attempt_pause_s)
            try:
                await store._begin()
            except EtcdNotAllowed:
                raise
            except EtcdError as error:
                failure = str(error)
            else:
                store._start()
                return store
        raise EtcdUnreachable(
            f"etcd cannot be used at {', '.join(etcd.endpoints)} after {attempts} attempts:"
            f" {failure}"
        )

    @property
    def reachable(self) -> bool:
        """Whether etcd answers, as far as this node knows."""
        return not self._reachability.failing

    def transact(
        self, writes: Sequence[Write], preconditions: Sequence[Precondition] = ()
    ) -> Commit:
        """As `SharedDefinitions.transact`; raises `WriterSuperseded` if this node is superseded."""
        assert not self._closed, "transact after close"
        if self._superseded is not None:
            raise self._superseded
        return super().transact(writes, preconditions)

    def close(self) -> int:
        """Stop at once. Return 0: no transaction is known to be lost.

        Undecided transactions may still be taken; their commits stay open.
        """
        if self._closed:
            return 0
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._uncommitted:
            log_event(
                logger,
                logging.ERROR,
                "cluster_transactions_undecided",
                transactions=len(self._uncommitted),
            )
        return 0

    async def aclose(self, patience_s: float = CLOSE_PATIENCE_S) -> None:
        """Stop when all transactions are decided or `patience_s` is over. The client stays open."""
        commit = self.uncommitted()
        if commit is not None and not self._closed and self._superseded is None:
            decided = asyncio.Event()
            commit.then(decided.set)
            with suppress(TimeoutError):
                await asyncio.wait_for(decided.wait(), patience_s)
        self.close()
        await end_tasks(self._tasks)

    async def _begin(self) -> None:
        await self._writer.claim()
        progress = await self._history.progress()
        if not self._revision and not self._load_replica(progress.now):
            await self._load_snapshot()
        while self._revision < progress.changed_at:
            await self._catch_up(progress.changed_at)

    def _load_replica(self, now: int) -> bool:
        """Whether the replica had a state to go on from."""
        replicated = self._replica.load() if self._replica is not None else None
        if replicated is None or replicated.cluster_id != self._whole_cluster_id():
            return False
        if replicated.revision > now:
            # etcd was restored to an older state: the definitions it lacks were not deleted.
            assert self._replica is not None
            self._replica.reset("")
            return False
        self._fill(replicated.definitions)
        self._revision = self._replica_revision = replicated.revision
        return True

    async def _load_snapshot(self) -> None:
        revision, definitions, unread = await self._read_snapshot()
        self._fill(definitions)
        self._revision = revision
        if self._replica is not None:
            self._replica.reset(self._whole_cluster_id())
            self._save(revision, definitions)
        self._pass_over(unread)

    def _fill(self, definitions: Iterable[Change]) -> None:
        stored = []
        for change in definitions:
            assert change.stored is not None
            stored.append(change.stored)
        self._load(stored)

    async def _read_snapshot(self) -> Revision:
        number = 0
        definitions: list[Change] = []
        unread: list[Unread] = []
        async for part in self._history.snapshot():
            number = part.number
            definitions += part.changes
            unread += part.unread
            await asyncio.sleep(0)
        return Revision(number, definitions, unread)

    async def _catch_up(self, until: int) -> None:
        """Apply the revisions after the loaded one; every answer has to come in time."""
        try:
            async with self._history.after(self._revision) as stream:
                while self._revision < until:
                    async with asyncio.timeout(self._etcd.request_timeout_s):
                        revisions = await stream.next_revisions()
                    await self._apply_all(revisions)
        except EtcdCompacted:
            await self._reload()
        except TimeoutError:
            raise EtcdUnreachable("the watch sends nothing") from None

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        works = (self._carry(), self._follow(), self._look_after())
        self._tasks += [loop.create_task(work) for work in works]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Log the error that ended a task. The task of a superseded writer ends without an
        error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("cluster_metadata_failed", exc_info=error)
            self._reachability.lost("fault", error)

    def _wake(self) -> None:
        self._work.set()

    async def _carry(self) -> None:
        """Send batches, one after the other."""
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while batch := await self._gathered():
                    decision = await self._decision(batch)
                    self.batch_decided(decision.taken, decision.revision)
        except WriterSuperseded as error:
            self._superseded = error
            log_event(
                logger,
                logging.ERROR,
                "cluster_writer_superseded",
                error=error,
                undecided=len(self._uncommitted),
            )
            self._on_superseded()

    async def _gathered(self) -> Sequence[WritePiece]:
        """The next batch. If it is smaller than the last, wait a moment for more: clients that were
        answered together write again together, and their writes can share a batch."""
        batch = self.next_batch()
        if not batch:
            return batch
        if len(batch) < self._batch_size:
            await asyncio.sleep(GATHER_S)
            batch = self.next_batch()
        self._batch_size = len(batch)
        return batch

    async def _decision(self, batch: Sequence[WritePiece]) -> Decision:
        """Send a batch until etcd has decided it."""
        pause_s = 0.0
        while True:
            try:
                decision = await self._writer.send(batch)
            except EtcdError as error:
                # One connection that broke during an answer does not count as a loss of etcd.
                if pause_s or not isinstance(error, EtcdOutcomeUnknown):
                    self._reachability.lost("transactions", error)
            else:
                self._reachability.found("transactions")
                return decision
            await asyncio.sleep(pause_s)
            pause_s = _longer(pause_s)

    async def _follow(self) -> None:
        """Apply the history from the present revision on, for ever."""
        clock = asyncio.get_running_loop().time
        pause_s = 0.0
        while True:
            begun_at, begun_from = clock(), self._revision
            try:
                await self._follow_stream()
            except EtcdCompacted:
                await self._reload_if_possible()
            except EtcdError as error:
                # If a stream breaks, etcd does not count as lost; it does if none can be opened.
                if self._stream is None:
                    self._reachability.lost("watch", error)
            self._stream = None
            if self._revision > begun_from or clock() > begun_at + RETRY_MAX_S:
                pause_s = 0.0
            await asyncio.sleep(pause_s)
            pause_s = _longer(pause_s)

    async def _follow_stream(self) -> None:
        async with self._history.after(max(self._revision, self._passed)) as stream:
            self._stream = stream
            self._reachability.found("watch")
            while True:
                await self._apply_all(await stream.next_revisions())

    async def _apply_all(self, revisions: Sequence[Revision]) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + APPLYING_S
        for revision in revisions:
            self._apply_revision(revision)
            if clock() > until:
                await asyncio.sleep(0)
                until = clock() + APPLYING_S

    def _pass_over(self, unread: Sequence[Unread]) -> None:
        """Pass over unreadable definitions, and reset the replica, which cannot hold them: the next
        start has to read them from etcd again."""
        for one in unread:
            self.pass_over(*one)
        if unread and self._replica is not None:
            self._replica.reset("")

    def _apply_revision(self, revision: Revision) -> None:
        self._pass_over(revision.unread)
        self.advance(revision.number, revision.changes)
        if revision.changes:
            self._save(revision.number, revision.changes)

    async def _reload_if_possible(self) -> None:
        try:
            await self._reload()
        except (EtcdError, NewerDefinition) as error:
            self._reachability.lost("watch", error)

    async def _reload(self) -> None:
        """Read everything anew, and apply the differences as one revision."""
        number, definitions, unread = await self._read_snapshot()
        changes: list[Change] = []
        present = {one.key for one in unread}
        for place, change in enumerate(definitions):
            present.add(change.key)
            if self._stored.get(change.key) != change.stored:
                changes.append(change)
            if place % SLICE_CHANGES == 0:
                await asyncio.sleep(0)
        changes += [Change(key, None) for key in self._stored if key not in present]
        # Without changes this is no reason to worry: the node was away long, and missed nothing.
        log_event(
            logger,
            logging.WARNING if changes else logging.INFO,
            "cluster_history_compacted",
            since=self._revision,
            until=number,
            changes=len(changes),
        )
        self._apply_revision(Revision(number, changes, unread))

    async def _look_after(self) -> None:
        """Notice, while nothing is written, that etcd is lost or that the watch has stalled."""
        progress = HistoryProgress(0, 0)
        stream, applied = self._stream, self._revision
        while True:
            await asyncio.sleep(self._check_interval_s)
            if self._revision >= progress.changed_at:
                # All that etcd had at the last check has been applied.
                self._pass(progress.now)
            elif stream is not None and (stream, applied) == (self._stream, self._revision):
                log_event(
                    logger,
                    logging.WARNING,
                    "cluster_watch_stalled",
                    applied=applied,
                    expected=progress.changed_at,
                )
                stream.close()
            stream, applied = self._stream, self._revision
            try:
                progress = await self._history.progress(applied)
            except EtcdError as error:
                self._reachability.lost("check", error)
            else:
                self._reachability.found("check")

    def _pass(self, revision: int) -> None:
        """Note that no definition changed between the applied revision and this one."""
        self._passed = max(self._passed, revision)
        if self._passed - self._replica_revision > REPLICA_LAG_MAX:
            self._save(max(self._passed, self._revision), ())

    def _save(self, revision: int, changes: Sequence[Change]) -> None:
        if self._replica is not None and not self.unreadable:
            self._replica.save(revision, changes)
            self._replica_revision = revision

    def _whole_cluster_id(self) -> str:
        """The id that a replica must have: that of etcd, that of the cluster, and `VERSIONS_ARE`.

        Replicas of earlier versions of Warren have other versions of definitions, and are dropped.
        """
        return f"{self._history.etcd_cluster:x}/{self._cluster_id}/{VERSIONS_ARE}"


def _longer(pause_s: float) -> float:
    return min(max(RETRY_FIRST_S, 2 * pause_s), RETRY_MAX_S)
