"""The index of a queue whose messages belong to messages of another queue.

Each stands beside the message that was noted last: it has the mark of that one, so that both are in
the same batch of the journal. After a crash both are there, or none.
"""

from __future__ import annotations

from warren.core.messages.message import Message
from warren.core.messages.settlement import PublishConfirms
from warren.persist.format import RECORD_BYTES
from warren.persist.queue_index import MARK_BYTES_MIN, QueueIndex


class IndexBeside(QueueIndex):
    """To be written to one by one, right behind the other queue."""

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        journal, body = self._journal, message.body
        octets = RECORD_BYTES + len(body) + len(message.envelope.header)
        self._unwritten[message.position] = (
            message,
            body,
            confirms,
            publish_seq,
            journal.last_mark,
            octets,
        )
        journal.noted_bytes += max(octets, MARK_BYTES_MIN)
        journal.unwritten_bytes += octets
        self._noted_in_journal(confirms)
