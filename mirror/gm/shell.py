"""Carries out the effects of members: frames over links, records in the shared definitions.

A group is named by the id of its queue. A frame for a member that is not at this node is answered
with MEMBER_GONE, so that other members learn that a member has ended while its node goes on.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from random import Random

from warren.core.definitions.records import GroupRecord, QueueRecord, group_key
from warren.core.ports import Clock, Key, MetadataStore, Precondition, Write
from warren.core.scheduling.waiting import Event
from warren.mirror.carriers.batch import NOTHING, Position
from warren.mirror.carriers.ports import (
    INCARNATION_BITS,
    CarrierMember,
    MemberId,
    Members,
    NoUpperLayer,
    UpperLayer,
)
from warren.mirror.definitions.putting_off import when_written
from warren.mirror.gm.base import NEW, STOPPED
from warren.mirror.gm.effects import (
    Demonitor,
    Effect,
    EpochSeen,
    Monitor,
    ReadRecord,
    Send,
    SetTimer,
    ShellEffect,
    Transact,
)
from warren.mirror.gm.errors import BroadcastRefused
from warren.mirror.gm.handout import Handout
from warren.mirror.gm.member import Member
from warren.mirror.gm.messages import MalformedMessage, RingFrame, decode, encode
from warren.mirror.gm.view import alive_members
from warren.mirror.messages.post import Post, PostKind, Undeliverable

_QUEUE = struct.Struct("<Q")
_GONE = struct.Struct("<QQ")
"""Group and incarnation of a member that is not at its node."""

TOLD_AT_ONCE = 64
"""Members that are told in one turn that a peer is gone; each takes some 20 µs."""

NEWS_S = 1.0
"""Seconds that a read waits for a version that another node named, before it asks the store."""


class GroupMember:
    """Implements `CarrierMember`: this node's member of one group, whose effects it carries out."""

    def __init__(self, shell: GroupShell, queue_id: int, member: Member, upper: UpperLayer) -> None:
        self.queue_id = queue_id
        self.member = member
        self._shell = shell
        self._handout = Handout(upper)
        self._monitored: set[MemberId] = set()

    @property
    def me(self) -> MemberId:
        return self.member.me

    def become(self, upper: UpperLayer) -> None:
        """Report to another layer above from now on."""
        self._handout.become(upper)

    def others(self) -> Members:
        members = alive_members(self.member.record)
        return tuple(member for member in members if member != self.me)

    def reported_by_all(self, batch: int) -> None:
        """Does nothing: the ring itself finds out which messages have gone round."""

    def start(self, founders: Members = (), *, awaits_group: bool = False) -> None:
        """As `Member.start`."""
        self._run(self.member.start(founders, awaits_group=awaits_group))

    @property
    def is_new(self) -> bool:
        """Whether the member has neither been started nor ended."""
        return self.member.phase is NEW

    def broadcast(self, payload: bytes) -> bool:
        """Send to all members at once; False when this member may not send, or holds too much."""
        try:
            self._run(self.member.broadcast(payload))
        except BroadcastRefused:
            return False
        self._run(self.member.flush())
        return True

    def follow(self, record: QueueRecord) -> None:
        self._run(self.member.set_epoch(record.epoch))

    def vote(self) -> Position | None:
        """None: the ring itself makes sure that all surviving members have the same batches."""
        return None

    def leave(self) -> None:
        """Stop being a member."""
        self._run(self.member.leave())
        self.ended()

    def ended(self) -> None:
        """The member has stopped: tell all nodes, as members there may be waiting for it.

        They need not be in the record known here: the member may have just been letting one in.
        """
        self._shell.forget(self)
        self.become(NoUpperLayer())
        gone = _GONE.pack(self.queue_id, self.member.me.incarnation)
        for node in self._shell.post.peers():
            self._shell.post.send(node, PostKind.MEMBER_GONE, gone)

    # Events

    def received(self, frame: RingFrame) -> None:
        self._run(self.member.receive(frame.sender, frame.message))

    def monitored_at(self, node: str) -> list[MemberId]:
        """The members at a node that this member monitors."""
        return [peer for peer in self._monitored if peer.node == node]

    def peer_gone(self, peer: MemberId) -> None:
        if peer in self._monitored:
            self._monitored.discard(peer)
            self._run(self.member.peer_down(peer))

    def record_changed(self, version: int) -> None:
        self._run(self.member.record_changed(version))

    def _run(self, effects: Iterable[Effect]) -> None:
        self._handout.run(effects, self._carry_out)

    def _carry_out(self, effect: ShellEffect) -> None:
        shell = self._shell
        match effect:
            case Send(to, message):
                shell.send(self.queue_id, RingFrame(self.member.me, to, message))
            case ReadRecord(request, version):
                shell.read(
                    self.queue_id,
                    version,
                    lambda: self._run(
                        self.member.record_read(request, shell.record(self.queue_id))
                    ),
                )
            case Transact(request, expected_version, record):
                self._transact(request, expected_version, record)
            case Monitor(peer):
                self._monitored.add(peer)
                if not shell.is_up(peer.node):
                    shell.clock.call_soon(lambda: self.peer_gone(peer))
            case Demonitor(peer):
                self._monitored.discard(peer)
            case SetTimer():
                shell.clock.call_later(effect.delay_s, partial(self._timer_fired, effect))
            case EpochSeen():
                # Nothing to do: the member is given each new definition with its epoch (`follow`).
                return

    def _timer_fired(self, effect: SetTimer) -> None:
        if effect.may_wait:
            self._shell.when_written(lambda: self._run(self.member.timer_fired(effect.timer)))
        else:
            self._run(self.member.timer_fired(effect.timer))

    def _transact(self, request: int, expected_version: int, record: GroupRecord) -> None:
        shell = self._shell

        def finish(taken: bool) -> None:
            if taken:
                self._run(self.member.transaction_committed(request))
                is_alone = alive_members(record) == (self.member.me,) or record.version == 1
                if self.member.phase is STOPPED and is_alone:
                    # The member has stopped meanwhile, and no other member has joined this group.
                    shell.delete_group(self.queue_id)
            else:
                now = shell.record(self.queue_id)
                self._run(self.member.transaction_refused(request, now))

        shell.transact(self.queue_id, expected_version, record, finish)


class GroupShell:
    """Implements `Carrier`: all members of this node."""

    def __init__(
        self, node: str, post: Post, metadata: MetadataStore, clock: Clock, rng: Random
    ) -> None:
        self.post = post
        self.clock = clock
        self._node = node
        self._metadata = metadata
        self._rng = rng
        self._members: dict[int, GroupMember] = {}
        # For each group: the versions of its record that members wait for, and their events.
        self._awaited: dict[int, list[tuple[int, Event]]] = {}
        post.handle(PostKind.GROUP, self._frame)
        post.handle(PostKind.MEMBER_GONE, self._gone)
        post.watch(on_up=lambda node: None, on_down=self._node_down)
        metadata.watch(("group",), self._record_changed)

    def join(self, record: QueueRecord, upper: UpperLayer, at: Position = NOTHING) -> GroupMember:
        """A new member for the group of a queue, under a new id; the caller starts it."""
        queue_id = record.queue_id
        assert queue_id not in self._members, queue_id
        me = MemberId(self._node, self._rng.getrandbits(INCARNATION_BITS))
        member = Member(me, record.epoch, self._rng)
        self._members[queue_id] = grouped = GroupMember(self, queue_id, member, upper)
        return grouped

    def forget(self, member: CarrierMember) -> None:
        if self._members.get(member.queue_id) is member:
            del self._members[member.queue_id]

    def delete_group(self, queue_id: int) -> None:
        """Delete the record of the group of a queue that is gone."""
        if self._metadata.get(group_key(queue_id)) is not None:
            self._metadata.transact([Write(group_key(queue_id), None)])

    def nodes_of(self, queue_id: int) -> Collection[str] | None:
        record = self.record(queue_id)
        return None if record is None else [member.node for member in alive_members(record)]

    # Calls of the members

    def record(self, queue_id: int) -> GroupRecord | None:
        stored = self._metadata.get(group_key(queue_id))
        if stored is None:
            return None
        assert isinstance(stored.record, GroupRecord)
        return stored.record

    def when_written(self, callback: Callable[[], None]) -> None:
        when_written(self._metadata, self.clock, callback)

    def is_up(self, node: str) -> bool:
        return node == self._node or self.post.is_up(node)

    def send(self, queue_id: int, frame: RingFrame) -> None:
        if frame.to.node == self._node:
            self.clock.call_soon(lambda: self._hand_over(self._node, queue_id, frame))
        else:
            self.post.send(frame.to.node, PostKind.GROUP, _QUEUE.pack(queue_id), encode(frame))

    def read(self, queue_id: int, version: int | None, then: Callable[[], None]) -> None:
        """Call back when this node knows the record in this version; or, without one, as it is now.

        A version that another node named is on its way here, so the store is asked only if it does
        not come. With thousands of groups, members often hear of changes before their own node has
        them.
        """
        if version is None:
            self._read_now(queue_id, then)
        elif self._version(queue_id) >= version:
            self.clock.call_soon(then)
        else:
            news = Event()
            self._awaited.setdefault(queue_id, []).append((version, news))
            timer = self.clock.call_later(NEWS_S, lambda: self._read_now(queue_id, news.happen))
            news.then(timer.cancel)
            news.then(then)

    def _read_now(self, queue_id: int, then: Callable[[], None]) -> None:
        key = group_key(queue_id)
        stored = self._metadata.get(key)
        version = stored.version if stored is not None else 0
        # A transaction that writes nothing: when it is done, this node has all that was decided
        # before it.
        self._metadata.transact([], [Precondition(key, version)]).then(then)

    def _version(self, queue_id: int) -> int:
        record = self.record(queue_id)
        return record.version if record is not None else 0

    def transact(
        self,
        queue_id: int,
        expected_version: int,
        record: GroupRecord,
        finish: Callable[[bool], None],
    ) -> None:
        key = group_key(queue_id)
        stored = self._metadata.get(key)
        if self._version(queue_id) != expected_version:
            self.clock.call_soon(lambda: finish(False))
            return
        condition = Precondition(key, stored.version if stored is not None else 0)
        commit = self._metadata.transact([Write(key, record)], [condition])
        commit.then(lambda: finish(not commit.refused))

    # Frames and changes of the record

    def _frame(self, node: str, payload: bytes) -> None:
        if len(payload) < _QUEUE.size:
            raise Undeliverable(f"a frame of {len(payload)} octets for a group")
        (queue_id,) = _QUEUE.unpack_from(payload)
        try:
            frame = decode(payload[_QUEUE.size :])
        except MalformedMessage as error:
            raise Undeliverable(str(error)) from None
        self._hand_over(node, queue_id, frame)

    def _hand_over(self, node: str, queue_id: int, frame: RingFrame) -> None:
        grouped = self._members.get(queue_id)
        if grouped is not None and grouped.member.me == frame.to:
            grouped.received(frame)
        else:
            gone = _GONE.pack(queue_id, frame.to.incarnation)
            if node == self._node:
                # The frame was for a member of an earlier life of this node.
                self._gone(node, gone)
            else:
                self.post.send(node, PostKind.MEMBER_GONE, gone)

    def _gone(self, node: str, payload: bytes) -> None:
        try:
            queue_id, incarnation = _GONE.unpack(payload)
        except struct.error as error:
            raise Undeliverable(f"a member that cannot be read: {error}") from None
        grouped = self._members.get(queue_id)
        if grouped is not None:
            grouped.peer_gone(MemberId(node, incarnation))

    def _node_down(self, node: str) -> None:
        """Tell members that their peers at this node are gone, some in each turn: with thousands of
        groups that would hold up everything else."""
        members = self._members.values()
        self._tell_gone(deque((one, peer) for one in members for peer in one.monitored_at(node)))

    def _tell_gone(self, gone: deque[tuple[GroupMember, MemberId]]) -> None:
        for _ in range(min(TOLD_AT_ONCE, len(gone))):
            grouped, peer = gone.popleft()
            if self._members.get(grouped.queue_id) is grouped:
                grouped.peer_gone(peer)
        if gone:
            self.clock.call_soon(lambda: self._tell_gone(gone))

    def _record_changed(self, key: Key, record: object | None) -> None:
        queue_id = int(key[1])
        version = record.version if isinstance(record, GroupRecord) else 0
        grouped = self._members.get(queue_id)
        if grouped is not None:
            grouped.record_changed(version)
        self._tell_readers(queue_id, version)

    def _tell_readers(self, queue_id: int, version: int) -> None:
        """Answer reads that wait for this version or an earlier one; all if the group is gone."""
        awaited = self._awaited.pop(queue_id, ())
        later = [(wanted, news) for wanted, news in awaited if 0 < version < wanted]
        if later:
            self._awaited[queue_id] = later
        for wanted, news in awaited:
            if not 0 < version < wanted:
                self.clock.call_soon(news.happen)
