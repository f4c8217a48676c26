"""Messages in frames between nodes: many after each other, an envelope once for all that share it.

An entry is a head, the envelope unless it is that of the entry before, and the body. What follows
from the content header for routing (CC, BCC) was served where the message was published.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from warren.core.messages.message import Envelope
from warren.mirror.messages.post import Undeliverable

SAME_ENVELOPE = 1
REDELIVERED = 2
CONFIRM = 4
_PERSISTENT = 8
AGAIN = 16
"""A publish that another leader may have delivered."""

_HEAD = struct.Struct("<BQI")
"""Flags, number, octets of the body."""
_ENVELOPE = struct.Struct("<BBIBBq")
"""Octets of exchange, routing key and content header; flags, priority, expiration or -1."""


class CarriedMessage(NamedTuple):
    """A message on its way; `number` is what its sender counts or knows it by."""

    flags: int
    number: int
    envelope: Envelope
    body: bytes


class EnvelopePacker:
    """Writes envelopes one after the other; exchange and routing key, which most often are those of
    the one before, are encoded once."""

    def __init__(self) -> None:
        self._exchange = self._routing_key = ""
        self._exchange_octets = self._key_octets = 0
        self._names = b""

    def parts(self, envelope: Envelope) -> tuple[bytes, bytes, bytes]:
        """The octets of an envelope, to be put together."""
        if envelope.routing_key is not self._routing_key or envelope.exchange is not self._exchange:
            self._name(envelope)
        header, expiration = envelope.header, envelope.expiration_ms
        head = _ENVELOPE.pack(
            self._exchange_octets,
            self._key_octets,
            len(header),
            _PERSISTENT if envelope.persistent else 0,
            envelope.priority,
            -1 if expiration is None else expiration,
        )
        return head, self._names, header

    def _name(self, envelope: Envelope) -> None:
        self._exchange, self._routing_key = envelope.exchange, envelope.routing_key
        exchange = self._exchange.encode("utf-8", "surrogateescape")
        key = self._routing_key.encode("utf-8", "surrogateescape")
        self._exchange_octets, self._key_octets = len(exchange), len(key)
        self._names = exchange + key


class Packer:
    """Gathers entries for one frame."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.octets = 0
        self._last: Envelope | None = None
        self._envelopes = EnvelopePacker()

    def add(self, number: int, envelope: Envelope, body: bytes, flags: int = 0) -> None:
        size = len(body)
        if envelope is self._last:
            self.parts += (_HEAD.pack(flags | SAME_ENVELOPE, number, size), body)
            self.octets += _HEAD.size + size
            return
        envelope_head, names, header = self._envelopes.parts(envelope)
        self.parts += (_HEAD.pack(flags, number, size), envelope_head, names, header, body)
        self.octets += _HEAD.size + _ENVELOPE.size + len(names) + len(header) + size
        self._last = envelope

    def take(self) -> list[bytes]:
        """What was gathered, and begin anew."""
        parts, self.parts = self.parts, []
        self.octets = 0
        self._last = None
        return parts


class Unpacker:
    """Reads what a `Packer` wrote. An envelope like the one before is the same object."""

    def __init__(self) -> None:
        # The last envelope, and its octets.
        self._last: Envelope | None = None
        self._octets = b""
        # Exchange and routing key of the last envelope: as octets, as text, and as an address.
        self._names = b""
        self._exchange_octets = 0
        self._exchange = self._routing_key = ""
        self._address = b"\0\0"

    def entries(self, payload: bytes, start: int) -> Iterator[CarriedMessage]:
        """The entries from `start` on. Raises `Undeliverable` where there are none."""
        envelope: Envelope | None = None
        end = len(payload)
        while start < end:
            try:
                flags, number, body_size = _HEAD.unpack_from(payload, start)
                start += _HEAD.size
                if not flags & SAME_ENVELOPE:
                    envelope, start = self.envelope(payload, start)
            except (struct.error, UnicodeError) as error:
                raise Undeliverable(f"a message that cannot be read: {error}") from None
            stop = start + body_size
            if stop > end or envelope is None:
                raise Undeliverable("a message that is not whole")
            yield CarriedMessage(flags, number, envelope, payload[start:stop])
            start = stop

    def envelope(self, payload: bytes, start: int) -> tuple[Envelope, int]:
        """The envelope at `start`, and where it ends. Raises `Undeliverable`, `struct.error`."""
        exchange, key, header, flags, priority, expiration = _ENVELOPE.unpack_from(payload, start)
        stop = start + _ENVELOPE.size + exchange + key + header
        if stop > len(payload):
            raise Undeliverable("an envelope that is not whole")
        octets = payload[start:stop]
        if octets == self._octets and self._last is not None:
            return self._last, stop
        at = _ENVELOPE.size + exchange + key
        names = octets[_ENVELOPE.size : at]
        if names != self._names or exchange != self._exchange_octets:
            self._name(names, exchange)
        self._octets = octets
        self._last = envelope = Envelope(
            self._exchange,
            self._routing_key,
            octets[at:],
            bool(flags & _PERSISTENT),
            priority,
            None if expiration < 0 else expiration,
            (),
            self._address,
        )
        return envelope, stop

    def _name(self, names: bytes, exchange: int) -> None:
        """Raises UnicodeError."""
        name, key = names[:exchange], names[exchange:]
        self._exchange = name.decode("utf-8", "surrogateescape")
        self._routing_key = key.decode("utf-8", "surrogateescape")
        self._address = b"%c%b%c%b" % (len(name), name, len(key), key)
        self._names, self._exchange_octets = names, exchange
