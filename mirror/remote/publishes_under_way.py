"""Publishes to a queue that another node leads, from their numbering to the leader's answer.

Each publish is kept, even if the link goes down. Then it is not known whether the leader got it:
the next leader is asked, and sent the publishes that it lacks. Publishes to be sent are also
gathered here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from warren.core.messages.message import Envelope
from warren.core.messages.settlement import PublishConfirms, settle_in_rows
from warren.core.queues.moving import Unanswered
from warren.mirror.messages.cargo import AGAIN, CONFIRM, Packer
from warren.mirror.remote.settling import PublishedReport


class AllPublishes(Protocol):
    """The publishes of this node to all queues that other nodes lead."""

    def next_numbers(self, count: int) -> range:
        """Numbers for new publishes. There is one count for all queues: a later publish has a
        higher number than all that any leader has heard of in this run of the node."""
        ...

    def owe(self, octets: int) -> None:
        """More publishes wait for answers; fewer, where `octets` is negative."""
        ...


class PublishesUnderWay:
    """The publishes of this node to one queue, in the order of their numbers."""

    __slots__ = ("_all", "_packer", "_sent_upto", "_unanswered")

    def __init__(self, all_publishes: AllPublishes) -> None:
        self._all = all_publishes
        self._packer = Packer()
        self._unanswered: deque[Unanswered] = deque()
        # The number of the last publish that was sent to the leader.
        self._sent_upto = 0

    def __len__(self) -> int:
        """The number of publishes that are not answered."""
        return len(self._unanswered)

    # New publishes

    def add(self, publish: Unanswered) -> Unanswered:
        """Keep a publish from now on, and number it if it has no number yet."""
        if not publish.number:
            # One count for the whole run of this node: a later publish has a higher number,
            # whichever object stands for the queue, and whichever node leads it.
            (number,) = self._all.next_numbers(1)
            publish = replace(publish, number=number)
        self._unanswered.append(publish)
        self._all.owe(_octets(publish))
        return publish

    def add_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> range:
        """Keep new publishes; returns their numbers."""
        count = len(bodies)
        numbers = self._all.next_numbers(count)
        each = zip(numbers, envelopes, bodies, range(first_seq, first_seq + count), strict=True)
        self._unanswered += [
            Unanswered(number, envelope, body, confirms, seq)
            for number, envelope, body, seq in each
        ]
        octets = sum(map(len, bodies)) + sum([len(envelope.header) for envelope in envelopes])
        self._all.owe(octets)
        return numbers

    # Sending

    @property
    def octets_gathered(self) -> int:
        return self._packer.octets

    def gather(self, publish: Unanswered) -> None:
        flags = CONFIRM if publish.confirms is not None else 0
        flags |= AGAIN if publish.may_be_delivered else 0
        self._packer.add(publish.number, publish.envelope, publish.body, flags)

    def gather_many(
        self,
        numbers: range,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
    ) -> None:
        """`gather` many new publishes."""
        self._packer.add_many(numbers, envelopes, bodies, CONFIRM if confirms is not None else 0)

    def gather_all(self, leader: str, epoch: int) -> None:
        """Gather all publishes kept, for a new leader that has answered those it has."""
        self._unanswered = deque([one.for_leader(leader, epoch) for one in self._unanswered])
        for publish in self._unanswered:
            self.gather(publish)

    def take(self) -> list[bytes]:
        """Remove and return the gathered publishes, packed."""
        return self._packer.take() if self._packer.parts else []

    def sent(self) -> None:
        """Note that the taken publishes were sent: all that are kept were sent now or before."""
        self._sent_upto = self._unanswered[-1].number

    # Answers

    def settle(self, report: PublishedReport) -> None:
        """Tell the publishers the leader's answers."""
        refused, answered = frozenset(report.refused), []
        while self._unanswered and self._unanswered[0].number <= report.upto:
            answered.append(self._unanswered.popleft())
        self._let_go(answered)
        for one in answered:
            if one.number in refused and one.confirms is not None:
                one.confirms.refuse(one.publish_seq)
        safe = [(one.confirms, one.publish_seq) for one in answered if one.number not in refused]
        settle_in_rows(safe)

    def refuse_all(self) -> None:
        self._refuse(list(self._unanswered))

    def refuse_sent(self) -> None:
        """Refuse the publishes that were sent, as it cannot be known whether they have arrived."""
        sent = [p.number for p in self._unanswered if p.sent_to is not None or p.may_be_delivered]
        self._refuse([p for p in self._unanswered if sent and p.number <= sent[-1]])

    def move_out(self, leader: str, epoch: int) -> list[Unanswered]:
        """Remove and return the publishes; another object keeps them from now on. Those that were
        sent are marked with the leader and epoch until now."""
        unanswered = [
            replace(publish, sent_to=(leader, epoch))
            if publish.number <= self._sent_upto
            else publish
            for publish in self._unanswered
        ]
        self._unanswered.clear()
        self._let_go(unanswered)
        return unanswered

    def _refuse(self, publishes: list[Unanswered]) -> None:
        numbers = [publish.number for publish in publishes]
        if numbers:
            self.settle(PublishedReport(numbers[-1], numbers))

    def _let_go(self, publishes: Iterable[Unanswered]) -> None:
        self._all.owe(-sum(map(_octets, publishes)))


def _octets(publish: Unanswered) -> int:
    return len(publish.body) + len(publish.envelope.header)
