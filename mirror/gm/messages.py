"""The messages between members of a group, and their encoding.

| message | to | says |
|---|---|---|
| `AddOnRight` | a member chosen by the joiner | put me to your right |
| `NotReady` | the joiner | I cannot let you in now: choose again |
| `Catchup` | the right neighbour | all I know; what follows on this link continues it |
| `Activity` | the right neighbour | new publishes and acks of these members |
| `CheckNeighbours` | both neighbours | this is my version; and perhaps: I miss your catchup |

Every message carries the epoch of the queue and the version of its sender's view. The publishes of
one member are numbered from 0 without a gap. So a `MemberNews` needs only the number of the first
of its publishes, and an ack is the number up to which all publishes are acked.

`position` numbers the catchups and activities that a member sends, over all its links. An activity
continues what came before it exactly if its position is the next one. So its receiver sees when
something is missing, as after a connection was lost and made anew.

A message is encoded as a MessagePack array that begins with the number of its kind. Decoding is
strict: octets that are not exactly one message raise `MalformedMessage`.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from warren.mirror.carriers.ports import MemberId

NONE = -1
"""Stands for no number: publishes of a member are numbered from 0, versions of a group from 1."""

ANY = (1 << 62) - 1
"""A value of `catchup_above`: no catchup sent so far is enough."""

FRAME_BYTES_MAX = 256 << 20
"""A catchup contains all that its sender holds; `GmLimits` keeps that well below this."""

GROUP_MEMBERS_MAX = 1024
"""Entries of one message; a group has one or two members for each node."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
CountOrNone: TypeAlias = Annotated[int, msgspec.Meta(ge=NONE, lt=1 << 62)]
Payloads: TypeAlias = tuple[bytes, ...]


class MalformedMessage(ValueError):
    """Bytes that are no message of gm."""


class MemberNews(NamedTuple):
    """News of one member: its publishes from number `first` on; all up to `acked` are acked."""

    member: MemberId
    first: Count
    pubs: Payloads
    acked: CountOrNone

    def without_payloads(self) -> MemberNews:
        """The same news, with an empty payload for each publish."""
        return self._replace(pubs=(b"",) * len(self.pubs))

    def followed_by(self, later: MemberNews) -> MemberNews:
        """This and later news of the member in one."""
        first = self.first if self.pubs else later.first
        acked = max(self.acked, later.acked)
        return MemberNews(self.member, first, self.pubs + later.pubs, acked)


class Known(NamedTuple):
    """All that is known of one member; `pending` are its last publishes, up to `last_pub`."""

    member: MemberId
    last_pub: CountOrNone
    pending: Payloads

    @property
    def acked(self) -> int:
        return self.last_pub - len(self.pending)


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    epoch: Count
    version: Count


class AddOnRight(_Message, frozen=True, tag=1):
    pass


class NotReady(_Message, frozen=True, tag=2):
    pass


class Catchup(_Message, frozen=True, tag=3):
    position: Count
    known: Annotated[tuple[Known, ...], msgspec.Meta(max_length=GROUP_MEMBERS_MAX)]


class Activity(_Message, frozen=True, tag=4):
    position: Count
    entries: Annotated[tuple[MemberNews, ...], msgspec.Meta(max_length=GROUP_MEMBERS_MAX)]


class CheckNeighbours(_Message, frozen=True, tag=5):
    """`catchup_above`: the sender waits for a catchup of a later version; NONE: for none."""

    catchup_above: CountOrNone = NONE


Message: TypeAlias = AddOnRight | NotReady | Catchup | Activity | CheckNeighbours


class RingFrame(NamedTuple):
    """A message on its way. The id of the group goes before it in the frame (`shell`)."""

    sender: MemberId
    to: MemberId
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RingFrame)


def encode(frame: RingFrame) -> bytes:
    octets = _encoder.encode(frame)
    assert len(octets) <= FRAME_BYTES_MAX, len(octets)
    return octets


def decode(octets: bytes | memoryview) -> RingFrame:
    """Raises `MalformedMessage`."""
    if len(octets) > FRAME_BYTES_MAX:
        raise MalformedMessage(f"{len(octets)} bytes, at most {FRAME_BYTES_MAX} are a message")
    try:
        frame = _decoder.decode(octets)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{len(octets)} bytes are no message: {error}") from None
    _check(frame)
    return frame


def _check(frame: RingFrame) -> None:
    """Check the rules that types cannot express."""
    message = frame.message
    if isinstance(message, Activity):
        for entry in message.entries:
            if not entry.pubs and entry.acked == NONE:
                raise MalformedMessage(f"the entry of {entry.member} says nothing")
    elif isinstance(message, Catchup):
        for known in message.known:
            if known.acked < NONE:
                raise MalformedMessage(f"{len(known.pending)} pending up to {known.last_pub}")
