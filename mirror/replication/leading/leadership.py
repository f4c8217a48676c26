"""Leadership: how this node begins and ends to lead mirrored queues.

It begins when the mirror of this node is promoted (`take_over`), and when a queue of this node gets
its first mirrors (`lead`). If the definition names mirrors from before this node was away, the
queue is held: one of them may lead, or be about to. When no mirror can have more than this node,
the queue goes on without them (`reclaim`).

It ends when the queue is deleted or another node leads it (`end`), and when the queue should have
no mirrors any more (`unlead`).

A card on disk says in which epoch a node leads, and is durable before anything depends on that: a
queue with a new leader is held until then, and a queue that goes on without mirrors admits none
before. So a node that is started again knows that it may have messages which no other node has,
however soon it died.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, cast

import msgspec

from warren.core.backing.backing_queue import BackingQueue, MirroredLevel
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.priority_queue import PriorityQueue, level_number
from warren.core.definitions.definition_table import CompletedCommit
from warren.core.definitions.records import QueueRecord
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.ports import Clock, Commit, Key
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue_type import majority_of
from warren.core.scheduling.waiting import run
from warren.mirror.carriers.ports import Carrier, CarrierKind, CarrierMember
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.origin import SOME_ORIGINS
from warren.mirror.replication.copies.copies_here import CopiesHere
from warren.mirror.replication.copies.copy_here import CopyHere
from warren.mirror.replication.copies.copy_questions import TAKE_LEAD, TAKE_LEAD_FROM_DISK
from warren.mirror.replication.copies.former_copies import FormerCopies
from warren.mirror.replication.copies.former_copy import FormerCopy
from warren.mirror.replication.copies.mirror import Mirror
from warren.mirror.replication.copies.refusals import Refusals
from warren.mirror.replication.copies.retained_copies import retains_at
from warren.mirror.replication.definition.former_nodes import former_without
from warren.mirror.replication.definition.last_words import at_stop
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.definition.promotion import (
    DAMAGED_LEADER_BACK,
    LEADER_BACK,
    Promotion,
    leader_lacks,
    promotion,
)
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.definition.replicas import WHEN_SYNCED, WantedMirrors
from warren.mirror.replication.elections.election import can_be_elected
from warren.mirror.replication.elections.leaderless import damaged_leader_waits_for
from warren.mirror.replication.elections.returned_leader import ReturnedLeader
from warren.mirror.replication.leading.hand_over import HandOvers
from warren.mirror.replication.leading.leader_calls import LeaderCalls
from warren.mirror.replication.leading.led_queue import LedEffects, LedQueue
from warren.mirror.replication.leading.lost_messages import LostMessages
from warren.mirror.replication.leading.publishes_from_afar import PublishesFromAfar
from warren.mirror.replication.levels.holes import Hole, holes_of
from warren.mirror.replication.levels.queue_levels import leader_level
from warren.mirror.replication.levels.renumbering import LeaderChange, Renumbering

log = logging.getLogger("warren.queue")


class LeadershipEffects(LedEffects, Protocol):
    """The calls of `Leadership` to `Mirroring`."""

    def wanted(self, queue: LocalQueue) -> WantedMirrors:
        """The nodes that should have mirrors of a queue."""
        ...

    def reconcile(self, queue: LocalQueue) -> None:
        """Do the next step towards the mirrors that the policy of the queue wants."""
        ...

    def leads_no_more(self, led: LedQueue) -> None: ...

    def search(self, led: LedQueue, former: FormerCopy) -> None:
        """Put messages that only this former copy of a queue has into `lost+found`."""
        ...

    def search_former(self, key: Key, record: QueueRecord, former: FormerCopy) -> None:
        """`search` this copy, unless that was done already: the leader lacks messages."""
        ...

    def messages_were_lost(self, led: LedQueue) -> None:
        """The disk of this node has lost messages of a queue by damage."""
        ...


class Leadership:
    """The queues with mirrors that one node leads: `led`, by their ids.

    `promoted` are the mirrors that were promoted here: some of their messages may be on the way to
    the disk. `promotions` counts how often this node got the lead, by reasons. When it
    `is_stopping`, nothing is begun any more.
    """

    def __init__(
        self,
        nodes: Nodes,
        calls: Calls,
        clock: Clock,
        definitions: QueueDefinitions,
        carriers: Mapping[CarrierKind, Carrier],
        formers: FormerCopies,
        copies: CopiesHere,
        effects: LeadershipEffects,
    ) -> None:
        self.led: dict[int, LedQueue] = {}
        self.promoted: dict[int, Mirror] = {}
        self.promotions: Counter[Promotion] = Counter()
        self.from_afar = PublishesFromAfar(self.led)
        self.hand_overs = HandOvers(nodes, calls, clock, self.led, definitions)
        self.is_stopping = False
        self.lost_messages = LostMessages(self.led, formers, clock, effects.messages_were_lost)
        self._leader_calls = LeaderCalls(calls, definitions)
        self._nodes = nodes
        self._clock = clock
        self._definitions = definitions
        self._carriers = carriers
        self._formers = formers
        self._copies = copies
        self._effects = effects
        # The steps of earlier epochs, for queues led here that have no mirrors any more.
        self._renumberings: dict[int, Renumbering] = {}
        self._node: Node

    def attach(self, node: Node) -> None:
        self._node = node
        self.hand_overs.serve()

    def is_led(self, led: LedQueue) -> bool:
        """Whether this object still stands for a queue that this node leads."""
        return self.led.get(led.queue.queue_id) is led

    def renumbering_of(self, queue_id: int) -> tuple[int, Renumbering] | None:
        """The epoch in which this node leads a queue, and the steps of earlier epochs that it
        knows; None if it does not lead the queue."""
        led = self.led.get(queue_id)
        if led is not None:
            return led.leader.epoch, led.leader.renumbering
        if queue_id not in self._node.local_queues:
            return None
        queue = self._node.local_queues[queue_id]
        record = self._definitions.record_of(queue.key, queue_id)
        epoch = 0 if record is None else record.epoch
        return epoch, self._renumberings.get(queue_id, Renumbering(epoch))

    # Leading begins

    def is_new(self, queue: LocalQueue) -> None:
        """Note that the queue was declared just now: no node has published to it before."""
        self.from_afar.origins[queue.queue_id] = {}

    def has_no_mirrors(self, queue: LocalQueue, record: QueueRecord) -> None:
        """Keep the steps of earlier epochs of a queue of this node that should have no mirrors."""
        self.from_afar.origins.pop(queue.queue_id, None)
        known = self._formers.known_of_led(record)
        if known is not None:
            self._renumberings[queue.queue_id] = known

    def take_over(self, queue: LocalQueue, key: Key, record: QueueRecord, copy: CopyHere) -> None:
        """Lead a queue over the mirror of this node, with its group, positions and knowledge."""
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
        former = copy.mirror.former
        if former is not None and leader_lacks(record.promoted):
            self._effects.search_former(key, record, former)
        self._copies.forget_former(copy.mirror)
        led.leader.renumbering = copy.mirror.renumbering
        self.from_afar.origins[queue.queue_id] = copy.mirror.origins
        led.leader.origins.update(copy.mirror.origins)
        self.promoted[queue.queue_id] = copy.mirror
        led.member.follow(record)
        self._begin_epoch(led, record, copy.mirror)
        if not copy.is_outside:
            led.already_joined(led.member.others())
        write_card_of_leader(self._formers, led).then(lambda: self._noted(led))
        led.want(self._effects.wanted(queue))
        for mirror in record.mirrors:
            if mirror not in record.in_sync:
                led.synchronisation.start(mirror, synchronise=led.wanted.synchronise)
        self.promotions[promotion(record.promoted)] += 1
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

    def _begin_epoch(self, led: LedQueue, record: QueueRecord, own: Mirror) -> None:
        """Go on in the epoch of the definition, from the positions that the mirror had."""
        queue = led.queue
        lacks = leader_lacks(record.promoted)
        retained = self._formers.retained
        retained.superseded(queue.queue_id, own.renumbering.retained)
        later = record.epoch - own.epoch
        retained_since = retained.begin_generation(queue, later, lacks=lacks)
        for level, ours in zip(led.leader.levels, own.levels, strict=True):
            level.again = {position + ours.delta for position in ours.again | ours.taken}
        firsts = own.firsts() if lacks else ()
        step = LeaderChange(record.epoch, own.deltas(), own.tails(), firsts, retained_since)
        led.leader.begin_epoch(step, own.carried_out)

    def _hold_until_noted(self, led: LedQueue) -> None:
        """Confirm, hand out and broadcast nothing before the card says that this node leads.
        Otherwise, if a mirror took over, a restart would not search this node's messages."""
        led.leader.is_noted = False
        led.queue.hold()

    def _noted(self, led: LedQueue) -> None:
        """The card says that this node leads."""
        if not self.is_led(led):
            return
        led.leader.is_noted = True
        led.leader.flush()
        if not led.leader.fenced:
            led.queue.release()
            self.hand_overs.on_stay(led.queue)
        self._effects.reconcile(led.queue)

    def _new_led(
        self, queue: LocalQueue, key: Key, record: QueueRecord, carrier: CarrierKind
    ) -> LedQueue:
        at = (self._nodes.name, self._clock, self._definitions, self._effects)
        led = LedQueue(key, queue, record.epoch, *at, carrier)
        led.storage_id = record.storage_id(self._nodes.name)
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
        _replace_levels(queue, levels)
        self.led[queue.queue_id] = led
        return led

    def lead(self, queue: LocalQueue, key: Key, record: QueueRecord) -> LedQueue:
        """Begin to mirror a queue of this node."""
        wanted = self._effects.wanted(queue)
        carrier = CarrierKind.of(record) if record.mirrors else wanted.carrier
        led = self._new_led(queue, key, record, carrier)
        led.member = self._carriers[carrier].join(record, led)
        origins = self.from_afar.origins.setdefault(queue.queue_id, {SOME_ORIGINS: 0})
        led.leader.origins.update(origins)
        known = self._formers.known_of_led(record)
        known = self._renumberings.pop(queue.queue_id, known)
        if known is not None:
            led.leader.goes_on_with(known)
        for mirror in record.mirrors:
            # Named from before this node was away: one of these mirrors may be taking the lead.
            led.leader.add_mirror(mirror)
        led.record_changed(record)
        for level in led.leader.levels:
            level.doubt_backlog()
        # Of a queue that never had mirrors, and of a new one, no other node has anything.
        had_mirrors = known is not None or bool(record.former)
        if record.mirrors or (had_mirrors and self._may_lack_messages(led, record)):
            led.leader.is_from_disk = queue.durable
            self.fence(led)
            self._begin_to_look(led)
        else:
            nodes = self._carriers[carrier].nodes_of(queue.queue_id)
            if carrier is CarrierKind.GM and nodes is None:
                led.will_found()
            member = led.member
            write_card_of_leader(self._formers, led).then(lambda: self._start_member(led, member))
        return led

    def _may_lack_messages(self, led: LedQueue, record: QueueRecord) -> bool:
        """Whether nodes that had mirrors, and are not named for these any more, may have more than
        this node: the disk is damaged, or does not say how the leader went on without them."""
        is_damaged = self._formers.is_damaged(led.storage_id)
        return led.queue.durable and (is_damaged or self._formers.is_behind(led.storage_id, record))

    def _start_member(self, led: LedQueue, member: CarrierMember) -> None:
        """Found or join the group; from now on mirrors may take over."""
        if not self.is_led(led) or led.member is not member:
            return
        if led.is_founding:
            led.may_found()
        elif not self.is_stopping:
            member.start()

    # A leader that was away goes on

    def _begin_to_look(self, led: LedQueue) -> None:
        led.returned = ReturnedLeader(
            self._clock,
            lambda: {*self._nodes.present(), *self._nodes.running()},
            lambda node, answer: self._ask_to_lead(node, led, answer),
            *((can_be_elected,) if led.carrier is CarrierKind.LOG else ()),
            is_damaged=self._formers.is_damaged(led.storage_id),
            may_lack=lambda: self._effects.wanted(led.queue).promote_on_failure != WHEN_SYNCED,
        )
        self.look_for_better_copies(led)

    def look_for_better_copies(self, led: LedQueue) -> None:
        """Go on with this node's copy as soon as no mirror can have more."""
        returned, record = led.returned, self._definitions.record_of(led.key, led.queue.queue_id)
        if returned is None or record is None or not self.is_led(led):
            return
        if returned.awaited(record):
            self._tell_what_it_awaits(led, returned, record)
            returned.ask(record, lambda: self.look_for_better_copies(led))
        elif self._has_majority(record):
            led.returned = None
            if self._formers.is_damaged(led.storage_id):
                levels = [level.inner for level in led.leader.levels]
                finding = holes_of(levels, led.queue.settings.keeps, self._clock)
                run(finding, lambda found: self._found_holes(found, led, returned))
            else:
                self.reclaim(led, returned)

    def _found_holes(
        self, found: Callable[[], list[Hole]], led: LedQueue, returned: ReturnedLeader
    ) -> None:
        led.leader.holes = found()
        self.reclaim(led, returned)

    def tell_of_holes(self, led: LedQueue, record: QueueRecord) -> bool:
        """Begin another epoch, for mirrors to know what the disk of this node has lost. False if
        too few members of a quorum queue are up."""
        if not self._has_majority(record):
            return False
        self.fence(led)
        self.reclaim(led)
        return True

    def _tell_what_it_awaits(
        self, led: LedQueue, returned: ReturnedLeader, record: QueueRecord
    ) -> None:
        mirrors = returned.awaited_without_limit(record)
        if not mirrors or returned.has_told:
            return
        returned.has_told = True
        log_event(
            log,
            logging.WARNING,
            "damaged_leader_waits",
            queue=led.queue.name,
            vhost=led.queue.vhost_name,
            waits_for=damaged_leader_waits_for(record, mirrors),
        )

    def _has_majority(self, record: QueueRecord) -> bool:
        """Whether enough members of a quorum queue are up for it to go on. Until then its
        definition stays as it is: others may be able to go on without this node."""
        running = self._nodes.running()
        return sum([member in running for member in record.members]) >= (
            majority_of(record.members) if record.members else 0
        )

    def _ask_to_lead(self, node: str, led: LedQueue, answer: Callable[[bool], None]) -> None:
        record = self._definitions.record_of(led.key, led.queue.queue_id)
        if record is None:
            return
        at = (node, led.queue.queue_id)
        known = (record.epoch, record.ballot)

        def answered(has_one: bool) -> None:
            if has_one:
                answer(True)
            elif self._formers.is_damaged(led.storage_id):
                self._copies.ask(TAKE_LEAD_FROM_DISK, *at, answer, *known)
            else:
                self._leader_calls.ask_for_more(led, node, answered_of_disk)

        def answered_of_disk(has_more: bool) -> None:
            if has_more:
                self._lacks_messages(led, node)
            else:
                answer(False)

        self._copies.ask(TAKE_LEAD, *at, answered, *known)

    def _lacks_messages(self, led: LedQueue, mirror: str) -> None:
        """The end of the log was lost on the disk of this node, or that is an older copy of itself:
        have a mirror lead, as if the disk had been found damaged."""
        if self._formers.is_damaged(led.storage_id) or led.returned is None:
            return
        self._formers.is_lacking(led.storage_id)
        log_event(
            log,
            logging.WARNING,
            "leader_lacks_messages",
            queue=led.queue.name,
            vhost=led.queue.vhost_name,
            mirror=mirror,
            action="mirrors_in_sync_are_asked_to_lead",
        )
        self._begin_to_look(led)

    def reclaim(self, led: LedQueue, returned: ReturnedLeader | None = None) -> None:
        """No mirror has taken the lead: go on without the mirrors that the definition named."""
        if not self.is_led(led) or not led.leader.fenced:
            return

        has_lost = bool(led.leader.holes) or self._formers.is_damaged(led.storage_id)

        def alone(record: QueueRecord) -> QueueRecord | None:
            if record.leader != self._nodes.name or record.epoch != led.leader.epoch:
                return None
            if returned is not None and returned.awaited(record):
                led.returned = returned
                return None
            return msgspec.structs.replace(
                record,
                epoch=record.epoch + 1,
                mirrors=[],
                in_sync=[],
                former=former_without(record, record.leader, ()),
                missing=0,
                promoted=DAMAGED_LEADER_BACK if has_lost else LEADER_BACK,
                promoted_at=self._clock.wall_time(),
                down=False,
            )

        def go_on() -> None:
            epoch = led.leader.epoch
            known = led.leader.renumbering
            retained = self._formers.retained
            superseded = retained.begin_generation(led.queue, 1, known.retained_since)
            known.retains_anew(superseded)
            write_card_of_leader(self._formers, led).then(lambda: go_on_as_noted(epoch))

        def go_on_as_noted(epoch: int) -> None:
            record = self._definitions.record_of(led.key, led.queue.queue_id)
            is_as_it_was = led.leader.fenced and led.leader.epoch == epoch
            if self.is_led(led) and record is not None and is_as_it_was:
                self.promotions[Promotion.LEADER_BACK] += 1
                led.go_on_alone(self._joining(led, record), led.leader.epoch)
                self.hand_overs.on_stay(led.queue)

        self._definitions.write_record(led.key, led.queue.queue_id, alone, go_on)

    def _joining(self, led: LedQueue, record: QueueRecord) -> CarrierMember:
        """A new member in place of the one that has stopped, or never begun."""
        carrier = self._carriers[led.carrier]
        carrier.forget(led.member)
        return carrier.join(record, led)

    # Leading ends

    def fence(self, led: LedQueue) -> None:
        """Confirm and hand out nothing more: another node leads, or may soon."""
        led.leader.fenced = True
        led.at_rest = False
        self.hand_overs.drop(led.queue.queue_id)
        if not led.queue.is_held:
            led.queue.hold()

    def unlead(self, led: LedQueue) -> None:
        """Stop mirroring a queue, which has no mirrors any more and should have none."""
        queue = led.queue
        # No node is left that it could be handed over to.
        self.hand_overs.mirrors_changed(queue.queue_id, ())
        del self.led[queue.queue_id]
        self.from_afar.origins.pop(queue.queue_id, None)
        self._effects.leads_no_more(led)
        self._renumberings[queue.queue_id] = led.leader.renumbering
        if not led.leader.renumbering.has_gaps:
            # With gaps, a copy that is away may have messages that this node lacked when it took
            # over, and has to be told which ones.
            self._formers.remove_card(led.storage_id)
        for mirror in list(led.leader.mirrors):
            # The definition names this mirror no more; the leader may not know it yet.
            led.leader.remove_mirror(mirror)
        led.leader.flush()
        led.member.leave()
        self._carriers[led.carrier].delete_group(queue.queue_id)
        _replace_levels(queue, [level.unwrapped() for level in led.leader.levels])
        # Confirms and hand-outs wait for no other node any more.
        led.leader.confirm_alone()
        led.leader.let_go()
        queue.set_lacks_copies(False)
        queue.hand_out()

    def end(self, queue: LocalQueue) -> None:
        """End the lead of a queue that was deleted, or that another node leads now."""
        key = queue.key
        self.from_afar.forget(queue.queue_id)
        self.promoted.pop(queue.queue_id, None)
        self._renumberings.pop(queue.queue_id, None)
        self.hand_overs.drop(queue.queue_id)
        led = self.led.pop(queue.queue_id, None)
        deleted = self._definitions.record_of(key, queue.queue_id) is None
        self._formers.retained.leads_no_more(key, queue, deleted=deleted)
        if led is None:
            return
        self._effects.leads_no_more(led)
        led.leader.end(refuse=not deleted or led.leader.fenced)
        led.member.leave()
        if deleted:
            self._carriers[led.carrier].delete_group(queue.queue_id)
            self._formers.remove_card(led.storage_id)
            # Not at once: the queue object deletes its messages before that.
            self._clock.call_soon(lambda: _part(queue, led))
        else:
            self._keep_former_copy(led)
            _part(queue, led)

    def _keep_former_copy(self, led: LedQueue) -> None:
        """Make a former copy of the queue: the node that leads now may want a mirror here."""
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
        former.is_damaged = self._formers.is_damaged(led.storage_id)
        self._formers.keep(led.queue.queue_id, former)
        self._effects.search(led, former)

    def stop(self) -> None:
        """The node stops in order: let mirrors take the lead at once if that loses nothing.

        A queue without a mirror in sync waits for this node to come back, unless its policy wants
        it to go on at any price.
        """
        self.is_stopping = True
        present = self._nodes.present()
        for led in list(self.led.values()):
            # Nodes that are up have made former copies of mirrors that are no longer named.
            stopped = [mirror for mirror in led.leader.left_with_all() if mirror not in present]
            last_words = partial(at_stop, led.wanted, led.leader.epoch, stopped)
            led.leader.tell_handed_out()
            led.leader.flush()
            self._definitions.write_record(led.key, led.queue.queue_id, last_words)
            led.leader.fenced = True
            led.member.leave()


def write_card_of_leader(formers: FormerCopies, led: LedQueue) -> Commit:
    """Write that this node leads a queue, and in which epoch."""
    leader, queue = led.leader, led.queue
    if not queue.durable:
        return CompletedCommit()
    deltas, known = [0] * len(leader.levels), leader.renumbering
    at = (led.storage_id, queue.queue_id, leader.epoch)
    return formers.write_card(*at, deltas, known, led=True)


def _replace_levels(queue: LocalQueue, levels: list[BackingQueue]) -> None:
    """Replace the backing queue of the queue, or the levels of that, by these levels."""
    if isinstance(queue.backing, PriorityQueue):
        queue.backing.replace_levels(levels)
    else:
        queue.backing = levels[0]


def _part(queue: LocalQueue, led: LedQueue) -> None:
    """Cut the references between a queue that has ended and its leader, so that both are freed."""
    queue.backing = MemoryQueue()
    led.leader.let_go()
