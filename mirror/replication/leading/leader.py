"""The leader of a mirrored queue: tells mirrors what the queue does, and confirms publishes.

Everything that the queue does in one turn of the loop is one batch, which the carrier broadcasts.
Mirrors report up to which batch they have everything, on disk where that is wanted. A publish is
confirmed when the leader's store and every mirror have it, or as many as `confirm_rule.py` says. A
mirror counts as long as the definition, which changes by compare-and-set, names it. So a leader
that was superseded, or does not reach etcd, confirms nothing that another leader may lack.

A mirror begins with nothing at a certain batch (START). It is in sync when all older messages have
left the queue or were sent to it: in slices of the queue, in order. A slice counts from the place
of its marker (SLICE) among the instructions. Slices are small, and one is under way at a time.

`Leader` decides and writes; `mirroring.py` deals with frames, members and definitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from warren.core.messages.message import Envelope
from warren.core.messages.settlement import PublishConfirms
from warren.core.ports import Clock
from warren.mirror.carriers.batch import Position
from warren.mirror.messages.origin import SOME_ORIGINS
from warren.mirror.replication.copies.former_copy import Kept, Tail
from warren.mirror.replication.copies.refusals import Refusals
from warren.mirror.replication.leading.awaited_confirms import AwaitedConfirms
from warren.mirror.replication.leading.confirmation import Confirmation
from warren.mirror.replication.leading.flush_times import FlushTimes
from warren.mirror.replication.leading.known_copy import KnownCopy, SyncProgress
from warren.mirror.replication.leading.leader_effects import LeaderEffects, NoEffects
from warren.mirror.replication.leading.slice_writing import SliceWriter
from warren.mirror.replication.leading.unasked import Unasked
from warren.mirror.replication.leading.unreported import Unreported
from warren.mirror.replication.levels.instructions import Op, Script, lives_s
from warren.mirror.replication.levels.leader_level import LeaderLevel
from warren.mirror.replication.levels.mirror_level import NOWHERE
from warren.mirror.replication.levels.renumbering import LeaderChange, Renumbering
from warren.mirror.replication.levels.slice_pauses import SlicePauses
from warren.mirror.replication.levels.slices import SLICE_COUNT, pack_slice

BATCH_BYTES_MAX = 128 << 10
"""A batch with so many octets of instructions is broadcast before the turn is over."""

NOT_BEFORE = 1 << 40
"""More batches than a leader ever writes."""


class Leader:
    """Implements `leader_level.InstructionLog`."""

    def __init__(self, queue_id: int, epoch: int, clock: Clock, effects: LeaderEffects) -> None:
        self.queue_id = queue_id
        self.epoch = epoch
        self.renumbering = Renumbering(epoch)
        self.levels: list[LeaderLevel] = []
        self.fenced = False
        # Returns the position at which the queue retains the next message.
        self.retains_at: Callable[[], int | None] = lambda: None
        # Whether the card on disk says that this node leads; before that it confirms nothing.
        self.is_noted = True
        self.again = False
        self._is_sent_again = False
        # Whether publishes of another node are being written down; `origin` follows them.
        self._is_from_afar = False
        self.unasked = Unasked()
        # Origins of which mirrors may not have heard yet, and the batches that name them.
        self._new_origins: dict[str, int] = {}
        # Origins, and the number up to which the queue has the publishes of each.
        self.origins: dict[str, int] = {}
        # Publishes of other nodes that the queue refused; and those of them not written down yet.
        self.refusals = Refusals()
        self._refused: dict[str, list[int]] = {}
        self._clock = clock
        self._effects = effects
        self._script = Script()
        self._batch = 1
        self._flushes = FlushTimes(clock, lambda: self._effects.flush_soon(), self.flush)
        self._silent = False
        self._copies: dict[str, KnownCopy] = {}
        self.confirmation = Confirmation(self._copies)
        # Whether a persistent message is safe here only when it is on disk, or at once.
        self.is_flushed = True
        # The ballot of the definition; mirrors may not know it yet.
        self.ballot = 0
        # Mirrors that had everything when the definition dropped them, and the last batch then.
        self._left_with_all: dict[str, int] = {}
        self._awaited = AwaitedConfirms()
        # Batch, level, position: once mirrors have the batch, messages below may be handed out.
        self._hand_outs: deque[tuple[int, int, int]] = deque()
        self._slices = 0
        self._unreported = Unreported()
        self._slice_writer = SliceWriter(clock)
        self._pauses = SlicePauses(clock)

    def goes_on_in(self, epoch: int) -> None:
        """Go on in another epoch, in which this node still leads."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._left_with_all.clear()
            tails = [level.next_position for level in self.levels]
            self.renumbering.step(LeaderChange(epoch, [0] * len(tails), tails))

    # Writing down

    def publish(
        self,
        level: int,
        position: int,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        delivered: bool,
    ) -> int:
        batch, left_s = self._batch, lives_s(expires_at, self._clock)
        self._script.publish(level, position, envelope, body, left_s, delivered)
        self._written()
        return batch

    def publish_many(
        self,
        level: int,
        first: int,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        delivered: bool,
    ) -> int:
        """`publish` each of these messages, from `first` on, in one batch."""
        batch, left_s = self._batch, lives_s(expires_at, self._clock)
        self._script.publish_many(level, first, envelopes, bodies, left_s, delivered)
        self._written()
        return batch

    def _written(self) -> None:
        """Broadcast the instructions soon; at once if they are many."""
        if self._script.octets >= BATCH_BYTES_MAX and not self._is_from_afar:
            self._send()
        self._flushes.soon()

    @contextmanager
    def publishing_again(self) -> Iterator[None]:
        """Within this, another leader may have delivered the published messages already."""
        self.again = True
        try:
            yield
        finally:
            self.again = False

    @contextmanager
    def publishing_from_afar(self, origin: str) -> Iterator[None]:
        """Within this, the published messages are kept by another node until it has the answer.

        That node sends them again to the next leader, if that can say which of them it has.
        """
        is_told = origin in self.origins and origin not in self._new_origins
        self._is_sent_again = is_told or SOME_ORIGINS not in self.origins
        self._is_from_afar = True
        try:
            yield
        finally:
            self._is_sent_again = self._is_from_afar = False

    def without_confirms(self, level: int, position: int, batch: int, count: int = 1) -> None:
        """Note that the publishers of these messages wait for no confirm."""
        if not self._is_sent_again:
            self.unasked.published(batch, level, position, count)

    def run(self, op: Op, level: int, position: int) -> None:
        self._script.run(op, level, position)
        self._flushes.after(op)

    def runs(self, op: Op, level: int, positions: Sequence[int]) -> None:
        self._script.runs(op, level, positions)
        if positions:
            self._flushes.after(op)

    def note(self, op: Op, level: int, position: int, number: int) -> None:
        self._script.note(op, level, position, number)
        self._flushes.soon()

    def purge(self, level: int) -> None:
        self._script.purge(level)
        self._flushes.soon()

    def flush_soon(self) -> None:
        self._flushes.soon()

    def hand_out(self, level: int, below: int) -> None:
        self._script.note(Op.HAND_OUT, level, below)
        if self._copies or self.confirmation.waits_for_others:
            self._hand_outs.append((self._batch, level, below))
        else:
            self._hand_outs.clear()
            self.levels[level].hand_outs.noted_by_all(below)
        self._flushes.soon()

    def withhold(self) -> None:
        self._effects.withhold()

    def doubt_hand_outs(self) -> None:
        """A mirror is out of reach: hand out nothing more until mirrors have reported again."""
        for level in self.levels:
            level.doubt_hand_outs()

    def ask_for_reports(self) -> int:
        """Repeat an announcement so that mirrors report; returns the batch to wait for."""
        for number, level in enumerate(self.levels):
            self._script.note(Op.HAND_OUT, number, level.hand_outs.announced)
        return self._batch

    def all_have(self, batch: int) -> bool:
        """Whether all mirrors in sync have everything up to this batch."""
        return all([copy.has_batch >= batch for copy in self._copies.values() if copy.in_sync])

    def tell_handed_out(self) -> None:
        """Tell mirrors exactly which messages count as delivered; none is handed out meanwhile."""
        self._hand_outs.clear()
        for level in self.levels:
            if level.hand_outs.announced != level.inner.delivered_below:
                level.hand_outs.begin_anew(level.inner.delivered_below)

    def origin(self, name: str, number: int) -> None:
        """Note that all publishes of another node up to this number are written down."""
        if name not in self.origins:
            self._new_origins[name] = self._batch
        self.origins[name] = number
        self._script.origin(name, number)
        self._written()

    def refused(self, name: str, number: int) -> None:
        """Note that the queue has refused a publish of another node."""
        self._refused.setdefault(name, []).append(number)
        self._flushes.soon()

    def heard(self, name: str, upto: int) -> None:
        """Note that another node knows which of its publishes were refused, up to this number."""
        self._write_refused()
        self._script.control(Op.HEARD, name, upto)
        self._flushes.soon()

    def _write_refused(self) -> None:
        for name, numbers in self._refused.items():
            self._script.control(Op.REFUSED, name, numbers)
        self._refused.clear()

    def flush(self) -> None:
        """Broadcast the instructions. Without mirrors, publishes wait for no report."""
        self._flushes.is_due = False
        self._send()
        if self._may_send and not self._copies:
            self._release()

    @property
    def _may_send(self) -> bool:
        return not self.fenced and not self._silent and self.is_noted

    def _send(self) -> None:
        """Broadcast the instructions. No publish is settled here: the caller may be in the middle
        of a publish, and has not noted yet that it waits for an answer."""
        if not self._may_send:
            return
        if self._refused:
            self._write_refused()
        if self._script:
            batch, self._batch = self._batch, self._batch + 1
            payload = self._script.take(self.epoch, batch)
            if self._copies:
                self._unreported.broadcast(batch, len(payload))
                self._effects.broadcast(payload)

    @property
    def last_position(self) -> Position:
        """The last batch that was written, sent or not."""
        return self.epoch, self._batch - 1

    def _last_batch(self) -> int:
        """The last batch that has an instruction, sent or not."""
        return self._batch if self._script else self._batch - 1

    # Confirming

    def confirm(
        self,
        confirms: PublishConfirms,
        first_seq: int,
        local: bool,
        batch: int,
        count: int = 1,
    ) -> tuple[PublishConfirms | None, int]:
        local = local and self.is_flushed
        return self._awaited.add(confirms, first_seq, count, local, batch)

    def fall_silent(self) -> None:
        """Stop broadcasting: a mirror may be taking over, and nothing that it lacks may reach the
        others."""
        self.flush()
        self._silent = True

    def speak_again(self) -> None:
        """Broadcast again: no other node has taken over."""
        self._silent = False
        self.flush()

    def end(self, *, refuse: bool) -> None:
        """Stop leading, because the queue is deleted. With `refuse`, another node leads it, and
        unconfirmed publishes are refused: this node cannot say what became of them."""
        self.fenced = True
        self._awaited.end(refuse=refuse)

    def let_go(self) -> None:
        """Cut the references to the queue: this leader has ended, and memory can be freed."""
        self.levels.clear()
        self._flushes.end()
        self._effects = NoEffects()

    def has(self, mirror: str, batch: int) -> None:
        """Note that a mirror has everything up to this batch."""
        copy = self._copies.get(mirror)
        if copy is None or batch <= copy.has_batch:
            return
        copy.has_batch = batch
        if batch >= copy.slice_batch:
            copy.slice = b""
        self._release()
        if copy.sync is not None and batch >= copy.awaits_batch:
            # Clients have their turns first.
            copy.awaits_batch = self._batch + NOT_BEFORE
            self._pause(mirror, copy, copy.sync)
        elif copy.awaits_batch and batch >= copy.awaits_batch and copy.sync is None:
            copy.awaits_batch = 0
            if not copy.in_sync:
                self._is_in_sync(mirror, copy)
            elif not self.fenced:
                self._effects.now_in_sync(mirror)

    def _release(self) -> None:
        """Confirm the publishes that every mirror has, or as many mirrors as have to."""
        if self.fenced or not self.is_noted:
            return
        copies = self._copies.values()
        upto = everywhere = min([copy.has_batch for copy in copies], default=self._batch)
        self._unreported.reported_by_all(everywhere)
        self.unasked.reported_by_all(everywhere)
        # A mirror that comes before the present batch is sent also gets it.
        self._effects.reported_by_all(min(everywhere, self._last_batch()))
        if self._new_origins:
            new = self._new_origins.items()
            self._new_origins = {name: batch for name, batch in new if batch > everywhere}
        if (acks := self.confirmation.acks) is not None:
            upto = self.confirmation.upto(acks, self._batch)
            everywhere = min([one.has_batch for one in copies if one.in_sync], default=self._batch)
        self._awaited.mirrors_have(upto, everywhere)
        if self._hand_outs:
            # A mirror that is elected has everything that is confirmed.
            self._note_hand_outs(upto)

    def confirm_alone(self) -> None:
        """There are no mirrors any more: confirms wait for the leader's own store only."""
        self._awaited.mirrors_have(self._batch, self._batch)

    def _note_hand_outs(self, upto: int) -> None:
        was_awaited = False
        while self._hand_outs and self._hand_outs[0][0] <= upto:
            _, level, below = self._hand_outs.popleft()
            was_awaited |= self.levels[level].hand_outs.noted_by_all(below)
        if was_awaited:
            self._effects.hand_out()

    def whole_copies_are(self, named: Collection[str], missing: int) -> None:
        """Note that the definition calls these mirrors in sync, and counts `missing` others."""
        self.confirmation.named_are(named, missing)
        if self.confirmation.acks is not None:
            self._release()

    def tail(self) -> Tail:
        """What this leader knows of messages that another leader may lack."""
        unasked = [self.unasked.runs(level) for level in range(len(self.levels))]
        return Tail(unasked, has_confirmed=not self.confirmation.have_all_confirmed(self._copies))

    # Mirrors

    @property
    def mirrors(self) -> Collection[str]:
        return self._copies.keys()

    def add_mirror(self, mirror: str, kept: Kept | None = None) -> None:
        """Add a mirror, which counts from the next batch on; it has nothing until `start`.

        `kept` says which messages its node has in a former copy.
        """
        self.flush()
        self._copies[mirror] = copy = KnownCopy(self._batch - 1)
        copy.has_kept = kept
        self._left_with_all.pop(mirror, None)

    def remove_mirror(self, mirror: str) -> None:
        """Remove a mirror that the definition of the queue does not name any more."""
        copy = self._copies.pop(mirror, None)
        if copy is None:
            return
        if copy.in_sync and copy.has_batch >= self._last_batch():
            self._left_with_all[mirror] = copy.has_batch
        self._release()

    def left_with_all(self) -> list[str]:
        """The mirrors that are no longer named but still have everything, because the queue has not
        changed since."""
        last = self._last_batch()
        return [mirror for mirror, batch in self._left_with_all.items() if batch == last]

    def start(self, mirror: str, *, synchronise: bool) -> None:
        """Let a mirror begin: with the whole queue, or only with messages published from now on."""
        copy = self._copies[mirror]
        tails = [level.next_position for level in self.levels]
        firsts = [level.oldest() for level in self.levels]
        whole = firsts == tails
        synchronise = synchronise and not whole
        copy.in_sync = False
        copy.firsts = firsts if synchronise else tails
        copy.sync = None
        copy.awaits_batch = 0
        uptos = firsts if synchronise else [NOWHERE] * len(tails)
        shifts = self._find_kept(copy) if synchronise else []
        self._script.control(
            Op.START,
            mirror,
            copy.firsts,
            uptos,
            *self.renumbering.plain(),
            shifts,
            self._slices,
            self.ballot,
        )
        for number, level in enumerate(self.levels):
            self._script.note(Op.HAND_OUT, number, level.hand_outs.announced)
            self._script.runs(Op.AGAIN, number, sorted(level.again))
        retains_at = self.retains_at()
        if retains_at is not None:
            self._script.note(Op.RETAIN_AT, 0, retains_at)
        for name, number in self.origins.items():
            self._script.origin(name, number)
        for name, numbers in self.refusals:
            self._script.control(Op.REFUSED, name, list(numbers))
        self.flush()
        copy.begins_with = self._last_batch()
        if synchronise:
            copy.sync = firsts
            copy.sent = 0
            copy.began_at = self._clock.now()
            copy.awaits_batch = copy.begins_with
        elif whole:
            copy.awaits_batch = copy.begins_with

    def _find_kept(self, copy: KnownCopy) -> list[int]:
        """Note what a mirror has in its former copy; return how far positions have moved."""
        copy.kept = []
        kept = copy.has_kept
        if kept is None or len(kept.ranges) != len(self.levels):
            return []
        since = self.renumbering.since(kept.epoch, len(self.levels))
        if since is None:
            return []
        copy.kept = [
            (start + moved.shift, min(end, moved.limit) + moved.shift)
            for (start, end), moved in zip(kept.ranges, since, strict=True)
        ]
        return [moved.shift for moved in since]

    def may_resume(self, mirror: str) -> bool:
        """Whether the mirror may have messages of the queue in its former copy."""
        self._find_kept(self._copies[mirror])
        return any(start < end for start, end in self._copies[mirror].kept)

    def follows(self, mirror: str) -> None:
        """Take over a mirror of the former leader: it has everything that this leader has."""
        self._copies[mirror] = copy = KnownCopy(0)
        copy.in_sync = True
        copy.firsts = [0] * len(self.levels)

    def barrier(self, done: Callable[[bool], None], *, everywhere: bool = False) -> None:
        """Call `done` when all instructions so far are as safe as confirmed publishes are.

        If `everywhere`: when every mirror in sync has them. False: another node leads by then.
        """
        self.flush()
        self._awaited.add_barrier(done, self._last_batch(), everywhere=everywhere)
        self._release()

    def limit_slices(self, count_max: int, rate: int = 0) -> None:
        """Send at most `count_max` messages in a slice, and never more than `SLICE_COUNT`; and at
        most `rate` octets a second (0: no limit)."""
        self._slice_writer.count_max = min(SLICE_COUNT, count_max)
        self._pauses.rate = rate

    def cancel_sync(self, mirror: str) -> bool:
        """End the synchronisation of a mirror, which begins anew; False if there was none."""
        copy = self._copies.get(mirror)
        if copy is None or copy.sync is None:
            return False
        self.start(mirror, synchronise=False)
        return True

    def progress(self, mirror: str) -> SyncProgress | None:
        """The progress of a mirror's synchronisation; None if there is none."""
        copy = self._copies.get(mirror)
        if copy is None or copy.sync is None:
            return None
        left = sum([self._left(*one) for one in zip(self.levels, copy.sync, strict=True)])
        return SyncProgress(copy.sent, copy.sent + left, copy.began_at)

    @staticmethod
    def _left(level: LeaderLevel, upto: int) -> int:
        """How many messages of a level have to be sent to a mirror still."""
        if upto == NOWHERE:
            return 0
        return min(level.next_position - upto, level.length + len(level.pending))

    def may_synchronise(self, mirror: str) -> bool:
        """Whether the mirror has begun with newer messages only, and lacks older ones.

        False for a whole mirror: it must not begin anew while the definition is being changed.
        """
        copy = self._copies[mirror]
        has_part = copy.firsts is not None and copy.sync is None and not copy.awaits_batch
        return has_part and not copy.in_sync

    def lag(self, mirror: str) -> int:
        """The number of batches that the mirror has not reported yet."""
        return self._batch - 1 - self._copies[mirror].has_batch

    def lag_bytes(self, mirror: str) -> int:
        """The octets of the batches that the mirror has not reported yet."""
        return self._unreported.octets_after(self._copies[mirror].has_batch)

    def awaits_mirrors(self) -> bool:
        """Whether there are mirrors that will be in sync when they have reported a batch."""
        return any(copy.awaits_batch and copy.sync is None for copy in self._copies.values())

    def is_in_sync(self, mirror: str) -> bool:
        copy = self._copies.get(mirror)
        return copy is not None and copy.in_sync

    def is_syncing(self, mirror: str) -> bool:
        copy = self._copies.get(mirror)
        return copy is not None and copy.sync is not None

    def look_for_synced(self) -> None:
        """Find mirrors that have become whole: the queue has no messages older than theirs."""
        waiting = [
            (mirror, copy)
            for mirror, copy in self._copies.items()
            if not copy.in_sync and copy.firsts is not None and copy.sync is None
        ]
        if not waiting:
            return
        oldest = [level.oldest() for level in self.levels]
        for mirror, copy in waiting:
            assert copy.firsts is not None
            has_begun = copy.has_batch >= copy.begins_with and not copy.awaits_batch
            if has_begun and all(
                first <= there for first, there in zip(copy.firsts, oldest, strict=True)
            ):
                self._is_in_sync(mirror, copy)

    def _is_in_sync(self, mirror: str, copy: KnownCopy) -> None:
        """A mirror has become whole: from now on confirms and hand-outs wait for it. Before the
        definition may call it in sync, it has to report the batches in which messages were
        confirmed, handed out, or acknowledged and retained without it."""
        if self.fenced:
            return
        copy.in_sync = True
        self.flush()
        last = self._last_batch()
        if copy.has_batch < last:
            copy.awaits_batch = last
        else:
            self._effects.now_in_sync(mirror)

    def _pause(self, mirror: str, copy: KnownCopy, sync: list[int]) -> None:
        """Send the next slice of a synchronisation after a pause."""
        batches = self._batch - self._slices
        is_busy, copy.used = batches != copy.used, batches

        def is_wanted() -> bool:
            return self._copies.get(mirror) is copy and copy.sync is sync and not self.fenced

        self._pauses.begin(
            copy.slice_bytes,
            is_busy=is_busy,
            is_wanted=is_wanted,
            then=lambda: self._send_slice(mirror, copy),
        )

    def _send_slice(self, mirror: str, copy: KnownCopy) -> None:
        """Send the next slice; the mirror answers by reporting the batch with its marker."""
        assert copy.sync is not None
        self.flush()
        number = next((n for n, upto in enumerate(copy.sync) if upto != NOWHERE), None)
        if number is None:
            copy.sync = None
            self._is_in_sync(mirror, copy)
            return
        level = self.levels[number]
        script, end = self._slice_writer.write(level, number, copy, copy.sync[number])
        copy.sync[number] = NOWHERE if end >= level.next_position else end
        self._slices += 1
        copy.slice = pack_slice(self.queue_id, self.epoch, self._slices, script.take(self.epoch, 0))
        copy.slice_bytes = len(copy.slice)
        self._effects.send_slice(mirror, copy.slice)
        # Positions behind the last message may have been used.
        behind = level.next_position
        self._script.control(Op.SLICE, mirror, self._slices, number, copy.sync[number], behind)
        copy.awaits_batch = copy.slice_batch = self._batch
        self.flush()

    def send_slice_again(self, mirror: str) -> None:
        """The link to a mirror is up again: repeat the slice that may have been lost."""
        copy = self._copies.get(mirror)
        if copy is not None and copy.slice and not self.fenced:
            self._effects.send_slice(mirror, copy.slice)

    def begin_epoch(self, step: LeaderChange, carried_out: tuple[int, int]) -> None:
        """After promotion: mirrors change to the positions of this leader, and put pending messages
        back.

        Mirrors that have carried out more than this node had as a mirror (`carried_out`) begin
        anew: the leader before may have gone on after it had dropped this node.
        """
        self.renumbering.step(step)
        _, *moved, retained = step
        self._script.control(Op.EPOCH, *moved, carried_out, *((retained,) if retained else ()))
        # A mirror that has this batch has all that the former leader may have confirmed.
        self.confirmation.confirmed = self._last_batch()
        for level in self.levels:
            level.begins_epoch()
        self._flushes.soon()
