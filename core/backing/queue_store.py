"""The interface between a variable queue and the disk.

A `QueueStore` keeps messages of one queue under their positions. It knows nothing of who is ready
and who is pending: a message is in it from `write` or `page` to `remove`, whether or not a copy
is in memory too. Positions only grow, and none is used twice, not even after a crash.

Everything returns at once. What was handed over can be read at once; whether it is on the disk
yet is the store's business, and `PublishConfirms.settle` tells when it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from warren.core.backing.backing_queue import Listed
from warren.core.messages.message import Message
from warren.core.messages.settlement import PublishConfirms


class Batch(NamedTuple):
    """Messages read from a store, in the order of their positions.

    `next_position`: everything below it, from where reading started, is in the batch or lost.
    `lost`, `lost_bytes`: messages that could not be read, and their body bytes. They are reported
    by the store, and no longer in it.
    """

    messages: list[Message]
    next_position: int
    lost: int
    lost_bytes: int


class StoredBody(NamedTuple):
    """Where a store has a large message, which other queues of the node may share: the place of its
    record, the octets of that, and those of the body."""

    place: int
    length: int
    size: int


class Handed(NamedTuple):
    """What a store says of a message that is about to leave it for another store of the node: who
    waits until it is safe, and as what; and where the message is, if it can be shared."""

    confirms: PublishConfirms | None
    publish_seq: int
    stored: StoredBody | None


NOT_HANDED = Handed(None, 0, None)


class Purged:
    """Messages to be removed. There may be so many that a store goes through them in several turns;
    each message is freed when it was reached."""

    __slots__ = ("_entries",)

    def __init__(self, entries: list[tuple[int, Message]]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Message]:
        entries = self._entries
        while entries:
            yield entries.pop()[1]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a store held when the node started: `count` messages, all in [start, end).

    `expiring`: one of them may expire.
    """

    count: int
    body_bytes: int
    start: int
    end: int
    expiring: bool = False


class QueueStore(Protocol):
    durable: bool
    """Whether persistent messages are to survive a restart."""

    redelivered_below: int
    """Messages below this position may have been delivered before the node started: it is the
    position with which the store was closed."""

    read_count: int
    """Messages read from the disk so far."""

    written_count: int
    """Messages written to it so far."""

    delivery_counts: dict[int, int]
    """How often messages were returned, by position; the level of a quorum queue changes it."""

    dead_marks: dict[int, int]
    """Why messages are dead that must not be delivered any more, by position, as small numbers.
    The code that marks messages changes it."""

    @property
    def persistent(self) -> tuple[int, int]:
        """The number of persistent messages it has, ready and pending, and the octets of their
        bodies."""
        ...

    @property
    def end_at_start(self) -> int:
        """The position behind the last message that was found on the disk when the node started,
        even if that message had been removed; 0 where there was none."""
        ...

    def recovered(self) -> Recovered: ...

    def first_position(self) -> int:
        """The position of the first message to be published since the node started."""
        ...

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        """Keep a persistent message of a durable queue.

        `confirms` is told when it is safe, or when it was removed before it had to be.
        """
        ...

    def write_many(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms | None,
        publish_seqs: Iterable[int],
    ) -> None:
        """`write` each of these messages, with its number."""
        ...

    def page(self, messages: Sequence[Message]) -> None:
        """Keep messages that were not written, given in order; a restart loses them."""
        ...

    def remove(self, messages: Iterable[Message]) -> None:
        """Forget these messages. Those the store does not have are passed over."""
        ...

    def hand_over(self, message: Message) -> Handed:
        """Another store of the node is about to have the message, and this one to `remove` it.
        This store no longer reports when the message is safe."""
        ...

    def remove_range(self, start: int, end: int) -> None:
        """Forget every message in [start, end)."""
        ...

    def counts_changed(self, positions: Iterable[int]) -> None:
        """Keep the delivery counts or dead marks of these messages, which have changed, over a
        restart."""
        ...

    def read(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        """The first messages in [start, end); at least one if there is any, whatever its size."""
        ...

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        """The positions of the first messages in [start, end)."""
        ...

    def read_body(self, message: Message) -> bytes | None:
        """The body of a message of this store; None when it is lost, which is reported."""
        ...

    def has_written(self, message: Message) -> bool:
        """Whether `read_body` could give the body back if it were dropped from memory now."""
        ...

    def next_expiry(self, start: int, end: int) -> float | None:
        """When the first message in [start, end) expires, on the clock of the node."""
        ...

    def expiries(self) -> Iterator[tuple[int, float | None]]:
        """The position of each message the node found when it started, and when it expires, on
        the clock of the node. Nothing is written or removed meanwhile.

        The caller reads messages in any order from now on: the store keeps their places in memory.
        """
        ...

    def close(self, delivered_below: int) -> None:
        """Close the store of a node that stops: messages from this position on were never
        delivered."""
        ...

    def delete(self) -> None:
        """Delete all messages: the queue is gone."""
        ...
