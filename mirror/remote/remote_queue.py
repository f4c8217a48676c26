"""A queue that another node leads, as the clients of this node use it.

Operations of clients go to the leader in their order. Publishes and verdicts (acknowledgements,
rejections, requeues) are gathered for one turn of the loop; everything else goes at once, behind
them. Deliveries come back, and go to channels like those of a queue that this node leads.

A publish is kept until the leader has answered it. When the link to the leader of a queue without
mirrors goes down, no answer will come: publishes that wait for confirms are refused, consumers are
cancelled, and the leader puts back the messages that were delivered. A queue with mirrors soon has
another leader. Then another object replaces this one: it asks which publishes have arrived, sends
the others again, and subscribes the consumers.

The leader counts the prefetch; it is told of any other reason that stops a consumer. Messages may
be on their way by then. A consumer whose socket is full takes them all, and they wait in the
connection. One that a limit of its channel stops takes none: they are returned undelivered, and so
are all later ones, which must not overtake them, until the leader has answered that it holds the
rest. Only then is the leader told that the consumer can be served again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final

from warren.core import errors
from warren.core.definitions.records import is_forgotten
from warren.core.errors import BrokerError, NotFound, no_queue
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.messages.settlement import (
    PENDING,
    REJECTED,
    SETTLED,
    PublishConfirms,
    Settlement,
)
from warren.core.ports import Timer
from warren.core.queues.consumers import Blocked, Consumer
from warren.core.queues.moving import Moving, Unanswered
from warren.core.queues.queue import DeclaredQueue, Fetched, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import QueueOwner
from warren.core.queues.subscriptions import cancel_all
from warren.core.scheduling.waiting import Event, run
from warren.mirror.messages.calls import Call, NodeDown
from warren.mirror.messages.cargo import REDELIVERED, CarriedMessages
from warren.mirror.messages.post import PostKind
from warren.mirror.remote import frame_heads as heads
from warren.mirror.remote.leaders import Leaders
from warren.mirror.remote.publishes_under_way import PublishesUnderWay
from warren.mirror.remote.queue_end import QueueEnd, QueueMoved
from warren.mirror.remote.settling import DeliveryOutcome, PublishedReport, pack_numbers
from warren.mirror.remote.subscription import TAKES_NOTHING, LastRead, Subscription, take_each
from warren.mirror.remote.telling_ring import UNHEARD, TellingRing

ELSEWHERE: Final = object()
"""The owner of exclusive queues whose connections are at other nodes."""

PUBLISH_BYTES_MAX = 1 << 18
"""Octets of publishes that are sent without waiting for the end of the turn."""

_ELSEWHERE_REASONS = ~Blocked.PREFETCH

NEW_LEADER_S = 30.0
"""Seconds that clients of a mirrored queue wait for a new leader before they are refused."""

RESUME_AGAIN_S = 0.1


class RemoteQueue(Queue):
    """Stands for the queue `queue_id` at the node `leader`."""

    is_here = False

    __slots__ = (
        "_changed",
        "_consumers_numbered",
        "_give_up_timer",
        "_gone",
        "_heard_upto",
        "_last_read",
        "_leaders",
        "_movable",
        "_numbers",
        "_publishes",
        "_returning",
        "_successor",
        "_told",
        "_verdicts",
        "_waited",
        "_waiting",
        "consumer_count",
        "epoch",
        "leader",
        "ready",
    )

    def __init__(
        self,
        leaders: Leaders[RemoteQueue],
        vhost: QueueOwner[Queue],
        declared: DeclaredQueue,
        settings: QueueSettings,
    ) -> None:
        record = declared.record
        owner = ELSEWHERE if record.exclusive else None
        super().__init__(vhost, declared._replace(exclusive_owner=owner), settings)
        self._leaders = leaders
        self.leader = record.leader
        self.epoch = record.epoch
        # Whether the queue waits for a leader that it can talk to.
        self._waiting = False
        self._give_up_timer: Timer | None = None
        # Happens when the wait is over: there is a leader or a successor, or the wait was given up.
        self._waited = Event()
        self._successor: Queue | None = None
        # Both as the leader last reported them, for management.
        self.ready = 0
        self.consumer_count = 0
        self._publishes = PublishesUnderWay(leaders)
        # The last refusal heard of, if the leader is still to be told that it was heard; else 0.
        self._heard_upto = 0
        self._verdicts: list[tuple[DeliveryOutcome, list[int]]] = []
        # Questions to ask the next leader instead, in order, if this one has not answered them.
        self._movable: dict[Call, None] = {}
        self._consumers_numbered = 0
        self._numbers: dict[Consumer, int] = {}
        self._told: dict[int, tuple[Consumer, bool]] = {}
        self._changed: dict[Consumer, None] = {}
        self._last_read = LastRead()
        # Numbers of the consumers whose deliveries the leader was asked to hold, until it answers.
        self._returning: set[int] = set()
        self._gone = QueueEnd()
        self.consumers = []
        self.ring = TellingRing(self.consumer_changed)
        self.mirrored = record.can_move
        if not leaders.is_up(self.leader):
            self.leader_down()

    def __len__(self) -> int:
        return self.ready

    @property
    def refuses_when_full(self) -> bool:
        """False while the leader is away: publishes are refused then because it is away."""
        return super().refuses_when_full and self._leaders.is_up(self.leader)

    def is_told_by(self, node: str) -> bool:
        """Whether to accept a frame from this node: only from the leader, and not while it still
        has to begin anew. Other frames are left from an earlier leader or session."""
        return node == self.leader and not self._waiting

    # Publishing

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        return self._send_on(Unanswered(0, envelope, body, confirms, publish_seq))

    def publish_again(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        new = Unanswered(0, envelope, body, confirms, publish_seq, may_be_delivered=True)
        return self._send_on(new)

    def _send_on(self, new: Unanswered) -> Settlement:
        if not self._waiting and not self._leaders.is_up(self.leader):
            return REJECTED if new.confirms is not None else SETTLED
        publish = self._publishes.add(new)
        if not self._waiting:
            self._publishes.gather(publish)
            if self._publishes.octets_gathered >= PUBLISH_BYTES_MAX:
                self.flush()
            else:
                self._leaders.flush_soon(self)
        return PENDING if new.confirms is not None else SETTLED

    @property
    def one_by_one(self) -> bool:
        return False

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> Sequence[Settlement]:
        """The new publishes are not sent before this returns: if the link broke meanwhile, they
        would be refused before the caller knows that they are pending."""
        if self._publishes.octets_gathered >= PUBLISH_BYTES_MAX:
            self.flush()
        count = len(bodies)
        if not self._waiting and not self._leaders.is_up(self.leader):
            return () if confirms is None else (REJECTED,) * count
        numbers = self._publishes.add_many(envelopes, bodies, confirms, first_seq)
        if not self._waiting:
            self._publishes.gather_many(numbers, envelopes, bodies, confirms)
            self._leaders.flush_soon(self)
        return () if confirms is None else (PENDING,) * count

    def answered(self, report: PublishedReport) -> None:
        """Take the leader's answer to publishes: all up to a number were dealt with."""
        if report.refused:
            # The leader remembers refusals until it is told that they were heard.
            self._heard_upto = max(report.refused)
            self._leaders.flush_soon(self)
        self._publishes.settle(report)

    # Consuming

    async def subscribe(self, consumer: Consumer) -> None:
        try:
            await self._subscribe(consumer)
        except QueueMoved as moved:
            if not consumer.blocked & Blocked.NOT_ACTIVE:
                consumer.queue = self._moved_to(moved)
                await consumer.queue.subscribe(consumer)

    async def _subscribe(self, consumer: Consumer) -> None:
        number = self._consumers_numbered = self._consumers_numbered + 1
        blocked = bool(consumer.blocked & _ELSEWHERE_REASONS)
        subscription = Subscription.of(consumer, number, blocked=blocked).plain()
        self._numbers[consumer] = number
        self._told[number] = (consumer, blocked)
        try:
            if self._waiting:
                await self._waited
                if consumer.blocked & Blocked.NOT_ACTIVE:
                    # The consumer has left meanwhile, so the leader must not hear of it.
                    return
                self._expect_leader()
            offset = await self._ask("subscribe", *subscription)
        except BrokerError:
            self._forget_consumer(consumer)
            raise
        except GeneratorExit:
            # The channel is gone, but the leader has the subscription, or will get it.
            self.remove_consumer(consumer)
            raise
        self._expect_no_successor()
        if self.deleted:
            raise no_queue(self.name, self._vhost.name)
        if consumer not in self._numbers:
            # The consumer has left meanwhile, and the leader was told.
            return
        self.consumers.append(consumer)
        self._last_read.begins(consumer, offset)
        if bool(consumer.blocked & _ELSEWHERE_REASONS) is not blocked:
            self.consumer_changed(consumer)

    def remove_consumer(self, consumer: Consumer) -> Event | None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        number = self._forget_consumer(consumer)
        consumer.blocked |= Blocked.NOT_ACTIVE
        if number is None or self.deleted:
            return None
        self.flush()
        self._leaders.send(self.leader, PostKind.CANCEL, heads.CONSUMER.pack(self.queue_id, number))
        if self._told or self._waiting or not self.auto_delete:
            return None
        return self._gone.unless_used(self._ask("leave"))

    def remove_consumers(self, consumers: Collection[Consumer]) -> Event | None:
        gone = frozenset(consumers)
        self.consumers = [consumer for consumer in self.consumers if consumer not in gone]
        left = [self.remove_consumer(consumer) for consumer in consumers]
        return next(filter(None, left), None)

    def consumer_changed(self, consumer: Consumer) -> None:
        """Tell the leader at the end of the turn whether something stops the consumer now."""
        if consumer in self._numbers:
            self._changed[consumer] = None
            self._leaders.flush_soon(self)

    def delivered(self, number: int, carried: Iterable[CarriedMessages]) -> None:
        """Take deliveries for a consumer here: their numbers become positions of messages."""
        consumer, _ = self._told.get(number, (None, False))
        messages: list[Message] = []
        for flags, first, envelopes, bodies in carried:
            redelivered = bool(flags & REDELIVERED)
            each = enumerate(zip(envelopes, bodies, strict=True), first)
            if first:
                messages += [Message(*one, at, None, redelivered) for at, one in each]
            elif consumer is not None:
                send = consumer.send if self._trace is None else partial(self._send, consumer)
                for _, (envelope, body) in each:
                    send(envelope, body, redelivered)
        if messages:
            self._hand_on(number, consumer, messages)

    def _hand_on(self, number: int, consumer: Consumer | None, messages: list[Message]) -> None:
        """Give the consumer the messages that it can take, and return the rest."""
        is_returning = number in self._returning
        if consumer is None or is_returning or consumer.blocked & TAKES_NOTHING:
            taken = 0
        elif len(messages) <= consumer.capacity():
            consumer.take_many(messages)
            taken = len(messages)
        else:
            taken = take_each(consumer, messages)
        if consumer is not None and self.is_stream:
            self._last_read.note(consumer, messages[:taken])
        if consumer is not None and self._trace is not None:
            for message in messages[:taken]:
                self._trace_delivery(consumer.traced_as(), message, no_ack=False)
        if taken < len(messages):
            if consumer is not None and not is_returning:
                self._have_held(number, consumer)
            unwanted = [message.position for message in messages[taken:]]
            self._judge(DeliveryOutcome.RETURN, unwanted)

    def _have_held(self, number: int, consumer: Consumer) -> None:
        """Ask the leader to hold further messages for the consumer until those under way have come.
        It is asked before messages are returned to it, as it would send them again."""
        self._returning.add(number)
        self._told[number] = (consumer, True)
        run(self._ask("hold", number), lambda result: self._is_held(result, number))

    def _is_held(self, result: Callable[[], Any], number: int) -> None:
        self._returning.discard(number)
        if self.deleted or number not in self._told:
            return
        consumer, _ = self._told[number]
        try:
            result()
        except BrokerError:
            # The leader's version cannot hold messages. So it has to be told that the consumer is
            # stopped, or it would send returned messages again, for ever.
            self._told[number] = (consumer, False)
        self.consumer_changed(consumer)

    def cancelled_by_leader(self, number: int) -> None:
        """End a consumer whose subscription the leader has cancelled."""
        consumer, _ = self._told.get(number, (None, False))
        if consumer is not None:
            self._end_consumers((consumer,))

    async def get_one(self, no_ack: bool, client: TracedClient) -> Fetched:
        try:
            got, left = await self._ask(
                "get", no_ack, list(client[:3]), movable=True, late=self._got_too_late
            )
        except QueueMoved as moved:
            return await self._moved_to(moved).get_one(no_ack, client)
        if got is None:
            self.got_nothing += 1
            return Fetched(None, 0, self)
        flags, delivery, envelope, body = self._leaders.entry(got)
        self.got_no_ack += no_ack
        self.got += not no_ack
        message = Message(envelope, body, delivery, None, bool(flags & REDELIVERED))
        self._trace_delivery(client, message, no_ack)
        return Fetched(message, left, self)

    def _trace_delivery(self, client: TracedClient, message: Message, no_ack: bool) -> None:
        if self._trace is not None:
            one = message.envelope, message.body, message.redelivered
            self._trace.delivered(self, client, *one, no_ack)

    def deliver(self) -> None:
        """Does nothing: the leader delivers."""

    def pause_delivery(self) -> None:
        """Does nothing: the leader puts back all that comes, in order, before it delivers more."""

    def resume_delivery(self) -> None:
        """Does nothing, like `pause_delivery`."""

    def ack(self, messages: Collection[Message]) -> None:
        self.acked += len(messages)
        self._judge(DeliveryOutcome.ACK, [message.position for message in messages])

    def reject(self, messages: Iterable[Message]) -> None:
        dead = [message.position for message in messages]
        self.given_back += len(dead)
        self._judge(DeliveryOutcome.REJECT, dead)

    def requeue(self, messages: list[Message], *, delivered: bool = True) -> None:
        self.given_back += len(messages)
        verdict = DeliveryOutcome.REQUEUE if delivered else DeliveryOutcome.RETURN
        self._judge(verdict, [message.position for message in messages])

    def abandoned(self, messages: list[Message]) -> None:
        self.given_back += len(messages)
        self._judge(DeliveryOutcome.ABANDON, [message.position for message in messages])

    async def counts(self) -> tuple[int, int]:
        try:
            self.ready, self.consumer_count = await self._ask("counts")
        except QueueMoved as moved:
            return await self._moved_to(moved).counts()
        return self.ready, self.consumer_count

    async def empty(self) -> int:
        try:
            count: int = await self._ask("purge", movable=True)
        except QueueMoved as moved:
            return await self._moved_to(moved).empty()
        return count

    async def end(self, *, if_unused: bool, if_empty: bool) -> None:
        """Delete the queue at its leader; on return its definition is gone here, too. If the leader
        is forgotten, nothing else is deleted here: copies end with the definition. Raises
        `PreconditionFailed` if the queue is in use or not empty, where it must not be."""
        try:
            if is_forgotten(self.leader) and not (if_unused or if_empty):
                await self._vhost.end_queue(self, self._expect_no_successor)
            else:
                self.left_ready = await self._ask("delete", if_unused, if_empty)
        except QueueMoved as moved:
            queue = self._moved_to(moved)
            await queue.end(if_unused=if_unused, if_empty=if_empty)
            self.left_ready = queue.left_ready
            return
        await self._gone

    def _expect_no_successor(self) -> None:
        if self._successor is not None:
            raise QueueMoved(self._successor)

    # Life

    def delete(self) -> None:
        """The definition of the queue is gone: end this object."""
        self.deleted = True
        self._stop_waiting()
        self._publishes.take()
        self._verdicts.clear()
        # Publishes that the leader has not answered are taken to have come too late; they cannot be
        # sent again, as another queue may have the name by now.
        self._publishes.refuse_all()
        self._end_consumers()
        self._end_here()
        self._gone.happen()

    def _end_here(self) -> None:
        self._leaders.forget(self)
        # The former ring refers to this object, which could not be freed otherwise.
        self.ring = UNHEARD

    def leader_down(self) -> None:
        """The link to the leader is down."""
        self._publishes.take()
        self._verdicts.clear()
        if not self.mirrored:
            self._give_up()
        elif not self._waiting:
            self._wait_for_leader()

    def leader_up(self) -> None:
        """The link to the same leader is up again, but the leader has ended our session."""
        if self._waiting:
            self._vhost.renew_queue(self)

    def _give_up(self) -> None:
        """Stop waiting for a leader: refuse the unanswered publishes, and end the consumers."""
        self._publishes.refuse_all()
        self._end_consumers()
        self._stop_waiting()

    def _wait_for_leader(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._waited = Event()
            self._give_up_timer = self._leaders.clock.call_later(NEW_LEADER_S, self._give_up)

    def _stop_waiting(self) -> None:
        self._waiting = False
        # Before operations go on, which may wait again.
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()
            self._give_up_timer = None
        self._waited.happen()

    # Moving to another leader

    def is_led_as(self, leader: str, epoch: int, here: bool) -> bool:
        return not here and (leader, epoch) == (self.leader, self.epoch)

    def move_out(self) -> Moving:
        self.deleted = True
        self._end_here()
        unanswered = self._publishes.move_out(self.leader, self.epoch)
        consumers = list(self.consumers)
        self.consumers.clear()
        self._last_read.end(consumers, self._vhost.codec)
        return Moving(consumers, unanswered)

    def succeeded_by(self, queue: Queue) -> None:
        self._successor = queue
        self._stop_waiting()
        for call in list(self._movable):
            call.answer(None, NotFound(f"queue '{self.name}' is led anew"))
        # A deletion that waits for the end of this object need not wait any longer.
        self._gone.happen()

    def go_on(self, moving: Moving) -> None:
        """Take over from the object before, whose publishes the leader may have."""
        for publish in moving.unanswered:
            self._publishes.add(publish)
        self._wait_for_leader()
        for consumer in moving.consumers:
            if consumer.wants_cancel:
                consumer.cancelled()
            else:
                consumer.move_to(self)
        consumers = [consumer for consumer in moving.consumers if consumer.queue is self]
        self.consumers.extend(consumers)
        self._resume_with(consumers)

    def _resume_with(self, consumers: list[Consumer]) -> None:
        run(self._begin_anew(consumers), lambda result: self._resumed(result, consumers))

    async def _begin_anew(self, consumers: list[Consumer]) -> None:
        if self.deleted or not self._waiting:
            # Another object has replaced this one and begins anew itself, or the wait was given up.
            return
        received, refused = await self._leaders.ask(self.leader, "queue.resume", self.queue_id)
        if self.deleted or not self._waiting:
            return
        if received is None:
            # It is not known which publishes the leaders before had.
            self._publishes.refuse_sent()
        else:
            self.answered(PublishedReport(received, refused))
        self._publishes.gather_all(self.leader, self.epoch)
        self.flush()
        self._stop_waiting()
        for consumer in consumers:
            if consumer in self.consumers:
                self.consumers.remove(consumer)
                await self._resubscribe(consumer)

    async def _resubscribe(self, consumer: Consumer) -> None:
        try:
            await self.subscribe(consumer)
        except BrokerError:
            # Unless the consumer has left meanwhile, it is told that it was cancelled.
            if not consumer.blocked & Blocked.NOT_ACTIVE:
                consumer.cancelled()
        else:
            consumer.queue.deliver()

    def _resumed(self, result: Callable[[], None], consumers: list[Consumer]) -> None:
        """Ask again in a moment if the leader was not there yet, or no longer leads."""
        try:
            result()
        except BrokerError:
            if not self.deleted and self._waiting:
                self._leaders.clock.call_later(RESUME_AGAIN_S, lambda: self._resume_with(consumers))

    def stop(self) -> None:
        """Does nothing: the leader keeps the queue."""

    def touch(self) -> None:
        """Does nothing: each operation at the leader counts as use there."""

    def apply_settings(self, settings: QueueSettings) -> None:
        self.settings = settings

    def flush(self) -> None:
        """Send all that was gathered to the leader."""
        queue = heads.QUEUE.pack(self.queue_id)
        send = self._leaders.send
        gathered = self._publishes.take()
        if gathered:
            head = heads.PUBLISH.pack(self.queue_id, self.epoch)
            if send(self.leader, PostKind.PUBLISH, head, *gathered):
                self._publishes.sent()
        if self._heard_upto:
            send(self.leader, PostKind.HEARD, heads.HEARD.pack(self.queue_id, self._heard_upto))
            self._heard_upto = 0
        verdicts, self._verdicts = self._verdicts, []
        for verdict, numbers in verdicts:
            send(self.leader, PostKind.SETTLE, queue, pack_numbers(verdict, numbers))
        changed, self._changed = self._changed, {}
        for consumer in changed:
            number = self._numbers.get(consumer)
            blocked = bool(consumer.blocked & _ELSEWHERE_REASONS)
            if number is None or number in self._returning or self._told[number][1] is blocked:
                continue
            self._told[number] = (consumer, blocked)
            state = heads.CONSUMER_STATE.pack(self.queue_id, number, blocked, 0)
            send(self.leader, PostKind.CONSUMER_STATE, state)

    # Inside

    async def _ask(
        self,
        method: str,
        *arguments: Any,
        movable: bool = False,
        late: Callable[[Any], None] | None = None,
    ) -> Any:
        if self._waiting:
            # Unanswered publishes are sent again first; they go before this question.
            await self._waited
            self._expect_leader()
        self._expect_no_successor()
        self.flush()
        call = self._leaders.ask(self.leader, f"queue.{method}", self.queue_id, *arguments)
        if movable:
            self._movable[call] = None
        try:
            return await call
        except GeneratorExit:
            if late is not None:
                call.abandon(late)
            raise
        except NodeDown:
            if self.mirrored and not self.deleted:
                self._wait_for_leader()
                await self._waited
            self._expect_no_successor()
            at = self.leader, self.durable, self.name, self._vhost.name
            raise errors.home_node_down(*at) from None
        except NotFound as error:
            self._expect_no_successor()
            if isinstance(error, errors.QueueNotHere):
                raise no_queue(self.name, self._vhost.name) from None
            raise
        finally:
            self._movable.pop(call, None)

    def _expect_leader(self) -> None:
        """Raise `NotFound` if the wait for a leader was given up."""
        if self._successor is None and not self._leaders.is_up(self.leader):
            raise errors.home_node_down(self.leader, self.durable, self.name, self._vhost.name)

    def _moved_to(self, moved: QueueMoved) -> Queue:
        """The object that stands for the queue now. Raises `NotFound` if the queue was deleted."""
        queue = self._vhost.current(moved.queue)
        if queue is None:
            raise no_queue(self.name, self._vhost.name)
        return queue

    def _got_too_late(self, answer: Any) -> None:
        """Return a message that basic.get fetched for a connection that is gone."""
        got, _ = answer
        if got is not None:
            delivery = self._leaders.entry(got).number
            if delivery:
                self._judge(DeliveryOutcome.RETURN, [delivery])

    def _judge(self, verdict: DeliveryOutcome, numbers: list[int]) -> None:
        if self.deleted or not numbers:
            return
        verdicts = self._verdicts
        if verdicts and verdicts[-1][0] is verdict:
            verdicts[-1][1].extend(numbers)
        else:
            verdicts.append((verdict, numbers))
        self._leaders.flush_soon(self)

    def _forget_consumer(self, consumer: Consumer) -> int | None:
        number = self._numbers.pop(consumer, None)
        self._changed.pop(consumer, None)
        self._last_read.forget(consumer)
        if number is not None:
            del self._told[number]
        return number

    def _end_consumers(self, some: Collection[Consumer] | None = None) -> None:
        """End `some` consumers, or all; those still subscribing learn it from their answer."""
        ending = {**dict.fromkeys(self.consumers), **self._numbers} if some is None else some
        subscribed = [consumer for consumer in self.consumers if consumer in ending]
        self.consumers = [consumer for consumer in self.consumers if consumer not in ending]
        for consumer in ending:
            self._forget_consumer(consumer)
        for consumer in subscribed:
            consumer.blocked |= Blocked.NOT_ACTIVE
        cancel_all(subscribed, self._vhost.turns)
