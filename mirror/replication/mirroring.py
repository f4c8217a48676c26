"""Gives queues the mirrors that their policies want.

`Mirroring` follows definitions and policies, and nodes that come and go. Beneath it, `leadership`
is for the queues that this node leads, each with a `LedQueue` and a `Leader`; `copies_here` is for
the copies that this node has of queues that other nodes lead.

A node with a mirror takes the lead by writing that into the definition, by compare-and-set. The
virtual host then makes another object for the queue, over the backing queue that the mirror had
(`backing`).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import TypeVar

from warren.core.backing.backing_queue import LEVELS, BackingQueue, BackingSpec
from warren.core.definitions.records import QueueRecord
from warren.core.errors import NotFound, PreconditionFailed, no_queue
from warren.core.field import from_plain
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.ports import Clock, Commit, Key, MetadataStore
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import type_of
from warren.core.scheduling.waiting import Waiting, run
from warren.mirror.carriers.ports import Carrier, CarrierKind
from warren.mirror.gm.shell import GroupShell
from warren.mirror.log.shell import LogShell
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.post import Post, PostKind, Undeliverable
from warren.mirror.replication.carrier_switch import CarrierSwitch
from warren.mirror.replication.copies.copies_here import MIRRORED, CopiesHere, settings_of
from warren.mirror.replication.copies.copy_cards import CardFiles
from warren.mirror.replication.copies.former_copies import FormerCopies
from warren.mirror.replication.copies.former_copy import FormerCopy
from warren.mirror.replication.copies.lost_and_found import LostAndFound
from warren.mirror.replication.copies.retained_copies import RetainedCopies
from warren.mirror.replication.copies.retained_sync import RetainedSync
from warren.mirror.replication.definition.former_nodes import without_former
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.definition.promotion import others_may_have_more
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.definition.queue_members import QueueMembers
from warren.mirror.replication.definition.replicas import (
    NO_LIMITS,
    Copies,
    SyncLimits,
    WantedMirrors,
    next_leader,
    wanted_leader,
    wanted_mirrors,
)
from warren.mirror.replication.elections.new_queues import NewQueues
from warren.mirror.replication.elections.returned_leader import RECLAIM_S
from warren.mirror.replication.figures import MirrorFigures
from warren.mirror.replication.forgotten_leaders import ForgottenLeaders
from warren.mirror.replication.leading.leader_calls import LeaderCalls
from warren.mirror.replication.leading.leadership import Leadership
from warren.mirror.replication.leading.led_queue import LedQueue

log = logging.getLogger("warren.queue")

Item = TypeVar("Item")

TICK_S = 1.0
"""The time between two checks whether mirrors have become whole, or are missing."""

REST_TICKS = 16
"""A queue that waits for nothing is looked at in one of so many ticks."""

LOOK_US = 25
"""The cost of looking at one queue, in the microseconds of `core/scheduling/turns.py`."""


class Mirroring:
    """Implements `LeadershipEffects`."""

    def __init__(
        self,
        nodes: Nodes,
        post: Post,
        calls: Calls,
        metadata: MetadataStore,
        clock: Clock,
        rng: Random,
        card_files: CardFiles,
        sync_limits: SyncLimits = NO_LIMITS,
    ) -> None:
        """`sync_limits` are for queues whose policies do not limit synchronisation."""
        self._nodes = nodes
        self._post = post
        self._calls = calls
        self._metadata = metadata
        self._clock = clock
        self._rng = rng
        self._sync_limits = sync_limits
        self._definitions = QueueDefinitions(metadata, clock)
        self._groups = GroupShell(nodes.name, post, metadata, clock, rng)
        carriers: Mapping[CarrierKind, Carrier] = {
            CarrierKind.GM: self._groups,
            CarrierKind.LOG: LogShell(nodes.name, post, clock, rng),
        }
        self._formers = FormerCopies(nodes.name, card_files, clock)
        of_queues = (self._definitions, carriers, self._formers)
        self.copies = CopiesHere(nodes, post, calls, clock, rng, *of_queues)
        self._leadership = Leadership(nodes, calls, clock, *of_queues, self.copies, self)
        self._led: Mapping[int, LedQueue] = self._leadership.led
        self.from_afar = self._leadership.from_afar
        self.hand_overs = self._leadership.hand_overs
        self.has_lost = self._leadership.lost_messages.add
        self._by_key: dict[Key, int] = {}
        self._to_flush: dict[LedQueue, None] = {}
        self._ticks = 0
        # Queues with definitions that have changed since the last tick.
        self._changed: set[int] = set()
        self._congested: set[LedQueue] = set()
        self.figures = MirrorFigures(
            nodes.name,
            self._leadership.promotions,
            self._led,
            self.copies.by_queue,
            self._definitions.record_of,
            self._groups.record,
            self._wanted_of,
        )
        leader_calls = LeaderCalls(calls, self._definitions)
        self.invite, self.ask_for_card = leader_calls.invite, leader_calls.ask_for_card
        self.queue_members = QueueMembers(self._definitions)
        self._new_queues = NewQueues(nodes, clock, self._definitions)
        self._forgotten_leaders = ForgottenLeaders(
            nodes, calls, self._definitions, self.copies, self._formers
        )
        here = self.copies.by_queue
        self._carrier_switch = CarrierSwitch(nodes.name, calls, clock, *of_queues, here)
        of_searches = (self._leadership.renumbering_of, self._definitions, self._formers.searched)
        self._lost_and_found = LostAndFound(nodes, calls, clock, *of_searches)
        self._node: Node

    def find_former_copies(
        self,
        node: Node,
        new_backing: Callable[[BackingSpec], BackingQueue],
        is_leftover: Callable[[int], bool] = lambda storage_id: True,
        *,
        is_damaged: bool = False,
    ) -> Commit:
        """Open the former copies of this node; storages not open afterwards are dropped. With
        `is_damaged`, what is on disk may lack messages; the commit is done when that is noted."""
        self._node = node
        of_disk = (self._definitions.records(), new_backing, is_leftover)
        noted = self._formers.find(*of_disk, is_damaged=is_damaged)
        self.retained.begin(node, new_backing)
        self.retained.find(self._nodes.name, self._definitions.items(), partial(settings_of, node))
        return noted

    def attach(self, node: Node, new_backing: Callable[[BackingSpec], BackingQueue]) -> None:
        """Begin to serve this node; `new_backing` makes the backing queues of copies."""
        self._node = node
        self._post.handle(PostKind.MIRRORED, self._mirrored)
        self._calls.serve("mirror.synchronise", self._asked_to_synchronise)
        self._leadership.attach(node)
        at = (self._calls, self._clock, node.turns, self._wanted_of, self._definitions.record_of)
        self._retained_sync = RetainedSync(self.retained, *at)
        follows = (self._wanted_of, self._carrier_switch.follow)
        self.copies.attach(node, new_backing, self._retained_sync, *follows)
        self._carrier_switch.serve()
        self._lost_and_found.attach(node)
        self._metadata.watch(("queue",), self._record_changed)
        node.policies.watch(self._policies_changed)
        node.local_queues.watch(self._queue_here, self._queue_gone)
        self._post.watch(on_up=self._node_up, on_down=self._node_down)
        for queue in list(node.local_queues):
            self._has_queue(queue, was_there=True)
        for key, record in list(self._definitions.items()):
            self.copies.have_copy_of_disk(key, record)
            self._new_queues.changed(key, record)
            self._forgotten_leaders.changed(key, record)
        formers = self._formers.to_search()
        for key, record in self._definitions.items() if formers else ():
            for former in formers.get(record.queue_id, ()):
                self._lost_and_found.search(key, record.queue_id, former)
        self._clock.call_later(TICK_S, self._tick)

    def backing(self, spec: BackingSpec) -> BackingQueue | None:
        """The backing queue of this node's mirror, which takes the lead; None without one."""
        if spec.retained:
            return self.retained.take(spec.queue_id - spec.queue_id % LEVELS)
        return self.copies.backing(spec)

    def stop_leading(self) -> None:
        """The node stops in order: let mirrors take the lead at once if that loses nothing."""
        self._leadership.stop()
        self.copies.leave()

    def stop(self) -> None:
        """Tell the storage which messages of copies count as delivered: the node has stopped."""
        self._definitions.stop()
        self.copies.stop()
        self._formers.stop()

    def led(self, queue_id: int) -> LedQueue | None:
        """The `LedQueue` of a queue that this node leads; None if the queue has no mirrors."""
        return self._led.get(queue_id)

    def epoch_of(self, queue: Queue) -> int:
        """The epoch in which this node leads the queue."""
        return 0 if (record := self._record(queue)) is None else record.epoch

    def _record(self, queue: Queue) -> QueueRecord | None:
        """The definition of the queue; None if it was deleted."""
        return self._definitions.record_of(queue.key, queue.queue_id)

    async def mirrored(self, queue: LocalQueue) -> None:
        """Wait until a queue that this node leads has its mirrors, at nodes that answer."""
        led = self._led.get(queue.queue_id)
        if led is not None:
            answering = set(self._nodes.running()) - set(self._nodes.silent())
            await led.awaited.wait(led.not_begun(answering))

    def when_mirrors_have_all(self, queue: LocalQueue, done: Callable[[bool], None]) -> None:
        """Call back when all messages now in the queue are safe here and at every mirror.

        `done` gets False if this node no longer leads the queue.
        """
        led = self._led.get(queue.queue_id)
        copy = self._leadership.promoted.get(queue.queue_id)

        def own(led_on: bool) -> None:
            if not led_on or copy is None or copy.safe:
                done(led_on)
            else:
                copy.when_safe(lambda: done(True))

        if led is None:
            own(True)
        else:
            led.leader.barrier(own)

    async def act(self, queue: Queue, *, synchronise: bool) -> None:
        """Ask the leader, at whichever node, to synchronise mirrors or to stop that. Raises the
        leader's refusal."""
        if not isinstance(queue, LocalQueue):
            record = self._record(queue)
            if record is None:
                raise no_queue(queue.name, queue.vhost_name)
            await self._calls.ask(record.leader, "mirror.synchronise", queue.queue_id, synchronise)
        elif synchronise:
            self.synchronise(queue)
        else:
            self.cancel_synchronisation(queue)

    async def _asked_to_synchronise(self, _node: str, queue_id: int, synchronise: bool) -> None:
        if queue_id not in self._node.local_queues:
            raise NotFound(f"queue {queue_id} is not at node '{self._nodes.name}'")
        await self.act(self._node.local_queues[queue_id], synchronise=synchronise)

    def synchronise(self, queue: LocalQueue) -> None:
        """Send every mirror that is not in sync the messages that it lacks. Raises
        `PreconditionFailed`."""
        led = self._led_or_refuse(queue)
        record = self._definitions.record_of(led.key, led.queue.queue_id)
        if record is not None:
            led.synchronise(record)

    def cancel_synchronisation(self, queue: LocalQueue) -> None:
        """End the synchronisation of every mirror. Raises `PreconditionFailed`."""
        led = self._led_or_refuse(queue)
        for mirror in list(led.leader.mirrors):
            led.synchronisation.cancel(mirror)

    def _led_or_refuse(self, queue: LocalQueue) -> LedQueue:
        led = self._led.get(queue.queue_id)
        described = f"queue '{queue.name}' in vhost '{queue.vhost_name}'"
        if led is None:
            raise PreconditionFailed(
                f"{described} is not mirrored, there is nothing to synchronise"
            )
        if led.leader.fenced:
            raise PreconditionFailed(
                f"{described} waits for one of its mirrors to take the lead, or to have no copy"
            )
        return led

    # Queues this node leads

    def _queue_here(self, queue: LocalQueue) -> None:
        self._has_queue(queue, was_there=False)

    def _has_queue(self, queue: LocalQueue, *, was_there: bool) -> None:
        key = queue.key
        self._by_key[key] = queue.queue_id
        copy = self.copies.take(queue.queue_id)
        record = self._definitions.record_of(key, queue.queue_id)
        assert record is not None
        self._formers.discard(queue.queue_id)
        self._retained_sync.forget(queue.queue_id)
        if copy is not None:
            self._leadership.take_over(queue, key, record, copy)
        elif not was_there and not record.epoch:
            self._leadership.is_new(queue)
        self.reconcile(queue)
        if queue.queue_id not in self._led:
            self._leadership.has_no_mirrors(queue, record)

    def _queue_gone(self, queue: LocalQueue) -> None:
        """This node leads the queue no more: it was deleted, or another node leads it."""
        key = queue.key
        if self._by_key.get(key) == queue.queue_id:
            del self._by_key[key]
        self._lost_and_found.forget(queue.queue_id)
        self._retained_sync.forget(queue.queue_id)
        self._leadership.end(queue)

    def wanted(self, queue: LocalQueue) -> WantedMirrors:
        return self._wanted_of(queue.key)

    def _wanted_of(self, key: Key) -> WantedMirrors:
        """The nodes that should have mirrors of a queue: its members, or else those that its policy
        names."""
        stored = self._metadata.get(key)
        if stored is None or not isinstance(stored.record, QueueRecord):
            return WantedMirrors()
        record = stored.record
        if record.members:
            return WantedMirrors.of_members(record.members, record.leader, self._sync_limits)
        _, vhost, name = key
        kind = type_of(from_plain(record.arguments))
        applied = self._node.policies.applied(vhost, name, "queue", kind)
        return WantedMirrors.of(applied.definition, self._sync_limits)

    def reconcile(self, queue: LocalQueue) -> None:
        """Do the next step towards the mirrors that the policy of the queue wants."""
        if queue.exclusive_owner is not None or queue.deleted or self._leadership.is_stopping:
            return
        key = queue.key
        record = self._definitions.record_of(key, queue.queue_id)
        if record is None or record.leader != self._nodes.name:
            return
        wanted = self.wanted(queue)
        led = self._led.get(queue.queue_id)
        if led is None:
            if wanted.mode is None and not record.mirrors:
                self._want_no_former(queue)
                return
            led = self._leadership.lead(queue, key, record)
        led.at_rest = False
        if led.leader.fenced:
            # Another node may be about to take the lead.
            self._leadership.look_for_better_copies(led)
            return
        if not led.leader.is_noted or self.hand_overs.is_switching(queue.queue_id):
            return
        there = (record.leader, record.mirrors, record.in_sync, record.former)
        copies = Copies(*there, led.wanted_mirrors)
        led.want(wanted)
        running = self._nodes.running()
        # The group, not the links, tells whether a mirror is alive.
        may_have = {*running, *record.mirrors}
        at = (may_have, self._rng, self._nodes.machine_of)
        led.wanted_mirrors = wanted_mirrors(wanted, copies, *at)
        is_alone = not record.mirrors and not record.missing and not led.members()
        if wanted.mode is None and is_alone:
            self._leadership.unlead(led)
            self._want_no_former(queue)
            return
        can_take_over = self.hand_overs.can_take_over()
        leader = wanted_leader(wanted, copies, can_take_over)
        if led.leader.has_lost_messages:
            # A mirror that has the lost messages is to lead, and makes them ready again.
            if led.mirrors_lack_what_is_lost() and self._leadership.tell_of_holes(led, record):
                return
            have_all = [one for one in record.in_sync if led.leader.has_what_is_lost(one)]
            leader = next_leader(copies._replace(in_sync=have_all), can_take_over, {}) or leader
        # A hand-over makes each mirror in sync stand still, so all of them have to be up.
        if leader != self._nodes.name and set(record.in_sync) <= set(led.members()):
            self.hand_overs.begin(led, leader)
            return
        if wanted.mode is not None and wanted.carrier is not led.carrier:
            kind = wanted.carrier
            self.hand_overs.switch(led, lambda: self._carrier_switch.switch(led, kind))
            return
        led.follow_acks(record)
        led.drop_unwanted(running)
        led.invite_missing(running)
        led.ask_for_cards()
        if wanted.synchronise:
            led.synchronise(record)
        led.at_rest = led.has_all_in_sync(record, running)

    def _want_no_former(self, queue: LocalQueue) -> None:
        """Let the former copies of a queue go: it should have no mirrors."""

        def without(record: QueueRecord) -> QueueRecord | None:
            return without_former(record) if record.leader == self._nodes.name else None

        self._definitions.write_record(queue.key, queue.queue_id, without)

    def _tick(self) -> None:
        if self._leadership.is_stopping:
            return
        self._ticks += 1
        run(self._look(), self._looked)

    def _looked(self, result: Callable[[], None]) -> None:
        result()
        self._clock.call_later(TICK_S, self._tick)

    async def _look(self) -> None:
        """Look at queues and copies that wait for something, and at a share of the rest."""
        changed, self._changed = self._changed, set()
        due_led = [
            led
            for queue_id, led in self._led.items()
            if not led.at_rest
            or led.leader.has_lost_messages
            or queue_id in changed
            or self._is_in_share(queue_id)
        ]
        due_copies = self.copies.due(self._is_in_share)
        await self._in_turns(due_led, self._look_at_led)
        await self._in_turns(due_copies, self.copies.look_at)
        if self._leadership.is_stopping:
            return
        self._new_queues.look()
        self._forgotten_leaders.look()
        self._formers.discard_unwanted(self._definitions.records(), self._nodes.running())
        if not self._nodes.may_lead(self._nodes.name):
            # Since the last tick a mirror may have come in sync, or this node may lead more queues.
            self.hand_overs.drain()

    def _is_in_share(self, queue_id: int) -> bool:
        return queue_id // LEVELS % REST_TICKS == self._ticks % REST_TICKS

    async def _in_turns(self, items: Iterable[Item], work: Callable[[Item], None]) -> None:
        """Do `work` for each of these items, some in each turn: they may be very many."""
        turns = self._node.turns
        for item in items:
            turns.spend(LOOK_US)
            await turns.pause()
            if self._leadership.is_stopping:
                return
            work(item)

    def _look_at_led(self, led: LedQueue) -> None:
        if not self._leadership.is_led(led):
            return
        if not led.leader.fenced:
            led.drop_lagging(self._nodes.running())
        led.synchronisation.look_for_whole()
        self.reconcile(led.queue)

    def _policies_changed(self, vhost: str) -> None:
        copies = [copy for copy in self.copies if copy.key[1] == vhost]
        queues = [queue for queue in self._node.local_queues if queue.vhost_name == vhost]
        _begin(self._in_turns(copies, self.copies.follow_policy))
        _begin(self._in_turns(queues, self.reconcile))

    def _nodes_changed(self) -> None:
        queues = [led.queue for led in self._led.values()]
        _begin(self._in_turns(queues, self.reconcile))

    def _node_up(self, name: str) -> None:
        self._forgotten_leaders.node_up()
        self._nodes_changed()

        def send_again(led: LedQueue) -> None:
            if self._leadership.is_led(led):
                led.synchronisation.send_again(name)

        _begin(self._in_turns(list(self._led.values()), send_again))
        _begin(self._in_turns(self.copies, partial(self.copies.report_again, node=name)))

    def _node_down(self, name: str) -> None:
        def doubt(led: LedQueue) -> None:
            led.awaited.wait_no_more_for([name])
            if self._leadership.is_led(led) and name in led.leader.mirrors:
                led.leader.doubt_hand_outs()

        _begin(self._in_turns(list(self._led.values()), doubt))
        self._nodes_changed()

    @property
    def retained(self) -> RetainedCopies:
        return self._formers.retained

    # Definitions and policies

    def _record_changed(self, key: Key, record: object | None) -> None:
        self._definitions.changed(key)
        self._new_queues.changed(key, record)
        self._forgotten_leaders.changed(key, record)
        if self._leadership.is_stopping:
            # The copies here are kept for the next start.
            return
        self.copies.definition_changed(key, record)
        if isinstance(record, QueueRecord) and others_may_have_more(record.promoted):
            former = self.copies.former_of(record.queue_id)
            if former is not None:
                self.search_former(key, record, former)
            for part in self._formers.parts_to_search(record.queue_id):
                self._lost_and_found.search(key, record.queue_id, part)
        queue_id = self._by_key.get(key)
        if queue_id is None:
            return
        self._changed.add(queue_id)
        led = self._led.get(queue_id)
        if led is None and queue_id in self._node.local_queues:
            # A quorum queue may have got members.
            queue = self._node.local_queues[queue_id]
            self._clock.call_soon(lambda: self.reconcile(queue))
        if led is None or not isinstance(record, QueueRecord):
            return
        if record.leader == self._nodes.name:
            if record.epoch != led.leader.epoch:
                led.leader.goes_on_in(record.epoch)
            led.member.follow(record)
            led.record_changed(record)
            self.hand_overs.mirrors_changed(queue_id, record.mirrors)

    # `LeadershipEffects`

    def leads_no_more(self, led: LedQueue) -> None:
        self._to_flush.pop(led, None)
        self.set_flow(led, False)
        led.await_mirrors(())

    def search(self, led: LedQueue, former: FormerCopy) -> None:
        self._lost_and_found.search(led.key, led.queue.queue_id, former)

    def search_former(self, key: Key, record: QueueRecord, former: FormerCopy) -> None:
        if self._formers.is_to_be_searched_now(former, record.epoch):
            former.to_be_searched = True
            self._lost_and_found.search(key, record.queue_id, former)

    def messages_were_lost(self, led: LedQueue) -> None:
        # Copies that were searched before may have these messages: search all of them again.
        self._lost_and_found.forget(led.queue.queue_id)
        self.reconcile(led.queue)

    def flush_soon(self, led: LedQueue) -> None:
        if not self._to_flush:
            self._clock.call_soon(self._flush)
        self._to_flush[led] = None

    def _flush(self) -> None:
        to_flush, self._to_flush = self._to_flush, {}
        for led in to_flush:
            led.leader.flush()

    def send_slice(self, mirror: str, payload: bytes) -> None:
        self._post.send(mirror, PostKind.SLICE, payload)

    def group_joined(self, led: LedQueue) -> None:
        self._clock.call_soon(lambda: self.reconcile(led.queue))

    def set_flow(self, led: LedQueue, flow: bool) -> None:
        if flow:
            self._congested.add(led)
        else:
            self._congested.discard(led)
        self._node.alarms.set_flow(bool(self._congested), "mirrors")

    def membership_lost(self, led: LedQueue, reason: str) -> None:
        """Another node takes the lead; if it does not within `RECLAIM_S`, go on in a new group."""
        _, vhost, name = led.key
        log_event(log, logging.WARNING, "leader_left_alone", queue=name, vhost=vhost, reason=reason)
        if not led.leader.fenced:
            self._leadership.fence(led)
            self._clock.call_later(RECLAIM_S, lambda: self._leadership.reclaim(led))

    def superseded(self, led: LedQueue, by: str) -> None:
        _, vhost, name = led.key
        if not led.leader.fenced:
            log_event(log, logging.WARNING, "leader_superseded", queue=name, vhost=vhost, by=by)
            self._leadership.fence(led)

    # Frames

    def _mirrored(self, node: str, payload: bytes) -> None:
        try:
            queue_id, epoch, batch = MIRRORED.unpack(payload)
        except struct.error as error:
            raise Undeliverable(f"a mirror's report that cannot be read: {error}") from None
        led = self._led.get(queue_id)
        if led is not None and epoch == led.leader.epoch:
            led.leader.has(node, batch)
            led.synchronisation.reported(node)


def _begin(work: Waiting[None]) -> None:
    """Begin work that may take many turns."""
    run(work, lambda result: result())
