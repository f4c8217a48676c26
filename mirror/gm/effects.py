"""What a member of a group wants done, in the order in which it is to be done.

`Upcall`s are for the layer above, the others for the shell. The order matters twice: a message is
passed on before it is delivered, and births are told before the newborn's first message.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from warren.core.definitions.records import GroupRecord
from warren.mirror.carriers.ports import MemberId, Members, StopReason
from warren.mirror.gm.messages import Message


class Send(NamedTuple):
    """In order with all sent to that member before, as long as the connection lasts."""

    to: MemberId
    message: Message


class ReadRecord(NamedTuple):
    """Read the record; answer `record_read`.

    It is to be in this version, or a later one (0: as it is known, or not); with None, not older
    than at this moment.
    """

    request: int
    version: int | None


class Transact(NamedTuple):
    """Write the record if its version is the expected one (0: there is none).

    Answer `transaction_committed`, `transaction_refused`, or `store_unavailable` when it is not
    known whether it was written.
    """

    request: int
    expected_version: int
    record: GroupRecord


class Monitor(NamedTuple):
    """Call `peer_down` once, when the member has ended, cannot be reached or its connection broke.

    Not before all that came from it over that connection was handed in.
    """

    member: MemberId


class Demonitor(NamedTuple):
    member: MemberId


class SetTimer(NamedTuple):
    """Call `timer_fired` after so long. Timers are not cancelled: a late one does nothing."""

    timer: int
    delay_s: float


class EpochSeen(NamedTuple):
    """Somebody acts in a later epoch than this member: read the queue's record, `set_epoch`."""

    epoch: int


class Joined(NamedTuple):
    """It can broadcast. `members` are all it may hear of, itself and dead ones included."""

    members: Members


class MembersChanged(NamedTuple):
    """A death is told after the last message of the dead."""

    births: Members
    deaths: Members


class Deliver(NamedTuple):
    sender: MemberId
    payload: bytes


class Confirmed(NamedTuple):
    """What was broadcast with these tokens is held by every member of the ring."""

    tokens: tuple[object, ...]


class Congestion(NamedTuple):
    """Whether to stop feeding this member."""

    congested: bool


class Stopped(NamedTuple):
    """The last effect of a member."""

    reason: StopReason


Upcall: TypeAlias = Joined | MembersChanged | Deliver | Confirmed | Congestion | Stopped
ShellEffect: TypeAlias = Send | ReadRecord | Transact | Monitor | Demonitor | SetTimer | EpochSeen
Effect: TypeAlias = Upcall | ShellEffect
