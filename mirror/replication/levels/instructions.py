"""The instructions of a leader to its mirrors, in batches of octets.

A batch is a head (epoch, number) and instructions, in the order in which the leader did the same
itself. Messages are named by the positions they have at the leader; neighbouring positions are one
run. No instruction names a moment, as clocks of nodes differ: a message has seconds left to live.

`Script` writes a batch, `perform` reads one and calls a `Performer`. Rare instructions carry
MessagePack.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import count
from typing import Any, Protocol

import msgspec

from warren.core.messages.message import Envelope
from warren.core.ports import Clock
from warren.mirror.carriers.batch import HEAD
from warren.mirror.messages.cargo import EnvelopePacker, Unpacker
from warren.mirror.messages.post import Undeliverable

_PUBLISH = struct.Struct("<BBQdI")
"""Instruction, level, position, seconds the message has left to live or -1, octets of the body.
Nodes do not agree on the time of day, so the moment at which a message expires is never sent."""
_RUN = struct.Struct("<BBQI")
"""Instruction, level, first position, count. Of a note: instruction, level, position, number."""
_PURGE = struct.Struct("<BB")
_ORIGIN = struct.Struct("<BBQ")
"""Instruction, octets of the name, number."""
_CONTROL = struct.Struct("<BI")
_SAME_ENVELOPE = 0x80
NEVER = -1.0


def lives_s(expires_at: float | None, clock: Clock) -> float:
    """How many seconds a message has left to live: clocks of nodes may differ by hours."""
    return NEVER if expires_at is None else max(0.0, expires_at - clock.now())


class Op(IntEnum):
    PUBLISH = 1
    PUBLISH_DELIVERED = 2
    FETCH = 3
    ACK = 4
    REQUEUE = 5
    PURGE = 6
    ORIGIN = 7
    START = 8
    SLICE = 9
    EPOCH = 10
    KEEP = 11
    KEEP_OUT = 12
    REFUSED = 13
    HEARD = 14
    HAND_OUT = 15
    AGAIN = 16
    RETURN = 17
    COUNTED = 18
    DEAD = 19
    TAKE = 20
    RETAIN = 21
    RETAIN_AT = 22
    TRIM = 23
    ARRIVED = 24


RUNS = frozenset(
    {
        Op.FETCH,
        Op.ACK,
        Op.REQUEUE,
        Op.KEEP,
        Op.KEEP_OUT,
        Op.AGAIN,
        Op.RETURN,
        Op.TAKE,
        Op.RETAIN,
    }
)
NOTES = frozenset({Op.HAND_OUT, Op.COUNTED, Op.DEAD, Op.RETAIN_AT, Op.TRIM, Op.ARRIVED})
PUBLISHES = frozenset({Op.PUBLISH, Op.PUBLISH_DELIVERED})

_OPS = {int(op): op for op in Op}
"""The instructions by their numbers: ten times faster than asking the enumeration."""


class Performer(Protocol):
    """Carries out the instructions of a batch."""

    def publish(
        self,
        level: int,
        position: int,
        envelope: Envelope,
        body: bytes,
        lives_s: float,
        delivered: bool,
    ) -> None:
        """A message was published; `delivered`: handed to a consumer at once.

        It expires in `lives_s`, or never if that is below 0.
        """
        ...

    def publish_many(
        self,
        level: int,
        first: int,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        lives_s: float,
        delivered: bool,
    ) -> None:
        """The same for messages at positions from `first` on, which expire together."""
        ...

    def run(self, op: Op, level: int, start: int, count: int) -> None:
        """FETCH, ACK, REQUEUE: messages were fetched from the head, acknowledged, or put back.

        KEEP, KEEP_OUT: messages of a slice are to be taken from a former copy; with KEEP_OUT they
        are out for acknowledgement.
        AGAIN: messages that are published next may have been delivered by another leader.
        RETURN: messages of a quorum queue were returned, which is counted.
        TAKE: messages were taken from the middle, to be moved elsewhere.
        RETAIN: messages are about to be acknowledged, and to be retained, in this order.
        """
        ...

    def note(self, op: Op, level: int, position: int, number: int) -> None:
        """HAND_OUT: messages below the position may be handed out from now on, or have been.
        COUNTED: the message was returned `number` times. DEAD: it is dead, for the reason with that
        number, and stays until its dead letter is safe. RETAIN_AT: the message that is retained
        next gets that position among retained messages. TRIM: messages of a stream below the
        position were removed. ARRIVED: messages of a stream, which come next in a slice, arrived
        `number` seconds ago."""
        ...

    def purge(self, level: int) -> None: ...

    def origin(self, name: str, number: int) -> None:
        """All that another node has published up to this number has come by now."""
        ...

    def control(self, op: Op, arguments: Any) -> None: ...


class Script:
    """A batch that is being written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.octets = 0
        self._envelopes = EnvelopePacker()
        self._last_envelope: Envelope | None = None
        # The run that may still grow.
        self._run: tuple[Op, int] | None = None
        self._run_start = 0
        self._run_count = 0

    def __bool__(self) -> bool:
        return bool(self._parts) or self._run_count > 0

    def publish(
        self,
        level: int,
        position: int,
        envelope: Envelope,
        body: bytes,
        lives_s: float,
        delivered: bool,
    ) -> None:
        if self._run_count:
            self._end_run()
        op: int = Op.PUBLISH_DELIVERED if delivered else Op.PUBLISH
        if envelope is self._last_envelope:
            op |= _SAME_ENVELOPE
            self._parts += (_PUBLISH.pack(op, level, position, lives_s, len(body)), body)
        else:
            head = _PUBLISH.pack(op, level, position, lives_s, len(body))
            parts = self._envelopes.parts(envelope)
            self._parts += (head, *parts, body)
            self.octets += sum(map(len, parts))
            self._last_envelope = envelope
        self.octets += _PUBLISH.size + len(body)

    def publish_many(
        self,
        level: int,
        first: int,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        lives_s: float,
        delivered: bool,
    ) -> None:
        """`publish` each of these messages, at positions from `first` on."""
        if self._run_count:
            self._end_run()
        op: int = Op.PUBLISH_DELIVERED if delivered else Op.PUBLISH
        parts, pack, envelope_parts = self._parts, _PUBLISH.pack, self._envelopes.parts
        began = len(parts)
        last = self._last_envelope
        for position, envelope, body in zip(count(first), envelopes, bodies):
            if envelope is last:
                parts += (pack(op | _SAME_ENVELOPE, level, position, lives_s, len(body)), body)
            else:
                head, names, header = envelope_parts(envelope)
                parts += (pack(op, level, position, lives_s, len(body)), head, names, header, body)
                last = envelope
        self._last_envelope = last
        self.octets += sum(map(len, parts[began:]))

    def run(self, op: Op, level: int, position: int) -> None:
        if self._run_count:
            if self._run == (op, level) and position == self._run_start + self._run_count:
                self._run_count += 1
                return
            self._end_run()
        self._run = (op, level)
        self._run_start = position
        self._run_count = 1

    def runs(self, op: Op, level: int, positions: Sequence[int]) -> None:
        """`run` each of these positions, which most often follow one another."""
        length = len(positions)
        if length > 1 and positions[-1] - positions[0] == length - 1:
            first = positions[0]
            if positions == list(range(first, first + length)):
                self.run(op, level, first)
                self._run_count += length - 1
                return
        for position in positions:
            self.run(op, level, position)

    def note(self, op: Op, level: int, position: int, number: int = 0) -> None:
        self._add(_RUN.pack(op, level, position, number))

    def purge(self, level: int) -> None:
        self._add(_PURGE.pack(Op.PURGE, level))

    def origin(self, name: str, number: int) -> None:
        raw = name.encode()
        self._add(_ORIGIN.pack(Op.ORIGIN, len(raw), number) + raw)

    def control(self, op: Op, *arguments: Any) -> None:
        packed = msgspec.msgpack.encode(arguments)
        self._add(_CONTROL.pack(op, len(packed)) + packed)

    def take(self, epoch: int, batch: int) -> bytes:
        """Return the batch that was written, and begin the next one."""
        if self._run_count:
            self._end_run()
        parts, self._parts = self._parts, []
        self.octets = 0
        self._last_envelope = None
        return HEAD.pack(epoch, batch) + b"".join(parts)

    def _add(self, octets: bytes) -> None:
        if self._run_count:
            self._end_run()
        self._parts.append(octets)
        self.octets += len(octets)

    def _end_run(self) -> None:
        assert self._run is not None
        op, level = self._run
        self._parts.append(_RUN.pack(op, level, self._run_start, self._run_count))
        self.octets += _RUN.size
        self._run_count = 0


def perform(payload: bytes, performer: Performer, unpacker: Unpacker) -> None:
    """Carry out the instructions of a batch. Raises `Undeliverable` if they cannot be read."""
    start, end = HEAD.size, len(payload)
    envelope: Envelope | None = None
    try:
        while start < end:
            code = payload[start]
            op = _OPS[code & ~_SAME_ENVELOPE]
            if op in PUBLISHES:
                start, envelope = _publish(payload, start, envelope, performer, unpacker)
            elif op in RUNS:
                _, level, position, count = _RUN.unpack_from(payload, start)
                start += _RUN.size
                performer.run(op, level, position, count)
            elif op in NOTES:
                _, level, position, number = _RUN.unpack_from(payload, start)
                start += _RUN.size
                performer.note(op, level, position, number)
            elif op is Op.PURGE:
                _, level = _PURGE.unpack_from(payload, start)
                start += _PURGE.size
                performer.purge(level)
            elif op is Op.ORIGIN:
                _, size, number = _ORIGIN.unpack_from(payload, start)
                start += _ORIGIN.size
                performer.origin(payload[start : start + size].decode(), number)
                start += size
            else:
                _, size = _CONTROL.unpack_from(payload, start)
                start += _CONTROL.size
                performer.control(op, msgspec.msgpack.decode(payload[start : start + size]))
                start += size
    except (struct.error, KeyError, ValueError, msgspec.MsgspecError) as error:
        raise Undeliverable(f"an instruction that cannot be read: {error}") from None


def _publish(
    payload: bytes,
    start: int,
    envelope: Envelope | None,
    performer: Performer,
    unpacker: Unpacker,
) -> tuple[int, Envelope]:
    """Carry out the publish at `start`, together with the publishes behind it whose messages have
    the next positions of the level and expire with it. `envelope` is that of the publish before.
    Returns where the next instruction begins, and the last envelope."""
    end = len(payload)
    unpack = _PUBLISH.unpack_from
    code, level, first, lives_s, size = unpack(payload, start)
    kind = code & ~_SAME_ENVELOPE
    delivered = kind == Op.PUBLISH_DELIVERED
    envelopes: list[Envelope] = []
    bodies: list[bytes] = []
    while True:
        start += _PUBLISH.size
        if not code & _SAME_ENVELOPE:
            envelope, start = unpacker.envelope(payload, start)
        stop = start + size
        if envelope is None or stop > end:
            raise Undeliverable("a message that is not whole")
        envelopes.append(envelope)
        bodies.append(payload[start:stop])
        start = stop
        if start == end or payload[start] & ~_SAME_ENVELOPE != kind:
            break
        code, next_level, position, next_lives_s, size = unpack(payload, start)
        if (next_level, position, next_lives_s) != (level, first + len(bodies), lives_s):
            break
    if len(bodies) == 1:
        performer.publish(level, first, envelope, bodies[0], lives_s, delivered)
    else:
        performer.publish_many(level, first, envelopes, bodies, lives_s, delivered)
    return start, envelope
