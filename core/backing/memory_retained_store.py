"""Keeps acknowledged messages on a node without a disk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from warren.core.backing.backing_queue import Listed
from warren.core.backing.queue_store import Batch, Recovered, StoredBody
from warren.core.backing.stream_store import RECORD_BYTES, Walked
from warren.core.messages.message import Message
from warren.core.messages.settlement import PublishConfirms

LOOKS_MAX = 2048
"""How many messages one search for old ones looks at, and one walk."""


class _Acknowledged(NamedTuple):
    message: Message
    at: float


class MemoryRetainedStore:
    """Implements `RetainedStore`. `_positions` are those of `_kept`, ascending."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._positions: list[int] = []
        self._kept: dict[int, _Acknowledged] = {}
        self._settled: list[tuple[PublishConfirms, int]] = []
        self.read_count = self.written_count = 0

    # The state at the start

    def recovered(self) -> Recovered:
        return Recovered(0, 0, 0, 0)

    def end_of_sequence(self) -> int:
        return 0

    def first_position(self) -> int:
        return 0

    # Writing

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        raise AssertionError("messages come with the time of their acknowledgement")

    def write_many(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms | None,
        publish_seqs: Iterable[int],
        arrived_at: float | None = None,
    ) -> None:
        raise AssertionError("messages come with the time of their acknowledgement")

    def write_retained(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms,
        stored: Sequence[StoredBody | None],
        acknowledged_at: Sequence[float],
        *,
        awaited: bool,
    ) -> None:
        for message, at in zip(messages, acknowledged_at, strict=True):
            self._keep(message, at)
        if not self._settled:
            self._call_soon(self._settle)
        self._settled.append((confirms, messages[-1].position))

    def _keep(self, message: Message, at: float) -> None:
        position, positions = message.position, self._positions
        if positions and position < positions[-1]:
            positions.insert(bisect_left(positions, position), position)
        else:
            positions.append(position)
        self._kept[position] = _Acknowledged(message, at)

    def _settle(self) -> None:
        settled, self._settled = self._settled, []
        for confirms, publish_seq in settled:
            confirms.settle(publish_seq)

    # Reading

    def _between(self, start: int, end: int) -> range:
        """Return the places of `_positions` at which positions in [start, end) stand."""
        first = bisect_left(self._positions, start)
        return range(first, bisect_left(self._positions, end, lo=first))

    def read_stored(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        messages: list[Message] = []
        octets = 0
        for at in self._between(start, end):
            message = self._kept[self._positions[at]].message
            octets += len(message.body)
            if messages and (octets > bytes_max or len(messages) == count_max):
                return Batch(messages, message.position, 0, 0)
            messages.append(message)
        return Batch(messages, end, 0, 0)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        places = self._between(start, end)
        positions = [self._positions[at] for at in places[:count_max]]
        beyond = self._positions[places[count_max]] if len(places) > count_max else end
        return Listed(positions, beyond, False)

    def walk(self, start: int, end: int, enough: int) -> Walked:
        octets = count = body_bytes = 0
        for at in self._between(start, end):
            message = self._kept[self._positions[at]].message
            octets += RECORD_BYTES + len(message.envelope.header) + len(message.body)
            body_bytes += len(message.body)
            count += 1
            if octets >= enough or count == LOOKS_MAX:
                return Walked(message.position + 1, octets, count, body_bytes)
        return Walked(end, octets, count, body_bytes)

    def arrived_at(self, position: int) -> float | None:
        kept = self._kept.get(position)
        return None if kept is None else kept.at

    def end_of_old(self, start: int, end: int, since: float) -> int:
        places = self._between(start, end)
        for at in places[:LOOKS_MAX]:
            if self._kept[self._positions[at]].at >= since:
                return self._positions[at]
        return self._positions[places[LOOKS_MAX]] if len(places) > LOOKS_MAX else end

    # Removing

    def remove_range(self, start: int, end: int) -> None:
        places = self._between(start, end)
        for position in self._positions[places.start : places.stop]:
            del self._kept[position]
        del self._positions[places.start : places.stop]

    def close(self, delivered_below: int) -> None:
        """Does nothing: no message survives."""

    def delete(self) -> None:
        self._kept.clear()
        self._positions.clear()
