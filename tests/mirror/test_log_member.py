"""One member of a log by itself: what it tells whom, and what it takes."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from warren.core.definitions.records import QueueRecord
from warren.mirror.carriers.batch import HEAD, NOTHING
from warren.mirror.carriers.ports import MemberId, StopReason
from warren.mirror.log.member import LogMember
from warren.mirror.log.messages import CarrierRefusal, Data, Hello, Message, Welcome

RECORD = QueueRecord(
    False, {}, 7, leader="a", mirrors=["b"], in_sync=["b"], carrier="log", ballot=3
)


class Effects:
    """`LogEffects`: notes what is sent; every link is up."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.batches: list[bytes] = []

    def send(self, _node: str, _queue_id: int, message: Message) -> bool:
        self.sent.append(message)
        return True

    def send_batch(self, _node: str, _queue_id: int, _everywhere: Any, payload: bytes) -> bool:
        self.batches.append(payload)
        return True

    def is_up(self, _node: str) -> bool:
        return True

    def may_send(self, *_: Any) -> bool:
        return True

    def tick_soon(self, _member: LogMember) -> None: ...

    def forget(self, _member: LogMember) -> None: ...


class Upper:
    """`UpperLayer` of a mirror."""

    has_begun = True

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.reasons: list[StopReason] = []

    def stopped(self, reason: StopReason) -> None:
        self.reasons.append(reason)

    def joined(self, members: Any) -> None: ...

    def members_changed(self, births: Any, deaths: Any) -> None: ...

    def deliver(self, _sender: MemberId, payload: bytes) -> None:
        self.taken.append(payload)


def test_a_mirror_that_voted_before_it_was_answered_says_so_to_its_leader() -> None:
    """Else it would take nothing more, and its leader would go on without an end."""
    effects, upper = Effects(), Upper()
    me = MemberId("b", 5)
    member = LogMember(me, RECORD, upper, effects, (0, 4))  # type: ignore[arg-type]
    member.start()
    assert effects.sent == [Hello(5, (0, 4), None)]
    assert member.vote() == (0, 4)

    member.received("a", Welcome(5))
    assert effects.sent[1:] == [Hello(5, (0, 4), (0, 3))]
    # The vote is void in another ballot.
    another = QueueRecord(
        False, {}, 7, leader="a", mirrors=["b"], in_sync=["b"], carrier="log", ballot=4
    )
    member.follow(another)
    assert effects.sent[2:] == [Hello(5, (0, 4), None)]
    member.received("a", Welcome(5))
    payload = HEAD.pack(0, 5)
    member.received("a", Data((0, 4), payload))
    assert upper.taken == [payload]


def test_what_tells_a_mirror_to_start_is_sent_again_when_it_got_lost_with_the_link() -> None:
    effects, upper = Effects(), Upper()
    leader = LogMember(MemberId("a", 1), RECORD, upper, effects, (0, 4))  # type: ignore[arg-type]
    leader.start()
    before, start = HEAD.pack(0, 5), HEAD.pack(0, 6)
    leader.broadcast(before)
    leader.received("c", Hello(5, NOTHING, None))
    leader.broadcast(start)
    assert effects.batches == [start]
    leader.node_down("c")
    leader.received("c", Hello(5, NOTHING, None))
    assert effects.batches == [start, start]
    # Another life of it begins with what is new then.
    leader.received("c", Hello(6, NOTHING, None))
    assert effects.batches == [start, start]


def test_a_refusal_counts_when_the_definition_is_known_by_which_the_leader_refuses() -> None:
    """By an older one the mirror could drop a copy that is in sync by now, the only whole one."""
    effects, upper = Effects(), Upper()
    member = LogMember(MemberId("b", 5), RECORD, upper, effects, (0, 4))  # type: ignore[arg-type]
    member.start()
    member.received("a", CarrierRefusal(5, epoch=2))
    assert not upper.reasons and member.tick()
    member.follow(structs.replace(RECORD, epoch=2, ballot=4))
    member.received("a", CarrierRefusal(5, epoch=1))
    member.received("a", CarrierRefusal(4, epoch=2))
    assert not upper.reasons and member.tick()
    member.received("a", CarrierRefusal(5, epoch=2))
    assert upper.reasons == [StopReason.INCONSISTENT] and member.is_stopped
