"""The questions of leaders to the nodes that are to have mirrors, and to these."""

from __future__ import annotations

from collections.abc import Callable

from warren.core.errors import NotFound
from warren.core.scheduling.waiting import run
from warren.mirror.carriers.ports import MemberId
from warren.mirror.messages.calls import Calls, NodeDown
from warren.mirror.replication.copies.copy_questions import (
    HAS_MORE_ON_DISK,
    WRITE_CARD,
    WRITE_CARD_OF_DAMAGED,
)
from warren.mirror.replication.copies.former_copy import Kept
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.definition.queue_members import invitation_to
from warren.mirror.replication.leading.led_queue import LedQueue


class LeaderCalls:
    """Asks for the queues that this node leads; `CopiesHere` answers at other nodes."""

    def __init__(self, calls: Calls, definitions: QueueDefinitions) -> None:
        self._calls = calls
        self._definitions = definitions

    def invite(self, led: LedQueue, node: str) -> None:
        """Ask a node to have a mirror."""
        queue = led.queue
        record = self._definitions.record_of(led.key, queue.queue_id)
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

    def ask_for_more(self, led: LedQueue, node: str, answer: Callable[[bool], None]) -> None:
        """Ask a mirror whether it has messages on disk that the disk here has never had. There is
        no answer if the mirror cannot say it yet, or is away."""
        record = self._definitions.record_of(led.key, led.queue.queue_id)
        if record is None:
            return
        ends = [level.inner.end_at_start for level in led.leader.levels]
        at = (led.queue.queue_id, record.epoch, record.ballot, ends)

        async def ask() -> bool | None:
            has_more: bool | None = await self._calls.ask(node, HAS_MORE_ON_DISK, *at)
            return has_more

        def finish(result: Callable[[], bool | None]) -> None:
            try:
                has_more = result()
            except NodeDown:
                return
            except NotFound:
                # The mirror is of an earlier version, and cannot say.
                has_more = False
            if has_more is not None:
                answer(has_more)

        run(ask(), finish)

    def ask_for_card(self, led: LedQueue, mirror: MemberId, answer: Callable[[bool], None]) -> None:
        """Ask a mirror that is whole to write its card; see `AskForCard`. It may have been told to
        begin before all holes of the leader were known."""
        known = led.leader.renumbering
        at = (led.queue.queue_id, led.leader.epoch, mirror.incarnation)

        async def ask() -> bool:
            is_durable: bool
            if known.has_holes:
                told = (WRITE_CARD_OF_DAMAGED, *at, *known.plain())
                try:
                    is_durable = await self._calls.ask(mirror.node, *told)
                except NodeDown:
                    raise
                except NotFound:
                    # The mirror is of an earlier version, which is told of no more holes.
                    is_durable = await self._calls.ask(mirror.node, WRITE_CARD, *at)
            else:
                is_durable = await self._calls.ask(mirror.node, WRITE_CARD, *at)
            return is_durable

        def finish(result: Callable[[], bool]) -> None:
            try:
                answer(result())
            except NodeDown:
                answer(False)
            except NotFound:
                # The mirror is of an earlier version, and writes its card by itself.
                answer(True)

        run(ask(), finish)
