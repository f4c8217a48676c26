"""The session in which this node, as leader, serves another node's clients of one queue.

The other node numbers its publishes and its consumers; this node numbers deliveries. Publishes are
answered in order, also those without confirms: a report names the number up to which all are safe,
and those that were refused. When the other node goes, its consumers leave, and messages that they
did not acknowledge are put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from warren.core.field import from_plain
from warren.core.messages.message import NO_HOLDER, Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.messages.settlement import PENDING, REJECTED, SETTLED, PublishConfirms, Settlement
from warren.core.queues.consumers import Blocked, ConsumedQueue, Consumer
from warren.core.queues.local_queue import LocalQueue
from warren.mirror.messages.cargo import (
    AGAIN,
    CONFIRM,
    REDELIVERED,
    CarriedMessage,
    CarriedMessages,
    Packer,
)
from warren.mirror.remote import frame_heads as heads
from warren.mirror.remote.settling import DeliveryOutcome, PublishedReport
from warren.mirror.remote.subscription import Subscription

WhenSafe: TypeAlias = Callable[[Callable[[bool], None]], None]
"""Calls back when all that is in the queue now is safe; with False when another node leads."""

DELIVER_BYTES_MAX = 1 << 18
"""Octets of deliveries to one consumer that are sent without waiting for the end of the turn."""


class RemoteConsumer(Consumer):
    """A consumer whose channel is at another node."""

    is_local = False

    __slots__ = ("_client", "_session", "number", "packer")

    def __init__(self, session: RemoteClient, one: Subscription) -> None:
        arguments = from_plain(one.arguments)
        about = (one.tag, one.no_ack, one.exclusive, one.priority, one.prefetch, arguments)
        super().__init__(session.queue, *about)
        self._session = session
        self._client = TracedClient(*one.client, True)
        self.number = one.number
        self.packer = Packer()
        self.goes_on_at = one.goes_on_at

    def send(self, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        self._pack(0, envelope, body, redelivered)

    def take(self, message: Message) -> None:
        session = self._session
        message.holder = self
        self.unacked += 1
        if self.unacked >= self.prefetch:
            self.block(Blocked.PREFETCH)
        number = session.note(message)
        self._pack(number, message.envelope, message.body, message.redelivered)

    def take_many(self, messages: list[Message]) -> None:
        session, packer = self._session, self.packer
        numbers = session.note_many(messages)
        for number, message in zip(numbers, messages, strict=True):
            message.holder = self
            redelivered = message.redelivered
            self.queue.redelivered += redelivered
            flags = REDELIVERED if redelivered else 0
            packer.add(number, message.envelope, message.body, flags)
            if packer.octets >= DELIVER_BYTES_MAX:
                session.send_deliveries(self)
        session.to_send(self)
        self.unacked += len(messages)
        if self.unacked >= self.prefetch:
            self.block(Blocked.PREFETCH)

    def capacity(self) -> int:
        return self.prefetch - self.unacked

    def traced_as(self) -> TracedClient:
        return self._client

    @property
    def node(self) -> str:
        return self._session.node

    def cancelled(self) -> None:
        self._session.consumer_cancelled(self)

    def move_to(self, queue: ConsumedQueue) -> None:
        raise AssertionError("the node of its channel subscribes at the new leader itself")

    def _pack(self, number: int, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        self.queue.redelivered += redelivered
        self.packer.add(number, envelope, body, REDELIVERED if redelivered else 0)
        if self.packer.octets >= DELIVER_BYTES_MAX:
            self._session.send_deliveries(self)
        else:
            self._session.to_send(self)


class _Got:
    """The holder of a message that a basic.get at the other node fetched."""

    __slots__ = ("limited", "queue")

    def __init__(self, queue: LocalQueue) -> None:
        self.queue = queue
        self.limited = False

    def settled(self, count: int) -> None:
        """Does nothing: there is no consumer to wake."""


class Effects:
    """The calls of a session to its host: to flush the session soon, and to send.

    `note_refused` is called for each refused publish, as refusals outlive the session.
    """

    __slots__ = ("deliver", "flush_soon", "note_refused", "tell_cancelled")

    def __init__(
        self,
        flush_soon: Callable[[RemoteClient], None],
        deliver: Callable[[bytes, list[bytes]], None],
        tell_cancelled: Callable[[bytes], None],
        note_refused: Callable[[int], None],
    ) -> None:
        self.flush_soon = flush_soon
        self.deliver = deliver
        self.tell_cancelled = tell_cancelled
        self.note_refused = note_refused


class RemoteClient(PublishConfirms):
    """The session; as `PublishConfirms` it is told when publishes of the other node are safe.

    `numbers` are the numbers of deliveries. None is used twice at this node, however often the node
    is started: the other node may still settle deliveries of an earlier session, which must not be
    taken for deliveries of this one. `node` is the name of the other node.
    """

    def __init__(
        self, queue: LocalQueue, effects: Effects, numbers: Iterator[int], node: str = ""
    ) -> None:
        self.queue = queue
        self.node = node
        self._effects = effects
        self._numbers = numbers
        self._received = 0
        self._reported = 0
        self._open: dict[int, None] = {}
        # Publishes without confirms that some mirror may lack: the first one since the last
        # `await_mirrors` (0: none), and the first one of each of those calls that is not over.
        self._unasked = 0
        self._unsafe: deque[int] = deque()
        self._refused: list[int] = []
        self._unacked: dict[int, Message] = {}
        self._consumers: dict[int, RemoteConsumer] = {}
        self._sending: dict[RemoteConsumer, None] = {}
        self._congested = False
        self._has_ended = False

    # Publishing

    @property
    def received(self) -> int:
        """The number of the last publish that came."""
        return self._received

    def publish(self, carried: Iterable[CarriedMessages]) -> None:
        for some in carried:
            self._publish_together(some)
        self._effects.flush_soon(self)

    def _publish_together(self, some: CarriedMessages) -> None:
        """Publish the messages in one call where that is possible, and else one by one."""
        queue = self.queue
        envelopes, bodies, first = some.envelopes, some.bodies, some.first
        observer = queue.observer
        if observer is not None:
            for envelope in envelopes:
                observer.arrived(queue, envelope, self.node)
        confirms = self if some.flags & CONFIRM else None
        if confirms is None and not self._unasked:
            self._unasked = first
        expiration_ms = envelopes[0].expiration_ms
        if (
            len(bodies) == 1
            or some.flags & AGAIN
            or queue.one_by_one
            or expiration_ms == 0
            or any([envelope.expiration_ms != expiration_ms for envelope in envelopes])
        ):
            for envelope, body, number in zip(envelopes, bodies, some.numbers, strict=True):
                self._publish_one(CarriedMessage(some.flags, number, envelope, body), confirms)
            return
        self._received = some.numbers[-1]
        queue.published += len(bodies)
        self._note_answers(first, queue.publish_many(envelopes, bodies, confirms, first))

    def _publish_one(self, entry: CarriedMessage, confirms: PublishConfirms | None) -> None:
        flags, number, envelope, body = entry
        queue = self.queue
        self._received = number
        queue.published += 1
        send = queue.publish_again if flags & AGAIN else queue.publish
        answer = send(envelope, body, confirms, number)
        if answer is not SETTLED:
            self._note_answers(number, (answer,))

    def _note_answers(self, first: int, answers: Sequence[Settlement]) -> None:
        count = len(answers)
        if answers.count(PENDING) == count:
            self._open.update(dict.fromkeys(range(first, first + count)))
            return
        for number, answer in enumerate(answers, first):
            if answer is PENDING:
                self._open[number] = None
            elif answer is REJECTED:
                self._note_refused(number)

    def settle(self, publish_seq: int) -> None:
        del self._open[publish_seq]
        if not self._has_ended:
            self._effects.flush_soon(self)

    def settle_many(self, first_seq: int, count: int) -> None:
        for publish_seq in range(first_seq, first_seq + count):
            del self._open[publish_seq]
        if not self._has_ended:
            self._effects.flush_soon(self)

    def refuse(self, publish_seq: int) -> None:
        del self._open[publish_seq]
        self._note_refused(publish_seq)
        if not self._has_ended:
            self._effects.flush_soon(self)

    def _note_refused(self, number: int) -> None:
        self._refused.append(number)
        self._effects.note_refused(number)

    def await_mirrors(self, when_mirrors_have_all: WhenSafe | None) -> None:
        """Hold the answers to publishes without confirms until mirrors have these publishes: the
        next leader may have to be sent them. None for a queue without mirrors."""
        first, self._unasked = self._unasked, 0
        if first and when_mirrors_have_all is not None:
            self._unsafe.append(first)
            when_mirrors_have_all(self._mirrors_have)

    def _mirrors_have(self, leads: bool) -> None:
        """Mirrors have what came before the oldest `await_mirrors`; or another node leads, which
        answers itself."""
        if leads:
            self._unsafe.popleft()
            if not self._has_ended:
                self._effects.flush_soon(self)

    def report(self) -> PublishedReport | None:
        """The answers that were not reported yet; None if there are none."""
        behind = self._received + 1
        upto = min(next(iter(self._open), behind), next(iter(self._unsafe), behind)) - 1
        if upto == self._reported:
            return None
        refused = sorted(number for number in self._refused if number <= upto)
        self._refused = [number for number in self._refused if number > upto]
        self._reported = upto
        return PublishedReport(upto, refused)

    # Consuming

    def subscribe(self, one: Subscription) -> int | None:
        """Add a consumer. Return the offset at which a reader of a stream begins; None for other
        consumers, and while it is not known. Raises `AccessRefused` when another consumer has the
        queue exclusively."""
        consumer = RemoteConsumer(self, one)
        if one.blocked:
            consumer.blocked |= Blocked.CHANNEL_LIMIT
        if self._congested:
            consumer.blocked |= Blocked.SOCKET
        self.queue.add_consumer(consumer)
        self._consumers[one.number] = consumer
        return self.queue.goes_on_at(consumer)

    def deliver(self) -> None:
        """Deliver ready messages; called after the answer to `subscribe`."""
        self.queue.deliver()

    def cancel(self, number: int) -> None:
        consumer = self._consumers.pop(number, None)
        if consumer is not None:
            self.send_deliveries(consumer)
            self.queue.remove_consumer(consumer)

    def set_blocked(self, number: int, blocked: bool) -> None:
        """Note whether the other node can hand messages to the consumer."""
        consumer = self._consumers.get(number)
        if consumer is None:
            return
        if blocked:
            consumer.block(Blocked.CHANNEL_LIMIT)
            self.send_deliveries(consumer)
        elif consumer.unblock(Blocked.CHANNEL_LIMIT):
            self.queue.deliver()

    def set_congested(self, congested: bool) -> None:
        """Note whether the link with the other node is congested."""
        self._congested = congested
        for consumer in list(self._consumers.values()):
            if congested:
                consumer.block(Blocked.SOCKET)
            elif consumer.unblock(Blocked.SOCKET):
                self.queue.deliver()

    def get(self, no_ack: bool, client: TracedClient) -> tuple[bytes | None, int]:
        """Fetch one message; returns it packed, and the number of messages left."""
        message = self.queue.get(no_ack, client)
        if message is None:
            return None, 0
        number = 0
        if not no_ack:
            message.holder = _Got(self.queue)
            number = self.note(message)
        packer = Packer()
        flags = REDELIVERED if message.redelivered else 0
        packer.add(number, self.queue.envelope_got(message, no_ack), message.body, flags)
        return b"".join(packer.take()), len(self.queue)

    def judge(self, verdict: DeliveryOutcome, numbers: Iterable[int]) -> None:
        """Settle deliveries as the other node says."""
        pop = self._unacked.pop
        messages = [m for number in numbers if (m := pop(number, None)) is not None]
        if not messages:
            return
        queue = self.queue
        for message in messages:
            message.holder.settled(1)
        if verdict is DeliveryOutcome.ACK:
            queue.ack(messages)
        elif verdict is DeliveryOutcome.REJECT:
            queue.reject(messages)
        else:
            if verdict is DeliveryOutcome.RETURN:
                queue.not_taken(messages)
            for message in messages:
                if verdict is DeliveryOutcome.RETURN and self._has_left(message.holder):
                    # Another consumer may have got messages that are behind this one.
                    message.redelivered = True
                message.holder = NO_HOLDER
            if verdict is DeliveryOutcome.ABANDON:
                queue.abandoned(messages)
            else:
                queue.requeue(messages, delivered=verdict is DeliveryOutcome.REQUEUE)
            return
        if queue.backing.length:
            queue.deliver()

    def _has_left(self, holder: object) -> bool:
        """Whether the holder is no longer one of the session's consumers, or never was one."""
        consumers = self._consumers
        return not (isinstance(holder, RemoteConsumer) and consumers.get(holder.number) is holder)

    @property
    def unacked(self) -> Mapping[int, Message]:
        """The unacknowledged messages at the other node, by the number of the delivery."""
        return self._unacked

    # Calls of the session's consumers

    def note(self, message: Message) -> int:
        """Remember a message as unacknowledged; returns its number."""
        number = next(self._numbers)
        self._unacked[number] = message
        return number

    def note_many(self, messages: list[Message]) -> list[int]:
        """Remember many messages as unacknowledged; returns their numbers."""
        numbers = list(islice(self._numbers, len(messages)))
        self._unacked.update(zip(numbers, messages, strict=True))
        return numbers

    def to_send(self, consumer: RemoteConsumer) -> None:
        self._sending[consumer] = None
        self._effects.flush_soon(self)

    def send_deliveries(self, consumer: RemoteConsumer) -> None:
        if consumer.packer.parts:
            head = heads.CONSUMER.pack(self.queue.queue_id, consumer.number)
            self._effects.deliver(head, consumer.packer.take())

    def flush(self) -> None:
        """Send the deliveries of this turn."""
        sending, self._sending = self._sending, {}
        for consumer in sending:
            self.send_deliveries(consumer)

    def consumer_cancelled(self, consumer: RemoteConsumer) -> None:
        """Tell the other node that the queue has cancelled a consumer."""
        if self._consumers.pop(consumer.number, None) is not None:
            self.send_deliveries(consumer)
            self._effects.tell_cancelled(heads.CONSUMER.pack(self.queue.queue_id, consumer.number))

    # Ending

    def let_go(self) -> None:
        """The queue is gone: drop the messages that are out. They refer back to this session in
        cycles, which the garbage collector would not find."""
        self._unacked.clear()

    def end(self) -> None:
        """End the session: the other node is gone. Its consumers leave, and their messages go back.

        No more publishes are reported. If the node comes back, it asks for them itself; and a later
        start of it has other publishes with the same numbers.
        """
        self._has_ended = True
        consumers, self._consumers = self._consumers, {}
        # An auto-delete queue that had no consumer of the other node does not go with that one.
        if consumers:
            self.queue.remove_consumers(consumers.values())
        self._sending.clear()
        self.judge(DeliveryOutcome.ABANDON, list(self._unacked))
