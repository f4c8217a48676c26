"""Messages come out of a frame as they went in."""

from __future__ import annotations

import random

import pytest

from warren.core.messages.message import Envelope
from warren.mirror.messages.cargo import Packer, Unpacker
from warren.mirror.messages.post import Undeliverable

NAMES = ("", "orders", "größer", "\udc80bad", "k" * 255)


def random_envelope(rng: random.Random) -> Envelope:
    return Envelope(
        rng.choice(NAMES),
        rng.choice(NAMES),
        b"header %d" % rng.randrange(3),
        rng.random() < 0.5,
        rng.choice((0, 9)),
        rng.choice((None, 0, 60_000)),
    )


def facts(envelope: Envelope) -> tuple[object, ...]:
    return (
        envelope.exchange,
        envelope.routing_key,
        envelope.header,
        envelope.persistent,
        envelope.priority,
        envelope.expiration_ms,
    )


@pytest.mark.parametrize("seed", range(20))
def test_messages_come_out_as_they_went_in(seed: int) -> None:
    rng = random.Random(seed)
    packer, single, unpacker = Packer(), Packer(), Unpacker()
    for _ in range(20):
        envelopes = [random_envelope(rng)]
        for _ in range(rng.randrange(8)):
            envelopes.append(envelopes[-1] if rng.random() < 0.4 else random_envelope(rng))
        bodies = [bytes(rng.choice((0, 3, 9000))) for _ in envelopes]
        packer.add_many(range(5, 5 + len(bodies)), envelopes, bodies, 4)
        for number, (envelope, body) in enumerate(zip(envelopes, bodies, strict=True), 5):
            single.add(number, envelope, body, 4)
        assert packer.octets == single.octets
        payload = b"".join(packer.take())
        assert payload == b"".join(single.take())
        (carried,) = unpacker.messages(payload, 0)
        assert (carried.flags, carried.first, carried.bodies) == (4, 5, bodies)
        assert [facts(one) for one in carried.envelopes] == [facts(one) for one in envelopes]
        for envelope in carried.envelopes:
            name = envelope.exchange.encode("utf-8", "surrogateescape")
            key = envelope.routing_key.encode("utf-8", "surrogateescape")
            assert envelope.address == bytes((len(name),)) + name + bytes((len(key),)) + key


def test_messages_are_together_while_flags_are_the_same_and_numbers_follow() -> None:
    packer, envelope = Packer(), Envelope("ex", "key", b"header", True, 0, None)
    numbers = (0, 0, 1, 2, 4, 5, 6, 0, 1)
    flags = (0, 0, 0, 0, 0, 4, 4, 4, 4)
    for number, flag in zip(numbers, flags, strict=True):
        packer.add(number, envelope, b"%d" % number, flag)
    carried = list(Unpacker().messages(b"".join(packer.take()), 0))
    assert [(some.flags, some.bodies) for some in carried] == [
        (0, [b"0", b"0"]),
        (0, [b"1", b"2"]),
        (0, [b"4"]),
        (4, [b"5", b"6"]),
        (4, [b"0"]),
        (4, [b"1"]),
    ]


def test_one_message_is_read_as_one() -> None:
    packer, envelope = Packer(), Envelope("ex", "key", b"header", True, 0, None)
    packer.add(3, envelope, b"body", 2)
    carried = Unpacker().message(b"".join(packer.take()))
    assert (carried.flags, carried.number, carried.body) == (2, 3, b"body")
    assert facts(carried.envelope) == facts(envelope)
    with pytest.raises(Undeliverable, match="no message"):
        Unpacker().message(b"")


def test_envelopes_alike_are_one_object() -> None:
    packer, unpacker = Packer(), Unpacker()
    for number in range(1, 4):
        packer.add(number, Envelope("ex", "key", b"header", True, 0, None), b"body")
    packer.add(4, Envelope("ex", "key", b"other", True, 0, None), b"body")
    (carried,) = unpacker.messages(b"".join(packer.take()), 0)
    first, second, third, other = carried.envelopes
    assert first is second is third
    assert other is not first
    assert other.routing_key is first.routing_key


def test_small_pieces_are_put_together_and_large_ones_are_not_copied() -> None:
    packer = Packer()
    envelope = Envelope("ex", "key", b"header", True, 0, None)
    packer.add_many(range(100), [envelope] * 100, [b"x" * 100] * 100)
    assert len(packer.take()) == 1
    body = b"x" * 100_000
    packer.add(1, envelope, body)
    assert any(part is body for part in packer.take())


def test_a_frame_that_is_cut_off_is_refused_wherever_that_is() -> None:
    packer = Packer()
    for number in range(3):
        packer.add(number, Envelope("ex", f"key {number}", b"header", True, 0, None), b"body")
    payload = b"".join(packer.take())
    for end in range(1, len(payload)):
        try:
            carried = list(Unpacker().messages(payload[:end], 0))
        except Undeliverable:
            continue
        assert sum([len(some.bodies) for some in carried]) < 3
