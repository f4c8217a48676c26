"""The effects of a group's member: actions for its shell to carry out, in this order.

`Upcall`s are for the layer above, the others for the shell. The order matters twice: a message is
passed on before it is delivered, and a birth is reported before the new member's first message.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from warren.core.definitions.records import GroupRecord
from warren.mirror.carriers.ports import MemberId, Members, StopReason
from warren.mirror.gm.messages import Message


class Send(NamedTuple):
    """Send a message, in order with all sent to that member before while the connection lasts."""

    to: MemberId
    message: Message


class ReadRecord(NamedTuple):
    """Read the record; answer `record_read`.

    The record must have at least this version (0: as this node knows it, even if it knows none).
    With None it must not be older than this moment.
    """

    request: int
    version: int | None


class Transact(NamedTuple):
    """Write the record if its present version is the expected one (0: there is no record).

    Answer `transaction_committed`, `transaction_refused`, or `store_unavailable` when it is not
    known whether the record was written.
    """

    request: int
    expected_version: int
    record: GroupRecord


class Monitor(NamedTuple):
    """Call `peer_down` once, when the member has ended, cannot be reached or its connection broke.

    First hand in all messages that came from it over that connection.
    """

    member: MemberId


class Demonitor(NamedTuple):
    member: MemberId


class SetTimer(NamedTuple):
    """Call `timer_fired` after this delay. Timers are not cancelled: a late one does nothing.

    If `may_wait`, another member is to act first, and may need longer: best it is called when this
    node has no definitions to write.
    """

    timer: int
    delay_s: float
    may_wait: bool = False


class EpochSeen(NamedTuple):
    """Another member acts in a later epoch: read the queue's definition, then call `set_epoch`."""

    epoch: int


class Joined(NamedTuple):
    """The member can broadcast now. `members` are those it may hear of, itself and the dead too."""

    members: Members


class MembersChanged(NamedTuple):
    """Members were born or died. A death is reported after the dead member's last message."""

    births: Members
    deaths: Members


class Deliver(NamedTuple):
    sender: MemberId
    payload: bytes


class Confirmed(NamedTuple):
    """Every member of the ring holds the messages that were broadcast with these tokens."""

    tokens: tuple[object, ...]


class Congestion(NamedTuple):
    """Whether the layer above should stop broadcasting."""

    congested: bool


class Stopped(NamedTuple):
    """The last effect of a member."""

    reason: StopReason


Upcall: TypeAlias = Joined | MembersChanged | Deliver | Confirmed | Congestion | Stopped
ShellEffect: TypeAlias = Send | ReadRecord | Transact | Monitor | Demonitor | SetTimer | EpochSeen
Effect: TypeAlias = Upcall | ShellEffect
