"""A mirror of a queue: carries out the leader's batches, and reports up to which it has everything.

Answerable for this copy only. Other modules decide which node leads, and whether this node should
have a copy. Batches of an earlier epoch than the mirror's own are passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.definitions.definition_table import CompletedCommit
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.ports import Clock, Commit
from warren.mirror.carriers.batch import epoch_and_batch
from warren.mirror.messages.cargo import Unpacker
from warren.mirror.replication.copies.former_copy import FormerCopy
from warren.mirror.replication.copies.observed_copy import Observe, ObservedCopy, no_observer
from warren.mirror.replication.copies.refusals import Refusals
from warren.mirror.replication.levels.instructions import Op, perform
from warren.mirror.replication.levels.mirror_level import NOWHERE, BeginAnew, CopyLost, MirrorLevel
from warren.mirror.replication.levels.numbered_groups import NumberedGroups
from warren.mirror.replication.levels.queue_levels import mirror_level
from warren.mirror.replication.levels.renumbering import NO_LIMIT, LeaderChange, Renumbering

IN_SLICE = -1
"""In place of a batch, for messages that came in slices."""

NOT_YET = 1 << 62
"""Later than every batch."""

EVER = -NO_LIMIT
"""Before every position. Positions of a leader that was started more often may be below 0 here."""

BATCH_BITS = 40
"""Bits for the number of a batch beside its epoch: an epoch has far fewer batches."""


class Retains:
    """Retains no messages; `RetainedCopy`, which does, derives from it."""

    def next_is(self, position: int) -> None:
        """The message that is retained next gets this position."""

    def retain(self, level: MirrorLevel, messages: Mapping[int, Message]) -> None:
        """The leader retains messages at these positions; they are about to be acknowledged."""

    def superseded(self, ranges: Iterable[Sequence[int]]) -> None:
        """Messages that were retained between these positions are unknown to later leaders."""


class Mirror(PublishConfirms):
    """A mirror of a queue. It calls `report(mirror, batch)` when it has everything up to that
    batch; messages that have to be on disk are there."""

    def __init__(
        self,
        node: str,
        epoch: int,
        backings: Sequence[MirroredLevel],
        clock: Clock,
        report: Callable[[Mirror, int], None],
    ) -> None:
        self.epoch = epoch
        self.levels = [mirror_level(backing) for backing in backings]
        self.origins: dict[str, int] = {}
        self.refusals = Refusals()
        self.started = False
        # Epoch and ballot of the definition in which it began; earlier ones may still arrive.
        self.began_in = (epoch, 0)
        self.renumbering = Renumbering(epoch)
        # The former copy of this node, from which messages are taken until this copy is whole.
        self.former: FormerCopy | None = None
        # The former copy that is the beginning of this one, until this one is whole.
        self.grows_from: FormerCopy | None = None
        # Set if this copy was found on disk when the node started; then it follows no leader.
        self.from_disk: FormerCopy | None = None
        # Whether this copy has a card, so that it is found again after a restart.
        self.has_card = False
        # Writes the card of the present epoch.
        self.write_card: Callable[[Mirror], Commit] = lambda mirror: CompletedCommit()
        self._card: Commit = CompletedCommit()
        # Whether a persistent message is safe here only when it is on disk, or at once.
        self.is_flushed = True
        # Returns the observer of messages that arrive; None if there is none.
        self.observed: Callable[[], Observe | None] = no_observer
        self.retains = Retains()
        # The position of the message that the leader retains next.
        self._retain_at = 0
        self._former_shifts: Sequence[int] = ()
        self._node = node
        self._clock = clock
        self._report = report
        self._unpacker = Unpacker()
        self._batch = 0
        # The last batch of the former leader.
        self._carried_out = (epoch, 0)
        self._reported = 0
        # The number of persistent messages not on disk yet, by epoch and batch.
        self._unsafe: dict[int, int] = {}
        self._of_store: NumberedGroups[int] = NumberedGroups()
        self._on_safe: list[Callable[[], None]] = []
        # Slices that arrived before their markers.
        self._slices: dict[tuple[int, int], bytes] = {}
        # Epoch and number of the last slice that was taken.
        self._last_slice = (epoch, 0)
        # Batches that wait for a slice.
        self._waiting: deque[bytes] = deque()
        self._awaited_slice = 0
        self._sync_level: MirrorLevel
        self._sync_upto = NOWHERE
        # The leader's next position when it wrote the marker of the slice.
        self._sync_behind = 0
        self._in_slice = False
        self._whole_at = NOT_YET

    @classmethod
    def of_disk(
        cls, node: str, former: FormerCopy, levels: Sequence[MirroredLevel], clock: Clock
    ) -> Mirror:
        """A whole copy that was found on disk, with these `levels`; its card names its epoch."""
        mirror = cls(node, former.epoch, levels, clock, lambda mirror, batch: None)
        for level, delta in zip(mirror.levels, former.deltas, strict=True):
            level.have_all(delta)
        mirror.from_disk = former
        mirror.started = mirror.has_card = True
        if former.renumbering is not None:
            mirror.renumbering = former.renumbering
        return mirror

    # Batches and slices

    def deliver(self, payload: bytes) -> None:
        """Take a batch. Raises `Undeliverable`, `CopyLost`."""
        if self._awaited_slice and epoch_and_batch(payload)[0] > self.epoch:
            self._do_without_slice()
        if self._awaited_slice:
            self._waiting.append(payload)
        else:
            self._carry_out(payload)

    def slice_came(self, epoch: int, number: int, payload: bytes) -> None:
        """Take a slice of the queue, which counts from its marker on; it may come twice. Raises
        what `deliver` raises."""
        if (epoch, number) <= self._last_slice:
            return
        self._slices[epoch, number] = payload
        if (epoch, number) != (self.epoch, self._awaited_slice):
            return
        self._awaited_slice = 0
        self._take_slice(number)
        while self._waiting and not self._awaited_slice:
            self._carry_out(self._waiting.popleft())

    @property
    def awaits_slice(self) -> bool:
        """Whether batches wait until a slice of the queue has come."""
        return self._awaited_slice > 0

    def _do_without_slice(self) -> None:
        """Go on without the awaited slice: another node leads, and the former leader sends it no
        more. The copy stays as short as it is until it begins anew."""
        while self._awaited_slice or self._waiting:
            self._awaited_slice = 0
            if self._waiting:
                self._carry_out(self._waiting.popleft())

    def _carry_out(self, payload: bytes) -> None:
        epoch, batch = epoch_and_batch(payload)
        if epoch < self.epoch:
            return
        if epoch > self.epoch:
            self._carried_out = self.carried_out
            self.epoch = epoch
            # Batches and slices are counted anew.
            self._reported = 0
            self._last_slice = (epoch, 0)
            self._forget_slices()
        self._batch = batch
        self._perform(payload)
        self._report_progress()

    def _perform(self, payload: bytes) -> None:
        observe = self.observed()
        performer = self if observe is None else ObservedCopy(self, observe)
        perform(payload, performer, self._unpacker)

    # `Performer`

    def publish(
        self,
        level: int,
        position: int,
        envelope: Envelope,
        body: bytes,
        lives_s: float,
        delivered: bool,
    ) -> None:
        self._append(level, position, envelope, body, self._expires_at(lives_s), delivered)

    def publish_many(
        self,
        level: int,
        first: int,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        lives_s: float,
        delivered: bool,
    ) -> None:
        copy, expires_at = self.levels[level], self._expires_at(lives_s)
        persistent = envelopes[0].persistent
        alike = all([envelope.persistent is persistent for envelope in envelopes])
        if not (alike and copy.takes_together(first, len(bodies), delivered)):
            for position, (envelope, body) in enumerate(zip(envelopes, bodies, strict=True), first):
                self._append(level, position, envelope, body, expires_at, delivered)
            return
        confirms, number = self._await_store(copy, persistent, len(bodies))
        copy.publish_many(first, envelopes, bodies, expires_at, delivered, confirms, number)

    def _expires_at(self, lives_s: float) -> float | None:
        return self._clock.now() + lives_s if lives_s >= 0 else None

    def _append(
        self,
        level: int,
        position: int,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        delivered: bool,
    ) -> None:
        copy = self.levels[level]
        if copy.has_place(position):
            confirms, number = self._await_store(copy, envelope.persistent, 1)
            copy.publish(position, envelope, body, expires_at, delivered, confirms, number)

    def _await_store(
        self, copy: MirrorLevel, persistent: bool, count: int
    ) -> tuple[PublishConfirms | None, int]:
        """Number `count` messages of this batch for the store. Returns this mirror, to which the
        store answers, and the first number; None and 0 if the messages need no disk to be safe."""
        backing = copy.backing
        defers = backing.defers_confirms if persistent else backing.defers_transient
        if not (self.is_flushed and defers):
            return None, 0
        mark = IN_SLICE if self._in_slice else self.epoch << BATCH_BITS | self._batch
        self._unsafe[mark] = self._unsafe.get(mark, 0) + count
        return self, self._of_store.add(mark, count)

    def run(self, op: Op, level: int, start: int, count: int) -> None:
        if op is Op.KEEP or op is Op.KEEP_OUT:
            self._keep(level, start, count, op is Op.KEEP_OUT)
        elif op is Op.AGAIN:
            self.levels[level].again.update(range(start, start + count))
        elif op is Op.RETAIN:
            self._retain(self.levels[level], start, count)
        else:
            self.levels[level].run(op, start, count)

    def note(self, op: Op, level: int, position: int, number: int) -> None:
        if op is Op.HAND_OUT:
            self.levels[level].handed_out_below = position
        elif op is Op.RETAIN_AT:
            self._retain_at = position
            self.retains.next_is(position)
        elif op is Op.ARRIVED:
            self.levels[level].arrived_at = self._clock.wall_time() - number
        else:
            self.levels[level].note(op, position, number)

    def _retain(self, level: MirrorLevel, start: int, count: int) -> None:
        there = self._retain_at - start
        out = {at + there: m for at, m in level.out(start, start + count).items()}
        self._retain_at += count
        self.retains.retain(level, out)
        # The next position may be further on, if some of these messages are not here.
        self.retains.next_is(self._retain_at)

    def _keep(self, level: int, start: int, count: int, delivered: bool) -> None:
        """Take messages from the former copy. Raises `CopyLost`."""
        if self.grows_from is not None:
            self.levels[level].keep(start, count)
            return
        if self.former is None or not self._former_shifts:
            raise CopyLost("it has nothing from before to take messages from")
        former, copy = self.former, self.levels[level]
        messages = former.take(level, start - self._former_shifts[level], count)
        for position, message in enumerate(messages, start):
            copy.arrived_at = former.arrived_at(level, message.position)
            self._append(
                level, position, message.envelope, message.body, message.expires_at, delivered
            )

    def purge(self, level: int) -> None:
        self.levels[level].purge()

    def origin(self, name: str, number: int) -> None:
        self.origins[name] = number

    def control(self, op: Op, arguments: Any) -> None:
        if op is Op.EPOCH:
            deltas, tails, firsts, carried_out, *retained = arguments
            if self.started and self._carried_out > tuple(carried_out):
                # Keep the copy as it is: it may be the only one with those batches.
                self.epoch, self._batch = self._carried_out
                raise BeginAnew("it has done more than who leads now")
            self.renumbering.step(LeaderChange(self.epoch, deltas, tails, firsts, *retained))
            self.retains.superseded(self.renumbering.retained)
            if self.started:
                for level, delta in zip(self.levels, deltas, strict=True):
                    level.follow(delta)
                self._renew_card()
            return
        if op is Op.REFUSED:
            name, numbers = arguments
            self.refusals.note(name, numbers)
            return
        if op is Op.HEARD:
            name, upto = arguments
            self.refusals.heard(name, upto)
            return
        mirror, *rest = arguments
        if mirror != self._node:
            return
        if op is Op.START:
            firsts, uptos, first_epoch, steps, shifts, slices, ballot = rest
            if self.has_card:
                raise BeginAnew("it is to begin anew")
            self._last_slice = (self.epoch, slices)
            self._forget_slices()
            self.refusals.clear()
            self.renumbering = Renumbering.told(first_epoch, steps)
            self.retains.superseded(self.renumbering.retained)
            self._former_shifts = shifts
            for level, first, upto in zip(self.levels, firsts, uptos, strict=True):
                level.begin(first, upto)
            self.started = True
            self.began_in = (self.epoch, ballot)
        elif self.started:
            # A marker before START is for an earlier life of this mirror.
            number, level_number, upto, behind = rest
            self._sync_level, self._sync_upto = self.levels[level_number], upto
            self._sync_behind = behind
            if (self.epoch, number) in self._slices:
                self._take_slice(number)
            else:
                self._awaited_slice = number

    def _take_slice(self, number: int) -> None:
        """Append a slice: messages of the leader from the end of this copy on."""
        payload = self._slices.pop((self.epoch, number))
        self._last_slice = (self.epoch, number)
        self._forget_slices()
        level = self._sync_level
        level.upto = NOWHERE
        self._in_slice = True
        self._perform(payload)
        self._in_slice = False
        level.arrived_at = None
        level.upto = self._sync_upto
        if level.upto == NOWHERE:
            level.go_on_from(self._sync_behind)
            # The level is whole now; that is reported when all of it is on disk.
            self._whole_at = self._batch
        self._report_progress()

    def _renew_card(self) -> None:
        """Write the card of a whole copy for the present epoch: positions may have moved."""
        if self.has_card:
            self._card = self.write_card(self)
            if not self._card.done:
                self._card.then(self._report_progress)

    def _forget_slices(self) -> None:
        for earlier in [slice_ for slice_ in self._slices if slice_ <= self._last_slice]:
            del self._slices[earlier]

    # Messages on disk, and reports

    def settle(self, publish_seq: int) -> None:
        """`PublishConfirms`: the store has a message."""
        self.settle_many(publish_seq, 1)

    def settle_many(self, first_seq: int, count: int) -> None:
        some_are_whole = False
        for part in self._of_store.settled(first_seq, count):
            mark = part.group
            left = self._unsafe[mark] - part.size
            if left:
                self._unsafe[mark] = left
                continue
            del self._unsafe[mark]
            some_are_whole = True
            if mark == IN_SLICE:
                self._whole_at = NOT_YET
        if not some_are_whole:
            return
        self._report_progress()
        if not self._unsafe:
            on_safe, self._on_safe = self._on_safe, []
            for done in on_safe:
                done()

    def refuse(self, publish_seq: int) -> None:
        """`PublishConfirms`: the store cannot take a message, so no later batch is reported."""

    def when_safe(self, done: Callable[[], None]) -> None:
        """Call `done` when all messages on their way to the disk are there."""
        self._on_safe.append(done)

    @property
    def safe(self) -> bool:
        """Whether all messages that have to be on disk are there."""
        return not self._unsafe

    def _report_progress(self) -> None:
        if self._awaited_slice or not self.started:
            # Before START, a report would be taken for one of an earlier life of this mirror.
            return
        if not self._card.done:
            # The leader confirms by these reports, so a restart must find the copy with its card.
            return
        upto = self._batch
        if IN_SLICE in self._unsafe:
            # The level counts as whole only when the messages of its slices are on disk.
            upto = min(upto, self._whole_at - 1)
        live = min([mark for mark in self._unsafe if mark != IN_SLICE], default=None)
        if live is not None:
            # While messages of an earlier epoch wait, no batch of this epoch is reported.
            upto = min(upto, max(live - (self.epoch << BATCH_BITS) - 1, 0))
        if upto > self._reported:
            self._reported = upto
            self._report(self, upto)

    def report_again(self) -> None:
        """Repeat the last report: the leader may not have got it."""
        if self._reported:
            self._report(self, self._reported)

    # Becoming the leader, or a former copy

    @property
    def carried_out(self) -> tuple[int, int]:
        """Epoch and number of the last batch."""
        return self.epoch, self._batch

    def goes_on_in(self, epoch: int) -> None:
        """Follow the same leader in another epoch; all batches of the one before have arrived."""
        if epoch <= self.epoch:
            return
        tails = [level.backing.next_position - level.delta for level in self.levels]
        self.renumbering.step(LeaderChange(epoch, [0] * len(tails), tails))
        self._carried_out = self.carried_out
        self.epoch = epoch
        self._reported = 0
        self._last_slice = (epoch, 0)
        self._forget_slices()
        self._renew_card()

    def ends(self) -> list[int]:
        """Per level, the end behind the last message that arrived. For a copy from disk, the end
        behind the last message on disk, or `EMPTY`: other copies may have had more."""
        if self.from_disk is None:
            return [level.backing.next_position - level.delta for level in self.levels]
        return self.from_disk.ends_at_leader()

    def tails(self) -> list[int]:
        """Per level, the position here from which on the former leader may have had more."""
        if self.from_disk is None:
            return [level.backing.next_position for level in self.levels]
        # On disk, positions that were never used follow the last message.
        ends = zip(self.from_disk.ends(), self.levels, strict=True)
        return [level.backing.next_position if end is None else end for end, level in ends]

    def deltas(self) -> list[int]:
        return [level.delta for level in self.levels]

    def set_mode(self, mode: str) -> None:
        """Keep the messages in memory (`default`) or on disk (`lazy`)."""
        for level in self.levels:
            level.backing.set_mode(mode)

    def firsts(self) -> list[int]:
        """Per level, the position here at which the copy begins: its end if it is empty.

        A copy from disk was whole: it lacks no message older than those it has.
        """
        if self.from_disk is not None:
            ends = zip(self.from_disk.ends(), self.levels, strict=True)
            return [level.backing.next_position if end is None else EVER for end, level in ends]
        return [
            min(level.first + level.delta, level.backing.next_position) for level in self.levels
        ]

    def discard(self) -> None:
        """Delete the copy: it is no longer wanted."""
        for level in self.levels:
            level.backing.delete()

    @property
    def is_of_use(self) -> bool:
        """Whether it has messages for the next copy of this node, if it is dropped."""
        return self.started or self.former is not None or self.grows_from is not None

    def into_formers(self, storage_id: int) -> Sequence[FormerCopy]:
        """Turn this copy into a former copy for the next mirror of this node. If this one was not
        whole yet, an earlier one comes first: it has more messages."""
        if self.from_disk is not None:
            return [self.from_disk]
        if self.grows_from is not None:
            grown, self.grows_from = self.grows_from, None
            return [grown]
        for level in self.levels:
            level.put_all_back()
        backings = [level.backing for level in self.levels]
        at = (storage_id, self.epoch, backings, self.deltas())
        own = FormerCopy(*at, safe_only=False, renumbering=self.renumbering)
        former, self.former = self.former, None
        return [own] if former is None else [former, own]
