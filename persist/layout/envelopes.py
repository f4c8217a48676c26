"""Envelopes as records have them: the octets of everything about a publish but its body."""

from __future__ import annotations

import struct

from warren.core.field import to_octets, to_text
from warren.core.messages.message import Envelope, address_of
from warren.persist.layout.format import Damaged

NO_EXPIRATION = (1 << 64) - 1

_FIXED = struct.Struct("<QIIBBBx")
"""Expiration, octets of the content header and of further routing keys, priority, octets of
exchange and routing key."""

_FIXED_BYTES = _FIXED.size
_pack_fixed, _unpack_fixed = _FIXED.pack, _FIXED.unpack_from
_EXCHANGE_BYTES_AT = 17
"""The place of the octets of exchange and routing key, as counted in the fixed part."""


class EnvelopeEncoder:
    """Encodes envelopes one after the other. Most have the same exchange and routing key as the one
    before."""

    __slots__ = ("_exchange", "_exchange_bytes", "_names", "_routing_key", "_routing_key_bytes")

    def __init__(self) -> None:
        self._exchange = self._routing_key = ""
        self._exchange_bytes = self._routing_key_bytes = 0
        self._names = b""

    def encode(self, envelope: Envelope) -> bytes:
        exchange, routing_key = envelope.exchange, envelope.routing_key
        if exchange is not self._exchange or routing_key is not self._routing_key:
            self._note_names(exchange, routing_key)
        copies, header, expiration_ms = envelope.copies, envelope.header, envelope.expiration_ms
        further = b"".join([_long_string(_octets(key)) for key in copies]) if copies else b""
        fixed = _pack_fixed(
            NO_EXPIRATION if expiration_ms is None else expiration_ms,
            len(header),
            len(further),
            min(envelope.priority, 255),
            self._exchange_bytes,
            self._routing_key_bytes,
        )
        return fixed + self._names + further + header

    def _note_names(self, exchange: str, routing_key: str) -> None:
        exchange_octets, key_octets = _octets(exchange), _octets(routing_key)
        self._exchange_bytes, self._routing_key_bytes = len(exchange_octets), len(key_octets)
        self._names = exchange_octets + key_octets
        self._exchange, self._routing_key = exchange, routing_key


def encode_envelope(envelope: Envelope) -> bytes:
    """One envelope by itself."""
    return EnvelopeEncoder().encode(envelope)


class EnvelopeDecoder:
    """Decodes envelopes one after the other.

    Messages that are read together mostly have the same exchange and routing key, and often are the
    same but for the body. So what equals that of the last envelope is the same object, and takes
    memory once.
    """

    __slots__ = ("_address", "_exchange", "_last", "_last_octets", "_names", "_routing_key")

    def __init__(self) -> None:
        self._last_octets = b""
        self._last: Envelope | None = None
        self._names = b""
        self._exchange = self._routing_key = ""
        self._address = b""

    def decode(self, octets: bytes, persistent: bool) -> Envelope:
        """Raises `Damaged`."""
        last = self._last
        if octets == self._last_octets and last is not None and last.persistent is persistent:
            return last
        if len(octets) < _FIXED_BYTES:
            raise Damaged(f"an envelope of {len(octets)} octets")
        expiration_ms, header_bytes, copies_bytes, priority, exchange_bytes, key_bytes = (
            _unpack_fixed(octets)
        )
        key_end = _FIXED_BYTES + exchange_bytes + key_bytes
        copies_end = key_end + copies_bytes
        if copies_end + header_bytes != len(octets):
            raise Damaged("an envelope whose parts do not fill it")
        # The names, behind their lengths.
        names = octets[_EXCHANGE_BYTES_AT:key_end]
        if names != self._names:
            self._note_names(names, octets[_FIXED_BYTES:key_end], exchange_bytes)
        envelope = Envelope(
            self._exchange,
            self._routing_key,
            octets[copies_end:],
            persistent,
            priority,
            None if expiration_ms == NO_EXPIRATION else expiration_ms,
            _long_strings(octets[key_end:copies_end]) if copies_bytes else (),
            self._address,
        )
        self._last_octets, self._last = octets, envelope
        return envelope

    def _note_names(self, names: bytes, both: bytes, exchange_bytes: int) -> None:
        exchange, routing_key = both[:exchange_bytes], both[exchange_bytes:]
        self._exchange, self._routing_key = to_text(exchange), to_text(routing_key)
        self._address = address_of(exchange, routing_key)
        self._names = names


def decode_envelope(octets: bytes, persistent: bool) -> Envelope:
    """One envelope by itself. Raises `Damaged`."""
    return EnvelopeDecoder().decode(octets, persistent)


def _octets(text: str) -> bytes:
    return text.encode() if text.isascii() else to_octets(text)


def _long_string(octets: bytes) -> bytes:
    return len(octets).to_bytes(4, "little") + octets


def _long_strings(octets: bytes) -> tuple[str, ...]:
    texts = []
    at = 0
    while at < len(octets):
        end = at + 4 + int.from_bytes(octets[at : at + 4], "little")
        if end > len(octets):
            raise Damaged("a routing key longer than the envelope")
        texts.append(to_text(octets[at + 4 : end]))
        at = end
    return tuple(texts)
