"""The index of a queue whose messages belong to messages of another queue.

Each stands beside the message that was noted last: it has the mark of that one, so that both are in
the same batch of the journal. After a crash both are there, or none.
"""

from __future__ import annotations

from warren.core.messages.message import Message
from warren.core.messages.settlement import PublishConfirms
from warren.persist.index.queue_index import QueueIndex
from warren.persist.layout.format import RECORD_BYTES


class IndexBeside(QueueIndex):
    """Such an index. Write messages to it one by one, each right behind one of the other queue."""

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        body = message.body
        octets = RECORD_BYTES + len(body) + len(message.envelope.header)
        mark = self._journal.note_beside(self, octets, confirms)
        self._unwritten[message.position] = (message, body, confirms, publish_seq, mark, octets)
