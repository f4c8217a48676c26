"""The leader of a mirrored queue: tells mirrors what the queue does, and confirms publishes.

Everything that the queue does in one turn of the loop is one batch, which the carrier broadcasts.
Mirrors report up to which batch they have everything, on disk where that is wanted. A publish is
confirmed when the leader's store and every mirror have it, or as many as `confirm_rule.py` says. A
mirror counts as long as the definition, which changes by compare-and-set, names it. So a leader
that was superseded, or does not reach etcd, confirms nothing that another leader may lack.

Mirrors that lack older messages are sent them by `synchronisation.py`. `Leader` decides and writes;
`led_queue.py` deals with members and definitions, `mirroring.py` with frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from warren.core.backing.stream_log import StreamLog
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
from warren.mirror.replication.leading.known_copy import KnownCopy
from warren.mirror.replication.leading.leader_effects import LeaderEffects, NoEffects
from warren.mirror.replication.leading.unasked import Unasked
from warren.mirror.replication.leading.unreported import Unreported
from warren.mirror.replication.levels.holes import Hole, not_too_many
from warren.mirror.replication.levels.instructions import Op, Script, lives_s
from warren.mirror.replication.levels.leader_level import LeaderLevel
from warren.mirror.replication.levels.renumbering import LeaderChange, Renumbering

BATCH_BYTES_MAX = 128 << 10
"""A batch with so many octets of instructions is broadcast before the turn is over."""


class Leader:
    """Implements `leader_level.InstructionLog`."""

    def __init__(self, queue_id: int, epoch: int, clock: Clock, effects: LeaderEffects) -> None:
        self.queue_id = queue_id
        self.epoch = epoch
        self.renumbering = Renumbering(epoch)
        self.levels: list[LeaderLevel] = []
        # Returns the position at which the queue retains the next message.
        self.retains_at: Callable[[], int | None] = lambda: None
        self.effects = effects
        self._clock = clock
        # What keeps it from broadcasting and confirming.
        self.fenced = False
        self._silent = False
        # Whether the card on disk says that this node leads; before that it confirms nothing.
        self.is_noted = True
        # The batch that is being put together.
        self._script = Script()
        self._batch = 1
        self._flushes = FlushTimes(clock, lambda: self.effects.flush_soon(), self.flush)
        # The mirrors by their nodes.
        self.copies: dict[str, KnownCopy] = {}
        # Mirrors that had everything when the definition dropped them, and the last batch then.
        self._left_with_all: dict[str, int] = {}
        # Whether there was a mirror in this epoch. It would take what is lost by damage for
        # consumed, if it comes back in the same epoch.
        self.had_mirrors = False
        # Whether messages were lost by damage in this epoch.
        self.has_lost_messages = False
        # The ballot of the definition; mirrors may not know it yet.
        self.ballot = 0
        self.confirmation = Confirmation(self.copies)
        # Whether a persistent message is safe here only when it is on disk, or at once.
        self.is_flushed = True
        self._awaited = AwaitedConfirms()
        self._unreported = Unreported()
        self.unasked = Unasked()
        # Batch, level, position: once mirrors have the batch, messages below may be handed out.
        self._hand_outs: deque[tuple[int, int, int]] = deque()
        # Whether another leader may have delivered the messages that are being published.
        self.again = False
        # Origins, and the number up to which the queue has the publishes of each.
        self.origins: dict[str, int] = {}
        # Origins of which mirrors may not have heard yet, and the batches that name them.
        self._new_origins: dict[str, int] = {}
        # Publishes of other nodes that the queue refused; and those of them not written down yet.
        self.refusals = Refusals()
        self._refused: dict[str, list[int]] = {}
        # Whether publishes of another node are being written down; `origin` follows them.
        self._is_from_afar = False
        # Whether that node can send them again to the next leader.
        self._is_sent_again = False
        # Whether it has done nothing yet since its node was started, and mirrors may have more; and
        # what its disk has lost by damage, for mirrors to know in the next epoch.
        self.is_from_disk = False
        self.holes: list[Hole] = []

    def goes_on_in(self, epoch: int) -> None:
        """Go on in another epoch, in which this node still leads.

        If it was away, what it had is what its disk had: a copy that comes back may have more.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self._left_with_all.clear()
            self.had_mirrors = bool(self.copies)
            self.has_lost_messages = False
            none = [0] * len(self.levels)
            tails, firsts = [level.next_position for level in self.levels], list[int]()
            if self.is_from_disk:
                tails, firsts = [level.inner.end_at_start for level in self.levels], none
                self.is_from_disk = False
            holes, self.holes = self.holes, []
            self.renumbering.step(LeaderChange(epoch, none, tails, firsts, holes=holes))

    def goes_on_with(self, known: Renumbering) -> None:
        """Begin with what a card says of earlier epochs. No position is used again that this node
        had when it took the lead: others have messages there which may be lost on the disk here.

        If the node died before its card named the present epoch, positions have not moved since.
        """
        self.renumbering = known
        tails = known.steps[-1].tails if known.steps else ()
        for level, tail in zip(self.levels, tails, strict=False):
            if tail > level.next_position and not isinstance(level.inner, StreamLog):
                level.inner.skip_to(tail)
        if self.epoch > (known.steps[-1].epoch if known.steps else known.first_epoch):
            none = [0] * len(self.levels)
            ends = [level.inner.end_at_start for level in self.levels]
            known.step(LeaderChange(self.epoch, none, ends, none))

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
        if self.copies or self.confirmation.waits_for_others:
            self._hand_outs.append((self._batch, level, below))
        else:
            self._hand_outs.clear()
            self.levels[level].hand_outs.noted_by_all(below)
        self._flushes.soon()

    def withhold(self) -> None:
        self.effects.withhold()

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
        return all([copy.has_batch >= batch for copy in self.copies.values() if copy.in_sync])

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
        if self._may_send and not self.copies:
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
            if self.copies:
                self._unreported.broadcast(batch, len(payload))
                self.effects.broadcast(payload)

    @property
    def next_batch(self) -> int:
        """The batch to which the next instruction belongs."""
        return self._batch

    @property
    def last_batch(self) -> int:
        """The last batch that has an instruction, sent or not."""
        return self._batch if self._script else self._batch - 1

    @property
    def last_position(self) -> Position:
        """The last batch that was written, sent or not."""
        return self.epoch, self._batch - 1

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
        """Stop leading. With `refuse`, another node leads the queue or may do so, and unconfirmed
        publishes are refused: this node cannot say what became of them."""
        self.fenced = True
        self._awaited.end(refuse=refuse)

    def let_go(self) -> None:
        """Cut the references to the queue: this leader has ended, and memory can be freed."""
        self.levels.clear()
        self._flushes.end()
        self.effects = NoEffects()

    def has(self, mirror: str, batch: int) -> None:
        """Note that a mirror has everything up to this batch."""
        copy = self.copies.get(mirror)
        if copy is None or batch <= copy.has_batch:
            return
        copy.has_batch = batch
        self._release()

    def _release(self) -> None:
        """Confirm the publishes that every mirror has, or as many mirrors as have to."""
        if self.fenced or not self.is_noted:
            return
        copies = self.copies.values()
        upto = everywhere = min([copy.has_batch for copy in copies], default=self._batch)
        self._unreported.reported_by_all(everywhere)
        self.unasked.reported_by_all(everywhere)
        # A mirror that comes before the present batch is sent also gets it.
        self.effects.reported_by_all(min(everywhere, self.last_batch))
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
            self.effects.hand_out()

    def whole_copies_are(self, named: Collection[str], missing: int) -> None:
        """Note that the definition calls these mirrors in sync, and counts `missing` others."""
        self.confirmation.named_are(named, missing)
        if self.confirmation.acks is not None:
            self._release()

    def tail(self) -> Tail:
        """What this leader knows of messages that another leader may lack."""
        unasked = [self.unasked.runs(level) for level in range(len(self.levels))]
        return Tail(unasked, has_confirmed=not self.confirmation.have_all_confirmed(self.copies))

    # Mirrors

    @property
    def mirrors(self) -> Collection[str]:
        return self.copies.keys()

    def add_mirror(self, mirror: str, kept: Kept | None = None) -> None:
        """Add a mirror, which counts from the next batch on. It has nothing until the
        synchronisation lets it start.

        `kept` says which messages its node has in a former copy.
        """
        self.flush()
        self.copies[mirror] = copy = KnownCopy(self._batch - 1)
        copy.has_kept = kept
        copy.may_lack = self.has_lost_messages
        self.had_mirrors = True
        self._left_with_all.pop(mirror, None)

    def remove_mirror(self, mirror: str) -> None:
        """Remove a mirror that the definition of the queue does not name any more."""
        copy = self.copies.pop(mirror, None)
        if copy is None:
            return
        if copy.in_sync and copy.has_batch >= self.last_batch:
            self._left_with_all[mirror] = copy.has_batch
        self._release()

    def has_lost(self, holes: Sequence[Hole]) -> bool:
        """Note that the disk of this node has lost messages by damage: those at the holes, or some
        whose positions are not known. Mirrors in sync have them. Return whether `renumbering` has
        changed."""
        self.has_lost_messages = True
        for copy in self.copies.values():
            copy.may_lack |= not copy.in_sync
        if self.had_mirrors:
            self.holes = not_too_many([*self.holes, *holes])
        return self.renumbering.note_holes(self.epoch, holes)

    def has_what_is_lost(self, mirror: str) -> bool:
        """Whether a mirror has all messages, also those that this node has lost by damage."""
        copy = self.copies.get(mirror)
        return copy is not None and copy.in_sync and not copy.may_lack

    def left_with_all(self) -> list[str]:
        """The mirrors that are no longer named but still have everything, because the queue has not
        changed since."""
        last = self.last_batch
        return [mirror for mirror, batch in self._left_with_all.items() if batch == last]

    def write_start(
        self, mirror: str, firsts: list[int], uptos: list[int], shifts: list[int], slices: int
    ) -> None:
        """Write that the mirror begins, and what it has to know of the queue: the messages that
        count as delivered, and the publishes of other nodes."""
        known, script = self.renumbering.plain(), self._script
        script.control(Op.START, mirror, firsts, uptos, *known, shifts, slices, self.ballot)
        for number, level in enumerate(self.levels):
            script.note(Op.HAND_OUT, number, level.hand_outs.announced)
            script.runs(Op.AGAIN, number, sorted(level.again))
        retains_at = self.retains_at()
        if retains_at is not None:
            script.note(Op.RETAIN_AT, 0, retains_at)
        for name, number in self.origins.items():
            script.origin(name, number)
        for name, numbers in self.refusals:
            script.control(Op.REFUSED, name, list(numbers))

    def write_slice(self, mirror: str, number: int, level: int, upto: int) -> None:
        """Write the marker of a slice, which had messages of this level up to a position."""
        # Positions behind the last message may have been used.
        behind = self.levels[level].next_position
        self._script.control(Op.SLICE, mirror, number, level, upto, behind)

    def follows(self, mirror: str) -> None:
        """Take over a mirror of the former leader: it has everything that this leader has."""
        self.copies[mirror] = copy = KnownCopy(0)
        self.had_mirrors = True
        copy.in_sync = True
        copy.firsts = [0] * len(self.levels)

    def barrier(self, done: Callable[[bool], None], *, everywhere: bool = False) -> None:
        """Call `done` when all instructions so far are as safe as confirmed publishes are.

        If `everywhere`: when every mirror in sync has them. False: another node leads by then.
        """
        self.flush()
        self._awaited.add_barrier(done, self.last_batch, everywhere=everywhere)
        self._release()

    def lag(self, mirror: str) -> int:
        """The number of batches that the mirror has not reported yet."""
        return self._batch - 1 - self.copies[mirror].has_batch

    def lag_bytes(self, mirror: str) -> int:
        """The octets of the batches that the mirror has not reported yet."""
        return self._unreported.octets_after(self.copies[mirror].has_batch)

    def is_in_sync(self, mirror: str) -> bool:
        copy = self.copies.get(mirror)
        return copy is not None and copy.in_sync

    def begin_epoch(self, step: LeaderChange, carried_out: tuple[int, int]) -> None:
        """After promotion: mirrors change to the positions of this leader, and put pending messages
        back.

        Mirrors that have carried out more than this node had as a mirror (`carried_out`) begin
        anew: the leader before may have gone on after it had dropped this node.
        """
        self.renumbering.step(step)
        retained = (step.retained,) if step.retained else ()
        moved = (step.shifts, step.tails, step.firsts)
        self._script.control(Op.EPOCH, *moved, carried_out, *retained)
        # A mirror that has this batch has all that the former leader may have confirmed.
        self.confirmation.confirmed = self.last_batch
        for level in self.levels:
            level.begins_epoch()
        self._flushes.soon()
