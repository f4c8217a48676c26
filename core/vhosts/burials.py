"""Burials: dead messages of a virtual host, and the way of their dead letters.

A message that dies in a queue stays there, pending and on disk, until its dead letter is safe
(`succession.py`); then it is *buried*, and the queue removes it. If a message dies before a queue
has taken it, such as one with a time to live of 0, its publisher waits for the confirm until then.

The dead letters of some queues must arrive (`QueueSettings.keeps_dead`). If no queue takes one, it
is *kept* and routed again after 1 to 10 s; few of them are on the way at a time.

Dead messages wait in one line, the oldest first. A burial may cause further deaths, which join the
line, so cascades of any depth need no recursion. The line is worked off in turns (`turns.py`).
Bodies that were paged out are read when it is their turn.

Delayed messages that are due go the same way, from a delay queue to the queues that their exchange
finds (`delay_queue.py`).

amqp_semantics.md section 9 has the contents of dead letters.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
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
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import DeathReason
from warren.core.scheduling.turns import TURN_US, Turns, Unfinished
from warren.core.scheduling.waiting import Event
from warren.core.vhosts.dead_letter import DeadLetterEnvelopes
from warren.core.vhosts.histories import Histories
from warren.core.vhosts.node_counts import Death, NodeCounts

log = logging.getLogger("warren.queue")

BURIAL_US = 15
"""The cost of a burial: headers are decoded, get a death, are encoded again, and routed to a queue.
"""

TOGETHER_US = 8
"""The same for messages that died together."""

TOGETHER_MAX = 64
TOGETHER_BYTES = 256 << 10
"""Dead letters that are published together at most, and the octets of their bodies."""

FIRST_DEATH_OCTETS = 200
HEADER_OCTETS_PER_US = 8
"""Headers grow with every death; from the second on they are most of the cost of a burial."""

DEATH_US = 1
"""The cost of a call by which messages die; it makes the line longer."""

ON_THE_WAY_MAX = 5000
"""Dead letters of one queue that may be published and not safe yet. With so many, the next ones
stay in the queue, where they can be paged out, and those of other queues go on."""

INSISTED_ON_MAX = 32
"""The same for queues whose dead letters must arrive (the strategy `at-least-once`). It is small,
because those that no queue takes are all kept in memory."""

KEPT_AGAIN_FIRST_S = 1.0
KEPT_AGAIN_S = 10.0
"""The first and the longest time after which kept dead letters are routed again; it doubles in
between."""

QUEUE_US = 5
"""The cost of each further queue that takes the dead letter."""


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

    def queues_by_key(self, exchange: Exchange, routing_key: str) -> tuple[Queue, ...] | None: ...

    def reply(self, envelope: Envelope, body: bytes, routing_keys: Iterable[str]) -> None: ...

    @property
    def observer(self) -> MessageObserver | None:
        """The observer of messages; None if there is nothing to observe."""
        ...

    @property
    def histories(self) -> Histories: ...


class _Dead:
    """Messages that died together. `done` is called when they are buried; without it, the queue is
    told. `again`: they were published before, and no queue took them. `died_with` are the settings
    of the queue when they died, which may have changed since then."""

    __slots__ = ("again", "died_with", "done", "messages", "queue", "reason")

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
        self.died_with = queue.settings
        self.queue = queue
        self.messages = deque(messages)
        self.reason = reason
        self.done = done

    @property
    def is_plain(self) -> bool:
        """Whether they were in the queue, and were not published before."""
        return self.done is None and not self.again

    @property
    def settings(self) -> QueueSettings:
        """The settings that say where the dead letters go. If these must arrive, an operator may
        have corrected the settings."""
        present = self.queue.settings
        return present if present.keeps_dead else self.died_with

    def once_more(self, message: Message, done: Callable[[], None]) -> _Dead:
        """One of these, to be published again."""
        dead = _Dead(self.queue, (message,), self.reason, done, again=True)
        dead.died_with = self.died_with
        return dead

    def takes(self, queue: LocalQueue, reason: DeathReason) -> bool:
        """Whether messages that die now in this queue may be buried as part of these."""
        alike = self.queue is queue and self.reason is reason and self.is_plain
        return alike and self.died_with is queue.settings


class _Letters:
    """Dead letters for the same queues, the `targets`, that are handed over together."""

    __slots__ = ("_bodies", "_done", "_envelopes", "targets")

    def __init__(self) -> None:
        self.targets: tuple[Queue, ...] = ()
        self._envelopes: list[Envelope] = []
        self._bodies: list[bytes] = []
        self._done: list[Callable[[], None]] = []

    def add(self, envelope: Envelope, body: bytes, done: Callable[[], None]) -> None:
        self._envelopes.append(envelope)
        self._bodies.append(body)
        self._done.append(done)

    def hand_over(self, succession: Succession) -> None:
        """Publish what was added since the last time."""
        envelopes, bodies, done = self._envelopes, self._bodies, self._done
        if not bodies:
            return
        self._envelopes, self._bodies, self._done = [], [], []
        if len(self.targets) == 1:
            succession.publish_many(self.targets[0], envelopes, bodies, done)
            return
        for envelope, body, one_done in zip(envelopes, bodies, done, strict=True):
            succession.publish(self.targets, envelope, body, one_done)


class Burials:
    """The dead letters of one virtual host. Implements `DeadLetters`."""

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
        self._envelopes = DeadLetterEnvelopes(codec)
        self._turns = turns
        self._counts = counts
        self._succession = Succession(clock, turns, lambda name: routes.queues.get(name))
        self._line: deque[_Dead] = deque()
        # By queue: the number of dead letters on the way, and the dead messages that wait because
        # these are too many.
        self._on_the_way: dict[LocalQueue, int] = {}
        self._stalled: dict[LocalQueue, deque[_Dead]] = {}
        # By queue: dead messages not buried yet, and buried ones of which it has not been told.
        self._unburied: dict[LocalQueue, dict[Message, None]] = {}
        self._buried: dict[LocalQueue, list[Message]] = {}
        # By queue: the event that it has nothing to bury any more.
        self._awaited: dict[LocalQueue, Event] = {}
        # Kept dead letters: they must arrive, and no queue has taken them.
        self._kept: dict[LocalQueue, list[_Dead]] = {}
        self._keeping: Timer | None = None
        self._kept_again_s = KEPT_AGAIN_FIRST_S
        self._held = False
        self._burying = False
        self._scheduled = False
        self._telling = False

    @property
    def idle(self) -> bool:
        """Whether every dead letter is safe or held, and the queues know it."""
        waits = self._line and not self._held
        return not (waits or len(self._succession) or self._buried)

    def of_queue(self, queue: LocalQueue) -> Iterator[Message]:
        """The dead messages of a queue not buried yet; they are pending in its backing queue."""
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
        last = self._line[-1] if self._line else None
        if last is not None and last.takes(queue, reason):
            last.messages += messages
        else:
            self._line.append(_Dead(queue, messages, reason, None))
        # Others may die in this turn, and be buried together with these.
        self._go_on_soon()

    def bury_now(self) -> None:
        """Bury what has died so far, without waiting for more, unless the turn is over."""
        if self._line:
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
            # The store of the queue goes, so its bodies are read now.
            dead.messages = deque(queue.backing.load(dead.messages))
        self._forget(queue)

    def queue_moves(self, queue: LocalQueue) -> None:
        for dead in self._waiting(queue):
            dead.messages.clear()
        self._stalled.pop(queue, None)
        self._forget(queue)

    def _waiting(self, queue: LocalQueue) -> list[_Dead]:
        """The dead messages of the queue whose dead letters are not published yet."""
        if queue not in self._unburied:
            return []
        waiting = (*self._line, *self._stalled.get(queue, ()))
        return [dead for dead in waiting if dead.queue is queue and dead.done is None]

    def hold(self) -> None:
        """Bury nothing until `release`: not all queues have been made yet, or the node stops.

        Messages that are on disk die again after the next start.
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
        """Bury dead messages until the turn is over."""
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
        if self._goes_together(dead):
            self._bury_together(dead)
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
            # The store has lost the message, and has said so.
            done()
            return
        try:
            self._publish(dead, message, done)
        except Unfinished:
            dead.messages.appendleft(message)
            if dead.done is None:
                self._arrived(queue)
            self._turns.spend(TURN_US)

    def _goes_together(self, dead: _Dead) -> bool:
        """Whether these dead letters may be published many at a time: no rule looks at each."""
        settings = dead.queue.settings
        observed = self._routes.observer is not None
        return dead.is_plain and settings.delays is None and not (settings.keeps_dead or observed)

    def _bury_together(self, dead: _Dead) -> None:
        """Publish the first of these dead letters, up to `TOGETHER_MAX` and `TOGETHER_BYTES`."""
        queue, waiting = dead.queue, dead.messages
        room = ON_THE_WAY_MAX - self._on_the_way.get(queue, 0)
        messages, octets = [waiting.popleft()], 0
        while waiting and len(messages) < min(room, TOGETHER_MAX):
            octets += messages[-1].body_bytes
            if octets > TOGETHER_BYTES:
                break
            messages.append(waiting.popleft())
        exchange = self._routes.exchanges.get(
            dead.settings.dead_letter_exchange or DEFAULT_EXCHANGE
        )
        there = messages if queue.deleted else queue.backing.load(messages)
        if exchange is None or len(there) < len(messages):
            # What the store has lost, of which it has told, is buried without a dead letter.
            kept = set() if exchange is None else set(there)
            for message in messages:
                if message not in kept:
                    self._keeper(queue, message)()
        if exchange is not None:
            self._publish_together(dead, exchange, there)

    def _publish_together(
        self, dead: _Dead, exchange: Exchange, messages: Sequence[Message]
    ) -> None:
        """Publish these dead letters. If finding the queues of one takes more than a turn, it waits
        in the line with those behind it."""
        letters = _Letters()
        by_key = cache(partial(self._routes.queues_by_key, exchange))
        for place, message in enumerate(messages):
            try:
                envelope, keys, targets = self._dead_letter(dead, exchange, message, by_key)
            except Unfinished:
                dead.messages.extendleft(reversed(messages[place:]))
                self._turns.spend(TURN_US)
                break
            self._routes.histories.keep(exchange, keys, envelope, message.body)
            if targets != letters.targets:
                letters.hand_over(self._succession)
                letters.targets = targets
            letters.add(envelope, message.body, self._keeper(dead.queue, message))
        letters.hand_over(self._succession)

    def _dead_letter(
        self,
        dead: _Dead,
        exchange: Exchange,
        message: Message,
        by_key: Callable[[str], tuple[Queue, ...] | None] | None = None,
    ) -> tuple[Envelope, tuple[str, ...], tuple[Queue, ...]]:
        """The dead letter of a message, its routing keys, and the queues that it goes to. Raises
        `Unfinished`, with nothing done. `by_key` knows the queues of messages with one key that
        died together."""
        envelope, keys, avoided = self._envelopes.of(
            message.envelope, dead.queue.name, dead.reason, dead.settings, self._clock.wall_time()
        )
        targets = None if by_key is None or len(keys) > 1 else by_key(keys[0])
        if targets is None:
            targets = self._routes.queues_for(exchange, keys, envelope.header)
        if avoided:
            targets = tuple([target for target in targets if target.name not in avoided])
        header_us = max(0, len(envelope.header) - FIRST_DEATH_OCTETS) // HEADER_OCTETS_PER_US
        burial_us = BURIAL_US if by_key is None else TOGETHER_US
        self._turns.spend(burial_us + header_us + QUEUE_US * (len(targets) - 1))
        if exchange.name == DEFAULT_EXCHANGE:
            self._routes.reply(envelope, message.body, keys)
        return envelope, keys, targets

    def _is_stalled(self, queue: LocalQueue) -> bool:
        """Whether dead letters of the queue have to wait, as too many are on the way."""
        most = INSISTED_ON_MAX if queue.settings.keeps_dead else ON_THE_WAY_MAX
        return queue in self._stalled or self._on_the_way.get(queue, 0) >= most

    def _publish(self, dead: _Dead, message: Message, done: Callable[[], None]) -> None:
        """Publish a dead letter. Raises `Unfinished`, with nothing done, if finding the queues
        takes more than a turn."""
        queue, routes = dead.queue, self._routes
        if queue.settings.delays is not None:
            self._send_on(queue, queue.settings.delays, message, done)
            return
        insists = queue.settings.keeps_dead and not queue.deleted
        exchange = routes.exchanges.get(dead.settings.dead_letter_exchange or DEFAULT_EXCHANGE)
        if exchange is None:
            if insists:
                self._keep(dead, message, done)
            else:
                done()
            return
        envelope, keys, targets = self._dead_letter(dead, exchange, message)
        if routes.observer is not None:
            routes.observer.dead_lettered(queue, envelope, targets)
        keep = None
        if insists:
            keep = partial(self._keep, dead, message, done)
            if not targets:
                keep()
                return
            done = partial(self._has_arrived, done)
        routes.histories.keep(exchange, keys, envelope, message.body)
        self._succession.publish(targets, envelope, message.body, done, keep)

    def _send_on(
        self, queue: LocalQueue, delayed: str, message: Message, done: Callable[[], None]
    ) -> None:
        """Route a message whose delay is over; it is dropped if there is no queue for it."""
        exchange = self._routes.exchanges.get(delayed)
        if exchange is None:
            done()
            return
        envelope = when_due(message.envelope, self._codec)
        keys = envelope.routing_keys
        targets = self._routes.queues_for(exchange, keys, envelope.header)
        self._turns.spend(BURIAL_US + QUEUE_US * (len(targets) - 1))
        if self._routes.observer is not None:
            self._routes.observer.sent_on(queue, envelope, targets)
        self._routes.histories.keep(exchange, keys, envelope, message.body)
        self._succession.publish(targets, envelope, message.body, done)

    def _has_arrived(self, done: Callable[[], None]) -> None:
        self._counts.dead_confirmed += 1
        done()

    def _keep(self, dead: _Dead, message: Message, done: Callable[[], None]) -> None:
        """Keep a dead letter that no queue has taken; it is routed again later."""
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
        kept.append(dead.once_more(message, done))
        if self._keeping is None:
            self._keeping = self._clock.call_later(self._kept_again_s, self._try_kept_again)
            self._kept_again_s = min(2 * self._kept_again_s, KEPT_AGAIN_S)
        if self._only_kept(queue):
            self._happened(queue)

    def _given_up(self, dead: _Dead) -> None:
        """Give up a kept dead letter, as its queue has ended; others may go on."""
        assert dead.done is not None
        dead.done()

    def _only_kept(self, queue: LocalQueue) -> bool:
        """Whether all dead letters of the queue are kept, and none is on its way."""
        return len(self._unburied.get(queue, ())) == len(self._kept.get(queue, ()))

    def _try_kept_again(self) -> None:
        self._keeping = None
        kept, self._kept = self._kept, {}
        for dead in kept.values():
            self._line.extend(dead)
        self._work()

    def _keeper(self, queue: LocalQueue, message: Message) -> Callable[[], None]:
        """Count a dead letter as on the way; returns the callback for its burial."""
        self._on_the_way[queue] = self._on_the_way.get(queue, 0) + 1

        def buried() -> None:
            self._arrived(queue)
            unburied = self._unburied.get(queue)
            if unburied is None or message not in unburied:
                # The queue has ended or moved.
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
        """Tell queues which messages are buried, many at a time."""
        self._telling = False
        buried, self._buried = self._buried, {}
        for queue, messages in buried.items():
            queue.buried(messages)
            if queue not in self._unburied:
                self._happened(queue)

    def _forget(self, queue: LocalQueue) -> None:
        """Forget the dead messages of a queue that has ended or moved."""
        self._unburied.pop(queue, None)
        self._buried.pop(queue, None)
        for dead in self._kept.pop(queue, ()):
            self._given_up(dead)
        self._happened(queue)

    def _happened(self, queue: LocalQueue) -> None:
        awaited = self._awaited.pop(queue, None)
        if awaited is not None:
            awaited.happen()
