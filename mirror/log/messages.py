"""The messages between members of a log.

| message | from | to | says |
|---|---|---|---|
| `Hello` | mirror | leader | send me the batches after this position; or: I voted for another |
| `Welcome` | leader | mirror | this node leads, and sends |
| `Data` | leader | mirror | a batch, and the position up to which all mirrors have everything |
| `CarrierRefusal` | leader | mirror | I cannot go on from your position: begin anew |
| `Bye` | both | both | this member has ended, though its node goes on |

Every message begins with the octet of its kind and the id of the queue. `Data` is built and taken
apart without copying its batch more than once.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from warren.mirror.carriers.batch import Position
from warren.mirror.messages.post import Undeliverable

_HEAD = struct.Struct("<BQ")
_HELLO = struct.Struct("<QQQBQQ")
_DATA = struct.Struct("<QQ")
_REFUSAL = struct.Struct("<QQ")
_ONE = struct.Struct("<Q")


class Code(IntEnum):
    HELLO = 1
    WELCOME = 2
    DATA = 3
    REFUSAL = 4
    BYE = 5


class Hello(NamedTuple):
    """`incarnation` is that of the mirror's member, `end` the position of its last batch, `vote`
    the epoch and ballot in which it has voted, if any."""

    incarnation: int
    end: Position
    vote: tuple[int, int] | None


class Welcome(NamedTuple):
    """`incarnation` says for which life of the mirror's member the message is."""

    incarnation: int


class Data(NamedTuple):
    everywhere: Position
    payload: bytes


class CarrierRefusal(NamedTuple):
    """`epoch` is the leader's: a mirror that knows an older definition does not know yet whether it
    is to keep its copy."""

    incarnation: int
    epoch: int


class Bye(NamedTuple):
    incarnation: int


Message: TypeAlias = Hello | Welcome | Data | CarrierRefusal | Bye

_OF_ONE_NUMBER: Mapping[int, type[Welcome] | type[Bye]] = {
    Code.WELCOME: Welcome,
    Code.BYE: Bye,
}


def data_head(queue_id: int, everywhere: Position) -> bytes:
    """The octets of a `Data` message before its batch."""
    return _HEAD.pack(Code.DATA, queue_id) + _DATA.pack(*everywhere)


def encode(queue_id: int, message: Message) -> bytes:
    match message:
        case Hello(incarnation, (epoch, batch), vote):
            voted = vote is not None
            rest = _HELLO.pack(incarnation, epoch, batch, voted, *(vote or (0, 0)))
            return _HEAD.pack(Code.HELLO, queue_id) + rest
        case Welcome(incarnation):
            return _HEAD.pack(Code.WELCOME, queue_id) + _ONE.pack(incarnation)
        case Data(everywhere, payload):
            return data_head(queue_id, everywhere) + payload
        case CarrierRefusal():
            return _HEAD.pack(Code.REFUSAL, queue_id) + _REFUSAL.pack(*message)
        case Bye(incarnation):
            return _HEAD.pack(Code.BYE, queue_id) + _ONE.pack(incarnation)


def decode(octets: bytes) -> tuple[int, Message]:
    """The id of the queue and the message. Raises `Undeliverable`."""
    try:
        code, queue_id = _HEAD.unpack_from(octets)
        start = _HEAD.size
        if code == Code.DATA:
            epoch, batch = _DATA.unpack_from(octets, start)
            return queue_id, Data((epoch, batch), octets[start + _DATA.size :])
        if code == Code.HELLO:
            incarnation, epoch, batch, voted, *vote = _HELLO.unpack(octets[start:])
            voted_in = (vote[0], vote[1]) if voted else None
            return queue_id, Hello(incarnation, (epoch, batch), voted_in)
        if code == Code.REFUSAL:
            return queue_id, CarrierRefusal(*_REFUSAL.unpack(octets[start:]))
        (incarnation,) = _ONE.unpack(octets[start:])
    except struct.error as error:
        raise Undeliverable(f"a message of a log that cannot be read: {error}") from None
    kind = _OF_ONE_NUMBER.get(code)
    if kind is None:
        raise Undeliverable(f"a message of a log of kind {code}")
    return queue_id, kind(incarnation)
