"""What a leader writes about many messages at once is what it writes one by one, and mirrors are
told of them together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from warren.core.messages.message import Envelope
from warren.mirror.messages.cargo import Unpacker
from warren.mirror.messages.post import Undeliverable
from warren.mirror.replication.levels.instructions import NEVER, Op, Script, perform


def envelope(number: int, **facts: Any) -> Envelope:
    return Envelope("ex", facts.pop("key", "key"), b"header %d" % number, True, 0, None, **facts)


class Told:
    """A `Performer` that notes what it is told, messages one by one; `calls` are their numbers."""

    def __init__(self) -> None:
        self.messages: list[tuple[object, ...]] = []
        self.others: list[tuple[object, ...]] = []
        self.calls: list[int] = []

    def publish(
        self,
        level: int,
        position: int,
        envelope: Envelope,
        body: bytes,
        lives_s: float,
        delivered: bool,
    ) -> None:
        self.calls.append(1)
        self._note(level, position, envelope, body, lives_s, delivered)

    def publish_many(
        self,
        level: int,
        first: int,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        lives_s: float,
        delivered: bool,
    ) -> None:
        self.calls.append(len(bodies))
        for position, (envelope, body) in enumerate(zip(envelopes, bodies, strict=True), first):
            self._note(level, position, envelope, body, lives_s, delivered)

    def _note(self, *said: Any) -> None:
        level, position, envelope, body, lives_s, delivered = said
        facts = (envelope.exchange, envelope.routing_key, envelope.header, envelope.persistent)
        self.messages.append((level, position, facts, body, lives_s, delivered))

    def run(self, op: Op, level: int, start: int, count: int) -> None:
        self.others.append((op, level, start, count))

    def note(self, op: Op, level: int, position: int, number: int) -> None:
        self.others.append((op, level, position, number))

    def purge(self, level: int) -> None:
        self.others.append((level,))

    def origin(self, name: str, number: int) -> None:
        self.others.append((name, number))

    def control(self, op: Op, arguments: Any) -> None:
        self.others.append((op, arguments))


def carried_out(payload: bytes) -> Told:
    told = Told()
    perform(payload, told, Unpacker())
    return told


@pytest.mark.parametrize("seed", range(10))
def test_many_are_written_as_each_by_itself(seed: int) -> None:
    rng = random.Random(seed)
    many, single = Script(), Script()
    position = 7
    for _ in range(20):
        shared = envelope(0)
        envelopes = [
            shared if rng.random() < 0.3 else envelope(rng.randrange(4), key=rng.choice("ab"))
            for _ in range(rng.randint(1, 6))
        ]
        bodies = [bytes(rng.randrange(5)) for _ in envelopes]
        delivered, lives_s = rng.random() < 0.5, rng.choice((NEVER, 2.5))
        many.publish_many(0, position, envelopes, bodies, lives_s, delivered)
        for one, body in zip(envelopes, bodies, strict=True):
            single.publish(0, position, one, body, lives_s, delivered)
            position += 1
        acked = list(range(position - len(bodies), position))
        many.runs(Op.ACK, 0, acked)
        for at in acked:
            single.run(Op.ACK, 0, at)
        assert many.octets == single.octets
    payload = many.take(1, 2)
    assert payload == single.take(1, 2)
    assert len(carried_out(payload).messages) == position - 7


def test_messages_that_follow_one_another_are_told_together() -> None:
    script = Script()
    script.publish_many(0, 0, [envelope(n) for n in range(3)], [b"a", b"b", b"c"], NEVER, False)
    script.publish_many(0, 3, [envelope(n) for n in range(2)], [b"d", b"e"], NEVER, False)
    # Handed out at once; of another level; with a gap before it; one that expires; behind it.
    script.publish_many(0, 5, [envelope(n) for n in range(2)], [b"f", b"g"], NEVER, True)
    script.publish(1, 7, envelope(1), b"h", NEVER, True)
    script.publish(1, 9, envelope(1), b"i", NEVER, True)
    script.publish(1, 10, envelope(1), b"j", 2.5, True)
    script.publish(1, 11, envelope(1), b"k", NEVER, True)
    script.publish(1, 12, envelope(1), b"l", NEVER, True)
    # They expire together; later than these.
    script.publish_many(1, 13, [envelope(n) for n in range(3)], [b"m", b"n", b"o"], 4.0, True)
    script.publish(1, 16, envelope(1), b"p", 5.0, True)
    told = carried_out(script.take(0, 0))
    assert told.calls == [5, 2, 1, 1, 1, 2, 3, 1]
    assert [message[1] for message in told.messages] == [*range(8), *range(9, 17)]
    assert [message[3] for message in told.messages] == [b"%c" % n for n in b"abcdefghijklmnop"]
    lives_s = [NEVER] * 9 + [2.5] + [NEVER] * 2 + [4.0] * 3 + [5.0]
    assert [message[4] for message in told.messages] == lives_s


def test_positions_with_gaps_are_several_runs() -> None:
    script = Script()
    script.runs(Op.ACK, 0, [4, 5, 6])
    script.runs(Op.ACK, 0, [7])
    script.runs(Op.ACK, 0, [])
    script.runs(Op.ACK, 0, [9, 11, 10])
    script.runs(Op.FETCH, 0, [12, 13])
    told = carried_out(script.take(0, 0))
    assert told.others == [
        (Op.ACK, 0, 4, 4),
        (Op.ACK, 0, 9, 1),
        (Op.ACK, 0, 11, 1),
        (Op.ACK, 0, 10, 1),
        (Op.FETCH, 0, 12, 2),
    ]


def test_a_batch_that_is_cut_off_is_refused_wherever_that_is() -> None:
    script = Script()
    script.publish_many(0, 0, [envelope(n) for n in range(3)], [b"abc"] * 3, NEVER, False)
    payload = script.take(0, 0)
    whole = len(carried_out(payload).messages)
    assert whole == 3
    head = len(Script().take(0, 0))
    for end in range(head + 1, len(payload)):
        told = Told()
        try:
            perform(payload[:end], told, Unpacker())
        except Undeliverable:
            continue
        assert len(told.messages) < whole
