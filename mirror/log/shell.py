"""All log members of this node: their frames, their links, and the timer of those that wait."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Clock
from warren.mirror.carriers.batch import NOTHING, Position
from warren.mirror.carriers.ports import INCARNATION_BITS, CarrierMember, MemberId, UpperLayer
from warren.mirror.log.member import LogMember
from warren.mirror.log.messages import Message, data_head, decode, encode
from warren.mirror.messages.post import Post, PostKind

TICK_S = 0.2
"""Seconds between two ticks of the members that wait for something."""


class LogShell:
    """Implements `Carrier` and `LogEffects`."""

    def __init__(self, node: str, post: Post, clock: Clock, rng: Random) -> None:
        self._node = node
        self._post = post
        self._clock = clock
        self._rng = rng
        self._members: dict[int, LogMember] = {}
        # The nodes whose links can take no more for now, and the members with more to send there.
        self._congested: dict[str, dict[LogMember, None]] = {}
        self._waiting: dict[LogMember, None] = {}
        post.handle(PostKind.LOG, self._frame)
        post.watch(self._node_up, self._node_down, self._set_congested)

    # `Carrier`

    def join(self, record: QueueRecord, upper: UpperLayer, at: Position = NOTHING) -> LogMember:
        assert record.queue_id not in self._members, record.queue_id
        # At least 1: incarnation 0 (`PRESUMED`) stands for a member known by its node only.
        me = MemberId(self._node, 1 + self._rng.getrandbits(INCARNATION_BITS))
        self._members[record.queue_id] = member = LogMember(me, record, upper, self, at)
        return member

    def forget(self, member: CarrierMember) -> None:
        if self._members.get(member.queue_id) is member:
            del self._members[member.queue_id]

    def delete_group(self, queue_id: int) -> None:
        """Does nothing: a log has no record of its group."""

    def nodes_of(self, queue_id: int) -> Collection[str] | None:
        return None

    # `LogEffects`

    def send(self, node: str, queue_id: int, message: Message) -> bool:
        return self._post.send(node, PostKind.LOG, encode(queue_id, message))

    def send_batch(self, node: str, queue_id: int, everywhere: Position, payload: bytes) -> bool:
        return self._post.send(node, PostKind.LOG, data_head(queue_id, everywhere), payload)

    def is_up(self, node: str) -> bool:
        return self._post.is_up(node)

    def may_send(self, node: str, member: LogMember) -> bool:
        waiting = self._congested.get(node)
        if waiting is None:
            return True
        waiting[member] = None
        return False

    def tick_soon(self, member: LogMember) -> None:
        if not self._waiting:
            self._clock.call_later(TICK_S, self._tick)
        self._waiting[member] = None

    # Events

    def _tick(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for member in waiting:
            if member.tick():
                self.tick_soon(member)

    def _frame(self, node: str, payload: bytes) -> None:
        queue_id, message = decode(payload)
        member = self._members.get(queue_id)
        if member is not None:
            member.received(node, message)

    def _node_up(self, node: str) -> None:
        for member in list(self._members.values()):
            member.node_up(node)

    def _node_down(self, node: str) -> None:
        self._congested.pop(node, None)
        for member in list(self._members.values()):
            member.node_down(node)

    def _set_congested(self, node: str, congested: bool) -> None:
        if congested:
            self._congested.setdefault(node, {})
            return
        for member in self._congested.pop(node, ()):
            member.link_is_free(node)
