"""The carrier of a mirrored queue's batches, as the queue sees it.

Each node that has a copy of the queue has one member for it. Every carrier promises:

- what the leader broadcasts arrives at each member in order, without gaps, each payload once,
  beginning with the payload that the member was told to begin with;
- a member that takes the lead has everything that was confirmed, or is sent it before it leads;
- a birth is reported before the new member is sent anything, a death after the last message of the
  dead member.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, StrEnum
from typing import Annotated, NamedTuple, Protocol, TypeAlias

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.mirror.carriers.batch import NOTHING, Position


class CarrierKind(StrEnum):
    """The carriers, by their names in policies (`ha-replication`)."""

    GM = "gm"
    LOG = "log"

    @property
    def stored(self) -> str:
        """The carrier as definitions store it: empty for gm, which is the default."""
        return "" if self is CarrierKind.GM else self.value

    @classmethod
    def of(cls, record: QueueRecord) -> CarrierKind:
        """The carrier of a queue with this definition."""
        return cls(record.carrier or cls.GM)


INCARNATION_BITS = 61
"""The bits of a random incarnation: no node draws the same one twice."""


class MemberId(NamedTuple):
    """One life of a member. A node must not use an incarnation twice in one group."""

    node: Annotated[str, msgspec.Meta(max_length=255)]
    incarnation: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]

    def __str__(self) -> str:
        return f"{self.node}/{self.incarnation}"


Members: TypeAlias = tuple[MemberId, ...]


PRESUMED = 0
"""The incarnation written for a member of which only the node is known."""


class StopReason(Enum):
    """Why a member has stopped. A node that still wants a member joins under a new id."""

    LEFT = "left"
    """The member was asked to leave."""
    DRAINED = "drained"
    """The member was asked to stop once all its messages had gone round the ring, and they have."""
    LOST_MEMBERSHIP = "lost membership"
    """Other members declared it dead."""
    JOIN_LOST = "join lost"
    """The member that let this one in died before it had sent its catchup."""
    GROUP_DELETED = "group deleted"
    INCONSISTENT = "inconsistent"
    """It was told something that contradicts what it knows; see `gm.errors.Inconsistent`."""


class UpperLayer(Protocol):
    """The queue above a member, which the member calls: first `joined`, last `stopped`."""

    @property
    def has_begun(self) -> bool:
        """Whether the batches that the member received make up a copy, or the beginning of one."""
        ...

    def joined(self, members: Members) -> None:
        """The member has joined the group, which has these members."""
        ...

    def members_changed(self, births: Members, deaths: Members) -> None: ...

    def deliver(self, sender: MemberId, payload: bytes) -> None: ...

    def confirmed(self, tokens: tuple[object, ...]) -> None:
        """The confirmed broadcasts with these tokens are at all members."""
        ...

    def congestion(self, congested: bool) -> None:
        """`congested`: so much is on its way that broadcasts should stop; False: not any more."""
        ...

    def disputed(self) -> None:
        """A mirror that has voted for another leader than this one is back: it takes no batches
        until the definition has another ballot."""
        ...

    def stopped(self, reason: StopReason) -> None: ...


class NoUpperLayer:
    """The `UpperLayer` of a member that has ended: what the member reports is dropped."""

    has_begun = False

    def joined(self, members: Members) -> None:
        pass

    def members_changed(self, births: Members, deaths: Members) -> None:
        pass

    def deliver(self, sender: MemberId, payload: bytes) -> None:
        pass

    def confirmed(self, tokens: tuple[object, ...]) -> None:
        pass

    def congestion(self, congested: bool) -> None:
        pass

    def disputed(self) -> None:
        pass

    def stopped(self, reason: StopReason) -> None:
        pass


class CarrierMember(Protocol):
    """This node's member for one queue."""

    queue_id: int

    @property
    def me(self) -> MemberId: ...

    def start(self, founders: Members = (), *, awaits_group: bool = False) -> None:
        """Become a member; the layer above is called with `joined` when that is done.

        A carrier whose members form a group puts these `founders` into a new one;
        `awaits_group` says that this member is a founder of a group that another node makes.
        """
        ...

    @property
    def is_new(self) -> bool:
        """Whether the member has neither been started nor ended."""
        ...

    def become(self, upper: UpperLayer) -> None:
        """Report to another layer above from now on, as when a mirror takes the lead."""
        ...

    def others(self) -> Members:
        """The other members, as far as this member knows."""
        ...

    def broadcast(self, payload: bytes) -> bool:
        """Send to all members at once; False when this member may not send, or holds too much."""
        ...

    def reported_by_all(self, batch: int) -> None:
        """Every mirror has everything up to this batch."""
        ...

    def follow(self, record: QueueRecord) -> None:
        """Act by this definition of the queue: its leader, its epoch, and its mirrors."""
        ...

    def vote(self) -> Position | None:
        """Take no more batches of the present leader; returns the position of the last one taken.

        None while that leader is there, or where the carrier needs no votes.
        """
        ...

    def leave(self) -> None:
        """Stop being a member."""
        ...

    def ended(self) -> None:
        """The member has stopped by itself: tell the members that may be waiting for it."""
        ...


class Carrier(Protocol):
    """All members of this node that use one carrier."""

    def join(self, record: QueueRecord, upper: UpperLayer, at: Position = NOTHING) -> CarrierMember:
        """A new member for the queue with this definition, under a new id; the caller starts it.

        The member has everything up to the batch `at`, which came by another carrier.
        """
        ...

    def forget(self, member: CarrierMember) -> None:
        """Forget a member that has stopped, so that another one may join in its place."""
        ...

    def delete_group(self, queue_id: int) -> None:
        """Delete the record of the members of a deleted queue."""
        ...

    def nodes_of(self, queue_id: int) -> Collection[str] | None:
        """The nodes with a member for the queue; None where there is no record of them."""
        ...
