"""Where the messages of queues with dead letters may be, after every end of a node.

`MORTAL` are queues whose messages die; `GRAVES` takes the dead letters. A message that was
confirmed is in its own queue, on its way through a chain of queues, or in the graves. After a
crash it may be in several of them, because it leaves a queue only when the next one has it on
disk; in its own queue it then counts as redelivered. It may come twice to the graves if it
died again after the crash. Without a crash there is one copy of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from message_ledger import Complaint, Consumed, Marked, Published

GRAVES = "graves"
TO_GRAVES: dict[str, str | int | bool] = {
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": GRAVES,
}
MORTAL: dict[str, dict[str, str | int | bool]] = {
    "rejected": {**TO_GRAVES},
    "expiring": {"x-message-ttl": 200, **TO_GRAVES},
    "limited": {"x-max-length": 50, "x-max-length-bytes": 8_000_000, **TO_GRAVES},
    "hop-0": {
        "x-message-ttl": 0,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "hop-1",
    },
}
"""Their messages are rejected, live too long, are too many, or die at once."""

ON_THE_WAY: dict[str, dict[str, str | int | bool]] = {
    "hop-1": {**MORTAL["hop-0"], "x-dead-letter-routing-key": "hop-2"},
    "hop-2": {"x-message-ttl": 0, **TO_GRAVES},
}
COPIES_OF_A_CRASH = 2 + len(ON_THE_WAY)
"""A crash may find as many copies, for each there was: one in each queue on the way."""

EMPTY_IN_THE_END = ("expiring", "hop-0", *ON_THE_WAY)
"""Nothing stays in these queues."""

MARKERS = 0xFFFFFFFF
"""The publisher of the messages by which an audit knows that all dead letters have arrived."""

Found = Mapping[str, list[tuple[Marked, bool]]]
"""The messages of each queue, and whether they are redelivered."""


def mortal_queue(message: int) -> str:
    """The queue that a message is published to."""
    return list(MORTAL)[message % len(MORTAL)]


class MortalLedger:
    """All of these queues together."""

    def __init__(self) -> None:
        self.must: set[int] = set()
        self._copies_max: dict[int, int] = {}
        """All messages that may be anywhere, and how often."""
        self._delivered: dict[str, Counter[int]] = {GRAVES: Counter(), "rejected": Counter()}
        """How often the broker delivered a message as if for the first time."""
        self._burials_max: dict[int, int] = {}
        self._markers = 0

    def next_marker(self, queue: str) -> Marked:
        """A message that dies in this queue after all that are there."""
        while True:
            self._markers += 1
            message = MARKERS << 32 | self._markers
            if mortal_queue(message) == queue:
                self._copies_max[message] = self._burials_max[message] = 1
                self.must.add(message)
                return Marked(message, 0, True)

    def crashed(self) -> None:
        for message in self._copies_max:
            self._copies_max[message] *= COPIES_OF_A_CRASH
            self._burials_max[message] *= COPIES_OF_A_CRASH

    def life_ended(self, published: Iterable[Published], consumed: Mapping[str, Consumed]) -> None:
        """Take in what clients did; messages they acknowledged may be gone."""
        deliverable = set(self._copies_max)
        for one in published:
            deliverable.update(marked.message for marked in one.sent)
            persistent = {marked.message for marked in one.sent if marked.persistent}
            self._copies_max.update(dict.fromkeys(persistent, 1))
            self._burials_max.update(dict.fromkeys(persistent, 1))
            self.must |= persistent & one.confirmed
        for queue, client in consumed.items():
            for marked, redelivered in client.seen:
                self._see(queue, marked, redelivered, deliverable)
            self.must.difference_update(client.acked)

    def _see(self, queue: str, marked: Marked, redelivered: bool, deliverable: set[int]) -> None:
        message = marked.message
        if message not in deliverable or queue not in (mortal_queue(message), GRAVES):
            raise Complaint(f"{queue}: {marked} was not in the queue")
        if not redelivered:
            self._deliver(queue, marked)

    def _deliver(self, queue: str, marked: Marked) -> None:
        delivered = self._delivered[queue]
        delivered[marked.message] += 1
        # A message that dies again after a crash has one more dead letter.
        most = self._burials_max.get(marked.message, 1) if queue == GRAVES else 1
        if delivered[marked.message] > most:
            raise Complaint(f"{queue}: {marked} delivered again as if for the first time")

    def audited(self, found: Found, drained: Iterable[str]) -> None:
        """All that is in the queues, after the last dead letter arrived.

        What is in the `drained` queues was acknowledged afterwards, and the broker knows.
        """
        copies = Counter(marked.message for seen in found.values() for marked, _ in seen)
        self._complain("are lost", self.must - copies.keys())
        self._complain("came back, or were never published", copies.keys() - self._copies_max)
        too_many = {at for at, count in copies.items() if count > self._copies_max[at]}
        self._complain("are there too often", too_many)
        buried = {marked.message for marked, _ in found[GRAVES]}
        for queue, seen in found.items():
            self._check(queue, seen, buried)
        kept = Counter(
            marked.message
            for queue, seen in found.items()
            if queue not in drained
            for marked, _ in seen
        )
        self.must = set(kept)
        self._copies_max = dict(kept)

    def _check(self, queue: str, seen: list[tuple[Marked, bool]], buried: set[int]) -> None:
        if seen and queue in EMPTY_IN_THE_END:
            raise Complaint(f"{queue}: {len(seen)} messages stay that should have died")
        twice = Counter(marked.message for marked, _ in seen)
        for marked, redelivered in seen:
            if not marked.persistent:
                raise Complaint(f"{queue}: {marked} is transient and survived")
            if queue in self._delivered and not redelivered:
                self._deliver(queue, marked)
            if queue == GRAVES:
                continue
            if mortal_queue(marked.message) != queue:
                raise Complaint(f"{queue}: {marked} was published to another queue")
            if twice[marked.message] > 1:
                raise Complaint(f"{queue}: {marked} is there twice")
            if marked.message in buried and not redelivered:
                raise Complaint(f"{queue}: {marked} is buried, too, and does not say so")

    @staticmethod
    def _complain(what: str, messages: Iterable[int]) -> None:
        wrong = sorted(messages)
        if wrong:
            queues = Counter(mortal_queue(message) for message in wrong)
            some = ", ".join(f"{message:#x}" for message in wrong[:5])
            raise Complaint(f"{len(wrong)} messages {what}: {some}; published to {dict(queues)}")
