"""Envelopes in records: whatever came before, one is encoded and decoded as if it came alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.messages.message import Envelope
from warren.persist.layout.envelopes import (
    EnvelopeDecoder,
    EnvelopeEncoder,
    decode_envelope,
    encode_envelope,
)
from warren.persist.layout.format import Damaged

NAMES = st.sampled_from(["", "orders", "ordersqueue", "queue", "q" * 255, "straße", "\udcff"])
ENVELOPES = st.builds(
    Envelope,
    NAMES,
    NAMES,
    st.sampled_from([b"", b"header", b"another header"]),
    st.booleans(),
    st.sampled_from([0, 1, 255]),
    st.sampled_from([None, 0, 60_000]),
    st.sampled_from([(), ("copy",), ("copy", "another")]),
)


def parts(envelope: Envelope) -> tuple[object, ...]:
    return (
        envelope.exchange,
        envelope.routing_key,
        envelope.header,
        envelope.persistent,
        envelope.priority,
        envelope.expiration_ms,
        envelope.copies,
    )


def short_string(text: str) -> bytes:
    octets = text.encode("utf-8", "surrogateescape")
    return bytes((len(octets),)) + octets


@given(st.lists(ENVELOPES))
def test_envelopes_one_after_the_other_are_encoded_and_decoded_as_one_alone(
    envelopes: list[Envelope],
) -> None:
    encoder, decoder = EnvelopeEncoder(), EnvelopeDecoder()
    for envelope in envelopes:
        octets = encoder.encode(envelope)
        assert octets == encode_envelope(envelope)
        decoded = decoder.decode(octets, envelope.persistent)
        assert parts(decoded) == parts(envelope)
        assert parts(decode_envelope(octets, envelope.persistent)) == parts(envelope)
        address = short_string(envelope.exchange) + short_string(envelope.routing_key)
        assert decoded.address == address


def test_what_equals_the_last_envelope_takes_memory_once() -> None:
    decoder = EnvelopeDecoder()
    octets = encode_envelope(Envelope("orders", "queue", b"header", True, 0, None))
    first = decoder.decode(octets, True)
    assert decoder.decode(bytes(bytearray(octets)), True) is first
    assert decoder.decode(octets, False) is not first
    other = encode_envelope(Envelope("orders", "queue", b"other header", True, 0, None))
    decoded = decoder.decode(other, True)
    assert decoded.exchange is first.exchange
    assert decoded.routing_key is first.routing_key
    assert decoded.address is first.address


@pytest.mark.parametrize("kept", [0, 10, -1])
def test_a_damaged_envelope_changes_nothing_for_the_next(kept: int) -> None:
    decoder = EnvelopeDecoder()
    octets = encode_envelope(Envelope("orders", "queue", b"header", True, 0, None, ("copy",)))
    first = decoder.decode(octets, True)
    with pytest.raises(Damaged):
        decoder.decode(octets[:kept], True)
    assert parts(decoder.decode(octets, True)) == parts(first)
