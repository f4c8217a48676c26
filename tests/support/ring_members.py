"""Members of a ring in a state that tests begin with."""

from __future__ import annotations

from random import Random

from gm_process import Process

from warren.core.definitions.records import GroupMemberRecord, GroupRecord
from warren.mirror.carriers.ports import MemberId, Members
from warren.mirror.gm.base import JOINED, GmLimits
from warren.mirror.gm.effects import (
    Effect,
    Send,
)
from warren.mirror.gm.member import Member
from warren.mirror.gm.messages import (
    NONE,
    Catchup,
    Known,
)

A, B, C, D = (MemberId(node, 1) for node in "abcd")


def broadcast(process: Process, count: int = 1, *, confirm: bool = False) -> None:
    for _ in range(count):
        assert process.broadcast(confirm)
    process.event(process.member.flush)


def effects_of(effects: list[Effect], kind: type) -> list[Effect]:
    return [effect for effect in effects if type(effect) is kind]


def record(version: int, *members: MemberId, dead: Members = ()) -> GroupRecord:
    return GroupRecord(
        version,
        tuple(GroupMemberRecord(m.node, m.incarnation, m not in dead) for m in members),
    )


def alone(me: MemberId = A, limits: GmLimits | None = None) -> Member:
    """A member that made its group, in version 1."""
    member = Member(me, 1, Random(1), limits or GmLimits(), strict=True)
    member.start()
    member.record_read(1, None)
    member.transaction_committed(2)
    assert member.phase is JOINED
    return member


def between(left: MemberId, me: MemberId, right: MemberId) -> Member:
    """A member that joined at its left neighbour, in version 3, and knows of no message."""
    member = Member(me, 1, Random(1), strict=True)
    member.start()
    (ask,) = effects_of(member.record_read(1, record(2, left)), Send)
    assert isinstance(ask, Send) and ask.to == left
    known = tuple(Known(other, NONE, ()) for other in (left, me, right))
    member.receive(left, Catchup(1, 3, 0, known))
    member.record_read(2, record(3, left, me, right))
    assert member.phase is JOINED and member.view.left == left and member.view.right == right
    return member
