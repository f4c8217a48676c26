"""The dead letters of a virtual host: what died, and its way to the dead letter exchanges.

A message that died in a queue stays there, pending and on disk, until its dead letter is safe
(`succession.py`); then the queue is told that it is buried. One that died before a queue took it,
such as with a time to live of 0, is its publisher's until then: the confirm waits.

The dead letters of some queues must arrive (`QueueSettings.keeps_dead`). Those that no queue takes
are kept, and routed again after 1 to 10 s; few of them are on the way at a time.

The dead wait in one line, the oldest first. A burial may be the cause of further deaths, which
join the line, so cascades of any depth need no recursion. How much of the line is worked off in a
turn is up to the node (`turns.py`). Bodies that were paged out are read when it is their turn.

Delayed messages that are due go the same way, from a delay queue to where their exchange routes
them (`delay_queue.py`).

What a dead letter looks like is amqp_semantics.md section 9.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from warren.core.exchanges.delay import when_due
from warren.core.exchanges.exchange import Exchange
from warren.core.exchanges.routing import DEFAULT_EXCHANGE
from warren.core.log_line import log_event
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import MessageObserver
from warren.core.messages.succession import Succession
from warren.core.ports import Clock, ContentCodec, Timer
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue
from warren.core.queues.queue_owner import DeathReason
from warren.core.scheduling.turns import TURN_US, Turns, Unfinished
from warren.core.scheduling.waiting import Event
from warren.core.vhosts import dead_letter
from warren.core.vhosts.histories import Histories
from warren.core.vhosts.node_counts import Death, NodeCounts

log = logging.getLogger("warren.queue")

BURIAL_US = 10
"""What a burial costs: headers decoded, a death added, encoded again, routed."""

FIRST_DEATH_OCTETS = 200
HEADER_OCTETS_PER_US = 8
"""Headers grow with every death, and most of what a burial costs is theirs from the second on."""

DEATH_US = 1
"""A call that lets messages die makes the line longer, and waits while a turn is used up by it."""

ON_THE_WAY_MAX = 5000
"""Dead letters of one queue that are published and not safe yet. If they cannot get where they are
to go, those behind them stay where they can be paged out, and those of other queues go on."""

INSISTED_ON_MAX = 32
"""Dead letters of one queue that are on their way at a time, where they must arrive (the strategy
`at-least-once`). It is small because those that no queue takes are all kept in memory."""

KEPT_AGAIN_FIRST_S = 1.0
KEPT_AGAIN_S = 10.0
"""Dead letters that no queue has taken are routed again: first so soon, then after twice the time
each, up to the longest."""

QUEUE_US = 5
"""The cost of each queue that takes the dead letter."""


HAPPENED = Event()
HAPPENED.happen()


class Routes(Protocol):
    """The calls of burials to the virtual host."""

    @property
    def exchanges(self) -> Mapping[str, Exchange]: ...

    @property
    def queues(self) -> Mapping[str, Queue]: ...

    def queues_for(
        self, exchange: Exchange, routing_keys: Sequence[str], header: bytes
    ) -> tuple[Queue, ...]: ...

    def reply(self, envelope: Envelope, body: bytes, routing_keys: Iterable[str]) -> None: ...

    @property
    def observer(self) -> MessageObserver | None:
        """The observer of what becomes of messages."""
        ...

    @property
    def histories(self) -> Histories: ...


class _Dead:
    """Messages that died together. Without `done`, the queue is told when they are buried. `again`:
    they were published before, and no queue took them."""

    __slots__ = ("again", "done", "messages", "queue", "reason")

    def __init__(
        self,
        queue: LocalQueue,
        messages: Iterable[Message],
        reason: DeathReason,
        done: Callable[[], None] | None,
        *,
        again: bool = False,
    ) -> None:
        self.again = again
        self.queue = queue
        self.messages = deque(messages)
        self.reason = reason
        self.done = done


class Burials:
    """The dead letters of one virtual host. Implements `queue.DeadLetters`."""

    def __init__(
        self,
        routes: Routes,
        clock: Clock,
        codec: ContentCodec,
        turns: Turns,
        counts: NodeCounts,
    ) -> None:
        self._routes = routes
        self._clock = clock
        self._codec = codec
        self._turns = turns
        self._counts = counts
        self._succession = Succession(clock, turns, lambda name: routes.queues.get(name))
        self._line: deque[_Dead] = deque()
        # By queue: how many dead letters are on the way, and the dead that wait because these are
        # too many.
        self._on_the_way: dict[LocalQueue, int] = {}
        self._stalled: dict[LocalQueue, deque[_Dead]] = {}
        # The dead of each queue that are not buried yet, and the buried ones it is to be told of.
        self._unburied: dict[LocalQueue, dict[Message, None]] = {}
        self._buried: dict[LocalQueue, list[Message]] = {}
        # Happens when nothing of a queue is left to bury.
        self._awaited: dict[LocalQueue, Event] = {}
        # Dead letters that must arrive and that no queue has taken.
        self._kept: dict[LocalQueue, list[_Dead]] = {}
        self._keeping: Timer | None = None
        self._kept_again_s = KEPT_AGAIN_FIRST_S
        self._held = False
        self._burying = False
        self._scheduled = False
        self._telling = False

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way: every dead letter is safe or held, and the queues know
        it."""
        waits = self._line and not self._held
        return not (waits or len(self._succession) or self._buried)

    def of_queue(self, queue: LocalQueue) -> Iterator[Message]:
        """The dead of a queue that are not buried yet; they are pending in its backing queue."""
        yield from self._unburied.get(queue, ())

    def died(self, queue: LocalQueue, count: int, reason: DeathReason) -> None:
        settings = queue.settings
        if settings.dead_letter_exchange is None:
            strategy = "disabled"
        else:
            strategy = "at_least_once" if settings.keeps_dead else "at_most_once"
        self._counts.dead[Death(settings.type, strategy, reason)] += count

    def bury(self, queue: LocalQueue, messages: Sequence[Message], reason: DeathReason) -> None:
        if queue.settings.delays is None:
            self.died(queue, len(messages), reason)
        self._turns.spend(DEATH_US)
        self._unburied.setdefault(queue, {}).update(dict.fromkeys(messages))
        self._line.append(_Dead(queue, messages, reason, None))
        self._work()

    def bury_unkept(
        self, queue: LocalQueue, message: Message, reason: DeathReason, done: Callable[[], None]
    ) -> None:
        self.died(queue, 1, reason)
        self._turns.spend(DEATH_US)
        self._line.append(_Dead(queue, (message,), reason, done))
        self._work()

    def all_buried(self, queue: LocalQueue) -> Event:
        if queue in self._buried or not self._only_kept(queue):
            return self._awaited.setdefault(queue, Event())
        return HAPPENED

    def queue_ends(self, queue: LocalQueue) -> None:
        for dead in self._waiting(queue):
            # Bodies that only the store of the queue has are read before that goes.
            dead.messages = deque(queue.backing.load(dead.messages))
        self._forget(queue)

    def queue_moves(self, queue: LocalQueue) -> None:
        for dead in self._waiting(queue):
            dead.messages.clear()
        self._stalled.pop(queue, None)
        self._forget(queue)

    def _waiting(self, queue: LocalQueue) -> list[_Dead]:
        """The dead of the queue that are not published yet."""
        if queue not in self._unburied:
            return []
        waiting = (*self._line, *self._stalled.get(queue, ()))
        return [dead for dead in waiting if dead.queue is queue and dead.done is None]

    def hold(self) -> None:
        """Bury nothing until `release`: queues may be missing that are to come, or the node stops.

        What the node keeps on disk dies again when it has started.
        """
        self._held = True

    def release(self) -> None:
        self._held = False
        self._work()

    def end(self) -> None:
        """Forget all dead letters: the virtual host is deleted."""
        self._line.clear()
        self._stalled.clear()
        self._kept.clear()
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        self._on_the_way.clear()
        self._unburied.clear()
        self._buried.clear()
        self._succession.end()

    def _work(self) -> None:
        """Bury until the turn is over."""
        if self._burying or self._held:
            return
        self._burying = True
        try:
            # Dead letters to thousands of queues come one after the other.
            while self._line and not self._turns.over and not self._succession.unsent:
                self._bury_next()
        finally:
            self._burying = False
            if self._line:
                self._go_on_soon()
        self._tell()

    def _go_on_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._turns.soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        self._work()

    def _bury_next(self) -> None:
        dead = self._line[0]
        queue = dead.queue
        if not dead.messages:
            self._line.popleft()
            return
        self._turns.spend(DEATH_US)
        done = dead.done
        if done is None and self._is_stalled(queue):
            self._stalled.setdefault(queue, deque()).append(self._line.popleft())
            return
        message = dead.messages.popleft()
        if dead.again and message not in self._unburied.get(queue, ()):
            # The queue was deleted or has moved, and its kept dead letters are dropped.
            self._given_up(dead)
            return
        is_kept = done is None or dead.again
        if done is None:
            done = self._keeper(queue, message)
        if is_kept and not queue.deleted and not queue.backing.load((message,)):
            # Its store has lost it, and has said so.
            done()
            return
        try:
            self._publish(dead, message, done)
        except Unfinished:
            dead.messages.appendleft(message)
            if dead.done is None:
                self._arrived(queue)
            self._turns.spend(TURN_US)

    def _is_stalled(self, queue: LocalQueue) -> bool:
        """Whether too many are on the way; also while others of the queue wait for that."""
        most = INSISTED_ON_MAX if queue.settings.keeps_dead else ON_THE_WAY_MAX
        return queue in self._stalled or self._on_the_way.get(queue, 0) >= most

    def _publish(self, dead: _Dead, message: Message, done: Callable[[], None]) -> None:
        """Publish a dead letter. Raises `Unfinished`, with nothing done, if finding the queues
        takes more than a turn."""
        queue, reason = dead.queue, dead.reason
        if queue.settings.delays is not None:
            self._send_on(queue, queue.settings.delays, message, done)
            return
        routes = self._routes
        insists = queue.settings.keeps_dead and not queue.deleted
        exchange = routes.exchanges.get(queue.settings.dead_letter_exchange or DEFAULT_EXCHANGE)
        if exchange is None:
            if insists:
                self._keep(dead, message, done)
            else:
                done()
            return
        envelope, keys, headers = dead_letter.dead_lettered(
            message.envelope,
            queue.name,
            reason,
            queue.settings,
            self._clock.wall_time(),
            self._codec,
        )
        if exchange.name == DEFAULT_EXCHANGE:
            routes.reply(envelope, message.body, keys)
        circle = dead_letter.circle(headers, reason)
        targets = routes.queues_for(exchange, keys, envelope.header)
        if circle:
            targets = tuple([target for target in targets if target.name not in circle])
        header_us = max(0, len(envelope.header) - FIRST_DEATH_OCTETS) // HEADER_OCTETS_PER_US
        self._turns.spend(BURIAL_US + header_us + QUEUE_US * len(targets))
        if routes.observer is not None:
            routes.observer.dead_lettered(queue, envelope, targets)
        if not insists:
            routes.histories.keep(exchange, keys, envelope, message.body)
            self._succession.publish(targets, envelope, message.body, done)
        elif targets:
            routes.histories.keep(exchange, keys, envelope, message.body)
            arrived = partial(self._has_arrived, done)
            keep = partial(self._keep, dead, message, done)
            self._succession.publish(targets, envelope, message.body, arrived, keep)
        else:
            self._keep(dead, message, done)

    def _send_on(
        self, queue: LocalQueue, delayed: str, message: Message, done: Callable[[], None]
    ) -> None:
        """Route a message whose delay is over; one that no queue takes is dropped."""
        exchange = self._routes.exchanges.get(delayed)
        if exchange is None:
            done()
            return
        envelope = when_due(message.envelope, self._codec)
        keys = envelope.routing_keys
        targets = self._routes.queues_for(exchange, keys, envelope.header)
        self._turns.spend(BURIAL_US + QUEUE_US * len(targets))
        if self._routes.observer is not None:
            self._routes.observer.sent_on(queue, envelope, targets)
        self._routes.histories.keep(exchange, keys, envelope, message.body)
        self._succession.publish(targets, envelope, message.body, done)

    def _has_arrived(self, done: Callable[[], None]) -> None:
        self._counts.dead_confirmed += 1
        done()

    def _keep(self, dead: _Dead, message: Message, done: Callable[[], None]) -> None:
        """No queue has taken the dead letter: it is tried again later."""
        queue = dead.queue
        if queue.deleted or queue not in self._unburied:
            done()
            return
        kept = self._kept.setdefault(queue, [])
        if not kept and not dead.again:
            log_event(
                log,
                logging.WARNING,
                "dead_letters_kept",
                queue=queue.name,
                vhost=queue.vhost_name,
                reason="no queue takes them",
            )
        kept.append(_Dead(queue, (message,), dead.reason, done, again=True))
        if self._keeping is None:
            self._keeping = self._clock.call_later(self._kept_again_s, self._try_kept_again)
            self._kept_again_s = min(2 * self._kept_again_s, KEPT_AGAIN_S)
        if self._only_kept(queue):
            self._happened(queue)

    def _given_up(self, dead: _Dead) -> None:
        """Give up a kept dead letter, which ends with its queue: those behind it may go on."""
        assert dead.done is not None
        dead.done()

    def _only_kept(self, queue: LocalQueue) -> bool:
        """Whether all dead letters of the queue are kept ones, and none is on its way."""
        return len(self._unburied.get(queue, ())) == len(self._kept.get(queue, ()))

    def _try_kept_again(self) -> None:
        self._keeping = None
        kept, self._kept = self._kept, {}
        for dead in kept.values():
            self._line.extend(dead)
        self._work()

    def _keeper(self, queue: LocalQueue, message: Message) -> Callable[[], None]:
        """The callback for when a message that the queue keeps is buried."""
        self._on_the_way[queue] = self._on_the_way.get(queue, 0) + 1

        def buried() -> None:
            self._arrived(queue)
            unburied = self._unburied.get(queue)
            if unburied is None or message not in unburied:
                # The queue is gone.
                return
            del unburied[message]
            if not unburied:
                del self._unburied[queue]
            if not self._unburied:
                self._kept_again_s = KEPT_AGAIN_FIRST_S
            self._buried.setdefault(queue, []).append(message)
            if not self._burying and not self._telling:
                self._telling = True
                self._clock.call_soon(self._tell)

        return buried

    def _arrived(self, queue: LocalQueue) -> None:
        left = self._on_the_way.pop(queue, 1) - 1
        if left:
            self._on_the_way[queue] = left
        most = INSISTED_ON_MAX if queue.settings.keeps_dead else ON_THE_WAY_MAX
        if left <= most // 2 and queue in self._stalled:
            self._line.extend(self._stalled.pop(queue))
            self._go_on_soon()

    def _tell(self) -> None:
        """Tell queues what is buried, many messages at a time."""
        self._telling = False
        buried, self._buried = self._buried, {}
        for queue, messages in buried.items():
            queue.buried(messages)
            if queue not in self._unburied:
                self._happened(queue)

    def _forget(self, queue: LocalQueue) -> None:
        """Tell the queue nothing more of its dead: it is gone, or another object stands for it."""
        self._unburied.pop(queue, None)
        self._buried.pop(queue, None)
        for dead in self._kept.pop(queue, ()):
            self._given_up(dead)
        self._happened(queue)

    def _happened(self, queue: LocalQueue) -> None:
        awaited = self._awaited.pop(queue, None)
        if awaited is not None:
            awaited.happen()
