"""A transaction of a channel (amqp_semantics.md section 7): publishes and verdicts until commit.

Publishes are checked and routed when they arrive; they reach queues, or are returned, at commit.
There is no rollback across queues. commit-ok waits until all queues report their messages safe.

A message that a client takes from one queue and publishes to another in a transaction is in one of
them at any moment. When all queues are on this node only, one sync writes publishes and
acknowledgements. When another node has a part in one of the queues, verdicts wait until all
publishes are safe. When a queue refuses a publish, no verdict is carried out: the channel closes,
and its messages return to their queues. RabbitMQ acknowledges them in this case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from warren.amqp.publishing import QUEUE_US, Route
from warren.amqp.settling import SETTLED_AT_ONCE, SETTLED_US
from warren.amqp.verdict import Verdict
from warren.core.errors import PreconditionFailed
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PENDING, REJECTED, PublishConfirms, Settlement
from warren.core.messages.stock import NOTHING, Stock
from warren.core.queues.consumers import ConsumedQueue
from warren.core.queues.queue import Queue
from warren.core.scheduling.waiting import Until, Waiting
from warren.core.scheduling.waiting import run as go
from warren.core.vhosts.vhost import VirtualHost

PUBLISH_US = 3
"""The cost of handing over a publish, without its queues, as in `core/scheduling/turns.py`."""


IN_ONE_CALL_US = 2
"""The same for each of many publishes that are handed over in one call."""

AT_ONCE = 256
"""Publishes handed over before checking whether the turn is over."""


class CommittingChannel(Protocol):
    """A channel in tx mode, as its transaction uses it."""

    @property
    def vhost(self) -> VirtualHost: ...

    @property
    def sources(self) -> Iterable[ConsumedQueue]:
        """The queues that may have handed out messages to the channel."""
        ...

    def see_through(self, waiting: Waiting[None]) -> Waiting[None]:
        """Run an operation to its end, even if the channel ends meanwhile."""
        ...

    def settle(self, messages: list[Message], verdict: Verdict) -> None:
        """Carry out a verdict."""
        ...

    def put_back(self, unacked: dict[int, Message]) -> None:
        """Make messages outstanding again."""
        ...

    def unroutable(self, route: Route, envelope: Envelope, body: bytes) -> None:
        """A publish reached no queue."""
        ...


class _PublishRun:
    """Consecutive publishes with the same route and queues.

    `plain`: none of them expires, and the routing key alone determines their queues.
    """

    __slots__ = ("bodies", "envelopes", "names", "plain", "queues", "route")

    def __init__(self, route: Route, queues: tuple[Queue, ...], plain: bool) -> None:
        self.route = route
        self.queues = queues
        self.names = [queue.name for queue in queues]
        self.plain = plain
        self.envelopes: list[Envelope] = []
        self.bodies: list[bytes] = []


class Transaction(PublishConfirms):
    """The uncommitted work of a channel in tx mode. `published` counts its publishes."""

    __slots__ = ("_channel", "_on_news", "_refused", "_runs", "_unsafe", "_verdicts", "published")

    def __init__(self, channel: CommittingChannel) -> None:
        self._channel = channel
        self._runs: list[_PublishRun] = []
        self.published = 0
        self._verdicts: deque[tuple[dict[int, Message], Verdict]] = deque()
        self._unsafe = 0
        self._refused = False
        self._on_news: Callable[[], None] | None = None

    @property
    def judged(self) -> int:
        """The number of messages whose verdict waits for the commit."""
        return sum([len(unacked) for unacked, _ in self._verdicts])

    def judged_messages(self) -> Iterator[Message]:
        """The messages whose verdict waits for the commit."""
        for unacked, _ in self._verdicts:
            yield from unacked.values()

    def publish(
        self, route: Route, envelope: Envelope, queues: tuple[Queue, ...], body: bytes
    ) -> None:
        by_key = route.queues is not None and not envelope.copies
        run = self._run(route, queues, by_key and envelope.expiration_ms is None)
        run.envelopes.append(envelope)
        run.bodies.append(body)
        self.published += 1

    def publish_many(
        self,
        route: Route,
        queues: tuple[Queue, ...],
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
    ) -> None:
        """`publish` each of these messages; none of them may have an expiration."""
        run = self._run(route, queues, True)
        run.envelopes += envelopes
        run.bodies += bodies
        self.published += len(bodies)

    def _run(self, route: Route, queues: tuple[Queue, ...], plain: bool) -> _PublishRun:
        """The run that a publish with this route joins."""
        if self._runs:
            last = self._runs[-1]
            if last.route is route and last.queues is queues and last.plain is plain:
                return last
        run = _PublishRun(route, queues, plain)
        self._runs.append(run)
        return run

    def judge(self, unacked: dict[int, Message], verdict: Verdict) -> None:
        if self._verdicts and self._verdicts[-1][1] is verdict:
            self._verdicts[-1][0].update(unacked)
        else:
            self._verdicts.append((unacked, verdict))

    async def commit(self) -> None:
        """Hand over publishes and verdicts, and return when all publishes are safe.

        Raises `PreconditionFailed` if a queue refuses a message; other queues keep theirs. Raises
        it before any queue gets a message if all of them together would exceed a quota.
        """
        self._refused = False
        self._keep_quotas()
        await self._channel.see_through(self._hand_over())
        await self._answers()
        if self._refused:
            raise PreconditionFailed("partial tx completion")

    def _keep_quotas(self) -> None:
        quotas = self._channel.vhost.quotas
        if quotas is None:
            return
        wanted: dict[Queue, Stock] = {}
        queues = self._channel.vhost.queues
        for run in self._runs:
            stock = Stock(len(run.bodies), sum(map(len, run.bodies)))
            for queue in [queues[name] for name in run.names if name in queues]:
                wanted[queue] = wanted.get(queue, NOTHING).plus(stock)
        quotas.take(wanted)

    def _answers(self) -> Until:
        """Wait until everything is safe, or a queue has refused a message."""
        return Until(self, lambda: not self._unsafe or self._refused)

    async def _hand_over(self) -> None:
        """Hand over publishes, then verdicts; many of them take several turns."""
        spread = bool(self._verdicts) and self._is_spread()
        await self._hand_over_publishes()
        if spread:
            await self._answers()
        if not self._refused:
            await self._hand_over_verdicts()

    def _is_spread(self) -> bool:
        """Whether another node has a part in one of the queues. If so, no single sync writes both
        publishes and acknowledgements."""
        queues = self._channel.vhost.queues
        names = {name for run in self._runs for name in run.names}
        targets = [queues[name] for name in names if name in queues]
        return any(
            not queue.is_here or queue.mirrored for queue in (*self._channel.sources, *targets)
        )

    async def _hand_over_publishes(self) -> None:
        turns = self._channel.vhost.turns
        runs, self._runs = self._runs, []
        self.published = 0
        for run in runs:
            for at in range(0, len(run.bodies), AT_ONCE):
                await turns.pause()
                envelopes, bodies = run.envelopes[at : at + AT_ONCE], run.bodies[at : at + AT_ONCE]
                queue = self._taker_of_many(run)
                if queue is None:
                    await self._publish_each(run, envelopes, bodies)
                    continue
                turns.spend(IN_ONE_CALL_US * len(bodies))
                run.route.exchange.published_out += len(bodies)
                queue.published += len(bodies)
                self._count(queue.publish_many(envelopes, bodies, self, 0))
            self._let_go(run)

    async def _hand_over_verdicts(self) -> None:
        turns = self._channel.vhost.turns
        while self._verdicts:
            # Messages stay in `_verdicts` until they are settled: they are outstanding till then.
            unacked, verdict = self._verdicts[0]
            chosen = [unacked.pop(tag) for tag in list(islice(unacked, SETTLED_AT_ONCE))]
            if not unacked:
                self._verdicts.popleft()
            self._channel.settle(chosen, verdict)
            turns.spend(SETTLED_US * len(chosen))
            await turns.pause()

    def _taker_of_many(self, run: _PublishRun) -> Queue | None:
        """The queue of a run that has only one, if it takes many messages in one call.

        It is looked up by name: since the routing another queue may have taken the name.
        """
        if not run.plain or len(run.names) != 1:
            return None
        queue = self._channel.vhost.queues.get(run.names[0])
        return None if queue is None or queue.one_by_one else queue

    async def _publish_each(
        self, run: _PublishRun, envelopes: Sequence[Envelope], bodies: Sequence[bytes]
    ) -> None:
        turns, vhost = self._channel.vhost.turns, self._channel.vhost
        for envelope, body in zip(envelopes, bodies, strict=True):
            turns.spend(PUBLISH_US)
            if turns.over:
                await turns.pause()
            targets = [vhost.queues[name] for name in run.names if name in vhost.queues]
            run.route.exchange.published_out += len(targets)
            # Publishes of a run may differ in routing keys; its route has only the first.
            keys = envelope.routing_keys
            vhost.histories.keep(run.route.exchange, keys, envelope, body)
            for queue in targets:
                if turns.over:
                    await turns.pause()
                current = vhost.current(queue)
                if current is not None:
                    turns.spend(QUEUE_US)
                    current.published += 1
                    self._count((current.publish(envelope, body, self, 0),))
            if not targets:
                self._channel.unroutable(run.route, envelope, body)

    def _count(self, answers: Sequence[Settlement]) -> None:
        self._unsafe += answers.count(PENDING)
        self._refused |= REJECTED in answers

    def _let_go(self, run: _PublishRun) -> None:
        """Free the publishes of a run, some in each turn."""
        turns = self._channel.vhost.turns
        turns.let_go(run.envelopes)
        turns.let_go(run.bodies)

    def then(self, callback: Callable[[], None]) -> None:
        """`Awaited`: call back when everything is safe, or a queue has refused a message."""
        self._on_news = callback

    def settle(self, publish_seq: int) -> None:
        """`PublishConfirms`: one more message of the commit is safe."""
        self._unsafe -= 1
        if not self._unsafe:
            self._tell()

    def refuse(self, publish_seq: int) -> None:
        """`PublishConfirms`: a queue has refused a message, or is not known to have it."""
        self._unsafe -= 1
        self._refused = True
        self._tell()

    def rollback(self) -> None:
        """Drop the publishes; messages with a verdict are outstanding again."""
        runs, self._runs = self._runs, []
        self.published = 0
        if self._channel.vhost.observer is None:
            for run in runs:
                self._let_go(run)
        else:
            go(self._tell_observer(runs), lambda result: result())
        verdicts, self._verdicts = self._verdicts, deque()
        judged: dict[int, Message] = {}
        for unacked, _ in verdicts:
            judged.update(unacked)
        self._channel.put_back(judged)

    async def _tell_observer(self, runs: Sequence[_PublishRun]) -> None:
        """Report the rolled back publishes, some in each turn."""
        turns = self._channel.vhost.turns
        for run in runs:
            for envelope in run.envelopes:
                turns.spend(PUBLISH_US)
                if turns.over:
                    await turns.pause()
                observer = self._channel.vhost.observer
                if observer is not None:
                    observer.rolled_back(envelope, run.queues)
            self._let_go(run)

    def _tell(self) -> None:
        on_news, self._on_news = self._on_news, None
        if on_news is not None:
            on_news()
