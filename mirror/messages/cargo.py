"""Messages in frames between nodes: one after the other; messages in a row share an envelope.

An entry is a head, the envelope unless it is that of the entry before, and the body. CC and BCC in
the content header matter for routing only, which was done where the message was published.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from warren.core.field import to_octets, to_text
from warren.core.messages.message import Envelope, address_of
from warren.mirror.links.ports import LARGE_PART
from warren.mirror.messages.post import Undeliverable

SAME_ENVELOPE = 1
REDELIVERED = 2
CONFIRM = 4
_PERSISTENT = 8
AGAIN = 16
"""The publish was sent again, and an earlier leader may have delivered it."""

_HEAD = struct.Struct("<BQI")
"""Flags, number, octets of the body."""
_ENVELOPE = struct.Struct("<BBIBBq")
"""Octets of exchange, of routing key, and of content header; flags, priority, expiration or -1."""


class CarriedMessage(NamedTuple):
    """A message on its way; `number` is the sender's number for it."""

    flags: int
    number: int
    envelope: Envelope
    body: bytes


class CarriedMessages(NamedTuple):
    """Messages in a row with the same flags, and numbers that go up from `first`, or are all 0."""

    flags: int
    first: int
    envelopes: list[Envelope]
    bodies: list[bytes]

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + len(self.bodies))


class EnvelopePacker:
    """Writes envelopes one after the other. Exchange and routing key are mostly those of the
    envelope before, and then not encoded again."""

    def __init__(self) -> None:
        self._exchange = self._routing_key = ""
        self._exchange_octets = self._key_octets = 0
        self._names = b""

    def parts(self, envelope: Envelope) -> tuple[bytes, bytes, bytes]:
        """The octets of an envelope, in three parts to be joined."""
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
        exchange = to_octets(self._exchange)
        key = to_octets(self._routing_key)
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

    def add_many(
        self,
        numbers: Iterable[int],
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        flags: int = 0,
    ) -> None:
        """`add` each of them."""
        parts, pack, envelope_parts = self.parts, _HEAD.pack, self._envelopes.parts
        began = len(parts)
        last = self._last
        for number, envelope, body in zip(numbers, envelopes, bodies, strict=True):
            if envelope is last:
                parts += (pack(flags | SAME_ENVELOPE, number, len(body)), body)
            else:
                head, names, header = envelope_parts(envelope)
                parts += (pack(flags, number, len(body)), head, names, header, body)
                last = envelope
        self._last = last
        self.octets += sum(map(len, parts[began:]))

    def take(self) -> list[bytes]:
        """Remove and return the gathered entries: joined into one piece if the parts are small."""
        parts, self.parts = self.parts, []
        are_small = self.octets < LARGE_PART * len(parts)
        self.octets = 0
        self._last = None
        return [b"".join(parts)] if are_small else parts


class Unpacker:
    """Reads the output of a `Packer`. An envelope equal to the one before is the same object."""

    def __init__(self) -> None:
        # The last envelope; its octets before the content header, and the length of that header.
        self._last: Envelope | None = None
        self._begin = b""
        self._header_octets = 0
        # The last envelope's exchange, routing key and address; then whether it is persistent, its
        # priority and its expiration.
        self._names = ("", "", b"")
        self._facts: tuple[bool, int, int | None] = (False, 0, None)

    def messages(self, payload: bytes, start: int) -> Iterator[CarriedMessages]:
        """The messages from `start` on, as many as possible together. Raises `Undeliverable` for
        octets that are not messages."""
        envelope: Envelope | None = None
        envelopes: list[Envelope] = []
        bodies: list[bytes] = []
        kind = first = number_due = -1
        unpack, read, end = _HEAD.unpack_from, self.envelope, len(payload)
        try:
            while start < end:
                flags, number, octets = unpack(payload, start)
                start += _HEAD.size
                if not flags & SAME_ENVELOPE:
                    envelope, start = read(payload, start)
                stop = start + octets
                if stop > end or envelope is None:
                    raise Undeliverable("a message that is not whole")
                if flags | SAME_ENVELOPE != kind or number != number_due:
                    if bodies:
                        yield CarriedMessages(kind & ~SAME_ENVELOPE, first, envelopes, bodies)
                    kind, first, envelopes, bodies = flags | SAME_ENVELOPE, number, [], []
                number_due = number + 1 if number else 0
                envelopes.append(envelope)
                bodies.append(payload[start:stop])
                start = stop
        except (struct.error, UnicodeError) as error:
            raise Undeliverable(f"a message that cannot be read: {error}") from None
        if bodies:
            yield CarriedMessages(kind & ~SAME_ENVELOPE, first, envelopes, bodies)

    def message(self, payload: bytes) -> CarriedMessage:
        """The only message in the payload. Raises as `messages`."""
        for flags, number, (envelope, *_), (body, *_) in self.messages(payload, 0):
            return CarriedMessage(flags, number, envelope, body)
        raise Undeliverable("no message where there should be one")

    def envelope(self, payload: bytes, start: int) -> tuple[Envelope, int]:
        """The envelope at `start`, and its end. Raises `Undeliverable`, `struct.error`."""
        if not (self._begin and payload.startswith(self._begin, start)):
            self._read_begin(payload, start)
        header_at = start + len(self._begin)
        stop = header_at + self._header_octets
        header = payload[header_at:stop]
        last = self._last
        if last is not None and header == last.header:
            return last, stop
        if stop > len(payload):
            raise Undeliverable("an envelope that is not whole")
        exchange, routing_key, address = self._names
        persistent, priority, expiration_ms = self._facts
        self._last = envelope = Envelope(
            exchange, routing_key, header, persistent, priority, expiration_ms, (), address
        )
        return envelope, stop

    def _read_begin(self, payload: bytes, start: int) -> None:
        """Read an envelope up to its content header. Raises as `envelope`, and UnicodeError."""
        exchange_octets, key_octets, header_octets, flags, priority, expiration = (
            _ENVELOPE.unpack_from(payload, start)
        )
        names_at = start + _ENVELOPE.size
        key_at = names_at + exchange_octets
        end = key_at + key_octets
        if end > len(payload):
            raise Undeliverable("an envelope that is not whole")
        exchange, key = payload[names_at:key_at], payload[key_at:end]
        address = address_of(exchange, key)
        if address != self._names[2]:
            self._names = to_text(exchange), to_text(key), address
        self._facts = (bool(flags & _PERSISTENT), priority, None if expiration < 0 else expiration)
        self._begin = payload[start:end]
        self._header_octets = header_octets
        self._last = None
