"""Brings the mirrors of a queue in sync: sends them the messages that they lack.

A mirror begins with nothing at a certain batch (START). It is in sync when all older messages have
left the queue or were sent to it: in slices of the queue, in order. A slice counts from the place
of its marker (SLICE) among the instructions. Slices are small, and one is under way at a time.
"""

from __future__ import annotations

from warren.core.ports import Clock
from warren.mirror.replication.leading.known_copy import KnownCopy, SyncProgress
from warren.mirror.replication.leading.leader import Leader
from warren.mirror.replication.leading.slice_writing import SliceWriter
from warren.mirror.replication.levels.instructions import Script
from warren.mirror.replication.levels.leader_level import LeaderLevel
from warren.mirror.replication.levels.mirror_level import NOWHERE
from warren.mirror.replication.levels.slice_pauses import SlicePauses
from warren.mirror.replication.levels.slices import SLICE_COUNT, pack_slice

NEVER = 1 << 62
"""The number of a batch that no leader ever writes."""


class Synchronisation:
    """Lets the mirrors of a leader begin, and sends them slices. The leader has them in `copies`:
    it adds and removes them, and notes which batches they have."""

    def __init__(self, leader: Leader, clock: Clock) -> None:
        self._leader = leader
        self._copies = leader.copies
        self._clock = clock
        self._writer = SliceWriter(clock)
        self._pauses = SlicePauses(clock)
        # How many slices were sent so far, to all mirrors together: the last one has this number.
        self.slices = 0

    def limit(self, count_max: int, rate: int = 0) -> None:
        """Send at most `count_max` messages in a slice, and never more than `SLICE_COUNT`; and at
        most `rate` octets a second (0: no limit)."""
        self._writer.count_max = min(SLICE_COUNT, count_max)
        self._pauses.rate = rate

    # Begin and end

    def start(self, mirror: str, *, synchronise: bool) -> None:
        """Let a mirror begin: with the whole queue, or only with messages published from now on."""
        leader, copy = self._leader, self._copies[mirror]
        tails = [level.next_position for level in leader.levels]
        firsts = [level.oldest() for level in leader.levels]
        whole = firsts == tails
        synchronise = synchronise and not whole
        copy.in_sync = False
        copy.firsts = firsts if synchronise else tails
        copy.sync = None
        copy.awaits_batch = 0
        uptos = firsts if synchronise else [NOWHERE] * len(tails)
        shifts = self._find_kept(copy) if synchronise else []
        leader.write_start(mirror, copy.firsts, uptos, shifts, self.slices)
        leader.flush()
        copy.begins_with = leader.last_batch
        if synchronise:
            copy.sync = firsts
            copy.sent = 0
            copy.began_at = self._clock.now()
            copy.awaits_batch = copy.begins_with
        elif whole:
            copy.awaits_batch = copy.begins_with

    def may_resume(self, mirror: str) -> bool:
        """Whether the mirror may have messages of the queue in its former copy."""
        copy = self._copies[mirror]
        self._find_kept(copy)
        return any(start < end for start, end in copy.kept)

    def _find_kept(self, copy: KnownCopy) -> list[int]:
        """Note what a mirror has in its former copy; return how far positions have moved."""
        copy.kept = []
        kept, levels = copy.has_kept, len(self._leader.levels)
        if kept is None or len(kept.ranges) != levels:
            return []
        since = self._leader.renumbering.since(kept.epoch, levels)
        if since is None:
            return []
        copy.kept = [
            (start + moved.shift, min(end, moved.limit) + moved.shift)
            for (start, end), moved in zip(kept.ranges, since, strict=True)
        ]
        return [moved.shift for moved in since]

    def cancel(self, mirror: str) -> bool:
        """End the synchronisation of a mirror, which begins anew; False if there was none."""
        if not self.is_under_way(mirror):
            return False
        self.start(mirror, synchronise=False)
        return True

    def reported(self, mirror: str) -> None:
        """Go on, if the mirror has reported the batch that was awaited."""
        copy = self._copies.get(mirror)
        if copy is None:
            return
        batch = copy.has_batch
        if batch >= copy.slice_batch:
            copy.slice = b""
        if copy.sync is not None:
            if batch >= copy.awaits_batch:
                copy.awaits_batch = NEVER
                self._pause(mirror, copy, copy.sync)
        elif copy.awaits_batch and batch >= copy.awaits_batch:
            copy.awaits_batch = 0
            if not copy.in_sync:
                self._is_in_sync(mirror, copy)
            elif not self._leader.fenced:
                self._leader.effects.now_in_sync(mirror)

    def look_for_whole(self) -> None:
        """Find mirrors that have become whole: the queue has no messages older than theirs."""
        waiting = [
            (mirror, copy)
            for mirror, copy in self._copies.items()
            if not copy.in_sync and copy.firsts is not None and copy.sync is None
        ]
        if not waiting:
            return
        oldest = [level.oldest() for level in self._leader.levels]
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
        leader = self._leader
        if leader.fenced:
            return
        copy.in_sync = True
        leader.flush()
        last = leader.last_batch
        if copy.has_batch < last:
            copy.awaits_batch = last
        else:
            leader.effects.now_in_sync(mirror)

    # Slices

    def _pause(self, mirror: str, copy: KnownCopy, sync: list[int]) -> None:
        """Send the next slice after a pause: clients have their turns first."""
        batches = self._leader.next_batch - self.slices
        is_busy, copy.used = batches != copy.used, batches

        def is_wanted() -> bool:
            is_same = self._copies.get(mirror) is copy and copy.sync is sync
            return is_same and not self._leader.fenced

        self._pauses.begin(
            copy.slice_bytes,
            is_busy=is_busy,
            is_wanted=is_wanted,
            then=lambda: self._send_slice(mirror, copy),
        )

    def _send_slice(self, mirror: str, copy: KnownCopy) -> None:
        """Send the next slice; the mirror answers by reporting the batch with its marker."""
        assert copy.sync is not None
        leader = self._leader
        leader.flush()
        number = next((n for n, upto in enumerate(copy.sync) if upto != NOWHERE), None)
        if number is None:
            copy.sync = None
            self._is_in_sync(mirror, copy)
            return
        level = leader.levels[number]
        script, end = self._writer.write(level, number, copy, copy.sync[number])
        copy.sync[number] = NOWHERE if end >= level.next_position else end
        self.slices += 1
        copy.slice = self._packed(script)
        copy.slice_bytes = len(copy.slice)
        leader.effects.send_slice(mirror, copy.slice)
        leader.write_slice(mirror, self.slices, number, copy.sync[number])
        copy.awaits_batch = copy.slice_batch = leader.next_batch
        leader.flush()

    def _packed(self, script: Script) -> bytes:
        leader = self._leader
        return pack_slice(leader.queue_id, leader.epoch, self.slices, script.take(leader.epoch, 0))

    def send_again(self, mirror: str) -> None:
        """The link to a mirror is up again: repeat the slice that may have been lost."""
        copy = self._copies.get(mirror)
        if copy is not None and copy.slice and not self._leader.fenced:
            self._leader.effects.send_slice(mirror, copy.slice)

    # Progress

    def is_under_way(self, mirror: str) -> bool:
        """Whether the mirror is being sent older messages."""
        copy = self._copies.get(mirror)
        return copy is not None and copy.sync is not None

    def is_about_to_end(self) -> bool:
        """Whether there are mirrors that will be in sync when they have reported a batch."""
        return any(copy.awaits_batch and copy.sync is None for copy in self._copies.values())

    def may_start_anew(self, mirror: str) -> bool:
        """Whether the mirror has begun with newer messages only, and lacks older ones.

        False for a whole mirror: it must not begin anew while the definition is being changed.
        """
        copy = self._copies[mirror]
        has_part = copy.firsts is not None and copy.sync is None and not copy.awaits_batch
        return has_part and not copy.in_sync

    def progress(self, mirror: str) -> SyncProgress | None:
        """The progress of a mirror; None if it is not being sent older messages."""
        copy = self._copies.get(mirror)
        if copy is None or copy.sync is None:
            return None
        levels = self._leader.levels
        left = sum([_left(level, upto) for level, upto in zip(levels, copy.sync, strict=True)])
        return SyncProgress(copy.sent, copy.sent + left, copy.began_at)


def _left(level: LeaderLevel, upto: int) -> int:
    """How many messages of a level have to be sent to a mirror still."""
    if upto == NOWHERE:
        return 0
    return min(level.next_position - upto, level.length + len(level.pending))
