"""A queue of any type that this node leads: its consumers, its life, and its way to another leader.

Answerable for everything that all types of queue do at their leader. Not for how messages are
published, delivered and dropped (`classic_queue.py`, `stream_queue.py`), for keeping them (the
backing queue), for routing, or for permissions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import cast

from warren.core.backing.backing_queue import BackingQueue, MirroredLevel
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.errors import AccessRefused, PreconditionFailed, no_queue
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import MessageObserver, TracedClient
from warren.core.messages.message_stats import MessageStats
from warren.core.messages.settlement import PENDING, REJECTED, SETTLED, PublishConfirms, Settlement
from warren.core.messages.stock import Stock
from warren.core.messages.ways_out import WaysOut
from warren.core.queues.consumers import Blocked, Consumer
from warren.core.queues.messages_in_hand import MessagesInHand
from warren.core.queues.moving import Moving, Unanswered, move_consumers, publish_held
from warren.core.queues.queue import DeclaredQueue, Fetched, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import LocalQueueOwner
from warren.core.queues.retention import Retention
from warren.core.queues.subscriptions import Subscriptions, cancel_all
from warren.core.scheduling.deadline import Deadline
from warren.core.scheduling.waiting import Event

RESUME_US = 500
"""The cost of going on with a delivery, in the microseconds of `core/scheduling/turns.py`."""


class LocalQueue(Queue):
    """A queue that this node leads; without a cluster, any queue.

    It can stand still in four ways, also in several at once:

    - It is *held* while it is handed over, or another node may lead it: publishes wait, consumers
      get nothing, and a basic.get waits.
    - It is *withheld* while mirrors have to hear what may be delivered: publishes are taken,
      consumers get nothing more, and a basic.get waits.
    - It is *still* while many messages are returned, or too many wait to be retained: publishes are
      taken, consumers get nothing, and a basic.get is answered.
    - It *lacks copies* while too few nodes have it: publishes are refused.
    """

    is_here = True

    _vhost: LocalQueueOwner[Queue, LocalQueue]

    __slots__ = (
        "_available",
        "_held",
        "_in_hand",
        "_resume_scheduled",
        "_still",
        "_turned_away",
        "_unused",
        "backing",
        "lacks_copies",
        "retained",
        "retention",
        "subscriptions",
        "unacked",
        "ways_out",
    )

    def __init__(
        self,
        vhost: LocalQueueOwner[Queue, LocalQueue],
        declared: DeclaredQueue,
        settings: QueueSettings,
        backing: BackingQueue,
    ) -> None:
        super().__init__(vhost, declared, settings)
        self.backing = backing
        self.subscriptions = self._new_subscriptions()
        # The ring and consumers of `subscriptions`, kept here because they are used often.
        self.ring = self.subscriptions.ring
        self.consumers = self.subscriptions.consumers
        self.unacked = 0
        self._turned_away = 0
        self.ways_out = WaysOut()
        self.lacks_copies = False
        # None until an operator takes messages out, or asks which ones are out.
        self._in_hand: MessagesInHand | None = None
        # Has the acknowledged messages that were retained. `retention` is the same object while the
        # queue retains further ones, and else None.
        self.retained: Retention | None = None
        self.retention: Retention | None = None
        # Messages that are published while the queue is being handed over to another node.
        self._held: list[Unanswered] | None = None
        # The number of reasons for which the queue delivers nothing for a moment.
        self._still = 0
        # While the queue is held or withheld: the event that this is over.
        self._available: Event | None = None
        # The time at which the queue is deleted if it stays unused; None until it has `expires`.
        self._unused: Deadline | None = None
        self._resume_scheduled = False
        self._take_settings(settings)

    def __len__(self) -> int:
        """Ready messages."""
        return self.backing.length

    def stock(self) -> Stock:
        """What it holds: ready and pending messages, and the octets of ready ones."""
        return Stock(len(self) + self.unacked + self.set_aside[0], self.backing.ready_bytes)

    @property
    def has_ready(self) -> bool:
        """Whether a message waits here for a consumer."""
        return self.backing.length > 0

    @property
    def set_aside(self) -> tuple[int, int]:
        """Messages that are neither ready nor unacknowledged and count as in the queue, and the
        octets of their bodies: in any queue, those that operators have taken out."""
        hand = self._in_hand or ()
        return len(hand), sum([message.body_bytes for message in hand])

    @property
    def waiting(self) -> int:
        """Returned messages that wait before they are ready again."""
        return 0

    def waiting_messages(self) -> dict[Message, float]:
        """The returned messages that wait, and until when; the backing queue has them pending."""
        return {}

    # Publishing

    @property
    def _takes_nothing(self) -> bool:
        """Whether the queue takes no publishes at present."""
        return self._held is not None or self.lacks_copies

    def _put_off(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
        again: bool,
    ) -> Settlement:
        """Answer a publish that the queue cannot take now (`_takes_nothing`): hold it back while
        the queue is handed over, and refuse it for lack of copies."""
        if self._held is not None:
            held = Unanswered(0, envelope, body, confirms, publish_seq, may_be_delivered=again)
            self._held.append(held)
            return PENDING if confirms is not None else SETTLED
        self._turn_away(envelope)
        return REJECTED

    @property
    def _limits_one_by_one(self) -> bool:
        """Whether a length limit has to be looked at for each publish, and not for several: what
        the queue refuses becomes a dead letter, or the messages it drops depend on priorities."""
        if self.refuses_when_full:
            return self.settings.overflow == "reject-publish-dlx"
        return self.settings.max_length_bytes is not None and len(self.levels) > 1

    def _would_overflow(self, octets: int) -> bool:
        """Whether the queue, which refuses messages when full, refuses one with so many octets."""
        return not self._has_room(1, octets)

    def _has_room(self, count: int, octets: int) -> bool:
        """Whether a queue that refuses messages is within its limits with `count` more of them,
        which have `octets` together."""
        return not self.settings.exceeded(len(self) + count, self.backing.ready_bytes + octets)

    def _turn_away(self, envelope: Envelope) -> None:
        """Count a publish as refused."""
        self._turned_away += 1
        self.ways_out.refused += 1
        if self._trace is not None:
            self._trace.refused(self, envelope)

    def _publish_each(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> Sequence[Settlement]:
        """`publish_many` for messages that are looked at one by one."""
        each = zip(envelopes, bodies, range(first_seq, first_seq + len(bodies)), strict=True)
        answers = [self.publish(envelope, body, confirms, seq) for envelope, body, seq in each]
        return () if confirms is None else answers

    # Consuming

    @property
    def consumer_total(self) -> int:
        """The number of consumers that clients and operators are told."""
        return self.subscriptions.total

    @property
    def active_consumer(self) -> Consumer | None:
        """The single active consumer, in a queue that has one."""
        return self.subscriptions.active

    def _new_subscriptions(self) -> Subscriptions:
        return Subscriptions()

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer. Raises `AccessRefused` if there is an exclusive one.

        It is blocked until the caller calls `deliver`, so that the reply can go out first.
        """
        single_active = self.settings.single_active_consumer
        if not self.subscriptions.admits(consumer, single_active=single_active):
            raise AccessRefused(f"{self.described} in exclusive use")
        self._stop_expires()
        self.subscriptions.add(consumer, single_active=single_active)

    def not_taken(self, messages: Iterable[Message]) -> None:
        """These messages are about to be put back and never reached the consumers that hold them.
        Only streams, which take no messages back, have something to do."""

    def remove_consumer(self, consumer: Consumer) -> Event | None:
        """Unsubscribe. Its unacknowledged messages stay with the channel."""
        return self.remove_consumers((consumer,))

    def remove_consumers(self, consumers: Collection[Consumer]) -> Event | None:
        """`remove_consumer` for many: each looks at all consumers of the queue."""
        gone = frozenset(consumers)
        self._vhost.turns.spend(self.subscriptions.remove_all(gone))
        self._unsubscribed(gone)
        return None

    def _unsubscribed(self, gone: Collection[Consumer]) -> None:
        subscriptions = self.subscriptions
        if subscriptions.active in gone and not self.deleted and subscriptions.activate_next():
            self._resume_soon()
        if not self.consumers and not self.deleted:
            if self.auto_delete:
                self._vhost.queue_unused(self)
            else:
                self.touch()

    @abstractmethod
    def get(self, no_ack: bool, client: TracedClient) -> Message | None:
        """Fetch one message for basic.get; it is unacknowledged unless `no_ack`.

        None if the queue is empty or `is_withheld`. Raises `Unsupported` if clients cannot get
        messages from queues of this type.
        """

    def _resume_soon(self) -> None:
        if not self._resume_scheduled:
            self._resume_scheduled = True
            self._vhost.turns.soon(self._resume)

    def _resume(self) -> None:
        self._resume_scheduled = False
        self._vhost.turns.spend(RESUME_US)
        if not self.deleted:
            self._go_on()

    def _go_on(self) -> None:
        """Go on with work that was left for another turn."""
        self.deliver()

    # For operators

    @property
    def levels(self) -> list[MirroredLevel]:
        """The backing queues that operators can look at: one, or one for each priority."""
        backing = self.backing
        levels = backing.levels if isinstance(backing, PriorityQueue) else [backing]
        return cast("list[MirroredLevel]", levels)

    @property
    def in_hand(self) -> MessagesInHand:
        """The messages that operators have taken out."""
        if self._in_hand is None:
            self._in_hand = self._new_hand()
        return self._in_hand

    def _new_hand(self) -> MessagesInHand:
        return MessagesInHand(self)

    def take_waiting(self, level: int, positions: Collection[int]) -> list[Message]:
        """Take out those of these messages that wait before they are ready again."""
        return []

    @abstractmethod
    def ready_again(self, messages: Sequence[Message]) -> None:
        """Make these pending messages ready, in their places."""

    @abstractmethod
    def purge(self) -> int:
        """Drop all ready messages; returns how many."""

    @abstractmethod
    def stats(self) -> MessageStats:
        """How many messages passed through."""

    # Verdicts

    def abandoned(self, messages: list[Message]) -> None:
        self.requeue(messages)

    def buried(self, messages: list[Message]) -> None:
        """Drop these messages: their dead letters are safe, so nothing is lost."""
        if not self.deleted:
            self.backing.ack(messages)

    # Held, withheld, still

    def pause_delivery(self) -> None:
        self._still += 1
        self._find_rules()

    def resume_delivery(self) -> None:
        self._still -= 1
        self._find_rules()
        if not self.deleted:
            self.deliver()

    def set_lacks_copies(self, lacks: bool) -> None:
        """Set whether publishes are refused because too few nodes have the queue."""
        if lacks != self.lacks_copies:
            self.lacks_copies = lacks
            self._find_rules()

    def withhold(self) -> None:
        """Hand out no ready messages until `hand_out`: other nodes have to hear of it first."""
        self._available = self._available or Event()

    def hand_out(self) -> None:
        """Hand messages out again: the other nodes have heard of them."""
        if self._held is None:
            self._hold_is_over()
        self._resume_soon()

    @property
    def is_withheld(self) -> bool:
        """Whether a `basic.get` has to wait, because the queue is held or its messages are."""
        return self._available is not None

    async def until_available(self) -> None:
        """Wait until the queue is neither held nor withheld."""
        if self._available is not None:
            await self._available

    def _hold_is_over(self) -> None:
        available, self._available = self._available, None
        if available is not None:
            available.happen()

    # Operations that a queue of another node has, too

    async def subscribe(self, consumer: Consumer) -> None:
        """`add_consumer`."""
        self.add_consumer(consumer)

    async def counts(self) -> tuple[int, int]:
        self.touch()
        return self.backing.length, self.consumer_total

    async def get_one(self, no_ack: bool, client: TracedClient) -> Fetched:
        """`get`, when the queue is available; if another node has taken the lead, from that one.

        Raises `NotFound` if the queue is deleted meanwhile.
        """
        if not self.is_withheld:
            message = self.get(no_ack, client)
            if message is not None or not self.is_withheld:
                return Fetched(message, self.backing.length, self)
        return await (await self._after_hand_over()).get_one(no_ack, client)

    async def empty(self) -> int:
        """`purge`, when the queue is not held; if another node has taken the lead, at that one.

        Raises `NotFound` if the queue is deleted meanwhile.
        """
        if self.is_held:
            return await (await self._after_hand_over()).empty()
        return self.purge()

    async def _after_hand_over(self) -> Queue:
        """Return the object that stands for the queue after the hand-over, which may fail."""
        await self.until_available()
        current = self._vhost.current(self)
        if current is None or current.deleted:
            raise no_queue(self.name, self._vhost.name)
        return current

    async def end(self, *, if_unused: bool, if_empty: bool) -> None:

        def check() -> None:
            self.check_deletable(if_unused=if_unused, if_empty=if_empty)

        await self._vhost.end_queue(self, check)

    # Life

    def check_deletable(self, *, if_unused: bool, if_empty: bool) -> None:
        """Raise `PreconditionFailed` if a condition of a deletion does not hold."""
        if if_empty and (self.backing.length or self.set_aside[0]):
            raise PreconditionFailed(f"{self.described} not empty")
        if if_unused:
            self.check_unused()

    def check_unused(self) -> None:
        """Raise `PreconditionFailed` if the queue has consumers."""
        if self.consumers:
            raise PreconditionFailed(f"{self.described} in use")

    def delete(self) -> None:
        """End the queue: forget its messages, cancel its consumers."""
        self.left_ready = self.backing.length
        if self._trace is not None:
            self._trace.emptied(self, True)
        self.deleted = True
        self._stop_timers()
        self._vhost.burials.queue_ends(self)
        self.backing.delete()
        if self.retained is not None:
            self.retained.delete()
        self.unacked = 0
        held, self._held = self._held, None
        for publish in held or ():
            # The message cannot be sent again: by now another queue may have the name.
            if publish.confirms is not None:
                publish.confirms.refuse(publish.publish_seq)
        consumers = list(self.consumers)
        self.remove_consumers(consumers)
        cancel_all(consumers, self._vhost.turns)
        self._hold_is_over()

    def stop(self) -> None:
        if self.retained is not None:
            self.retained.stop()
        self.backing.stop()

    def touch(self) -> None:
        expires_ms = self.settings.expires_ms
        if expires_ms is None or self.consumers or self.deleted:
            self._stop_expires()
            return
        if self._unused is None:
            self._unused = Deadline(self._vhost.clock, self._expires)
        self._unused.restart(expires_ms / 1000)

    def _expires(self) -> None:
        """Delete the queue if it is unused: the time that `expires` says is over."""
        if self._held is not None:
            # Another node is taking the lead, and may have users of the queue.
            return
        if not self.consumers:
            self._vhost.queue_unused(self)

    def _stop_expires(self) -> None:
        if self._unused is not None:
            self._unused.cancel()

    def _stop_timers(self) -> None:
        """Stop all timers: the queue ends, or moves."""
        self._stop_expires()
        self._unused = None
        self._in_hand = self._in_hand or None  # Empty, it would only keep this object alive.

    @abstractmethod
    def keep_limits(self) -> None:
        """Drop messages beyond the limits, which may have changed during a restart or a move.

        The constructor leaves this to its caller: the queue must drop nothing before others know
        it.
        """

    def apply_settings(self, settings: QueueSettings) -> None:
        self._take_settings(settings)
        self.keep_limits()

    def _take_settings(self, settings: QueueSettings) -> None:
        expires_changed = self.settings.expires_ms != settings.expires_ms
        self.settings = settings
        self.backing.set_mode(settings.queue_mode)
        self._find_rules()
        if expires_changed or self._unused is None or not self._unused.is_set:
            self.touch()

    def trace_with(self, observer: MessageObserver | None) -> None:
        super().trace_with(observer)
        self._find_rules()

    def _find_rules(self) -> None:
        """Note what each publish and delivery has to check: settings or the state changed."""

    def _catch_up(self) -> None:
        """Do the work that became due while the queue was held."""

    # Moving to another leader

    def is_led_as(self, leader: str, epoch: int, here: bool) -> bool:
        return here

    def hold(self) -> None:
        """Keep everything as it is, so that another node can take the lead.

        Publishes wait, nothing is delivered, and nothing expires. Verdicts that come meanwhile may
        get lost; their messages are then delivered again.
        """
        assert self._held is None
        if self.retention is not None:
            self.retention.catch_up()
        self._held = []
        self._available = self._available or Event()
        self._find_rules()
        for consumer in self.consumers:
            consumer.block(Blocked.MOVING)

    def all_buried(self) -> Event:
        """Return the event that all dead letters of this queue are safe. While operators have
        messages of it, this is the event that these are settled; the caller then asks again."""
        if self._in_hand:
            return self._in_hand.all_settled()
        return self._vhost.burials.all_buried(self)

    @property
    def is_held(self) -> bool:
        return self._held is not None

    def release(self) -> None:
        """Go on after `hold`: the queue stays where it is."""
        held, self._held = self._held, None
        self._find_rules()
        self._catch_up()
        publish_held(self, held or ())
        for consumer in list(self.consumers):
            consumer.unblock(Blocked.MOVING)
        self.touch()
        self.deliver()
        self._hold_is_over()

    def move_out(self) -> Moving:
        self.deleted = True
        self._stop_timers()
        consumers = [consumer for consumer in self.consumers if consumer.is_local]
        self.consumers.clear()
        self._vhost.burials.queue_moves(self)
        self.backing.delete()
        if self.retained is not None:
            self.retained.delete()
        return Moving(consumers, self._held or [])

    def succeeded_by(self, queue: Queue) -> None:
        self._hold_is_over()

    def move_in(self, consumers: Iterable[Consumer]) -> None:
        """Go on serving the consumers of the object that stood for the queue before."""
        move_consumers(consumers, self)
        self.deliver()
