"""Switches a queue to another carrier, without losing messages and without new copies.

1. The queue is held, and every mirror in sync gets everything there is (`hand_over.Standstill`).
2. The leader writes the other carrier into the definition, with the next epoch and the mirrors in
   sync only. Nothing else changes: positions stay, and every one of these copies is the same.
3. The leader and, when they see the definition, the mirrors leave the old carrier and join the
   other.
4. When every mirror has joined and said so, or is not named any more, the queue goes on.

If the leader dies on the way, the mirrors elect another one in the way of the carrier that the
definition names. Any of them will do: all have the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.core.errors import NotFound
from warren.core.log_line import log_event
from warren.core.ports import Clock
from warren.core.scheduling.waiting import Event, Until, run
from warren.mirror.carriers.ports import Carrier, CarrierKind, MemberId
from warren.mirror.messages.calls import Calls
from warren.mirror.replication.copies.copy_here import CopyHere
from warren.mirror.replication.copies.former_copies import FormerCopies
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.leading.leadership import write_card_of_leader
from warren.mirror.replication.leading.led_queue import LedQueue

log = logging.getLogger("warren.queue")

PATIENCE_S = 5.0
"""How long the leader waits for the mirrors to come over."""

ASK_AGAIN_S = 0.05
"""When a mirror is asked again: it hears of the definition a moment later than the leader."""


class CarriedOver(NamedTuple):
    """The answer of a mirror that has joined: its member, its storage, and its last batch."""

    incarnation: int
    storage_id: int
    batch: int


class CarrierSwitch:
    """Switches the queues that this node leads, and the copies it has of others."""

    def __init__(
        self,
        node: str,
        calls: Calls,
        clock: Clock,
        definitions: QueueDefinitions,
        carriers: Mapping[CarrierKind, Carrier],
        formers: FormerCopies,
        copies: Mapping[int, CopyHere],
    ) -> None:
        self._node = node
        self._calls = calls
        self._clock = clock
        self._definitions = definitions
        self._carriers = carriers
        self._copies = copies
        self._formers = formers

    def serve(self) -> None:
        """Answer the questions of other nodes."""
        self._calls.serve("mirror.carried_over", self._asked)

    # At the leader

    async def switch(self, led: LedQueue, kind: CarrierKind) -> None:
        """Switch a queue that stands still; return when it may go on, switched or not."""
        led.is_about_to_come_over()
        record = await self._write(led, kind)
        if record is None or led.leader.fenced:
            led.does_not_come_over()
            return
        noted, before = write_card_of_leader(self._formers, led), led.carrier
        led.member.leave()
        led.comes_over(kind, self._carriers[kind].join(record, led, led.leader.last_position))
        led.keep_all_until_heard()
        led.member.start()
        came = led.await_mirrors(record.in_sync)
        for mirror in record.in_sync:
            run(self._ask(led, mirror, record.epoch), lambda result: result())
        timer = self._clock.call_later(PATIENCE_S, led.give_mirrors_up)
        await came
        timer.cancel()
        await Until(noted, lambda: noted.done)
        log_event(
            log,
            logging.INFO,
            "carrier_switched",
            queue=led.key[2],
            vhost=led.key[1],
            carrier=kind,
            mirrors=" ".join(led.leader.mirrors) or "none",
        )
        if not led.leader.fenced or self._is_deleted(led):
            self._carriers[before].delete_group(led.queue.queue_id)

    def _is_deleted(self, led: LedQueue) -> bool:
        return self._definitions.record_of(led.key, led.queue.queue_id) is None

    async def _write(self, led: LedQueue, kind: CarrierKind) -> QueueRecord | None:
        """Write the other carrier into the definition, and return that; None if this node has lost
        the lead, or may lose it."""
        decided, epoch = Event(), led.leader.epoch
        written: list[QueueRecord] = []

        def other(record: QueueRecord) -> QueueRecord | None:
            written.clear()
            if record.leader != self._node or record.epoch != epoch or led.leader.fenced:
                decided.happen()
                return None
            written.append(
                msgspec.structs.replace(
                    record,
                    carrier=kind.stored,
                    epoch=epoch + 1,
                    mirrors=list(record.in_sync),
                    acks=led.wanted_acks,
                    missing=0,
                )
            )
            return written[0]

        self._definitions.write_record(led.key, led.queue.queue_id, other, decided.happen)
        await decided
        return written[0] if written else None

    async def _ask(self, led: LedQueue, mirror: str, epoch: int) -> None:
        until = self._clock.now() + PATIENCE_S
        while self._clock.now() < until and led.leader.epoch == epoch:
            with suppress(NotFound):
                answer = CarriedOver(
                    *await self._calls.ask(mirror, "mirror.carried_over", led.queue.queue_id, epoch)
                )
                if answer.batch == led.leader.last_position[1]:
                    led.adopt(MemberId(mirror, answer.incarnation), answer.storage_id)
                return
            pause = Event()
            self._clock.call_later(ASK_AGAIN_S, pause.happen)
            await pause

    # At a mirror

    def follow(self, copy: CopyHere, record: QueueRecord) -> None:
        """Have this copy, which is whole, join the carrier that the definition names now."""
        copy.member.leave()
        copy.mirror.goes_on_in(record.epoch)
        kind = CarrierKind.of(record)
        copy.comes_over(kind, self._carriers[kind].join(record, copy, copy.mirror.carried_out))
        copy.member.start()

    async def _asked(self, _node: str, queue_id: int, epoch: int) -> CarriedOver:
        copy = self._copies.get(queue_id)
        if copy is None or copy.mirror.epoch != epoch:
            raise NotFound(f"there is no copy of queue {queue_id} of epoch {epoch}")
        _, batch = copy.mirror.carried_out
        return CarriedOver(copy.member.me.incarnation, copy.storage_id, batch)
