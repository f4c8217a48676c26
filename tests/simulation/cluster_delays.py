"""Delayed messages of a simulated cluster: an exchange that every queue is bound to by its name.

What goes through it counts as any other publish, with these differences: its place in the queue is
not that of its number, it may come twice where the queue it waits in was led anew meanwhile
(`docs/delayed.md`), it does not come before it is due, and nothing waits when all is over.
"""

from __future__ import annotations

from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, cast

import cluster_checks as checks
from cluster_checks import DELAY_QUEUE, DELAYED
from cluster_client import ADMIN, ClientChannel, Publish, Session
from pamqp import commands

from warren.core.field import Field
from warren.core.messages.message import Message
from warren.core.vhosts.delay_queue import DelayQueue

if TYPE_CHECKING:
    from cluster_history import History

DELAYS_MS = (20, 20, 300, 300, 2500)

CLOCKS_DIFFER_S = 0.3
"""Times of day of the nodes of these histories differ by no more. They are what is on a disk."""

OVERDUE_S = 1.0
"""How long it may take them to leave once they are due, when nothing fails."""

ROUNDED_S = 0.001


class Delays:
    """Of one history."""

    def __init__(self, history: History) -> None:
        self._history = history

    def declare(self, session: Session) -> None:
        arguments = {"x-delayed-type": Field("S", b"direct")}
        session.channel(ADMIN).asks(
            commands.Exchange.Declare,
            exchange=DELAYED,
            exchange_type="x-delayed-message",
            durable=True,
            arguments=arguments,
        )

    def bind(self, queue: str, session: Session) -> None:
        session.channel(ADMIN).asks(
            commands.Queue.Bind, queue=queue, exchange=DELAYED, routing_key=queue
        )

    def delete(self, session: Session) -> None:
        session.channel(ADMIN).asks(commands.Exchange.Delete, exchange=DELAYED)

    def publishes(
        self, channel: ClientChannel, publish: Publish, delay_ms: int, properties: dict[str, Any]
    ) -> None:
        self._history.seen["delayed"] += 1
        publish.due_at = self._history.now + delay_ms / 1000
        headers = {"x-delay": Field("I", delay_ms)}
        channel.publishes(publish, exchange=DELAYED, headers=headers, **properties)

    # What operators do

    def choose(self, random: Random) -> None:
        """Have somebody send some of the next due ones now, or drop them."""
        queues = list(self._leading())
        if not queues:
            return
        queue = random.choice(queues)
        chosen = [
            message
            for message in queue.look_at(islice(queue.due_order(), 5))
            if random.random() < 0.5
        ]
        positions = [message.position for message in chosen]
        if random.random() < 0.5:
            for publish in self._of(chosen):
                publish.due_at = self._history.now
            self._history.seen["delayed, sent by hand"] += queue.send_now(positions)
        else:
            for publish in self._of(chosen):
                publish.excused = publish.excused or "somebody dropped it while it was delayed"
            self._history.seen["delayed, dropped by hand"] += queue.cancel(positions)

    def _of(self, messages: list[Message]) -> list[Publish]:
        return [self._history.publishes[int(message.body)] for message in messages]

    def _leading(self) -> list[DelayQueue]:
        cluster = self._history.cluster
        found = [cluster[name].vhost.queues.get(DELAY_QUEUE) for name in cluster.working]
        here = [queue for queue in found if queue is not None and queue.is_here]
        return [cast(DelayQueue, queue) for queue in here if not queue.is_held]

    # Checks

    def check_received(self, publish: Publish) -> None:
        if publish.due_at is None:
            return
        now, ledger = self._history.now, self._history.ledger
        early_s = CLOCKS_DIFFER_S if ledger.may_come_twice(publish) else 0.0
        assert now + early_s + ROUNDED_S >= publish.due_at, (
            f"{publish} comes {publish.due_at - now:.3f} s before it is due"
        )

    def check_rest(self) -> None:
        """Nothing waits that has been due for some time."""
        record = checks.record_of(self._history.cluster, DELAY_QUEUE)
        assert record is not None, "the delay queue is gone"
        node = self._history.cluster[record.leader]
        queue = cast(DelayQueue, node.queue(DELAY_QUEUE))
        overdue = [
            publish
            for publish in self._of(queue.look_at(islice(queue.due_order(), 5)))
            if publish.due_at is not None and publish.due_at + OVERDUE_S < self._history.now
        ]
        assert not overdue and not queue._under_way, (
            f"{overdue} still wait at {record.leader}, {queue._under_way} are under way"
        )
