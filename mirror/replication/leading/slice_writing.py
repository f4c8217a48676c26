"""Writes slices: older messages of a queue for a mirror that lacks them.

Slices are small, so that clients have their turns between them (`slice_pauses`). A message that the
mirror's node has in a former copy is only named.
"""

from __future__ import annotations

from collections.abc import Iterable

from warren.core.backing.peeking import first_positions
from warren.core.ports import Clock
from warren.mirror.replication.leading.known_copy import KnownCopy
from warren.mirror.replication.levels.instructions import Op, Script, lives_s
from warren.mirror.replication.levels.leader_level import LeaderLevel
from warren.mirror.replication.levels.slices import SLICE_BYTES, SLICE_COUNT


class SliceWriter:
    """Writes the slices of one queue."""

    def __init__(self, clock: Clock) -> None:
        self.count_max = SLICE_COUNT
        """The most messages in a slice."""
        self._clock = clock

    def write(
        self, level: LeaderLevel, number: int, copy: KnownCopy, start: int
    ) -> tuple[Script, int]:
        """Write the messages of this level, the one of this number, from a position on; returns
        them, and the position up to which the mirror has everything then."""
        script = Script()
        end = self._write_kept(script, level, number, copy, start)
        if end is None:
            end = self._write_messages(script, level, number, copy, start)
        return script, end

    def _write_kept(
        self, script: Script, level: LeaderLevel, number: int, copy: KnownCopy, start: int
    ) -> int | None:
        """Name messages of a former copy; returns up to which position, None if it lacks some."""
        kept_from, kept_to = copy.kept[number] if copy.kept else (0, 0)
        if not kept_from <= start < kept_to:
            return None
        has_kept = copy.has_kept
        assert has_kept is not None
        most = has_kept.at_a_time
        listed = level.list_positions(start, kept_to, most)
        end = listed.next_position
        out = first_positions(level.pending, start, end, most + 1)
        if len(out) > most:
            end = out.pop()
        if has_kept.safe_only:
            safe = level.is_durable and all(level.pending[p].envelope.persistent for p in out)
            if not (listed.safe and safe):
                return None
        positions = sorted((*[p for p in listed.positions if p < end], *out))
        for position in positions:
            was_fetched = level.was_fetched(position)
            script.run(Op.KEEP_OUT if was_fetched else Op.KEEP, number, position)
        _write_notes(script, level, number, positions)
        copy.sent += len(positions)
        return end

    def _write_messages(
        self, script: Script, level: LeaderLevel, number: int, copy: KnownCopy, start: int
    ) -> int:
        """Write messages with their bodies; returns up to which position."""
        peeked = level.peek(start, self.count_max, SLICE_BYTES)
        pending, end = self._pending_between(level, start, peeked.next_position)
        ready = {message.position: message for message in peeked.messages if message.position < end}
        loaded = {m.position: m for m in level.load([level.pending[p] for p in pending])}
        positions = sorted((*ready, *loaded))
        ages_s = level.ages_s(positions, self._clock.wall_time())
        for position in positions:
            if position in ages_s:
                script.note(Op.ARRIVED, number, position, ages_s[position])
            message = ready.get(position) or loaded[position]
            script.publish(
                number,
                position,
                message.envelope,
                message.body,
                lives_s(message.expires_at, self._clock),
                level.was_fetched(position),
            )
        _write_notes(script, level, number, positions)
        copy.sent += len(positions)
        return end

    def _pending_between(self, level: LeaderLevel, start: int, end: int) -> tuple[list[int], int]:
        """Positions of messages that are out for acknowledgement, as many as go into a slice; and
        the position up to which these are all."""
        positions = first_positions(level.pending, start, end, self.count_max + 1)
        octets = 0
        for count, position in enumerate(positions):
            if count == self.count_max or octets >= SLICE_BYTES:
                return positions[:count], position
            octets += level.pending[position].body_bytes
        return positions, end


def _write_notes(script: Script, level: LeaderLevel, number: int, positions: Iterable[int]) -> None:
    """Write the notes about these messages, and which of them operators have taken out."""
    for op, position, said in level.notes(positions):
        script.note(op, number, position, said)
    script.runs(Op.TAKE, number, [at for at in positions if at in level.taken])
