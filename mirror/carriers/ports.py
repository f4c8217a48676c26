"""What queues with mirrors see of the carrier of their batches.

Each node that has the queue has one member for it. What any carrier promises:

- what the leader broadcasts arrives at each member in order, without gaps, each payload once, from
  the one on that the member was told to begin with;
- a member that takes the lead has, or is sent before it leads, what was confirmed;
- births are told before the newborn is sent anything, deaths after the last that comes of the dead.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, StrEnum
from typing import Annotated, NamedTuple, Protocol, TypeAlias

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.mirror.carriers.batch import NOTHING, Position


class CarrierKind(StrEnum):
    """As policies name it (`ha-replication`)."""

    GM = "gm"
    LOG = "log"

    @property
    def stored(self) -> str:
        """As definitions have it: there gm is what goes without saying."""
        return "" if self is CarrierKind.GM else self.value

    @classmethod
    def of(cls, record: QueueRecord) -> CarrierKind:
        """What carries the batches of a queue with this definition."""
        return cls(record.carrier or cls.GM)


class MemberId(NamedTuple):
    """One life of a member. No node may use an incarnation of a group twice."""

    node: Annotated[str, msgspec.Meta(max_length=255)]
    incarnation: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]

    def __str__(self) -> str:
        return f"{self.node}/{self.incarnation}"


Members: TypeAlias = tuple[MemberId, ...]


PRESUMED = 0
"""Stands for the incarnation of a member that is known by its node only."""


class StopReason(Enum):
    """Why a member has stopped. Who still wants to be one joins under a new id."""

    LEFT = "left"
    """It was asked to leave."""
    DRAINED = "drained"
    """It was asked to stop once all had gone round, and all has."""
    LOST_MEMBERSHIP = "lost membership"
    """Others declared it dead."""
    JOIN_LOST = "join lost"
    """The member that let it in died before it said what it knew."""
    GROUP_DELETED = "group deleted"
    INCONSISTENT = "inconsistent"
    """It was told what cannot be; see `gm.errors.Inconsistent`."""


class UpperLayer(Protocol):
    """What a member tells the queue: first `joined`, last `stopped`."""

    @property
    def has_begun(self) -> bool:
        """Whether what the member was brought is a copy, or the beginning of one."""
        ...

    def joined(self, members: Members) -> None:
        """It is a member now, with these others."""
        ...

    def members_changed(self, births: Members, deaths: Members) -> None: ...

    def deliver(self, sender: MemberId, payload: bytes) -> None: ...

    def confirmed(self, tokens: tuple[object, ...]) -> None:
        """These confirmed broadcasts are at all members."""
        ...

    def congestion(self, congested: bool) -> None:
        """Too much is on its way, or no more."""
        ...

    def disputed(self) -> None:
        """A mirror has voted for another leader than this one, and is back: it carries out nothing
        more before the definition has another ballot."""
        ...

    def stopped(self, reason: StopReason) -> None: ...


class CarrierMember(Protocol):
    """One member of this node."""

    queue_id: int

    @property
    def me(self) -> MemberId: ...

    def start(self, founders: Members = (), *, awaits_group: bool = False) -> None:
        """Become a member; `joined` is told when that is done.

        Where members make a group: with these `founders` in it, or as one of those of another.
        """
        ...

    @property
    def is_new(self) -> bool:
        """Whether it was neither started nor ended."""
        ...

    def become(self, upper: UpperLayer) -> None:
        """Report to another layer from now on: a mirror takes the lead."""
        ...

    def others(self) -> Members:
        """The other members, as far as this one knows."""
        ...

    def broadcast(self, payload: bytes) -> bool:
        """Send to all members at once; False when this member may not, or holds too much."""
        ...

    def reported_by_all(self, batch: int) -> None:
        """Every mirror has everything up to this batch."""
        ...

    def follow(self, record: QueueRecord) -> None:
        """The definition of the queue: who leads, in which epoch, and who has mirrors."""
        ...

    def vote(self) -> Position | None:
        """Take no more batches of the present leader; returns the last one that is here.

        None while that leader is there, or where the carrier needs no votes.
        """
        ...

    def leave(self) -> None:
        """Be a member no more."""
        ...

    def ended(self) -> None:
        """It has stopped by itself: tell those who may be waiting for it."""
        ...


class Carrier(Protocol):
    """All members of this node that are carried the same way."""

    def join(self, record: QueueRecord, upper: UpperLayer, at: Position = NOTHING) -> CarrierMember:
        """A member for the queue with this definition, under a new id, to be started.

        It has everything up to the batch `at`, which came by another carrier.
        """
        ...

    def forget(self, member: CarrierMember) -> None:
        """It has stopped, and another one may join in its place."""
        ...

    def delete_group(self, queue_id: int) -> None:
        """The queue is gone, and what is known of its members with it."""
        ...

    def nodes_of(self, queue_id: int) -> Collection[str] | None:
        """The nodes with a member for the queue; None where nobody has written that down."""
        ...
