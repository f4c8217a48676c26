"""The interface between a stream and the store of its messages, and a store in memory.

Messages have the positions 0, 1, 2 and so on, which are their offsets in the stream. They leave
only in ranges, from the front.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from warren.core.backing.backing_queue import Listed
from warren.core.backing.queue_store import Batch, Recovered
from warren.core.messages.message import Message
from warren.core.messages.settlement import PublishConfirms


class Walked(NamedTuple):
    """Messages that were gone through: up to which position, and how many octets they take in the
    store; how many there are, and the octets of their bodies."""

    position: int
    octets: int
    messages: int
    body_bytes: int


class StreamStore(Protocol):
    """The store of a stream; a queue's index on disk is one."""

    read_count: int
    written_count: int

    def recovered(self) -> Recovered: ...

    def end_of_sequence(self) -> int:
        """The position behind the last message that was found at the start; 0 where there was
        none."""
        ...

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        """`write_many` of one message, which other queues may have too."""
        ...

    def write_many(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms | None,
        publish_seqs: Iterable[int],
        arrived_at: float | None = None,
    ) -> None:
        """Keep these messages, and tell `confirms` of each when it is safe.

        `arrived_at`: when they arrived, in seconds since 1970; None means now.
        """
        ...

    def read_stored(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        """The first messages in [start, end), all of which are safe; at least one if there is any,
        whatever its size."""
        ...

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        """The positions of the first messages in [start, end)."""
        ...

    def walk(self, start: int, end: int, enough: int) -> Walked:
        """Go from `start` on until the messages take `enough` octets, or to `end`; or less far, so
        that it does not take long, but at least one message."""
        ...

    def arrived_at(self, position: int) -> float | None:
        """When a message that is safe arrived, in seconds since 1970; None if it is lost."""
        ...

    def remove_range(self, start: int, end: int) -> None: ...

    def close(self, delivered_below: int) -> None: ...

    def delete(self) -> None: ...


RECORD_BYTES = 64
"""Octets that a message in memory counts beside its body and header."""

WALK_COUNT = 1024
"""Messages in memory that are gone through at once."""


class KeptInStream(NamedTuple):
    """A message in memory, and when it arrived in seconds since 1970."""

    message: Message
    arrived_at: float


class MemoryStreamStore:
    """Implements `StreamStore` on a node without a disk."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        wall_time: Callable[[], float],
    ) -> None:
        self._call_soon = call_soon
        self._wall_time = wall_time
        self._kept: list[KeptInStream] = []
        self._settled: list[tuple[PublishConfirms, int]] = []
        self.read_count = self.written_count = 0

    def recovered(self) -> Recovered:
        return Recovered(0, 0, 0, 0)

    def end_of_sequence(self) -> int:
        return 0

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        self.write_many((message,), confirms, (publish_seq,))

    def write_many(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms | None,
        publish_seqs: Iterable[int],
        arrived_at: float | None = None,
    ) -> None:
        at = self._wall_time() if arrived_at is None else arrived_at
        self._kept += [KeptInStream(message, at) for message in messages]
        if confirms is None:
            return
        if not self._settled:
            self._call_soon(self._settle)
        self._settled += [(confirms, publish_seq) for publish_seq in publish_seqs]

    def _settle(self) -> None:
        settled, self._settled = self._settled, []
        for confirms, publish_seq in settled:
            confirms.settle(publish_seq)

    def read_stored(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        messages: list[Message] = []
        octets = 0
        for kept in self._between(start, end):
            if len(messages) == count_max:
                return Batch(messages, kept.message.position, 0, 0)
            octets += len(kept.message.envelope.header) + len(kept.message.body)
            if messages and octets > bytes_max:
                return Batch(messages, kept.message.position, 0, 0)
            messages.append(kept.message)
        return Batch(messages, end, 0, 0)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        listed = [kept.message.position for kept in self._between(start, end)]
        if len(listed) > count_max:
            return Listed(listed[:count_max], listed[count_max], False)
        return Listed(listed, max(start, end), False)

    def walk(self, start: int, end: int, enough: int) -> Walked:
        octets = count = body_bytes = 0
        beyond = end
        for kept in self._between(start, end):
            if octets >= enough or count == WALK_COUNT:
                beyond = kept.message.position
                break
            message = kept.message
            octets += RECORD_BYTES + len(message.envelope.header) + len(message.body)
            body_bytes += len(message.body)
            count += 1
        return Walked(beyond, octets, count, body_bytes)

    def arrived_at(self, position: int) -> float | None:
        for kept in self._between(position, position + 1):
            return kept.arrived_at
        return None

    def _between(self, start: int, end: int) -> list[KeptInStream]:
        return self._kept[self._index(start) : self._index(end)]

    def _index(self, position: int) -> int:
        return bisect_left(self._kept, position, key=lambda kept: kept.message.position)

    def remove_range(self, start: int, end: int) -> None:
        del self._kept[self._index(start) : self._index(end)]

    def close(self, delivered_below: int) -> None:
        """Does nothing: no message survives."""

    def delete(self) -> None:
        self._kept.clear()
