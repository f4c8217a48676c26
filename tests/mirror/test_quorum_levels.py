"""A quorum queue at its leader and at a mirror, which replays what the leader writes down."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from types import SimpleNamespace

import pytest

from warren.core.backing.memory_queue import MemoryQueue
from warren.core.messages.message import Envelope, Message
from warren.core.queues.quorum_level import LastingEnvelopes, QuorumLevel, quorum_level
from warren.mirror.messages.cargo import Unpacker
from warren.mirror.replication.copies.mirror import Mirror
from warren.mirror.replication.leading.known_copy import KnownCopy
from warren.mirror.replication.leading.leader import Leader
from warren.mirror.replication.leading.slice_writing import SliceWriter
from warren.mirror.replication.levels.instructions import perform
from warren.mirror.replication.levels.queue_levels import leader_level
from warren.mirror.replication.levels.quorum_levels import QuorumLeaderLevel
from warren.mirror.replication.levels.slices import SLICE_COUNT

ENVELOPE = Envelope("", "q", b"", False, 0, None)

CLOCK = SimpleNamespace(now=lambda: 0.0, wall_time=lambda: 0.0)


def new_level() -> QuorumLevel:
    return quorum_level(MemoryQueue(), LastingEnvelopes())


class Pair:
    """A leader's level and the mirror that follows it, which has begun with what was there."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        effects = SimpleNamespace(
            flush_soon=lambda: None, withhold=lambda: None, hand_out=lambda: None
        )
        self.leader = Leader(1, 0, CLOCK, effects)  # type: ignore[arg-type]
        level = leader_level(new_level(), 0, self.leader)
        assert isinstance(level, QuorumLeaderLevel)
        self.level = level
        self.leader.levels = [level]
        self.script = self.leader._script
        self.mirror = Mirror("m", 0, [new_level()], CLOCK, lambda mirror, batch: None)  # type: ignore[arg-type]
        self.out: list[Message] = []
        self.published = 0
        self._batch = 0

    def acts(self) -> None:
        """Something happens to the queue."""
        rng, level, out = self.rng, self.level, self.out
        match rng.choice("pppdffffaarrrbbmxu"):
            case "p":
                level.publish(ENVELOPE, b"%d" % self.published, None, None, 0)
                self.published += 1
            case "d" if not level.length:
                out.append(level.publish_delivered(ENVELOPE, b"%d" % self.published, None, None, 0))
                self.published += 1
            case "f":
                out += level.fetch_many(rng.randint(1, 4))
            case "a" if out:
                level.ack(self._some())
            case "r" if out:
                level.give_back(self._some(), last=rng.random() < 0.5)
            case "b" if out:
                level.requeue(self._some())
            case "m" if out:
                level.mark_dead([rng.choice(out)], rng.randint(1, 4))
            case "x" if rng.random() < 0.1:
                level.purge()
            case "u":
                self.mirror_hears()

    def _some(self) -> list[Message]:
        taken = self.rng.sample(self.out, self.rng.randint(1, len(self.out)))
        for message in taken:
            self.out.remove(message)
        return taken

    def mirror_hears(self) -> None:
        self._batch += 1
        perform(self.script.take(0, self._batch), self.mirror, Unpacker())

    def mirror_begins(self) -> None:
        """It is sent what is there, as when it is synchronised."""
        self.script.take(0, 0)
        self.mirror.started = True
        mirrored = self.mirror.levels[0]
        mirrored.begin(0, self.level.next_position)
        writer, copy = SliceWriter(CLOCK), KnownCopy(0)  # type: ignore[arg-type]
        start = 0
        while start < self.level.next_position:
            script, start = writer.write(self.level, 0, copy, start)
            perform(script.take(0, 0), self.mirror, Unpacker())
        mirrored.upto = 1 << 62

    def there(self) -> dict[int, bytes]:
        """All messages of the queue, by position."""
        level, start = self.level, 0
        there = list(level.pending.values())
        while start < level.next_position:
            peeked = level.peek(start, 1000, 1 << 20)
            there += peeked.messages
            start = peeked.next_position
        return {message.position: bytes(message.body) for message in there}


@pytest.mark.parametrize("seed", range(300))
def test_a_mirror_has_what_the_leader_has(seed: int) -> None:
    pair = Pair(seed)
    for _ in range(pair.rng.choice((0, 30))):
        pair.acts()
    pair.mirror_begins()
    for _ in range(200):
        pair.acts()
    pair.mirror_hears()

    there = pair.there()
    inner = pair.level.inner
    assert isinstance(inner, QuorumLevel)
    counts = {at: count for at, count in inner.counts.items() if at in there}
    marks = {at: why for at, why in inner.dead_marks.items() if at in there}
    mirrored = pair.mirror.levels[0]
    backing = mirrored.backing
    assert isinstance(backing, QuorumLevel)
    mirrored.put_all_back()
    assert backing.length == len(there)
    found = {m.position: bytes(m.body) for m in backing.fetch_many(len(there))}
    # In the order of their positions, as a leader hands them out that was a mirror.
    assert list(found.items()) == sorted(there.items())
    assert backing.counts == counts
    assert backing.dead_marks == marks


@pytest.mark.parametrize("returned", [False, True])
def test_a_slice_is_small_however_many_messages_were_delivered(returned: bool) -> None:
    """Those that are out for acknowledgement, and those that were returned in any order."""
    pair = Pair(1)
    pair.level.hand_outs.noted = 1 << 40
    for number in range(1000):
        pair.level.publish(ENVELOPE, b"%d" % number, None, None, 0)
    pair.out += pair.level.fetch_many(1000)
    pair.rng.shuffle(pair.out)
    if returned:
        pair.level.give_back(pair.out, last=True)
    writer, copy = SliceWriter(CLOCK), KnownCopy(0)  # type: ignore[arg-type]
    start, sent = 0, []
    while start < pair.level.next_position:
        before = copy.sent
        _, start = writer.write(pair.level, 0, copy, start)
        sent.append(copy.sent - before)
    assert sum(sent) == 1000
    assert max(sent) == SLICE_COUNT


@pytest.mark.parametrize("lost", [range(5), range(10)])
def test_returned_messages_whose_bodies_are_lost_do_not_hide_others(lost: range) -> None:
    class Losing(MemoryQueue):
        def load(self, messages: Iterable[Message]) -> list[Message]:
            return [message for message in super().load(messages) if message.position not in lost]

    level = quorum_level(Losing(), LastingEnvelopes())
    for number in range(12):
        level.publish(ENVELOPE, b"%d" % number, None, None, 0)
    level.give_back(level.fetch_many(10), last=True)
    found, start = [], 0
    while start < level.next_position:
        peeked = level.peek(start, 2, 1000)
        found += [message.position for message in peeked.messages]
        start = peeked.next_position
    assert found == list(range(len(lost), 12))
