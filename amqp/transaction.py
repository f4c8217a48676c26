"""A transaction of a channel (amqp_semantics.md section 7): publishes and verdicts held back.

Publishes are checked and routed when they arrive; queues and basic.return hear of them at commit.
There is no rollback across queues. commit-ok waits for every queue to have every message safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from warren.amqp.publishing import QUEUE_US, Route
from warren.amqp.settling import SETTLED_AT_ONCE, SETTLED_US
from warren.core.errors import PreconditionFailed
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PENDING, REJECTED
from warren.core.messages.stock import NOTHING, Stock
from warren.core.queues.queue import Queue
from warren.core.scheduling.waiting import Until

if TYPE_CHECKING:
    from warren.amqp.channel import Channel
    from warren.amqp.verdict import Verdict

PUBLISH_US = 3
"""What handing over a publish costs besides its queues, as `core/scheduling/turns.py` counts it."""


class Transaction:
    """What a channel in tx mode has not committed yet."""

    __slots__ = ("_channel", "_on_news", "_publishes", "_refused", "_unsafe", "_verdicts")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._publishes: list[tuple[Route, Envelope, list[str], bytes]] = []
        self._verdicts: deque[tuple[dict[int, Message], Verdict]] = deque()
        self._unsafe = 0
        self._refused = False
        self._on_news: Callable[[], None] | None = None

    @property
    def published(self) -> int:
        """Publishes that wait for the commit."""
        return len(self._publishes)

    @property
    def judged(self) -> int:
        """Messages whose verdict waits for the commit."""
        return sum([len(unacked) for unacked, _ in self._verdicts])

    def judged_messages(self) -> Iterator[Message]:
        """Those messages."""
        for unacked, _ in self._verdicts:
            yield from unacked.values()

    def publish(
        self, route: Route, envelope: Envelope, queues: tuple[Queue, ...], body: bytes
    ) -> None:
        self._publishes.append((route, envelope, [queue.name for queue in queues], body))

    def judge(self, unacked: dict[int, Message], verdict: Verdict) -> None:
        if self._verdicts and self._verdicts[-1][1] is verdict:
            self._verdicts[-1][0].update(unacked)
        else:
            self._verdicts.append((unacked, verdict))

    async def commit(self) -> None:
        """Hand everything over, and return when all of it is safe.

        Raises `PreconditionFailed` if a queue refused a message; the rest is done all the same. If
        it is for a quota that all of it together would exceed, nothing is done.
        """
        self._refused = False
        self._keep_quotas()
        await self._channel.see_through(self._hand_over())
        if not self._refused:
            await Until(self, lambda: not self._unsafe or self._refused)
        if self._refused:
            raise PreconditionFailed("partial tx completion")

    def _keep_quotas(self) -> None:
        quotas = self._channel.vhost.quotas
        if quotas is None:
            return
        wanted: dict[Queue, Stock] = {}
        queues = self._channel.vhost.queues
        for _, _, names, body in self._publishes:
            for queue in [queues[name] for name in names if name in queues]:
                wanted[queue] = wanted.get(queue, NOTHING).plus(Stock(1, len(body)))
        quotas.take(wanted)

    async def _hand_over(self) -> None:
        """Publishes first, then verdicts, in turns where they are many."""
        turns = self._channel.connection.node.turns
        publishes, self._publishes = self._publishes, []
        for route, envelope, names, body in publishes:
            turns.spend(PUBLISH_US)
            if turns.left_us <= 0:
                await turns.pause()
            # The names were found at publish; a queue may be another one of that name by now.
            queues = self._channel.vhost.queues
            targets = [queues[name] for name in names if name in queues]
            route.exchange.published_out += len(targets)
            self._keep(route, envelope, body)
            for queue in targets:
                if turns.left_us <= 0:
                    await turns.pause()
                current = self._channel.vhost.current(queue) if queue.deleted else queue
                if current is not None:
                    turns.spend(QUEUE_US)
                    self._publish(current, envelope, body)
            if not targets:
                self._channel.unroutable(route, envelope, body)
        while self._verdicts:
            # What waits for its verdict is known to be out until then.
            unacked, verdict = self._verdicts[0]
            chosen = [unacked.pop(tag) for tag in list(islice(unacked, SETTLED_AT_ONCE))]
            if not unacked:
                self._verdicts.popleft()
            self._channel.settle(chosen, verdict)
            turns.spend(SETTLED_US * len(chosen))
            await turns.pause()

    def _keep(self, route: Route, envelope: Envelope, body: bytes) -> None:
        # Its connection may be gone.
        keys = (route.routing_key, *envelope.copies)
        self._channel.vhost.histories.keep(route.exchange, keys, envelope, body)

    def _publish(self, queue: Queue, envelope: Envelope, body: bytes) -> None:
        queue.published += 1
        answer = queue.publish(envelope, body, self, 0)
        self._unsafe += answer is PENDING
        self._refused |= answer is REJECTED

    def then(self, callback: Callable[[], None]) -> None:
        """`Awaited`: call back when everything is safe, or something refused."""
        self._on_news = callback

    def settle(self, publish_seq: int) -> None:
        """`PublishConfirms`: one more message of the commit is safe."""
        self._unsafe -= 1
        if not self._unsafe:
            self._tell()

    def refuse(self, publish_seq: int) -> None:
        """`PublishConfirms`: a queue may not have one of the messages."""
        self._unsafe -= 1
        self._refused = True
        self._tell()

    def rollback(self) -> None:
        """Forget the publishes; what was judged is outstanding again."""
        self._publishes.clear()
        verdicts, self._verdicts = self._verdicts, deque()
        judged: dict[int, Message] = {}
        for unacked, _ in verdicts:
            judged.update(unacked)
        self._channel.put_back(judged)

    def _tell(self) -> None:
        on_news, self._on_news = self._on_news, None
        if on_news is not None:
            on_news()
