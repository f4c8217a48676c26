"""The state that all queue indexes of a node share: files, clock, and what they have to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from warren.persist.index.delivery_counts import DeliveryCounts
from warren.persist.layout.envelopes import EnvelopeDecoder, EnvelopeEncoder
from warren.persist.layout.format import TRANSIENT
from warren.persist.layout.segment import Segment
from warren.persist.log.message_store import MessageStore
from warren.persist.log.store_context import StoreContext

UNREADABLE_MAX = 100
"""Unreadable messages after which the disk does not work: a bad place on a disk is 4096 octets or a
few times that, in which so many messages are rare. Two reads that succeed make up for one."""

CLOCK_IS_SET_S = 1.0
"""Smaller differences come from readings at different moments, or from a clock that is slewed."""


class IndexContext:
    """Is made once for a node, and given to each queue index.

    `epoch_s` is the time on the wall when the clock of the node was at 0, as it was at the start.
    `start` counts the starts of the node.
    `page_out` writes records to the transient store, and returns the place of the first.
    `in_turns` goes through work that may take long: it takes a step at once and the others in
    later turns of the loop. `report_lost` is told of a damaged message: queue, position, reason,
    and its octets. `on_unreadable` is told of one that the disk does not give, but may give later:
    queue, position, and the error.

    `dirty` are the segments whose files are behind, `discarded` the files of segments that are not
    needed any more. `counted` are the delivery counts and dead marks of the queues that may have
    any. `messages_read` and `messages_written` count since the start, in all queues, also in those
    that were deleted since. `envelopes` decodes those of the messages that are read,
    and `encode_envelope` encodes those of the messages that are written.
    """

    def __init__(
        self,
        store: StoreContext,
        persistent: MessageStore,
        transient: MessageStore,
        *,
        start: int,
        page_out: Callable[[bytes], int],
        in_turns: Callable[[Iterator[None]], None],
        report_lost: Callable[[int, int, str, bytes], None],
        on_unreadable: Callable[[int, int, OSError], None],
    ) -> None:
        self.filesystem = store.filesystem
        self.persistent = persistent
        self.transient = transient
        self.embed_below = store.limits.embed_below
        self._clock = store.clock
        self.epoch_s = self._offset_s = store.clock.wall_time() - store.clock.now()
        self.start = start
        self.page_out = page_out
        self.in_turns = in_turns
        self.report_lost = report_lost
        self.on_fault = store.on_fault
        # In halves, so that a read that succeeds takes one off.
        self._unreadable_halves = 0
        self._on_unreadable = on_unreadable
        self.dirty: dict[Segment, None] = {}
        self.discarded: dict[Path, None] = {}
        self.counted: dict[DeliveryCounts, None] = {}
        self.messages_read = self.messages_written = 0
        self.envelopes = EnvelopeDecoder()
        self.encode_envelope = EnvelopeEncoder().encode

    def store_of(self, place: int) -> MessageStore:
        return self.transient if place >= TRANSIENT else self.persistent

    @property
    def has_read_trouble(self) -> bool:
        """Whether the disk did not give some of the messages that it was asked for lately."""
        return self._unreadable_halves > 0

    def disk_gave_messages(self) -> None:
        """Note that a read succeeded, after some that did not."""
        if self._unreadable_halves < 2 * UNREADABLE_MAX:
            self._unreadable_halves -= 1

    def report_unreadable(self, queue_id: int, position: int, error: OSError) -> None:
        """Report that the disk does not give a message; end the node if that goes on."""
        if self._unreadable_halves >= 2 * UNREADABLE_MAX:
            return
        self._unreadable_halves += 2
        self._on_unreadable(queue_id, position, error)
        if self._unreadable_halves >= 2 * UNREADABLE_MAX:
            said = f"{UNREADABLE_MAX} messages or more cannot be read: {error.strerror}"
            self.on_fault(OSError(error.errno, said, error.filename))

    def offset_s(self) -> float:
        """Return the offset from the clock of the node to that on the wall, as they are now."""
        offset_s = self._clock.wall_time() - self._clock.now()
        if abs(offset_s - self._offset_s) > CLOCK_IS_SET_S:
            self._offset_s = offset_s
        return self._offset_s

    def wall_us(self, at: float | None) -> int:
        return 0 if at is None else int((at + self.epoch_s) * 1e6)

    def node_time(self, wall_us: int) -> float | None:
        return wall_us / 1e6 - self.epoch_s if wall_us else None
