"""The leader of a mirrored queue: what its mirrors are told, and what is confirmed when.

What the queue does in one turn of the loop is one batch, which the carrier broadcasts. Mirrors
report up to which batch they have everything, on disk where that is wanted. A publish is confirmed
when the leader's store and every mirror have it, or as many as `confirm_rule.py` says. A mirror
counts until the definition, which changes by compare-and-set, does not name it any more. So a
leader that was superseded, or has no etcd, confirms nothing that another leader may lack.

A mirror begins with nothing at a certain batch (START). It is in sync when all that is older has
left the queue, or was sent to it: in slices of the queue, in order, each valid at the place of its
marker (SLICE) among the instructions. Slices are small, and one is under way at a time.

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
from warren.mirror.replication.awaited_confirms import AwaitedConfirms
from warren.mirror.replication.confirmation import Confirmation
from warren.mirror.replication.flush_times import FlushTimes
from warren.mirror.replication.former_copy import Kept, Tail
from warren.mirror.replication.instructions import Op, Script, lives_s
from warren.mirror.replication.known_copy import KnownCopy, SyncProgress
from warren.mirror.replication.leader_effects import LeaderEffects, NoEffects
from warren.mirror.replication.leader_level import LeaderLevel
from warren.mirror.replication.mirror_level import NOWHERE
from warren.mirror.replication.refusals import Refusals
from warren.mirror.replication.renumbering import Renumbering, Step
from warren.mirror.replication.slice_pauses import SlicePauses
from warren.mirror.replication.slice_writing import SLICE_COUNT, SliceWriter
from warren.mirror.replication.slices import pack_slice
from warren.mirror.replication.unasked import Unasked
from warren.mirror.replication.unreported import Unreported

BATCH_BYTES_MAX = 128 << 10
"""With so many octets of instructions a batch is broadcast before the turn is over."""

NOT_BEFORE = 1 << 40
"""More batches than a leader will ever write."""

SOME_ORIGINS = ""
"""Stands among the origins of a queue to which unknown nodes may have published, because its leader
was away or it was not mirrored then."""


class Leader:
    """Implements `leader_level.InstructionLog`."""

    def __init__(self, queue_id: int, epoch: int, clock: Clock, effects: LeaderEffects) -> None:
        self.queue_id = queue_id
        self.epoch = epoch
        self.renumbering = Renumbering(epoch)
        self.levels: list[LeaderLevel] = []
        self.fenced = False
        # The position at which the queue retains the next message.
        self.retains_at: Callable[[], int | None] = lambda: None
        # Whether the card of its node says that it leads: nothing is confirmed before.
        self.is_noted = True
        self.again = False
        self._is_sent_again = False
        # Whether another node's publishes are written down: the number of the last one goes along.
        self._is_from_afar = False
        self.unasked = Unasked()
        # Origins of which the next leader may not have heard, and the batches that tell of them.
        self._new_origins: dict[str, int] = {}
        # Origins: other nodes that publish, and up to which number the queue has their publishes.
        self.origins: dict[str, int] = {}
        # Publishes of other nodes that the queue has refused; and those not written down yet.
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
        # Whether a persistent message is safe here only when it is on disk; if not, at once.
        self.is_flushed = True
        # The ballot of the definition, which may still be on its way to mirrors.
        self.ballot = 0
        # Mirrors that had everything when the definition dropped them, and the last batch then.
        self._left_with_all: dict[str, int] = {}
        self._awaited = AwaitedConfirms()
        # Announcements: when mirrors have the batch, messages below the position may be handed out.
        self._hand_outs: deque[tuple[int, int, int]] = deque()
        self._slices = 0
        self._unreported = Unreported()
        self._slice_writer = SliceWriter(clock)
        self._pauses = SlicePauses(clock)

    def goes_on_in(self, epoch: int) -> None:
        """Go on in another epoch, in which the definition has still the same leader."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._left_with_all.clear()
            tails = [level.next_position for level in self.levels]
            self.renumbering.step(Step(epoch, [0] * len(tails), tails))

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
        left_s = lives_s(expires_at, self._clock)
        batch = self._batch
        self._script.publish(level, position, envelope, body, left_s, delivered)
        self._written()
        return batch

    def publish_many(
        self,
        level: int,
        first: int,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        delivered: bool,
    ) -> int:
        """`publish` each of these messages, from `first` on, in one batch; none expires."""
        batch = self._batch
        self._script.publish_many(level, first, envelopes, bodies, delivered)
        self._written()
        return batch

    def _written(self) -> None:
        """Have what was written down broadcast: at once, if it is much."""
        if self._script.octets >= BATCH_BYTES_MAX and not self._is_from_afar:
            self._send()
        self._flushes.soon()

    @contextmanager
    def publishing_again(self) -> Iterator[None]:
        """While this lasts, what is published may have been delivered by another leader."""
        self.again = True
        try:
            yield
        finally:
            self.again = False

    @contextmanager
    def publishing_from_afar(self, origin: str) -> Iterator[None]:
        """While this lasts, what is published is kept by another node until it is answered.

        That node sends it again to the next leader, unless the next leader cannot say what it has.
        """
        is_told = origin in self.origins and origin not in self._new_origins
        self._is_sent_again = is_told or SOME_ORIGINS not in self.origins
        self._is_from_afar = True
        try:
            yield
        finally:
            self._is_sent_again = self._is_from_afar = False

    def nobody_asks(self, level: int, position: int, batch: int, count: int = 1) -> None:
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
        """A mirror is out of reach: hand out nothing more before mirrors have reported again."""
        for level in self.levels:
            level.doubt_hand_outs()

    def ask_for_reports(self) -> int:
        """Announce once more what mirrors know, so that they report; returns the batch of that."""
        for number, level in enumerate(self.levels):
            self._script.note(Op.HAND_OUT, number, level.hand_outs.announced)
        return self._batch

    def all_have(self, batch: int) -> bool:
        """Whether all mirrors in sync have everything up to this batch."""
        return all([copy.has_batch >= batch for copy in self._copies.values() if copy.in_sync])

    def tell_handed_out(self) -> None:
        """Tell mirrors exactly what counts as delivered; nothing is handed out meanwhile."""
        self._hand_outs.clear()
        for level in self.levels:
            if level.hand_outs.announced != level.inner.delivered_below:
                level.hand_outs.begin_anew(level.inner.delivered_below)

    def origin(self, name: str, number: int) -> None:
        """Note that all that another node has published up to this number has been written down."""
        if name not in self.origins:
            self._new_origins[name] = self._batch
        self.origins[name] = number
        self._script.origin(name, number)
        self._written()

    def refused(self, name: str, number: int) -> None:
        """Note that a publish of another node is not in the queue, and never will be."""
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
        """Broadcast what was written down. Without mirrors it need not wait for any report."""
        self._flushes.is_due = False
        self._send()
        if self._may_send and not self._copies:
            self._release()

    @property
    def _may_send(self) -> bool:
        return not self.fenced and not self._silent and self.is_noted

    def _send(self) -> None:
        """Broadcast what was written down. No publish is settled here: the caller may be just about
        to publish, and has not noted yet that it waits for an answer."""
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
        """The last batch with anything that was written down so far, sent or not."""
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
        """Stop leading: the queue is deleted; or, with `refuse`, another node leads it, and this
        one cannot say what became of unconfirmed publishes."""
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
        """Confirm what every mirror has, or as many as have to."""
        if self.fenced or not self.is_noted:
            return
        copies = self._copies.values()
        upto = everywhere = min([copy.has_batch for copy in copies], default=self._batch)
        self._unreported.reported_by_all(everywhere)
        self.unasked.reported_by_all(everywhere)
        # The batch that is being put together goes to mirrors that come before it is sent, too.
        self._effects.reported_by_all(min(everywhere, self._last_batch()))
        if self._new_origins:
            new = self._new_origins.items()
            self._new_origins = {name: batch for name, batch in new if batch > everywhere}
        if (acks := self.confirmation.acks) is not None:
            upto = self.confirmation.upto(acks, self._batch)
            everywhere = min([one.has_batch for one in copies if one.in_sync], default=self._batch)
        self._awaited.mirrors_have(upto, everywhere)
        if self._hand_outs:
            # The mirror that is elected has all that is confirmed.
            self._note_hand_outs(upto)

    def waits_for_nobody(self) -> None:
        """There are no mirrors any more: only the leader's own store has to have a publish."""
        self._awaited.mirrors_have(self._batch, self._batch)

    def _note_hand_outs(self, upto: int) -> None:
        was_awaited = False
        while self._hand_outs and self._hand_outs[0][0] <= upto:
            _, level, below = self._hand_outs.popleft()
            was_awaited |= self.levels[level].hand_outs.noted_by_all(below)
        if was_awaited:
            self._effects.hand_out()

    def whole_copies_are(self, named: Collection[str], missing: int) -> None:
        """Note that the definition names these mirrors as whole, and counts `missing` others."""
        self.confirmation.named_are(named, missing)
        if self.confirmation.acks is not None:
            self._release()

    def tail(self) -> Tail:
        """Return what is known of the messages that another leader may lack."""
        unasked = [self.unasked.runs(level) for level in range(len(self.levels))]
        return Tail(unasked, has_confirmed=not self.confirmation.have_all_confirmed(self._copies))

    # Mirrors

    @property
    def mirrors(self) -> Collection[str]:
        return self._copies.keys()

    def add_mirror(self, mirror: str, kept: Kept | None = None) -> None:
        """Add a mirror, which counts from the next batch on; a new one has nothing until `start`.

        `kept` is what its node has from a former copy.
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
        """The mirrors that are not named any more and still have everything, as nothing was done to
        the queue since."""
        last = self._last_batch()
        return [mirror for mirror, batch in self._left_with_all.items() if batch == last]

    def start(self, mirror: str, *, synchronise: bool) -> None:
        """Have a mirror begin: with the whole queue, or only with what is published from now on."""
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
        """Count a mirror of the former leader from the start: it has all that this leader has."""
        self._copies[mirror] = copy = KnownCopy(0)
        copy.in_sync = True
        copy.firsts = [0] * len(self.levels)

    def barrier(self, done: Callable[[bool], None], *, everywhere: bool = False) -> None:
        """Call `done` when what was written down so far is as safe as what is confirmed.

        If `everywhere`, when every mirror in sync has it. `done` gets False if another node leads.
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
        """How far the synchronisation of a mirror is; None when there is none."""
        copy = self._copies.get(mirror)
        if copy is None or copy.sync is None:
            return None
        left = sum([self._left(*one) for one in zip(self.levels, copy.sync, strict=True)])
        return SyncProgress(copy.sent, copy.sent + left, copy.began_at)

    @staticmethod
    def _left(level: LeaderLevel, upto: int) -> int:
        """How many messages of a level a mirror was not sent, without those that have left the
        queue at its head since."""
        if upto == NOWHERE:
            return 0
        return min(level.next_position - upto, level.length + len(level.pending))

    def may_synchronise(self, mirror: str) -> bool:
        """Whether the mirror has begun with newer messages only, and lacks the older ones.

        False for one that has become whole: it must not begin anew while that is written down.
        """
        copy = self._copies[mirror]
        has_part = copy.firsts is not None and copy.sync is None and not copy.awaits_batch
        return has_part and not copy.in_sync

    def lag(self, mirror: str) -> int:
        """How many batches the mirror has not reported yet."""
        return self._batch - 1 - self._copies[mirror].has_batch

    def lag_bytes(self, mirror: str) -> int:
        """How many octets of instructions the mirror has not reported yet."""
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
        """Find mirrors that have become whole: the queue has no older messages than they."""
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
        """A mirror lacks nothing that is in the queue. From now on confirms and hand-outs wait for
        it. Before the definition says that it may lead, it has to report what was done without it:
        messages that were confirmed, handed out, or acknowledged and retained."""
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
        # Messages behind the last one may have been here, and are gone.
        behind = level.next_position
        self._script.control(Op.SLICE, mirror, self._slices, number, copy.sync[number], behind)
        copy.awaits_batch = copy.slice_batch = self._batch
        self.flush()

    def send_slice_again(self, mirror: str) -> None:
        """The link to a mirror is up again: a slice that was under way before may be lost."""
        copy = self._copies.get(mirror)
        if copy is not None and copy.slice and not self.fenced:
            self._effects.send_slice(mirror, copy.slice)

    def begin_epoch(self, step: Step, carried_out: tuple[int, int]) -> None:
        """After promotion: mirrors take the positions of this leader, and put back what was out.

        Mirrors that have done more than this node had `carried_out` as a mirror begin anew: the
        leader before may have gone on when it gave up waiting for this node.
        """
        self.renumbering.step(step)
        _, *moved, retained = step
        self._script.control(Op.EPOCH, *moved, carried_out, *((retained,) if retained else ()))
        # A mirror that has this batch has all that the former leader may have confirmed.
        self.confirmation.confirmed = self._last_batch()
        for level in self.levels:
            level.begins_epoch()
        self._flushes.soon()
