"""A mirrored queue that this node leads: its group, its mirrors, and the definition that names
them. RabbitMQ calls this the coordinator."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from enum import Enum
from typing import Protocol

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.core.log_line import log_event
from warren.core.ports import Clock, Key
from warren.core.queues.local_queue import LocalQueue
from warren.core.scheduling.waiting import Event
from warren.mirror.carriers.batch import epoch_and_batch
from warren.mirror.carriers.ports import (
    PRESUMED,
    CarrierKind,
    CarrierMember,
    MemberId,
    Members,
    StopReason,
)
from warren.mirror.replication.copies.former_copy import Kept
from warren.mirror.replication.definition.confirm_rule import ALL
from warren.mirror.replication.definition.former_nodes import former_without, with_mirrors
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.definition.queue_members import INVITE_AGAIN_S, is_needed
from warren.mirror.replication.definition.record_changes import ChangeOfRecord, RecordChanges
from warren.mirror.replication.definition.replicas import WantedMirrors, stand_ins
from warren.mirror.replication.elections.election import with_void_votes
from warren.mirror.replication.elections.returned_leader import ReturnedLeader
from warren.mirror.replication.leading.awaited_cards import AwaitedCards
from warren.mirror.replication.leading.awaited_mirrors import AwaitedMirrors
from warren.mirror.replication.leading.lagging_mirrors import LaggingMirrors
from warren.mirror.replication.leading.leader import Leader
from warren.mirror.replication.leading.synchronisation import Synchronisation

log = logging.getLogger("warren.queue")

FOUND_S = 0.1
"""The time for which a new group waits for nodes that were asked to have a mirror."""


class Founding(Enum):
    """The progress of founding a queue's group."""

    NOT_YET = "not yet"
    POSSIBLE = "possible"
    OVER = "over"


class LedEffects(Protocol):
    """The calls of a led queue to `Mirroring`, which has the links."""

    def flush_soon(self, led: LedQueue) -> None: ...

    def send_slice(self, mirror: str, payload: bytes) -> None: ...

    def group_joined(self, led: LedQueue) -> None:
        """This node has joined the group: other nodes can be asked to have mirrors."""
        ...

    def invite(self, led: LedQueue, node: str) -> None:
        """Ask a node to have a mirror."""
        ...

    def set_flow(self, led: LedQueue, flow: bool) -> None: ...

    def membership_lost(self, led: LedQueue, reason: str) -> None:
        """The group goes on without this node, or this node has to join it anew."""
        ...

    def superseded(self, led: LedQueue, by: str) -> None:
        """Another node leads; the definition that says so has not arrived yet."""
        ...

    def ask_for_card(self, led: LedQueue, mirror: MemberId, answer: Callable[[bool], None]) -> None:
        """Ask a mirror to write its card; see `AskForCard`."""
        ...


class LedQueue:
    """The `UpperLayer` of the leader's group member, and the `LeaderEffects` of its `Leader`."""

    def __init__(
        self,
        key: Key,
        queue: LocalQueue,
        epoch: int,
        node: str,
        clock: Clock,
        definitions: QueueDefinitions,
        effects: LedEffects,
        carrier: CarrierKind = CarrierKind.GM,
    ) -> None:
        self.key = key
        self.carrier = carrier
        self.queue = queue
        self.leader = Leader(queue.queue_id, epoch, clock, self)
        self.synchronisation = Synchronisation(self.leader, clock)
        self._lagging = LaggingMirrors(self.leader, clock)
        self.member: CarrierMember
        # The id under which the storage of this node knows the queue.
        self.storage_id = queue.queue_id
        self.wanted = WantedMirrors()
        self.wanted_mirrors: tuple[str, ...] = ()
        # The ids under which the storages of mirrors know the queue, by life of their members.
        self._storages: dict[MemberId, int] = {}
        # The messages that nodes of mirrors have in former copies.
        self._kept: dict[MemberId, Kept] = {}
        self.awaited = AwaitedMirrors(clock)
        self._cards = AwaitedCards()
        # Set while this node, which was away, does not know yet whether it leads on.
        self.returned: ReturnedLeader | None = None
        # Whether the queue waited for nothing at the last look.
        self.at_rest = False
        # The nodes that were asked to have a mirror, and the time.
        self._invited: dict[str, float] = {}
        self._clock = clock
        self._node = node
        self._definitions = definitions
        self._effects = effects
        self._joined = False
        self._founding = Founding.OVER
        self._members: dict[str, MemberId] = {}
        self._admitting: set[MemberId] = set()
        # Births and deaths of members reported while the definition gets another carrier.
        self._put_off: list[tuple[Members, Members]] | None = None
        # Mirrors that have not come over to the new carrier yet.
        self._still_to_come: list[str] = []
        self._all_came = Event()
        # By node, the life of its member that is the mirror which the definition names.
        self._named: dict[str, MemberId] = {}
        self._changes = RecordChanges(key, queue.queue_id, definitions, clock)
        self._unsent: deque[bytes] = deque()
        # Whether a quorum queue refuses publishes, as too much waits for a member that is away.
        self._is_full = False
        # No mirror is dropped until all mirrors in sync have this batch.
        self._keeps_all_until = 0

    def want(self, wanted: WantedMirrors) -> None:
        """Follow the policy as it is now."""
        self.wanted = wanted
        self.synchronisation.limit(wanted.sync_batch, wanted.catch_up_rate)

    def go_on_alone(self, member: CarrierMember, epoch: int) -> None:
        """Lead on after having been fenced, in a new life of the group, without other members."""
        self.leader.goes_on_in(epoch)
        self.leader.fenced = False
        self._unsent.clear()
        self._begin_with(member)
        member.start()
        # Mirrors that are gone hold nothing up any more.
        self.leader.speak_again()
        self.queue.release()

    def _begin_with(self, member: CarrierMember) -> None:
        """Use this member from now on; it knows no other member yet."""
        self.member = member
        self._founding = Founding.OVER
        self._invited.clear()
        self._members.clear()
        self._named.clear()
        self._admitting.clear()

    # Another carrier

    def is_about_to_come_over(self) -> None:
        """Put births and deaths off: mirrors may learn of the new carrier before this node does."""
        self._put_off = []

    def does_not_come_over(self) -> None:
        """Stay with the present carrier: births and deaths that were put off count now."""
        put_off, self._put_off = self._put_off or [], None
        for births, deaths in put_off:
            self.members_changed(births, deaths)

    def comes_over(self, carrier: CarrierKind, member: CarrierMember) -> None:
        """Use another carrier from now on; its members come one by one."""
        self._put_off = None
        self.carrier = carrier
        self._begin_with(member)
        self.leader.confirmation.acks = None if carrier is CarrierKind.GM else self.wanted_acks
        self.leader.is_flushed = True
        self.queue.set_lacks_copies(False)

    def await_mirrors(self, mirrors: Collection[str]) -> Event:
        """Return the event that each of these mirrors has come over, or is no longer named."""
        self._still_to_come = list(mirrors)
        self._all_came = Event()
        self._look_for_arrivals()
        return self._all_came

    def adopt(self, member: MemberId, storage_id: int) -> None:
        """Note that this life of a member is the mirror that has come over."""
        self._named[member.node] = member
        self._storages[member] = storage_id
        self._look_for_arrivals()

    def give_mirrors_up(self) -> None:
        """Drop mirrors that have not come over from the definition."""
        for mirror in list(self._still_to_come):
            self._dismiss(mirror)

    def _look_for_arrivals(self) -> None:
        named, there = self._named, self.leader.mirrors
        self._still_to_come = [
            node
            for node in self._still_to_come
            if node in there and (node not in named or self._members.get(node) != named[node])
        ]
        if not self._still_to_come:
            self._all_came.happen()

    # `UpperLayer`

    @property
    def has_begun(self) -> bool:
        return True

    def joined(self, members: Members) -> None:
        self._joined = True
        # After a promotion: members that had died before this node joined.
        gone = tuple(member for member in self._members.values() if member not in members)
        self.members_changed(tuple(m for m in members if m.node != self._node), gone)
        self._effects.group_joined(self)

    def already_joined(self, members: Members) -> None:
        """After a promotion: the member has joined before, as that of a mirror."""
        self._joined = True
        self._members = {member.node: member for member in members if member.node != self._node}
        self._named = dict(self._members)
        record = self._definitions.record_of(self.key, self.queue.queue_id)
        for mirror in record.mirrors if record is not None else ():
            if mirror not in self._members:
                # The mirror died before this node led, and was then reported to this node's mirror.
                self._named[mirror] = MemberId(mirror, PRESUMED)
                self._dismiss(mirror, life=self._named[mirror])

    def members_changed(self, births: Members, deaths: Members) -> None:
        if self._put_off is not None:
            self._put_off.append((births, deaths))
            return
        for birth in births:
            if birth.node != self._node:
                self._is_born(birth, deaths)
        for death in deaths:
            if self._members.get(death.node) == death:
                del self._members[death.node]
                self._dismiss(death.node, life=death)

    def _is_born(self, birth: MemberId, deaths: Members) -> None:
        node = birth.node
        self._members[node] = birth
        for earlier in [one for one in self._storages if one.node == node and one != birth]:
            del self._storages[earlier]
            self._kept.pop(earlier, None)
        if self._named.get(node) in deaths or node in self._still_to_come:
            # Until now the mirror was known by its node only, or as a member of another carrier.
            self._named[node] = birth
        # A member that was only out of reach, or comes over, is a mirror already.
        is_mirror = self._named.get(node) == birth and node in self.leader.mirrors
        if not is_mirror and node not in self._still_to_come:
            self._admit(birth)
        self._look_for_arrivals()

    def deliver(self, sender: MemberId, payload: bytes) -> None:
        """A batch came back: the leader has done it already. A batch of another node says that it
        leads."""
        if sender.node != self._node and epoch_and_batch(payload)[0] > self.leader.epoch:
            self._effects.superseded(self, sender.node)

    def confirmed(self, tokens: tuple[object, ...]) -> None:
        """Nothing to do: mirrors report their progress to the leader."""

    def congestion(self, congested: bool) -> None:
        self._effects.set_flow(self, congested)
        if not congested:
            self._send_on()

    def disputed(self, then: Callable[[], None] = lambda: None) -> None:
        """Call another ballot, unless another node leads already. Once it is written, `then` is
        called, and votes of the present ballot are void."""
        self._change(lambda record: msgspec.structs.replace(record, ballot=record.ballot + 1), then)

    def stopped(self, reason: StopReason) -> None:
        self._joined = False
        self.member.ended()
        if reason is not StopReason.LEFT:
            self._effects.membership_lost(self, reason.value)

    # `LeaderEffects`

    def flush_soon(self) -> None:
        self._effects.flush_soon(self)

    def broadcast(self, payload: bytes) -> None:
        if self.carrier is CarrierKind.LOG:
            # The next tick has to look whether a mirror is too far behind.
            self.at_rest = False
        self._unsent.append(payload)
        self._send_on()

    def send_slice(self, mirror: str, payload: bytes) -> None:
        self._effects.send_slice(mirror, payload)

    def reported_by_all(self, batch: int) -> None:
        self.member.reported_by_all(batch)

    def now_in_sync(self, mirror: str) -> None:
        def add(record: QueueRecord) -> QueueRecord | None:
            if mirror not in record.mirrors or mirror in record.in_sync:
                return None
            if not self.leader.is_in_sync(mirror) or self.mirrors_lack_what_is_lost():
                # The mirror has begun anew meanwhile, or is about to.
                return None
            in_sync = [*record.in_sync, mirror]
            former = former_without(record, record.leader, in_sync)
            return msgspec.structs.replace(record, in_sync=in_sync, former=former)

        def has_card() -> None:
            _, vhost, name = self.key
            log_event(log, logging.INFO, "mirror_in_sync", queue=name, vhost=vhost, mirror=mirror)
            self._change(add, may_wait=True)

        self._cards.wait_for(mirror, self._ask_for_card, has_card)

    def _ask_for_card(self, mirror: str, answer: Callable[[bool], None]) -> None:
        life = self._named.get(mirror)
        if life is None:
            # The mirror is about to come over to another carrier.
            answer(False)
        else:
            self._effects.ask_for_card(self, life, answer)

    def ask_for_cards(self) -> None:
        """Ask those whole mirrors again whose cards were not durable."""
        self._cards.ask_again(self._ask_for_card, self.leader.is_in_sync)

    def withhold(self) -> None:
        self.queue.withhold()

    def hand_out(self) -> None:
        self.queue.hand_out()

    # Mirrors

    def members(self) -> Collection[str]:
        """The nodes that have a member in the group, besides this one."""
        return self._members.keys()

    def will_found(self) -> None:
        """Found the group later, with the mirrors as members."""
        self._founding = Founding.NOT_YET

    def may_found(self) -> None:
        """Found the group as soon as all nodes that were asked to have a mirror have answered."""
        self._founding = Founding.POSSIBLE
        self._found_with_all()
        if self.is_founding:
            self._clock.call_later(FOUND_S, self._found)

    def _found_with_all(self) -> None:
        if self._founding is Founding.POSSIBLE and len(self._storages) >= len(self._invited):
            self._found()

    def _found(self) -> None:
        """Found the group with the mirrors that have answered by now; others ask to be let in."""
        if self.is_founding and self.member.is_new:
            self.member.start(tuple(self._storages))
        self._founding = Founding.OVER

    @property
    def is_founding(self) -> bool:
        """Whether there is no group yet."""
        return self._founding is not Founding.OVER

    def invite_missing(self, running: Collection[str]) -> None:
        """Ask nodes that should have a mirror and have none, every `INVITE_AGAIN_S`."""
        if not (self._joined or self.is_founding):
            return
        now = self._clock.now()
        for node in self.wanted_mirrors:
            member = self._members.get(node)
            if member is None:
                asked_at = self._invited.get(node, -INVITE_AGAIN_S)
                if node in running and now >= asked_at + INVITE_AGAIN_S:
                    self._invited[node] = now
                    self._effects.invite(self, node)
            elif not self._is_mirror(member) and node not in self._still_to_come:
                # The member came while another node led.
                self._admit(member)

    def _is_mirror(self, member: MemberId) -> bool:
        """Whether the definition names this life of the node's member, and not an earlier one."""
        return member.node in self.leader.mirrors and self._named.get(member.node) == member

    def not_invited(self, node: str) -> None:
        """The node does not know of the queue yet, or is out of reach: ask it at the next tick."""
        self._invited.pop(node, None)

    def has_answered(self, node: str, incarnation: int, storage_id: int, kept: Kept | None) -> None:
        """The node has answered: the id under which it stores the copy of this life of its member,
        and the messages that it has from before."""
        mirror = MemberId(node, incarnation)
        self._storages[mirror] = storage_id
        if kept is not None:
            self._kept[mirror] = kept
        self._found_with_all()
        if self._members.get(node) == mirror and not self._is_mirror(mirror):
            self._admit(mirror)

    def not_begun(self, nodes: Collection[str]) -> list[str]:
        """The nodes among these that should have a mirror and have none yet."""
        there = self.leader.mirrors
        return [node for node in self.wanted_mirrors if node in nodes and node not in there]

    def has_all_in_sync(self, record: QueueRecord, running: Collection[str]) -> bool:
        """Whether all wanted mirrors exist, are up and in sync, and there are no others."""
        in_sync = set(record.in_sync)
        return (
            self._joined
            and in_sync == set(self.wanted_mirrors) == set(record.mirrors)
            and in_sync == set(self.leader.mirrors)
            and in_sync <= set(running)
            and in_sync <= self._members.keys()
            and not record.missing
        )

    def synchronise(self, record: QueueRecord) -> None:
        """Send every mirror that is not in sync the messages that it lacks."""
        for mirror in record.mirrors:
            unsynced = mirror not in record.in_sync and mirror in self.leader.mirrors
            if unsynced and self.synchronisation.may_start_anew(mirror):
                self.synchronisation.start(mirror, synchronise=True)

    def keep_all_until_heard(self) -> None:
        """Drop no mirror until all have got a batch by the new carrier: others may need it to
        join."""
        self._keeps_all_until = self.leader.ask_for_reports()

    def drop_unwanted(self, running: Collection[str]) -> None:
        """Drop unwanted mirrors from the definition; they end when they see that.

        While wanted mirrors are not in sync yet, others that are in sync stay in their place, and
        running nodes stay named for their former copies.
        """
        wanted = self.wanted_mirrors
        if not self.leader.all_have(self._keeps_all_until):
            return

        def drop(record: QueueRecord) -> QueueRecord | None:
            stay = stand_ins(wanted, record.in_sync)
            kept = [mirror for mirror in record.mirrors if mirror in wanted or mirror in stay]
            former = record.former
            if record.in_sync or not wanted:
                former = [node for node in former if node in wanted or node not in running]
            if (kept, former) == (record.mirrors, record.former):
                return None
            return msgspec.structs.replace(self._naming(record, kept), former=former)

        self._change(drop)

    def _naming(self, record: QueueRecord, mirrors: list[str]) -> QueueRecord:
        """The definition with these mirrors only; votes of all are void."""
        leaving = [mirror for mirror in record.in_sync if mirror not in mirrors]
        missing = sum([self.leader.confirmation.leaves(mirror) for mirror in leaving])
        named = with_mirrors(record, mirrors, missing, has_votes=self.carrier is CarrierKind.LOG)
        former = former_without(record, record.leader, named.in_sync)
        return msgspec.structs.replace(named, former=former)

    def drop_lagging(self, running: Collection[str]) -> None:
        """Drop the mirrors that hold the queue up."""
        is_log = self.carrier is CarrierKind.LOG
        slow = self._lagging.far_behind(self.wanted.gap_bytes_max) if is_log else []
        for mirror in slow:
            self._dismiss(mirror)
        record = self._definitions.record_of(self.key, self.queue.queue_id)
        if is_log:
            # Batches are kept for members that are needed, but only up to a limit.
            self._is_full = record is not None and any([is_needed(record, one) for one in slow])
        if record is not None and record.members and self._joined:
            for mirror in self._lagging.dead_members(record, self._members, running):
                self._dismiss(mirror, even_if_needed=True)
        for mirror in self._lagging.unreached(running):
            self._dismiss(mirror)

    def record_changed(self, record: QueueRecord) -> None:
        """Follow the definition: confirms wait only for mirrors that it names."""
        if self.carrier is CarrierKind.LOG:
            self._follow_policy(record)
        for mirror in list(self.leader.mirrors):
            if mirror not in record.mirrors:
                self.leader.remove_mirror(mirror)
        self.leader.whole_copies_are(record.in_sync, record.missing)
        self.leader.ballot = record.ballot
        self._look_for_arrivals()

    def _follow_policy(self, record: QueueRecord) -> None:
        """Follow the policy for a log: which copies confirm, and when publishes are refused."""
        self.leader.confirmation.follow(record, self.wanted_acks)
        self.leader.is_flushed = self.wanted.is_flushed
        has_too_few = 1 + len(record.in_sync) < self.wanted.in_sync_min
        self.queue.set_lacks_copies(has_too_few or self._is_full)

    @property
    def wanted_acks(self) -> int:
        return self.wanted.acks_of(1 + len(self.wanted_mirrors))

    def follow_acks(self, record: QueueRecord) -> None:
        """Write into the definition how many copies confirm a publish, as the policy wants it, and
        how many are missing."""
        if self.carrier is not CarrierKind.LOG:
            return
        self._follow_policy(record)

        def count(record: QueueRecord) -> QueueRecord | None:
            if not record.mirrors and not record.missing and not record.members:
                return None
            confirmation = self.leader.confirmation
            acks = confirmation.acks_to_write(record, self.wanted_acks)
            is_forgotten = acks == ALL or confirmation.can_forget_missing()
            missing = 0 if is_forgotten else record.missing
            if (acks, missing) == (record.acks, record.missing):
                return None
            return msgspec.structs.replace(record, acks=acks, missing=missing)

        self._change(count)

    def _admit(self, birth: MemberId) -> None:
        """Name a new mirror in the definition; when that is written, the mirror starts."""
        node = birth.node
        storage_id = self._storages.get(birth)
        if storage_id is None or birth in self._admitting or self._put_off is not None:
            # The answer of its node (`has_answered`) or the definition is under way; or another
            # carrier, for which the node is asked anew.
            return
        if self.mirrors_lack_what_is_lost():
            return
        record = self._definitions.record_of(self.key, self.queue.queue_id)
        kept = self._kept.get(birth)
        if (
            record is not None
            and (kept is None or not kept.in_place)
            and node in self.leader.mirrors
            and node in record.mirrors
            and record.storage_id(node) == storage_id
        ):
            # This is the named mirror, which was only out of reach; so far its node was known.
            self._named[node] = birth
            return
        self._admitting.add(birth)

        def name(record: QueueRecord) -> QueueRecord | None:
            mirrors = [mirror for mirror in record.mirrors if mirror != node]
            named = self._naming(record, mirrors)
            return msgspec.structs.replace(
                named,
                mirrors=[*mirrors, node],
                stores={**record.stores, node: storage_id},
                carrier=self.carrier.stored,
                acks=record.acks if record.mirrors or record.members else self.wanted_acks,
            )

        def start() -> None:
            self._admitting.discard(birth)
            record = self._definitions.record_of(self.key, self.queue.queue_id)
            if record is None or node not in record.mirrors:
                # The same write has dropped the mirror. If it is back, the next tick admits it.
                return
            self._named[node] = birth
            if self._members.get(node) == birth:
                self.leader.add_mirror(node, self._kept.pop(birth, None))
                # A mirror that was away is synchronised even if the policy has new ones wait.
                whole = self.wanted.synchronise or self.synchronisation.may_resume(node)
                self.synchronisation.start(node, synchronise=whole)
                self.awaited.wait_no_more_for(self.leader.mirrors)
            else:
                self._dismiss(node, life=birth)

        self._change(name, start, may_wait=True)

    def mirrors_lack_what_is_lost(self) -> bool:
        """Whether no mirror here has what the leader has lost by damage (`lost_messages.py`)."""
        mirrors = [node for node, member in self._members.items() if self._is_mirror(member)]
        has_holes = self._joined and bool(self.leader.holes)
        return has_holes and not any(map(self.leader.has_what_is_lost, mirrors))

    def _dismiss(
        self, node: str, *, life: MemberId | None = None, even_if_needed: bool = False
    ) -> None:
        """Drop a node's mirror from the definition; with `life`, only if that is the mirror."""

        def stays(record: QueueRecord) -> bool:
            return not even_if_needed and is_needed(record, node)

        record = self._definitions.record_of(self.key, self.queue.queue_id)
        if record is not None and stays(record):
            return
        log_event(
            log, logging.WARNING, "mirror_lost", queue=self.key[2], vhost=self.key[1], mirror=node
        )

        def forget(record: QueueRecord) -> QueueRecord | None:
            if node not in record.mirrors:
                return None
            is_another = life is not None and self._named.get(node, life) != life
            is_back = life is not None and self._members.get(node) == life
            if is_another or is_back or stays(record):
                return None
            return self._naming(record, [mirror for mirror in record.mirrors if mirror != node])

        self._change(forget)

    def _change(
        self,
        change: ChangeOfRecord,
        then: Callable[[], None] = lambda: None,
        *,
        may_wait: bool = False,
    ) -> None:
        """Change the definition, and call `then` when the change is written. If it `may_wait`, it
        is written together with changes for other mirrors that are about to come.
        """
        epoch = self.leader.epoch

        def if_still_led(record: QueueRecord) -> QueueRecord | None:
            if record.leader != self._node or record.epoch != epoch:
                return None
            changed = change(record)
            return None if changed is None else with_void_votes(record, changed)

        self._changes.add(if_still_led, then, may_wait=may_wait and self._awaits_mirrors())

    def _awaits_mirrors(self) -> bool:
        """Whether other mirrors are about to join, or to be in sync."""
        return (
            self.synchronisation.is_about_to_end()
            or bool(self._cards)
            or any(
                m.node not in self._members and m.node in self.wanted_mirrors
                for m in self._storages
            )
        )

    def _send_on(self) -> None:
        while self._joined and self._unsent and self.member.broadcast(self._unsent[0]):
            self._unsent.popleft()
