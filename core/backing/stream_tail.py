"""The newest messages of a stream, in memory for the readers at its end.

Most readers are there, and want each message as soon as it is committed. Reading it from the disk
takes longer than all that is done with it otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from warren.core.messages.message import Message

TAIL_COUNT = 1024
TAIL_BYTES = 512 << 10
"""Messages, and octets of headers and bodies, that are kept. A reader that falls further behind
reads from the disk."""

HEADER_BYTES_MAX = 4096
"""A message with a larger content header is not kept, nor are those before it: what is here is
handed over hundreds at a time, and the offset is put into a large header slowly."""


class StreamTail:
    """Keeps messages as long as readers read them.

    `is_awaited`: a reader has all there is, and reads what comes next as soon as it is committed.
    """

    __slots__ = ("_messages", "_octets", "_was_read", "is_awaited")

    def __init__(self) -> None:
        self.is_awaited = False
        # In order, up to the newest committed one.
        self._messages: list[Message] = []
        self._octets = 0
        # Whether a reader was here since messages were last added.
        self._was_read = False

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, messages: Sequence[Message]) -> None:
        """Keep the messages just committed if a reader is near."""
        if not self.is_awaited and not self._was_read:
            self.forget()
            return
        self._was_read = False
        headers = [len(message.envelope.header) for message in messages]
        if max(headers, default=0) > HEADER_BYTES_MAX:
            self.forget()
            return
        kept = self._messages
        kept += messages
        self._octets += sum(headers) + sum([len(message.body) for message in messages])
        over = max(0, len(kept) - TAIL_COUNT)
        self._octets -= sum(map(_octets, kept[:over]))
        while self._octets > TAIL_BYTES:
            self._octets -= _octets(kept[over])
            over += 1
        del kept[:over]

    def read(self, position: int, count_max: int) -> list[Message] | None:
        """The messages from this position on; None if they are not, or not all, here."""
        kept = self._messages
        if not kept or position < kept[0].position:
            return None
        self._was_read = True
        at = bisect_left(kept, position, key=lambda message: message.position)
        return kept[at : at + count_max]

    def forget(self) -> None:
        self._messages.clear()
        self._octets = 0


def _octets(message: Message) -> int:
    return len(message.envelope.header) + len(message.body)
