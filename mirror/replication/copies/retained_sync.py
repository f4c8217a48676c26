"""The synchronisation of retained messages: a node asks another one for those that it lacks.

A mirror that is in sync retains what its leader retains from then on. It asks the leader for all
that is older: it says which positions of a range it has, and is answered with messages there that
it lacks, as many as a slice holds, and the position up to which these are all. When they are on its
disk, and after a pause, it asks for more. So no client waits, and the leader keeps nothing in mind.
What has come stays: when a node or a link is gone, or another node leads, the mirror begins again
and is sent the rest. A message is still in the mirror's copy of the queue, with which it may lead,
if the mirror has not heard yet that it is acknowledged. The mirror keeps such a message only when
it has heard that: otherwise it would be retained twice.

A leader that took over before it had been sent everything hears from its mirrors of messages that
it lacks. It asks for them in the same way, and then has its other mirrors ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final, NamedTuple, TypeAlias

from warren.core.backing.retained_log import RetainedLog
from warren.core.definitions.records import QueueRecord
from warren.core.errors import NotFound
from warren.core.messages.message import Message
from warren.core.ports import Clock, Key
from warren.core.queues.retention import Retention
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import Event, run
from warren.mirror.messages.calls import Calls, NodeDown
from warren.mirror.messages.cargo import Packer, Unpacker
from warren.mirror.replication.copies.retained_copies import RetainedCopies
from warren.mirror.replication.definition.replicas import WantedMirrors
from warren.mirror.replication.levels.mirror_level import NOWHERE
from warren.mirror.replication.levels.slice_pauses import BUSY_PAUSE_S, LOOK_AGAIN_S
from warren.mirror.replication.levels.slices import SLICE_BYTES, SLICE_COUNT

ASK: Final = "mirror.retained"
ASK_AGAIN: Final = "mirror.retained_more"

LISTED_MAX: Final = 4096
"""Positions that are compared at a time: a millisecond or two at either node."""

LIST_US: Final = 1000
"""The cost of comparing these positions, as `core/scheduling/turns.py` counts it."""

AGAIN_S: Final = 1.0
"""How long a node waits before it asks again one that does not answer."""

Runs: TypeAlias = Sequence[tuple[int, int]]
"""Runs of positions that follow one another: the first one, and how many."""


class RetainedSlice(NamedTuple):
    """Messages that a node lacks, and how many seconds ago each was acknowledged.

    Below `upto` it lacks no others. `end` is where the log of the node that answers ended.
    """

    messages: bytes
    ages_s: list[float]
    upto: int
    end: int


class _Sync:
    """Questions to the node `source`, which is not asked again while `reason` is the same."""

    def __init__(self, queue_id: int, source: str, reason: object) -> None:
        self.queue_id = queue_id
        self.source = source
        self.reason = reason
        self.is_over = False


class RetainedSync:
    """The questions of this node to others, by the ids of queues, and its answers to theirs."""

    def __init__(
        self,
        retained: RetainedCopies,
        calls: Calls,
        clock: Clock,
        turns: Turns,
        wanted_of: Callable[[Key], WantedMirrors],
        record_of: Callable[[Key, int], QueueRecord | None],
    ) -> None:
        """`wanted_of`: what the policy of a queue says of its mirrors. `record_of`: the definition
        of the queue that has this name and this id."""
        self._retained = retained
        self._calls = calls
        self._clock = clock
        self._turns = turns
        self._wanted_of = wanted_of
        self._record_of = record_of
        self._syncs: dict[int, _Sync] = {}
        calls.serve(ASK, self._asked)
        calls.serve(ASK_AGAIN, self._asked_to_ask_again)

    def is_in_sync(self, record: QueueRecord, storage_id: int) -> None:
        """Ask for older retained messages: the definition says that the copy here is in sync."""
        known = self._syncs.get(record.queue_id)
        retention = self._retained.of_mirror(record.queue_id)
        if retention is None or retention.deleted:
            self.forget(record.queue_id)
            return
        reason = (record.epoch, storage_id, retention.log.clearings)
        if known is None or known.reason != reason:
            self._begin(_Sync(record.queue_id, record.leader, reason))

    def forget(self, queue_id: int) -> None:
        """Ask for no more: this node has no copy any more, or begins to lead or ceases to."""
        self._syncs.pop(queue_id, None)

    def _begin(self, sync: _Sync) -> None:
        self._syncs[sync.queue_id] = sync
        run(self._fill(sync), lambda result: result())

    def _is_wanted(self, sync: _Sync) -> Retention | None:
        if self._syncs.get(sync.queue_id) is not sync:
            return None
        retention = self._retained.of(sync.queue_id)
        return None if retention is None or retention.deleted else retention

    # Questions of a node that lacks messages

    async def _fill(self, sync: _Sync) -> None:
        start, end, found_some = 0, NOWHERE, False
        while start < end and (retention := self._is_wanted(sync)) is not None:
            upto, runs = self._listed(retention, start, end)
            question = (sync.queue_id, start, upto, runs)
            try:
                answer = RetainedSlice(*await self._calls.ask(sync.source, ASK, *question))
            except NotFound:
                await self._pause(AGAIN_S)
                continue
            start, end = answer.upto, min(end, answer.end)
            messages = _with_ages(answer)
            retention = self._is_wanted(sync)
            if retention is None or not messages:
                continue
            found_some = True
            leads = self._retained.leads(sync.queue_id)
            heard_upto = NOWHERE if leads else retention.log.next_position
            heard = [(one, age_s) for one, age_s in messages if one.position < heard_upto]
            await self._keep(sync.queue_id, retention, heard)
            if len(heard) < len(messages):
                start = heard_upto
                await self._pause(AGAIN_S)
            else:
                await self._pause_after(len(answer.messages), sync)
        sync.is_over = True
        retention = self._is_wanted(sync)
        if retention is not None:
            retention.all_filled()
            if found_some and self._retained.leads(sync.queue_id):
                for mirror in self._in_sync(retention, sync) - {sync.source}:
                    run(self._have_ask_again(mirror, sync), lambda result: result())

    def _in_sync(self, retention: Retention, sync: _Sync) -> Set[str]:
        record = self._record_of(retention.key, sync.queue_id)
        return frozenset() if record is None else frozenset(record.in_sync)

    async def _have_ask_again(self, mirror: str, sync: _Sync) -> None:
        """Have a mirror ask again: it may have been sent all that this leader had before it got
        more."""
        while (retention := self._is_wanted(sync)) is not None:
            if mirror not in self._in_sync(retention, sync):
                return
            try:
                await self._calls.ask(mirror, ASK_AGAIN, sync.queue_id)
            except NodeDown:
                await self._pause(AGAIN_S)
            except NotFound:
                # The mirror is of an earlier version.
                return
            else:
                return

    def _listed(self, retention: Retention, start: int, end: int) -> tuple[int, Runs]:
        """The positions this node has from `start` on, and the one up to which these are all."""
        self._turns.spend(LIST_US)
        listed = retention.log.list_positions(start, end, LISTED_MAX)
        return min(listed.next_position, end), _runs(listed.positions)

    async def _keep(
        self, queue_id: int, retention: Retention, messages: Iterable[tuple[Message, float]]
    ) -> None:
        """Retain the messages that came, and return when they are safe."""
        wanted = [
            (message, age_s)
            for message, age_s in messages
            if not self._retained.is_superseded(queue_id, message.position)
        ]
        safe = Event()
        chosen, ages_s = [one for one, _ in wanted], [age_s for _, age_s in wanted]
        if retention.fill(chosen, ages_s, safe.happen):
            await safe

    async def _pause_after(self, octets: int, sync: _Sync) -> None:
        """Pause after so many octets as the limit demands, which may change meanwhile."""
        paused_s = BUSY_PAUSE_S
        await self._pause(paused_s)
        while (retention := self._is_wanted(sync)) is not None:
            rate = self._wanted_of(retention.key).catch_up_rate
            left_s = octets / rate - paused_s if rate else 0.0
            if left_s <= 0:
                return
            pause_s = min(left_s, LOOK_AGAIN_S)
            await self._pause(pause_s)
            paused_s += pause_s

    async def _pause(self, seconds: float) -> None:
        over = Event()
        self._clock.call_later(seconds, over.happen)
        await over

    # Answers of a node that has them

    async def _asked(
        self, node: str, queue_id: int, start: int, upto: int, runs: Runs
    ) -> RetainedSlice:
        """Messages from `start` on that the asking node lacks: up to `upto` it has those in `runs`
        and no others. Raises `NotFound` if nothing is retained."""
        self._turns.spend(LIST_US)
        await self._turns.pause()
        retention = self._retained.of(queue_id)
        if retention is not None and upto > retention.log.committed:
            # Messages on their way to the disk are not listed.
            await retention.written()
        if retention is None or retention.deleted:
            raise NotFound(f"queue {queue_id} retains nothing here")
        log = retention.log
        end = log.next_position
        listed = log.list_positions(start, upto, LISTED_MAX)
        upto = min(upto, listed.next_position)
        there, here = _positions(runs), listed.positions
        if self._lacks(queue_id, log, sorted(at for at in there.difference(here) if at < upto)):
            self._ask_back(queue_id, node)
        first = next((position for position in here if position not in there), None)
        if first is None:
            return RetainedSlice(b"", [], upto, end)
        peeked = log.peek(first, SLICE_COUNT, SLICE_BYTES)
        upto = min(upto, peeked.next_position)
        packer, ages_s, now = Packer(), list[float](), self._clock.wall_time()
        for message in peeked.messages:
            position = message.position
            at = log.arrived_at(position)
            if position < upto and position not in there and at is not None:
                packer.add(position, message.envelope, message.body)
                ages_s.append(now - at)
        return RetainedSlice(b"".join(packer.take()), ages_s, upto, end)

    async def _asked_to_ask_again(self, node: str, queue_id: int) -> None:
        known = self._syncs.get(queue_id)
        if known is not None and known.source == node:
            self._begin(_Sync(queue_id, node, known.reason))

    def _lacks(self, queue_id: int, log: RetainedLog, positions: Sequence[int]) -> bool:
        """Whether this node leads, and lacks messages with these positions that it wants."""
        return self._retained.leads(queue_id) and any(
            at >= log.trimmed_below
            and not self._retained.is_superseded(queue_id, at)
            and not log.has(at)
            for at in positions
        )

    def _ask_back(self, queue_id: int, node: str) -> None:
        known = self._syncs.get(queue_id)
        if known is None or (known.is_over and known.reason != node):
            self._begin(_Sync(queue_id, node, node))


def _with_ages(answer: RetainedSlice) -> list[tuple[Message, float]]:
    messages = [
        Message(envelope, body, position)
        for carried in Unpacker().messages(answer.messages, 0)
        for envelope, body, position in zip(
            carried.envelopes, carried.bodies, carried.numbers, strict=True
        )
    ]
    return list(zip(messages, answer.ages_s, strict=True))


def _runs(positions: Iterable[int]) -> Runs:
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and sum(runs[-1]) == position:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((position, 1))
    return runs


def _positions(runs: Runs) -> set[int]:
    return {position for first, count in runs for position in range(first, first + count)}
