"""Hands queues that this node leads over to mirrors that are in sync, without losing anything.

1. The queue is held: publishes wait, and nothing is delivered. The dead letters of messages that
   died in it are made safe, so that these do not die again at the next leader.
2. When every mirror has what was written down so far, the leader tells them exactly what counts as
   delivered, and falls silent. What comes from then on, such as an acknowledgement, is told to no
   mirror: otherwise a mirror would do what the next leader never hears of.
3. When every mirror has the last words too, the target is asked to lead.
4. The target writes itself into the definition, and the queue here gives way to one that stands for
   it (`Leadership.end`). If the target says that it cannot lead, the queue goes on where it is.
5. If the target cannot be reached any more, or takes too long, it may have written that it leads or
   be about to. It was asked to lead in one ballot; so the leader calls another one, and goes on
   when that is written. A queue that was held for all of `PATIENCE_S` is not held again for a
   while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from warren.core.definitions.records import QueueRecord
from warren.core.errors import NotFound
from warren.core.field import from_plain
from warren.core.patterns.pattern import compile_pattern
from warren.core.ports import Clock, Key
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue_type import CLASSIC, QueueType, type_of
from warren.core.scheduling.waiting import Waiting, run
from warren.mirror.messages.calls import Calls, NodeDown
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.definition.replicas import Copies, better_leader, next_leader
from warren.mirror.replication.leading.led_queue import LedQueue

PATIENCE_S = 5.0
"""How long a queue is held for a mirror that is to take the lead."""

AGAIN_S = 30.0
"""How long a queue goes on before it is held again, if `PATIENCE_S` was too short: its dead letters
or moved messages may wait for a queue that is full or cannot be reached, even for days."""

ANY_NAME = ".*"


class Standstill:
    """A queue that is held until every mirror in sync has everything; `then` is called next.

    `target` is the mirror that is to lead; None if the queue is to stay here. `stays` is called
    when the queue goes on here.
    """

    def __init__(
        self,
        led: LedQueue,
        target: str | None,
        clock: Clock,
        then: Callable[[], Waiting[bool]],
        stays: Callable[[], None],
    ) -> None:
        self.target = target
        self.took_too_long = False
        self._led = led
        self._then = then
        self._stays = stays
        self._is_over = False
        # Whether the target was asked: it may lead, unless it or the definition says otherwise.
        self._is_asked = False
        led.queue.hold()
        self._timer = clock.call_later(PATIENCE_S, self._give_up)

    def begin(self) -> None:
        self._led.queue.all_buried().then(self._buried)

    def _buried(self) -> None:
        if not self._is_over:
            self._led.leader.barrier(self._fall_silent, everywhere=True)

    def _give_up(self) -> None:
        self.took_too_long = True
        self._stay_if_possible()

    def stay(self) -> None:
        """Go on here: no other node can lead."""
        if not self._is_over:
            self.end()
            self._led.leader.speak_again()
            self._led.queue.release()
            self._stays()

    def _stay_if_possible(self) -> None:
        """Go on here unless the target leads."""
        if self._is_asked and not self._is_over:
            self._led.disputed(self.stay)
        else:
            self.stay()

    def end(self) -> None:
        """Wait for nothing more; whether the queue is released is up to the caller."""
        self._is_over = True
        self._timer.cancel()

    def _fall_silent(self, leads: bool) -> None:
        # Since the queue is held nothing was delivered; what clients returned meanwhile counts.
        if not leads or self._is_over:
            return
        if not self._led.queue.all_buried().happened:
            # Clients have rejected more messages meanwhile: wait for their dead letters, too.
            self.begin()
        else:
            self._led.leader.tell_handed_out()
            self._led.leader.fall_silent()
            self._led.leader.barrier(self._go_on, everywhere=True)

    def _go_on(self, leads: bool) -> None:
        if leads and not self._is_over:
            if self.target is None:
                # `then` ends by itself, and needs no limit of time.
                self._timer.cancel()
            self._is_asked = self.target is not None
            run(self._then(), self._answered)

    def _answered(self, result: Callable[[], bool]) -> None:
        try:
            goes = result()
        except NodeDown:
            self._stay_if_possible()
        except NotFound:
            self.stay()
        else:
            if not goes:
                self.stay()


class HandOvers:
    """The hand-overs of this node, one of a queue at a time, and the choice of their targets.

    `led` are the queues it leads, by their ids.
    """

    def __init__(
        self,
        nodes: Nodes,
        calls: Calls,
        clock: Clock,
        led: Mapping[int, LedQueue],
        definitions: QueueDefinitions,
    ) -> None:
        self._nodes = nodes
        self._calls = calls
        self._clock = clock
        self._led = led
        self._definitions = definitions
        self._under_way: dict[int, Standstill] = {}
        # When queues that were held for too long may be held again.
        self._again_at: dict[int, float] = {}
        # Called when a queue that was to be handed over stays here.
        self.on_stay: Callable[[LocalQueue], None] = lambda queue: None

    def serve(self) -> None:
        """Answer the questions of other nodes."""
        self._calls.serve("mirror.rebalance", self._asked_to_rebalance)

    # One queue

    def begin(self, led: LedQueue, target: str) -> None:
        """Hand a queue over. Nothing happens if that is under way or has just taken too long, if
        another node may lead the queue, or before the card says that this one does."""

        async def ask() -> bool:
            # The target writes that it leads, not this node: it may have died, or begun anew.
            led_now = (led.leader.queue_id, led.leader.epoch)
            takes: bool
            try:
                takes = await self._calls.ask(
                    target, "mirror.take_over_in", *led_now, led.leader.ballot
                )
            except NodeDown:
                raise
            except NotFound:
                # The target is of an earlier version, which takes over in any ballot.
                takes = await self._calls.ask(target, "mirror.take_over", *led_now)
            return takes

        self._stand_still(led, target, ask)

    def switch(self, led: LedQueue, then: Callable[[], Waiting[None]]) -> None:
        """Hold a queue, run `then` once every mirror in sync has everything, and go on here."""

        async def switched() -> bool:
            await then()
            return False

        self._stand_still(led, None, switched)

    def _stand_still(
        self, led: LedQueue, target: str | None, then: Callable[[], Waiting[bool]]
    ) -> None:
        queue = led.queue
        if queue.queue_id in self._under_way or led.leader.fenced or not led.leader.is_noted:
            return
        if self._clock.now() < self._again_at.get(queue.queue_id, 0.0):
            return

        def stays() -> None:
            del self._under_way[queue.queue_id]
            if standstill.took_too_long:
                self._again_at[queue.queue_id] = self._clock.now() + AGAIN_S
            self.on_stay(queue)

        standstill = Standstill(led, target, self._clock, then, stays)
        self._under_way[queue.queue_id] = standstill
        standstill.begin()

    def is_switching(self, queue_id: int) -> bool:
        """Whether `switch` is under way: everything of the queue is to stay as it is until then."""
        standstill = self._under_way.get(queue_id)
        return standstill is not None and standstill.target is None

    def mirrors_changed(self, queue_id: int, mirrors: Collection[str]) -> None:
        """End a hand-over whose target is not among the mirrors that a queue led here has now."""
        hand_over = self._under_way.get(queue_id)
        if hand_over is None or hand_over.target is None:
            return
        if hand_over.target not in mirrors:
            hand_over.stay()

    def drop(self, queue_id: int) -> None:
        """Forget a queue: it was deleted, or another node leads it, or may lead it."""
        self._again_at.pop(queue_id, None)
        hand_over = self._under_way.pop(queue_id, None)
        if hand_over is not None:
            hand_over.end()

    def can_take_over(self) -> Collection[str]:
        """The nodes that can be reached and are not in maintenance."""
        return [node for node in self._nodes.running() if self._nodes.may_lead(node)]

    # Many queues

    def drain(self) -> int:
        """In maintenance mode: hand over every queue of this node that another node can lead.

        Returns how many are still to go.
        """
        leads = self._leads()
        may_lead = self.can_take_over()
        count = 0
        for led, record in self._led_with_records():
            copies = Copies(record.leader, record.mirrors, record.in_sync)
            target = next_leader(copies, may_lead, leads)
            if target is not None:
                count += 1
                leads[target] = leads.get(target, 0) + 1
                self.begin(led, target)
        return count

    async def rebalance(
        self,
        vhost_pattern: str = ANY_NAME,
        queue_pattern: str = ANY_NAME,
        kind: QueueType = CLASSIC,
    ) -> dict[str, int]:
        """Have every node hand over queues to mirrors at nodes that lead fewer.

        Only mirrored queues of this type are moved, and only those whose name and virtual host
        match the patterns. Returns how many of these each node leads then. Raises `InvalidPattern`.
        """
        chosen = _chosen(vhost_pattern, queue_pattern, kind)
        records = list(self._definitions.items())
        leads: dict[str, int] = Counter([record.leader for _, record in records])
        mirrored = Counter([r.leader for key, r in records if r.mirrors and chosen(key, r)])
        for node in sorted(self._nodes.running()):
            if node == self._nodes.name:
                after = self._hand_over_surplus(leads, chosen)
            else:
                # A node that cannot be reached hands nothing over.
                try:
                    after = await self._calls.ask(
                        node, "mirror.rebalance", leads, vhost_pattern, queue_pattern, kind
                    )
                except NotFound:
                    continue
            for name, count in after.items():
                mirrored[name] += count - leads.get(name, 0)
            leads = after
        return {name: count for name, count in sorted(mirrored.items()) if count > 0}

    async def _asked_to_rebalance(
        self,
        _node: str,
        leads: dict[str, int],
        vhost_pattern: str = ANY_NAME,
        queue_pattern: str = ANY_NAME,
        kind: str = CLASSIC,
    ) -> dict[str, int]:
        chosen = _chosen(vhost_pattern, queue_pattern, QueueType(kind))
        return self._hand_over_surplus(leads, chosen)

    def _hand_over_surplus(
        self, leads: Mapping[str, int], chosen: Callable[[Key, QueueRecord], bool]
    ) -> dict[str, int]:
        """Hand queues over to nodes that lead fewer; returns how many each node leads then."""
        counts, own = dict(leads), self._nodes.name
        for led, record in self._led_with_records():
            if not chosen(led.key, record):
                continue
            in_sync = [mirror for mirror in record.in_sync if self._nodes.may_lead(mirror)]
            copies = Copies(record.leader, record.mirrors, in_sync)
            target = better_leader(copies, counts)
            if target != own:
                counts[own] = counts.get(own, 0) - 1
                counts[target] = counts.get(target, 0) + 1
                self.begin(led, target)
        return counts

    def _led_with_records(self) -> list[tuple[LedQueue, QueueRecord]]:
        """The queues that this node leads, also by their definitions, and that are not fenced."""
        records = [
            (led, self._definitions.record_of(led.key, led.queue.queue_id))
            for led in self._led.values()
        ]
        return [
            (led, at)
            for led, at in records
            if at is not None and at.leader == self._nodes.name and not led.leader.fenced
        ]

    def _leads(self) -> dict[str, int]:
        """How many queues each node leads."""
        return Counter([record.leader for record in self._definitions.records()])


def _chosen(
    vhost_pattern: str, queue_pattern: str, kind: QueueType
) -> Callable[[Key, QueueRecord], bool]:
    """The test whether a queue has this type and fits the patterns. Raises `InvalidPattern`."""
    vhosts, queues = compile_pattern(vhost_pattern), compile_pattern(queue_pattern)

    def fits(key: Key, record: QueueRecord) -> bool:
        _, vhost, name = key
        if type_of(from_plain(record.arguments)) is not kind:
            return False
        return vhosts.search(vhost) is not None and queues.search(name) is not None

    return fits
