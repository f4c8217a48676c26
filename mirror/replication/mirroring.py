"""The mirrored queues that this node leads.

It follows definitions, policies, and nodes that come and go; `led_queue.py` and `leader.py` do the
rest. The copies of queues that other nodes lead are `copies`, of `copies_here.py`.

A node that has a mirror and takes the lead writes that into the definition, by compare-and-set. The
virtual host then makes the queue anew, over the very backing queue the mirror had (`backing`).

A card on disk says in which epoch a node leads. It is durable before anything depends on that: a
queue that has got this node as its leader is held until then, and a queue that goes on here without
mirrors admits none before. So a node that is started again knows that it may have messages which no
other node has, however soon it died.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from random import Random
from typing import TypeVar, cast

import msgspec

from warren.core.backing.backing_queue import LEVELS, BackingQueue, BackingSpec, MirroredLevel
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.priority_queue import PriorityQueue, level_number
from warren.core.definitions.definition_table import CompletedCommit
from warren.core.definitions.records import QueueRecord
from warren.core.errors import NotFound, PreconditionFailed, no_queue
from warren.core.field import from_plain
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.ports import Clock, Commit, Key, MetadataStore
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import majority_of, type_of
from warren.core.scheduling.waiting import Waiting, run
from warren.mirror.carriers.ports import Carrier, CarrierKind, CarrierMember
from warren.mirror.gm.shell import GroupShell
from warren.mirror.log.shell import LogShell
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.post import Kind, Post, Undeliverable
from warren.mirror.replication.carrier_switch import CarrierSwitch
from warren.mirror.replication.copies_here import MIRRORED, CopiesHere, settings_of
from warren.mirror.replication.copy_cards import CardFiles
from warren.mirror.replication.copy_here import CopyHere
from warren.mirror.replication.election import can_be_elected
from warren.mirror.replication.figures import MirrorFigures
from warren.mirror.replication.former_copies import FormerCopies
from warren.mirror.replication.former_copy import FormerCopy, Kept
from warren.mirror.replication.hand_over import HandOvers
from warren.mirror.replication.last_words import at_stop
from warren.mirror.replication.leader import SOME_ORIGINS
from warren.mirror.replication.led_queue import LedQueue
from warren.mirror.replication.lost_and_found import LostAndFound
from warren.mirror.replication.mirror import Mirror
from warren.mirror.replication.new_queues import NewQueues
from warren.mirror.replication.promotion import LEADER_BACK, Promotion, promotion
from warren.mirror.replication.publishes_from_afar import PublishesFromAfar
from warren.mirror.replication.queue_definitions import QueueDefinitions
from warren.mirror.replication.queue_levels import leader_level
from warren.mirror.replication.queue_members import QueueMembers, invitation_to
from warren.mirror.replication.refusals import Refusals
from warren.mirror.replication.renumbering import Renumbering, Step
from warren.mirror.replication.replicas import (
    NO_LIMITS,
    Copies,
    SyncLimits,
    Wanted,
    wanted_leader,
    wanted_mirrors,
)
from warren.mirror.replication.retained_copies import RetainedCopies, retains_at
from warren.mirror.replication.retained_sync import RetainedSync
from warren.mirror.replication.returned_leader import RECLAIM_S, ReturnedLeader

log = logging.getLogger("warren.queue")

Item = TypeVar("Item")

TICK_S = 1.0
"""How often this node looks whether mirrors have become whole, and whether any are missing."""

REST_TICKS = 16
"""A queue that waits for nothing is looked at once in so many ticks."""

LOOK_US = 25
"""What it costs to look at one queue."""


class Mirroring:
    """Implements `LedEffects`. `machine_of`: see `Membership.machine_of`. `silent`: see
    `Abreast.silent`."""

    machine_of: Callable[[str], str] = staticmethod(str)
    silent: Callable[[], Collection[str]] = staticmethod(tuple)

    def __init__(
        self,
        name: str,
        post: Post,
        calls: Calls,
        metadata: MetadataStore,
        clock: Clock,
        rng: Random,
        running: Callable[[], Collection[str]],
        card_files: CardFiles,
        present: Callable[[], Collection[str]],
        may_lead: Callable[[str], bool] = lambda node: True,
        sync_limits: SyncLimits = NO_LIMITS,
    ) -> None:
        """`running` are the nodes that can be reached from here, `present` those that are up for
        the cluster; this one is among both. `may_lead`: whether a node is not in maintenance.
        `sync_limits` are for queues whose policy sets none.
        """
        self._name = name
        self._post = post
        self._calls = calls
        self._metadata = metadata
        self._clock = clock
        self._rng = rng
        self._running = running
        self._present = present
        self._may_lead = may_lead
        self._sync_limits = sync_limits
        self._definitions = QueueDefinitions(metadata, clock)
        self._groups = GroupShell(name, post, metadata, clock, rng)
        self._carriers: Mapping[CarrierKind, Carrier] = {
            CarrierKind.GM: self._groups,
            CarrierKind.LOG: LogShell(name, post, clock, rng),
        }
        self._led: dict[int, LedQueue] = {}
        self.from_afar = PublishesFromAfar(self._led)
        # What is known of earlier epochs, for queues led here that have no mirrors any more.
        self._renumberings: dict[int, Renumbering] = {}
        self._formers = FormerCopies(name, card_files, clock)
        of_copies = (self._definitions, self._carriers, self._formers)
        self.copies = CopiesHere(name, post, calls, clock, rng, *of_copies)
        self._by_key: dict[Key, int] = {}
        # Mirrors that were promoted here: some of their messages may be on the way to the disk.
        self._former_copies: dict[int, Mirror] = {}
        self._to_flush: dict[LedQueue, None] = {}
        self._stopping = False
        self._ticks = 0
        # Queues whose definitions have changed since the last tick.
        self._changed: set[int] = set()
        self._congested: set[LedQueue] = set()
        self.figures = MirrorFigures(
            name, self._led, self.copies.by_queue, self._definitions.record_of, self._groups.record
        )
        self.hand_overs = HandOvers(
            name, calls, clock, self._led, self._definitions, running, may_lead
        )
        self.queue_members = QueueMembers(self._definitions)
        self._new_queues = NewQueues(name, clock, self._definitions, present, may_lead)
        self._carrier_switch = CarrierSwitch(
            name,
            calls,
            clock,
            self._definitions,
            self._carriers,
            self.copies.by_queue,
            self._write_card_of_leader,
        )
        self._lost_and_found = LostAndFound(
            name,
            calls,
            clock,
            self._renumbering_of,
            self._definitions,
            present,
            self._formers.searched,
        )
        self._node: Node

    def find_former_copies(
        self,
        node: Node,
        new_backing: Callable[[BackingSpec], BackingQueue],
        is_leftover: Callable[[int], bool] = lambda storage_id: True,
    ) -> None:
        """Open what is left of this node's copies, before storages not open then are dropped."""
        self._node = node
        self._formers.find(self._definitions.records(), new_backing, is_leftover)
        self.retained.begin(node, new_backing)
        self.retained.find(self._name, self._definitions.items(), partial(settings_of, node))

    def attach(self, node: Node, new_backing: Callable[[BackingSpec], BackingQueue]) -> None:
        """Serve this node from now on; `new_backing` makes the backing queues of copies."""
        self._node = node
        self._post.handle(Kind.MIRRORED, self._mirrored)
        self._calls.serve("mirror.synchronise", self._asked_to_synchronise)
        self.hand_overs.serve()
        at = (self._calls, self._clock, node.turns, self._wanted_of, self._definitions.record_of)
        self._retained_sync = RetainedSync(self.retained, *at)
        follows = (self._present, self._wanted_of, self._carrier_switch.follow)
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
        formers = self._formers.to_search()
        for key, record in self._definitions.items() if formers else ():
            for former in formers.get(record.queue_id, ()):
                self._lost_and_found.search(key, record.queue_id, former)
        self._clock.call_later(TICK_S, self._tick)

    def backing(self, spec: BackingSpec) -> BackingQueue | None:
        """The backing queue of this node's mirror, which is to lead; None without a mirror."""
        if spec.retained:
            return self.retained.take(spec.queue_id - spec.queue_id % LEVELS)
        return self.copies.backing(spec)

    def stop_leading(self) -> None:
        """The node stops in order: mirrors may take the lead at once, where that loses nothing.

        Without a mirror in sync a queue waits for this node to come back, unless its policy wants
        it to go on at any price.
        """
        self._stopping = True
        present = self._present()
        for led in list(self._led.values()):
            # A node that is up has seen that its mirror is not named, and made it a former copy.
            stopped = [mirror for mirror in led.leader.left_with_all() if mirror not in present]
            last_words = partial(at_stop, led.wanted, led.leader.epoch, stopped)
            led.leader.tell_handed_out()
            led.leader.flush()
            self._definitions.write_record(led.key, led.queue.queue_id, last_words)
            led.leader.fenced = True
            led.member.leave()
        self.copies.leave()

    def stop(self) -> None:
        """The node has stopped: the storage is told which messages of copies count as delivered."""
        self._definitions.stop()
        self.copies.stop()
        self._formers.stop()

    def led(self, queue_id: int) -> LedQueue | None:
        """What is known of the mirrors of a queue of this node; None if it has none."""
        return self._led.get(queue_id)

    def epoch_of(self, queue: Queue) -> int:
        """The epoch in which this node leads the queue."""
        return 0 if (record := self._record(queue)) is None else record.epoch

    def _record(self, queue: Queue) -> QueueRecord | None:
        """The definition of the queue; None if it was deleted."""
        return self._definitions.record_of(("queue", queue.vhost_name, queue.name), queue.queue_id)

    async def mirrored(self, queue: LocalQueue) -> None:
        """Return when a queue of this node has its mirrors at the nodes that answer."""
        led = self._led.get(queue.queue_id)
        if led is not None:
            answering = set(self._running()) - set(self.silent())
            await led.awaited.wait(led.not_begun(answering))

    def when_mirrors_have_all(self, queue: LocalQueue, done: Callable[[bool], None]) -> None:
        """Call back when all that is in the queue now is safe here and at every mirror.

        With False when this node does not lead the queue any more.
        """
        led = self._led.get(queue.queue_id)
        copy = self._former_copies.get(queue.queue_id)

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
        """Have the leader, wherever it is, synchronise mirrors or stop that. Raises its refusal."""
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
            raise NotFound(f"queue {queue_id} is not at node '{self._name}'")
        await self.act(self._node.local_queues[queue_id], synchronise=synchronise)

    def synchronise(self, queue: LocalQueue) -> None:
        """Send every mirror that is not in sync what it lacks. Raises `PreconditionFailed`."""
        led = self._led_or_refuse(queue)
        record = self._definitions.record_of(led.key, led.queue.queue_id)
        if record is not None:
            led.synchronise(record)

    def cancel_synchronisation(self, queue: LocalQueue) -> None:
        """End the synchronisation of every mirror. Raises `PreconditionFailed`."""
        led = self._led_or_refuse(queue)
        for mirror in list(led.leader.mirrors):
            led.leader.cancel_sync(mirror)

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
        key: Key = ("queue", queue.vhost_name, queue.name)
        self._by_key[key] = queue.queue_id
        copy = self.copies.take(queue.queue_id)
        record = self._definitions.record_of(key, queue.queue_id)
        assert record is not None
        self._formers.discard(queue.queue_id)
        self._retained_sync.forget(queue.queue_id)
        if copy is not None:
            self._promoted(queue, key, record, copy)
        elif not was_there and not record.epoch:
            # The queue was declared just now.
            self.from_afar.origins[queue.queue_id] = {}
        self._reconcile(queue)
        if queue.queue_id not in self._led:
            self.from_afar.origins.pop(queue.queue_id, None)
            known = self._formers.known_of_led(queue.queue_id, record.epoch)
            if known is not None:
                self._renumberings[queue.queue_id] = known

    def _promoted(self, queue: LocalQueue, key: Key, record: QueueRecord, copy: CopyHere) -> None:
        """The mirror of this node leads now: its group, its positions and what it knew go on."""
        self.from_afar.refusals[queue.queue_id] = copy.mirror.refusals
        led = self._new_led(queue, key, record, copy.carrier)
        self._hold_until_noted(led)
        if copy.is_outside:
            at = copy.mirror.carried_out
            led.member = self._carriers[led.carrier].join(record, led, at)
            led.member.start()
        else:
            led.member = copy.member
            copy.member.become(led)
        for mirror in record.mirrors:
            if mirror in record.in_sync:
                led.leader.follows(mirror)
            else:
                led.leader.add_mirror(mirror)
        led.record_changed(record)
        self.copies.forget_former(copy.mirror)
        led.leader.renumbering = copy.mirror.renumbering
        self.from_afar.origins[queue.queue_id] = copy.mirror.origins
        led.leader.origins.update(copy.mirror.origins)
        self._former_copies[queue.queue_id] = copy.mirror
        led.member.follow(record)
        reason = promotion(record.promoted)
        lacks = reason is Promotion.LEADER_DOWN_NOT_IN_SYNC
        own = copy.mirror
        self.retained.superseded(queue.queue_id, own.renumbering.retained)
        retained = self.retained.begin_generation(queue, record.epoch - own.epoch, lacks=lacks)
        for level, ours in zip(led.leader.levels, own.levels, strict=True):
            level.again = {position + ours.delta for position in ours.again | ours.taken}
        firsts = own.firsts() if lacks else ()
        step = Step(record.epoch, own.deltas(), own.tails(), firsts, retained)
        led.leader.begin_epoch(step, own.carried_out)
        if not copy.is_outside:
            led.already_joined(led.member.others())
        self._write_card_of_leader(led).then(lambda: self._noted(led))
        led.want(self._wanted(queue))
        for mirror in record.mirrors:
            if mirror not in record.in_sync:
                led.leader.start(mirror, synchronise=led.wanted.synchronise)
        self.figures.promotions[reason] += 1
        log_event(
            log,
            logging.WARNING,
            "mirror_promoted",
            queue=queue.name,
            vhost=queue.vhost_name,
            epoch=record.epoch,
            messages=len(queue),
            reason=record.promoted,
        )

    def _hold_until_noted(self, led: LedQueue) -> None:
        """Confirm, hand out and broadcast nothing before the card says that this node leads: if a
        mirror took over, this node's messages would not be looked for after a restart."""
        led.leader.is_noted = False
        led.queue.hold()

    def _noted(self, led: LedQueue) -> None:
        """The card says that this node leads."""
        if self._led.get(led.queue.queue_id) is not led:
            return
        led.leader.is_noted = True
        led.leader.flush()
        if not led.leader.fenced:
            led.queue.release()
            self.hand_overs.on_stay(led.queue)
        self._reconcile(led.queue)

    def _new_led(
        self, queue: LocalQueue, key: Key, record: QueueRecord, carrier: CarrierKind
    ) -> LedQueue:
        led = LedQueue(
            key, queue, record.epoch, self._name, self._clock, self._definitions, self, carrier
        )
        led.storage_id = record.storage_id(self._name)
        led.leader.refusals = self.from_afar.refusals.setdefault(queue.queue_id, Refusals())
        led.leader.retains_at = partial(retains_at, queue)
        backing = queue.backing
        inner = backing.levels if isinstance(backing, PriorityQueue) else [backing]
        led.leader.levels = [
            leader_level(cast(MirroredLevel, one), number, led.leader)
            for number, one in enumerate(inner)
        ]
        levels: list[BackingQueue] = list(led.leader.levels)
        for message in self._node.unacked_of(queue):
            level = led.leader.levels[level_number(backing, message.envelope)]
            level.is_out(message, taken=message in queue.in_hand)
        if isinstance(backing, PriorityQueue):
            backing.replace_levels(levels)
        else:
            queue.backing = levels[0]
        self._led[queue.queue_id] = led
        return led

    def _lead(self, queue: LocalQueue, key: Key, record: QueueRecord) -> LedQueue:
        """Begin to mirror a queue of this node."""
        wanted = self._wanted(queue)
        carrier = CarrierKind.of(record) if record.mirrors else wanted.carrier
        led = self._new_led(queue, key, record, carrier)
        led.member = self._carriers[carrier].join(record, led)
        origins = self.from_afar.origins.setdefault(queue.queue_id, {SOME_ORIGINS: 0})
        led.leader.origins.update(origins)
        known = self._formers.known_of_led(queue.queue_id, record.epoch)
        known = self._renumberings.pop(queue.queue_id, known)
        if known is not None:
            led.leader.renumbering = known
        for mirror in record.mirrors:
            # Named since before this node was away: one of them may be about to take the lead.
            led.leader.add_mirror(mirror)
        led.record_changed(record)
        for level in led.leader.levels:
            level.doubt_what_is_there()
        if record.mirrors:
            self._fence(led)
            led.returned = ReturnedLeader(
                self._clock,
                lambda: {*self._present(), *self._running()},
                lambda node, answer: self._ask_to_lead(node, led, answer),
                *((can_be_elected,) if carrier is CarrierKind.LOG else ()),
            )
            self._look_for_better_copies(led)
        else:
            if led.carrier is CarrierKind.GM and self._groups.record(queue.queue_id) is None:
                led.will_found()
            member = led.member
            self._write_card_of_leader(led).then(lambda: self._start_member(led, member))
        return led

    def _start_member(self, led: LedQueue, member: CarrierMember) -> None:
        """Found or join the group: from now on there may be mirrors that take over."""
        if self._led.get(led.queue.queue_id) is not led or led.member is not member:
            return
        if led.is_founding:
            led.may_found()
        elif not self._stopping:
            member.start()

    def _look_for_better_copies(self, led: LedQueue) -> None:
        """Go on with the copy that is here, as soon as no mirror can have more."""
        returned, record = led.returned, self._definitions.record_of(led.key, led.queue.queue_id)
        if returned is None or record is None or self._led.get(led.queue.queue_id) is not led:
            return
        if returned.awaited(record):
            returned.ask(record, lambda: self._look_for_better_copies(led))
        elif self._has_majority(record):
            led.returned = None
            self._reclaim(led, returned)

    def _has_majority(self, record: QueueRecord) -> bool:
        """Whether enough members of a quorum queue are up for it to go on. Until then its
        definition stays as it is: others may be able to go on without this node."""
        running = self._running()
        return sum([member in running for member in record.members]) >= (
            majority_of(record.members) if record.members else 0
        )

    def _ask_to_lead(self, node: str, led: LedQueue, answer: Callable[[bool], None]) -> None:
        record = self._record(led.queue)
        if record is not None:
            known = (record.epoch, record.ballot)
            self.copies.ask("mirror.take_lead", node, led.queue.queue_id, answer, *known)

    def _reclaim(self, led: LedQueue, returned: ReturnedLeader | None = None) -> None:
        """No mirror has taken the lead: go on without the mirrors there were."""
        if self._led.get(led.queue.queue_id) is not led or not led.leader.fenced:
            return

        def alone(record: QueueRecord) -> QueueRecord | None:
            if record.leader != self._name or record.epoch != led.leader.epoch:
                return None
            if returned is not None and returned.awaited(record):
                led.returned = returned
                return None
            return msgspec.structs.replace(
                record,
                epoch=record.epoch + 1,
                mirrors=[],
                in_sync=[],
                missing=0,
                promoted=LEADER_BACK,
                promoted_at=self._clock.wall_time(),
                down=False,
            )

        def go_on() -> None:
            epoch = led.leader.epoch
            known = led.leader.renumbering
            superseded = self.retained.begin_generation(led.queue, 1, known.retained_since)
            known.retains_anew(superseded)
            self._write_card_of_leader(led).then(lambda: go_on_as_noted(epoch))

        def go_on_as_noted(epoch: int) -> None:
            is_led = self._led.get(led.queue.queue_id) is led
            record = self._definitions.record_of(led.key, led.queue.queue_id)
            if is_led and record is not None and led.leader.fenced and led.leader.epoch == epoch:
                self.figures.promotions[Promotion.LEADER_BACK] += 1
                led.go_on_alone(self._joining(led, record), led.leader.epoch)
                self.hand_overs.on_stay(led.queue)

        self._definitions.write_record(led.key, led.queue.queue_id, alone, go_on)

    def _joining(self, led: LedQueue, record: QueueRecord) -> CarrierMember:
        """A new member in the place of the one that has stopped, or has never begun."""
        carrier = self._carriers[led.carrier]
        carrier.forget(led.member)
        return carrier.join(record, led)

    def _unlead(self, led: LedQueue) -> None:
        """Stop mirroring a queue: it has no mirrors any more, and is to have none."""
        queue = led.queue
        # No node is left that it could be handed over to.
        self.hand_overs.mirrors_changed(queue.queue_id, ())
        del self._led[queue.queue_id]
        self.from_afar.origins.pop(queue.queue_id, None)
        self._forget(led)
        self._renumberings[queue.queue_id] = led.leader.renumbering
        if not led.leader.renumbering.has_gaps:
            # With gaps, a copy that is away may have what this node lacked when it took over, and
            # has to be told which messages these are.
            self._formers.remove_card(led.storage_id)
        for mirror in list(led.leader.mirrors):
            # The definition does not name this mirror; the leader may not have been told yet.
            led.leader.remove_mirror(mirror)
        led.leader.flush()
        led.member.leave()
        self._carriers[led.carrier].delete_group(queue.queue_id)
        inner: list[BackingQueue] = [level.unwrapped() for level in led.leader.levels]
        if isinstance(queue.backing, PriorityQueue):
            queue.backing.replace_levels(inner)
        else:
            queue.backing = inner[0]
        # No other node has to hear of a message before it is confirmed or handed out.
        led.leader.waits_for_nobody()
        led.leader.let_go()
        queue.set_lacks_copies(False)
        queue.hand_out()

    def _queue_gone(self, queue: LocalQueue) -> None:
        """A queue of this node was deleted, or another node leads it now."""
        key: Key = ("queue", queue.vhost_name, queue.name)
        if self._by_key.get(key) == queue.queue_id:
            del self._by_key[key]
        self.from_afar.forget(queue.queue_id)
        self._former_copies.pop(queue.queue_id, None)
        self._renumberings.pop(queue.queue_id, None)
        self._lost_and_found.forget(queue.queue_id)
        self._retained_sync.forget(queue.queue_id)
        self.hand_overs.drop(queue.queue_id)
        led = self._led.pop(queue.queue_id, None)
        deleted = self._definitions.record_of(key, queue.queue_id) is None
        self.retained.leads_no_more(key, queue, deleted=deleted)
        if led is None:
            return
        self._forget(led)
        led.leader.end(refuse=not deleted or led.leader.fenced)
        led.member.leave()
        if deleted:
            self._carriers[led.carrier].delete_group(queue.queue_id)
            self._formers.remove_card(led.storage_id)
            # The queue object deletes its messages before that.
            self._clock.call_soon(lambda: _part(queue, led))
        else:
            self._keep_what_was_led(led)
            _part(queue, led)

    def _keep_what_was_led(self, led: LedQueue) -> None:
        """Make it a former copy: another node leads now, and may want a mirror here."""
        for level in led.leader.levels:
            level.inner.requeue(list(level.pending.values()))
            level.pending.clear()
        levels = [level.inner for level in led.leader.levels]
        former = FormerCopy(
            led.storage_id,
            led.leader.epoch,
            levels,
            [0] * len(levels),
            safe_only=False,
            led=True,
            tail=led.leader.tail(),
            renumbering=led.leader.renumbering,
        )
        self._formers.keep(led.queue.queue_id, former)
        self._lost_and_found.search(led.key, led.queue.queue_id, former)

    def _renumbering_of(self, queue_id: int) -> tuple[int, Renumbering] | None:
        """The epoch in which this node leads a queue, and what it knows of the ones before; None
        if it does not lead it."""
        led = self._led.get(queue_id)
        if led is not None:
            return led.leader.epoch, led.leader.renumbering
        if queue_id not in self._node.local_queues:
            return None
        epoch = self.epoch_of(self._node.local_queues[queue_id])
        return epoch, self._renumberings.get(queue_id, Renumbering(epoch))

    def _forget(self, led: LedQueue) -> None:
        self._to_flush.pop(led, None)
        self.set_flow(led, False)
        led.await_mirrors(())

    def _wanted(self, queue: LocalQueue) -> Wanted:
        return self._wanted_of(("queue", queue.vhost_name, queue.name))

    def _wanted_of(self, key: Key) -> Wanted:
        """Which nodes are to have mirrors of a queue: what its members say, or else its policy."""
        stored = self._metadata.get(key)
        if stored is None or not isinstance(stored.record, QueueRecord):
            return Wanted()
        record = stored.record
        if record.members:
            return Wanted.of_members(record.members, record.leader, self._sync_limits)
        _, vhost, name = key
        kind = type_of(from_plain(record.arguments))
        applied = self._node.policies.applied(vhost, name, "queue", kind)
        return Wanted.of(applied.definition, self._sync_limits)

    def _reconcile(self, queue: LocalQueue) -> None:
        """See to it that the queue has the mirrors its policy wants."""
        if queue.exclusive_owner is not None or queue.deleted or self._stopping:
            return
        key: Key = ("queue", queue.vhost_name, queue.name)
        record = self._definitions.record_of(key, queue.queue_id)
        if record is None or record.leader != self._name:
            return
        wanted = self._wanted(queue)
        led = self._led.get(queue.queue_id)
        if led is None:
            if wanted.mode is None and not record.mirrors:
                return
            led = self._lead(queue, key, record)
        led.at_rest = False
        if led.leader.fenced:
            # Another node may be about to take the lead.
            self._look_for_better_copies(led)
            return
        if not led.leader.is_noted or self.hand_overs.is_switching(queue.queue_id):
            return
        copies = Copies(record.leader, record.mirrors, record.in_sync)
        led.want(wanted)
        running = self._running()
        # The group, not the links, tells whether a mirror is alive.
        there = {*running, *record.mirrors}
        led.wanted_mirrors = wanted_mirrors(wanted, copies, there, self._rng, self.machine_of)
        is_alone = not record.mirrors and not record.missing and not led.members()
        if wanted.mode is None and is_alone:
            self._unlead(led)
            return
        leader = wanted_leader(wanted, copies, self.hand_overs.can_take_over())
        # A mirror that is named, and away, is to be here first: all in sync have to stand still.
        if leader != self._name and set(record.in_sync) <= set(led.members()):
            self.hand_overs.begin(led, leader)
            return
        if wanted.mode is not None and wanted.carrier is not led.carrier:
            kind = wanted.carrier
            self.hand_overs.switch(led, lambda: self._carrier_switch.switch(led, kind))
            return
        led.follow_acks(record)
        led.drop_unwanted()
        led.invite_missing(running)
        if wanted.synchronise:
            led.synchronise(record)
        led.at_rest = led.has_all_in_sync(record, running)

    def _tick(self) -> None:
        if self._stopping:
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
            if not led.at_rest or queue_id in changed or self._is_in_share(queue_id)
        ]
        due_copies = self.copies.due(self._is_in_share)
        await self._in_turns(due_led, self._look_at_led)
        await self._in_turns(due_copies, self.copies.look_at)
        if self._stopping:
            return
        self._new_queues.look()
        self._formers.discard_unwanted(self._definitions.records(), self._running())
        if not self._may_lead(self._name):
            # Since the last tick a mirror may have become in sync, or this node a leader.
            self.hand_overs.drain()

    def _is_in_share(self, queue_id: int) -> bool:
        return queue_id // LEVELS % REST_TICKS == self._ticks % REST_TICKS

    async def _in_turns(self, items: Iterable[Item], work: Callable[[Item], None]) -> None:
        """Do the same with each of very many queues, some in each turn."""
        turns = self._node.turns
        for item in items:
            turns.spend(LOOK_US)
            await turns.pause()
            if self._stopping:
                return
            work(item)

    def _look_at_led(self, led: LedQueue) -> None:
        if self._led.get(led.queue.queue_id) is not led:
            return
        if not led.leader.fenced:
            led.drop_unreached(self._running())
        led.leader.look_for_synced()
        self._reconcile(led.queue)

    # Cards, for the time after a restart

    def _write_card_of_leader(self, led: LedQueue) -> Commit:
        leader, queue = led.leader, led.queue
        if not queue.durable:
            return CompletedCommit()
        return self._formers.write_card(
            led.storage_id,
            queue.queue_id,
            leader.epoch,
            [0] * len(leader.levels),
            leader.renumbering,
            led=True,
        )

    def _policies_changed(self, vhost: str) -> None:
        copies = [copy for copy in self.copies if copy.key[1] == vhost]
        queues = [queue for queue in self._node.local_queues if queue.vhost_name == vhost]
        _begin(self._in_turns(copies, self.copies.follow_policy))
        _begin(self._in_turns(queues, self._reconcile))

    def _nodes_changed(self) -> None:
        queues = [led.queue for led in self._led.values()]
        _begin(self._in_turns(queues, self._reconcile))

    def _node_up(self, name: str) -> None:
        self._nodes_changed()

        def send_again(led: LedQueue) -> None:
            if self._led.get(led.queue.queue_id) is led:
                led.leader.send_slice_again(name)

        _begin(self._in_turns(list(self._led.values()), send_again))
        _begin(self._in_turns(self.copies, partial(self.copies.report_again, node=name)))

    def _node_down(self, name: str) -> None:
        def doubt(led: LedQueue) -> None:
            led.awaited.wait_no_more_for([name])
            if self._led.get(led.queue.queue_id) is led and name in led.leader.mirrors:
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
        if self._stopping:
            # What is here is kept for the next start.
            return
        self.copies.definition_changed(key, record)
        queue_id = self._by_key.get(key)
        if queue_id is None:
            return
        self._changed.add(queue_id)
        led = self._led.get(queue_id)
        if led is None and queue_id in self._node.local_queues:
            # A quorum queue may have got members.
            queue = self._node.local_queues[queue_id]
            self._clock.call_soon(lambda: self._reconcile(queue))
        if led is not None and isinstance(record, QueueRecord) and record.leader == self._name:
            if record.epoch != led.leader.epoch:
                led.leader.goes_on_in(record.epoch)
            led.member.follow(record)
            led.record_changed(record)
            self.hand_overs.mirrors_changed(queue_id, record.mirrors)

    # `LedEffects`

    def flush_soon(self, led: LedQueue) -> None:
        if not self._to_flush:
            self._clock.call_soon(self._flush)
        self._to_flush[led] = None

    def _flush(self) -> None:
        to_flush, self._to_flush = self._to_flush, {}
        for led in to_flush:
            led.leader.flush()

    def send_slice(self, mirror: str, payload: bytes) -> None:
        self._post.send(mirror, Kind.SLICE, payload)

    def group_joined(self, led: LedQueue) -> None:
        self._clock.call_soon(lambda: self._reconcile(led.queue))

    def invite(self, led: LedQueue, node: str) -> None:
        queue = led.queue
        record = self._record(queue)
        if record is None:
            return

        async def ask() -> tuple[int, int, Kept | None]:
            incarnation, storage_id, kept = await self._calls.ask(
                node,
                invitation_to(record),
                queue.queue_id,
                queue.vhost_name,
                queue.name,
                led.is_founding,
                led.carrier,
                record.epoch,
                record.ballot,
            )
            return incarnation, storage_id, Kept(*kept) if kept is not None else None

        def finish(result: Callable[[], tuple[int, int, Kept | None]]) -> None:
            try:
                led.has_answered(node, *result())
            except NotFound:
                led.not_invited(node)

        run(ask(), finish)

    def set_flow(self, led: LedQueue, flow: bool) -> None:
        if flow:
            self._congested.add(led)
        else:
            self._congested.discard(led)
        self._node.alarms.set_flow(bool(self._congested), "mirrors")

    def membership_lost(self, led: LedQueue, reason: str) -> None:
        """Another node takes the lead, or will in a moment; if not, go on with a new group."""
        _, vhost, name = led.key
        log_event(log, logging.WARNING, "leader_left_alone", queue=name, vhost=vhost, reason=reason)
        if not led.leader.fenced:
            self._fence(led)
            self._clock.call_later(RECLAIM_S, lambda: self._reclaim(led))

    def superseded(self, led: LedQueue, by: str) -> None:
        _, vhost, name = led.key
        if not led.leader.fenced:
            log_event(log, logging.WARNING, "leader_superseded", queue=name, vhost=vhost, by=by)
            self._fence(led)

    def _fence(self, led: LedQueue) -> None:
        """Another node leads, or may soon: nothing is confirmed, and nothing is handed out that it
        may hand out too."""
        led.leader.fenced = True
        led.at_rest = False
        self.hand_overs.drop(led.queue.queue_id)
        if not led.queue.is_held:
            led.queue.hold()

    # Frames

    def _mirrored(self, node: str, payload: bytes) -> None:
        try:
            queue_id, epoch, batch = MIRRORED.unpack(payload)
        except struct.error as error:
            raise Undeliverable(f"a mirror's report that cannot be read: {error}") from None
        led = self._led.get(queue_id)
        if led is not None and epoch == led.leader.epoch:
            led.leader.has(node, batch)


def _part(queue: LocalQueue, led: LedQueue) -> None:
    """A queue object that has ended and its leader let go of each other: both can be freed."""
    queue.backing = MemoryQueue()
    led.leader.let_go()


def _begin(work: Waiting[None]) -> None:
    """Begin work that may take many turns."""
    run(work, lambda result: result())
