"""What a queue should do, as a list says it, and a virtual host that writes down what it is told.

The model knows the rules of amqp_semantics.md sections 4.3, 4.4 and 5.2 and nothing of how the
queue keeps them: messages in a list, consumers in a list in the order in which they are served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from manual_clock import ManualClock

from warren.core.messages.message import Message
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import DeadLetters, DeathReason
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import Event


class Owner:
    """The virtual host of the queue under test: writes down what it is told."""

    name = "/"

    def __init__(self) -> None:
        self.clock = ManualClock(start=0.0)
        self.turns = Turns(self.clock)
        self.dead: list[tuple[bytes, str]] = []
        self.unused: list[str] = []

    @property
    def burials(self) -> DeadLetters[LocalQueue]:
        return self

    def bury(self, queue: LocalQueue, messages: Sequence[Message], reason: DeathReason) -> None:
        loaded = queue.backing.load(messages)
        self.dead += [(message.body, reason.value) for message in loaded]
        queue.buried(list(messages))

    def bury_unkept(
        self, queue: LocalQueue, message: Message, reason: DeathReason, done: Callable[[], None]
    ) -> None:
        self.dead.append((message.body, reason.value))
        done()

    def all_buried(self, queue: LocalQueue) -> Event:
        raise AssertionError("nobody waits for that")

    def queue_ends(self, queue: LocalQueue) -> None:
        """All of the dead are buried."""

    def queue_moves(self, queue: LocalQueue) -> None:
        raise AssertionError("there is no other node")

    def queue_unused(self, queue: LocalQueue) -> None:
        self.unused.append(queue.name)


@dataclass
class Entry:
    """A message in the model."""

    body: bytes
    seq: int
    level: int
    expires_at: float | None
    redelivered: bool = False


@dataclass
class Subscriber:
    """A consumer in the model."""

    tag: str
    no_ack: bool
    exclusive: bool
    priority: int
    prefetch: int
    socket_full: bool = False
    got: list[tuple[bytes, bool]] = field(default_factory=list)
    held: list[Entry] = field(default_factory=list)

    @property
    def has_room(self) -> bool:
        full = not self.no_ack and 0 < self.prefetch <= len(self.held)
        return not full and not self.socket_full


class Model:
    """What a queue is."""

    def __init__(self, rules: QueueSettings) -> None:
        self.rules = rules
        self.now = 0.0
        self.ready: list[Entry] = []
        self.subscribers: list[Subscriber] = []
        self.serving: list[Subscriber] = []
        self.active: Subscriber | None = None
        self.fetched: list[Entry] = []
        self.dead: list[tuple[bytes, str]] = []
        self.published = 0

    def publish(self, body: bytes, priority: int, ttl_ms: int | None) -> str:
        rules = self.rules
        full = rules.max_length is not None and len(self.ready) + 1 > rules.max_length
        full |= (
            rules.max_length_bytes is not None and self.octets + len(body) > rules.max_length_bytes
        )
        if rules.overflow != "drop-head" and full:
            if rules.overflow == "reject-publish-dlx":
                self._dies(body, "maxlen")
            return "rejected"
        ttls = [ttl for ttl in (ttl_ms, rules.message_ttl_ms) if ttl is not None]
        expires_at = self.now + min(ttls) / 1000 if ttls else None
        level = min(priority, rules.max_priority or 0)
        entry = Entry(body, self.published, level, expires_at)
        self.published += 1
        never = rules.message_ttl_ms == 0 or not self.ready
        if not self._someone_waits() and ttls and min(ttls) == 0 and never:
            self._dies(body, "expired")
            return "settled"
        if self._someone_waits():
            self._hand(entry)
        else:
            self.ready.append(entry)
            self._sort()
            self._drop_excess()
            self._expire()
        return "settled"

    def get(self) -> Entry | None:
        self._expire()
        entry = self.ready.pop(0) if self.ready else None
        self._expire()
        return entry

    def settle(self, subscriber: Subscriber | None, entries: list[Entry], verdict: str) -> None:
        held = self.fetched if subscriber is None else subscriber.held
        for entry in entries:
            held.remove(entry)
        if subscriber is not None:
            self._find_serving(subscriber)
        if verdict == "reject":
            for entry in sorted(entries, key=lambda entry: -entry.level):
                self._dies(entry.body, "rejected")
        elif verdict == "requeue":
            for entry in entries:
                entry.redelivered = True
            self.ready += entries
            self._sort()
            self._expire()
            self._drop_excess()
        self.deliver()

    def subscribe(self, subscriber: Subscriber) -> bool:
        single = self.rules.single_active_consumer
        if any(other.exclusive for other in self.subscribers):
            return False
        if subscriber.exclusive and (self.subscribers or single):
            return False
        self.subscribers.append(subscriber)
        if single and self.active is None:
            self.active = subscriber
        self._find_serving(subscriber)
        self.deliver()
        return True

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self.subscribers.remove(subscriber)
        if subscriber in self.serving:
            self.serving.remove(subscriber)
        if subscriber is self.active:
            self.active = max(self.subscribers, key=lambda s: s.priority, default=None)
            if self.active is not None:
                self._find_serving(self.active)
        self.deliver()

    def socket(self, subscriber: Subscriber, full: bool) -> None:
        subscriber.socket_full = full
        self._find_serving(subscriber)
        self.deliver()

    def follow(self, rules: QueueSettings) -> None:
        self.rules = rules
        self._drop_excess()

    def deliver(self) -> None:
        self._expire()
        while self.ready and self._someone_waits():
            self._hand(self.ready.pop(0))
            self._expire()

    @property
    def octets(self) -> int:
        return sum(len(entry.body) for entry in self.ready)

    def _someone_waits(self) -> bool:
        return bool(self.serving)

    def _hand(self, entry: Entry) -> None:
        best = max(subscriber.priority for subscriber in self.serving)
        chosen = next(s for s in self.serving if s.priority == best)
        chosen.got.append((entry.body, entry.redelivered))
        if not chosen.no_ack:
            chosen.held.append(entry)
        self.serving.remove(chosen)
        self._find_serving(chosen)

    def _find_serving(self, subscriber: Subscriber) -> None:
        """Who can take nothing leaves, and comes back at the tail."""
        waits = not self.rules.single_active_consumer or subscriber is self.active
        able = subscriber in self.subscribers and subscriber.has_room and waits
        if able and subscriber not in self.serving:
            self.serving.append(subscriber)
        elif not able and subscriber in self.serving:
            self.serving.remove(subscriber)

    def expire(self) -> None:
        self._expire()

    def _expire(self) -> None:
        """Only the head of each level can expire."""
        for level in sorted({entry.level for entry in self.ready}, reverse=True):
            for entry in [entry for entry in self.ready if entry.level == level]:
                if entry.expires_at is None or entry.expires_at > self.now:
                    break
                self.ready.remove(entry)
                self._dies(entry.body, "expired")

    def _drop_excess(self) -> None:
        rules = self.rules
        if rules.overflow != "drop-head":
            return
        while self.ready and (
            (rules.max_length is not None and len(self.ready) > rules.max_length)
            or (rules.max_length_bytes is not None and self.octets > rules.max_length_bytes)
        ):
            self._dies(self.ready.pop(0).body, "maxlen")

    def _dies(self, body: bytes, reason: str) -> None:
        if self.rules.dead_letter_exchange is not None:
            self.dead.append((body, reason))

    def _sort(self) -> None:
        self.ready.sort(key=lambda entry: (-entry.level, entry.seq))


_times_ms = st.sampled_from((None, None, None, 0, 125, 1000))
RULES = st.one_of(
    # A queue without rules takes shorter ways, and so does one that only has a length limit.
    st.builds(QueueSettings, dead_letter_exchange=st.sampled_from((None, "dlx"))),
    st.builds(
        QueueSettings,
        max_length=st.sampled_from((None, 1, 3, 9)),
        max_length_bytes=st.sampled_from((None, 12, 40, 100)),
        overflow=st.sampled_from(("drop-head", "reject-publish")),
        dead_letter_exchange=st.just("dlx"),
    ),
    st.builds(
        QueueSettings,
        message_ttl_ms=_times_ms,
        max_length=st.sampled_from((None, None, None, 0, 1, 3)),
        max_length_bytes=st.sampled_from((None, None, None, 0, 12, 40)),
        overflow=st.sampled_from(
            ("drop-head", "drop-head", "reject-publish", "reject-publish-dlx")
        ),
        dead_letter_exchange=st.sampled_from((None, "dlx")),
    ),
)
