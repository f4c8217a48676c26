"""A channel: content on its way in, messages on their way out, and unacknowledged messages.

Answerable for delivery tags, prefetch, confirms and for handing publishes to queues. Each AMQP
method is a function in `exchange_methods.py`, `queue_methods.py`, `basic_methods.py` or
`mode_methods.py`; errors raised there and here become closes in `connection.py`. The rules are
amqp_semantics.md sections 2 and 5 to 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, cast

from pamqp import commands

from warren.amqp.channel_owner import ChannelOwner
from warren.amqp.confirms import ChannelConfirms
from warren.amqp.consumer import ChannelConsumer, delivery_frames
from warren.amqp.delivery_limit import DeliveryLimit
from warren.amqp.delivery_timeout import DeliveryTimeout
from warren.amqp.errors import (
    CLASS_AND_WEIGHT,
    NO_IDS,
    PUBLISH_IDS,
    UnexpectedFrame,
    no_content_header,
    refused_header,
    too_large,
)
from warren.amqp.frames import BODY as BODY_FRAME
from warren.amqp.frames import END, FRAME_US, FrameHeads
from warren.amqp.frames import HEADER as HEADER_FRAME
from warren.amqp.methods import Method, encode_method, make
from warren.amqp.publishing import QUEUE_US, QUEUES_AT_ONCE, Route, publish_to_many
from warren.amqp.settling import (
    FEW,
    LOOKS_PER_US,
    SETTLED_AT_ONCE,
    SETTLED_PER_US,
    SETTLED_US,
    slice_of,
    unknown_delivery_tag,
)
from warren.amqp.verdict import Verdict
from warren.core.access.access_control import Kind, Permission
from warren.core.access.audit import audit
from warren.core.errors import BrokerError, PreconditionFailed
from warren.core.messages.message import NO_HOLDER, Envelope, HeldQueue, Holder, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.messages.message_stats import MessageStats
from warren.core.messages.settlement import Settlement
from warren.core.messages.stock import Stock
from warren.core.queues.consumers import Blocked, ConsumedQueue
from warren.core.queues.queue import Queue
from warren.core.scheduling.turns import Unfinished
from warren.core.scheduling.waiting import Event, Waiting, outliving
from warren.core.vhosts.topology_access import Asking

if TYPE_CHECKING:
    from warren.amqp.reply_consumer import ReplyConsumer
    from warren.amqp.transaction import Transaction
    from warren.core.vhosts.vhost import VirtualHost

NO_ROUTE = 312

SOURCES_MAX = 64
"""Queues noted as sources of messages before the deleted ones are removed from the notes."""

JUDGE_IDS = (60, 120)
"""The ids of basic.nack, named in the close for an error in settling many messages."""


class Content(Enum):
    """The kind of frame that must come next on a channel."""

    METHOD = auto()
    HEADER = auto()
    BODY = auto()


METHOD = Content.METHOD
HEADER = Content.HEADER
BODY = Content.BODY


ACK = Verdict.ACK


class Getter:
    """The holder of messages that basic.get fetched from one queue.

    A limit of the channel counts them only if they were outstanding when the limit was set.
    """

    __slots__ = ("limited", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.limited = False

    def settled(self, count: int) -> None:
        """There is no consumer to wake."""


class Channel:
    """The state machine of one open channel."""

    __slots__ = (
        "_body",
        "_body_left",
        "_body_size",
        "_held_cancels",
        "_lowest_unacked",
        "_sources_max",
        "_under_way",
        "acked",
        "body_heads",
        "body_size_max",
        "confirms",
        "connection",
        "consumers",
        "dropped",
        "expects",
        "given_back",
        "got",
        "got_no_ack",
        "got_nothing",
        "has_streams",
        "header",
        "header_heads",
        "last_delivery_tag",
        "last_queue",
        "limit",
        "number",
        "prefetch",
        "publish_method",
        "published",
        "redelivered",
        "reply_consumer",
        "returned",
        "sources",
        "timeout",
        "transaction",
        "unacked",
    )

    def __init__(self, connection: ChannelOwner[Channel], number: int) -> None:
        self.connection = connection
        self.number = number
        # Content on its way in
        self.expects = METHOD
        self.publish_method = b""
        # The content header of the publish that is arriving.
        self.header = b""
        self._body_size = 0
        self._body_left = 0
        self._body = bytearray()
        # The largest body accepted, in octets.
        self.body_size_max = connection.settings.max_message_size
        # The heads of its content frames, each with the end of the frame before.
        self.header_heads = FrameHeads(HEADER_FRAME, number, before=END)
        self.body_heads = FrameHeads(BODY_FRAME, number, before=END)
        # Deliveries
        self.consumers: dict[str, ChannelConsumer] = {}
        self.unacked: dict[int, Message] = {}
        self.last_delivery_tag = 0
        self.prefetch = connection.settings.default_prefetch
        # What basic.qos with global has set.
        self.limit: DeliveryLimit | None = None
        self._lowest_unacked = 1
        timeout_s = connection.settings.consumer_timeout_s
        self.timeout = DeliveryTimeout(connection.clock, timeout_s)
        self._held_cancels: list[Method] | None = None
        # Happens when the operation ends that `see_through` finishes even if the channel ends.
        self._under_way: Event | None = None
        # The queues whose messages it may hold, and whether a stream was among them.
        self.sources: dict[ConsumedQueue, None] = {}
        self._sources_max = SOURCES_MAX
        self.has_streams = False
        # Modes
        self.confirms: ChannelConfirms | None = None
        self.transaction: Transaction | None = None
        self.reply_consumer: ReplyConsumer | None = None
        self.last_queue: str | None = None
        # Counters since the channel was opened; `stats` makes statistics of them.
        self.published = 0
        self.returned = 0
        self.dropped = 0
        self.acked = 0
        self.given_back = 0
        self.got = 0
        self.got_no_ack = 0
        self.got_nothing = 0
        self.redelivered = 0

    # Methods

    @property
    def vhost(self) -> VirtualHost:
        vhost = self.connection.vhost
        assert vhost is not None
        return vhost

    def check(self, kind: Kind, name: str, permission: Permission) -> None:
        """Raise `AccessRefused` unless the user has this permission on the queue or exchange."""
        connection = self.connection
        assert connection.user is not None
        access = connection.node.access
        access.check_resource(connection.user, self.vhost.name, kind, name, permission)

    def asking(self) -> Asking:
        """The user whose permissions count for declarations and bindings, and the virtual host."""
        connection = self.connection
        assert connection.user is not None
        return Asking(connection.node.access, connection.user, self.vhost)

    def audit(self, action: str, **what: object) -> None:
        """Write to the audit log that the user did this; for deletions and purges."""
        connection = self.connection
        audit(
            connection.user_name,
            action,
            vhost=self.vhost.name,
            **what,
            peer=connection.peer.name,
        )

    def reply(self, method: Method) -> None:
        self.connection.send(self.number, method)

    def reply_durably(self, method: Method | None, durable: bool = True) -> None:
        """Reply once the definitions written so far are on disk; `method` is None for nowait.

        A reply about a transient entity only (`durable` false) is sent at once.
        """
        if method is not None:
            if durable:
                self.connection.hold_output()
            self.reply(method)

    # Publishing

    def unexpected_method(self) -> UnexpectedFrame:
        """The error for a frame that must not come next in content, and for a body too long."""
        if self.expects is HEADER:
            return no_content_header()
        return UnexpectedFrame(
            "expected content body, got non content body frame instead", PUBLISH_IDS
        )

    @property
    def takes_publishes(self) -> bool:
        """Whether a publish may come next."""
        return self.expects is METHOD

    def begin_publish(self, method: bytes) -> None:
        """Take the whole method frame of a publish; its content must follow."""
        self.publish_method = method
        self.expects = HEADER

    def content_header(self, header: bytes) -> None:
        if self.expects is not HEADER:
            raise self._unexpected_content()
        if len(header) < 14 or header[:4] != CLASS_AND_WEIGHT:
            raise refused_header(header)
        self.header = header
        self._body_size = self._body_left = int.from_bytes(header[4:12], "big")
        if self._body_left:
            self.expects = BODY
        else:
            self.expects = METHOD
            self.publish(self.publish_method, header, b"")

    def content_body(self, payload: bytes) -> None:
        if self.expects is not BODY:
            raise self._unexpected_content()
        self._body_left -= len(payload)
        if self._body_left > 0:
            self.connection.node.turns.spend(FRAME_US)
            # A message that is too large is refused when it is complete, but not kept until then.
            if payload and self._body_size <= self.body_size_max:
                self._body += payload
            return
        if self._body_left < 0:
            raise self.unexpected_method()
        self.expects = METHOD
        if self._body:
            # The body stays a bytearray: copying a hundred megabytes takes tens of milliseconds.
            self._body += payload
            payload, self._body = cast(bytes, self._body), bytearray()
        if self._body_size > self.body_size_max:
            raise too_large(self._body_size, self.body_size_max)
        self.publish(self.publish_method, self.header, payload)

    def leads_to(self, header: bytes) -> Sequence[Queue]:
        """The queues of the publish with this content header, which is still arriving; none if the
        publish will be refused."""
        routes = self.connection.routes
        if routes is None or self.expects is METHOD:
            return ()
        try:
            return routes.addressed(routes.route(self.publish_method), header, b"")[0]
        except (BrokerError, Unfinished):
            return ()

    def _unexpected_content(self) -> UnexpectedFrame:
        if self.expects is METHOD:
            return UnexpectedFrame("expected method frame, got non method frame instead", NO_IDS)
        return self.unexpected_method()

    def publish(self, method: bytes, header: bytes, body: bytes) -> None:
        """Publish a message: its method frame, the payload of its content header, and its body."""
        if len(body) > self.body_size_max:
            raise too_large(len(body), self.body_size_max)
        try:
            addressed = self._addressed(method, header)
        except Unfinished:
            publishing = self._publish_in_turns(method, header, body)
            self.connection.go_through(publishing, self, PUBLISH_IDS)
        else:
            self.hand_over(*addressed, body)

    async def _publish_in_turns(self, method: bytes, header: bytes, body: bytes) -> None:
        turns = self.connection.node.turns
        addressed = await turns.answer(lambda: self._addressed(method, header))
        self.hand_over(*addressed, body)

    def _addressed(self, method: bytes, header: bytes) -> tuple[Route, tuple[Queue, ...], Envelope]:
        """The route, queues and envelope of a publish. Raises `Unfinished` after a whole turn."""
        routes, replies = self.connection.routes, self.reply_consumer
        assert routes is not None
        route = routes.route(method)
        address = replies.address_octets if replies is not None else None
        return route, *routes.addressed(route, header, address)

    def hand_over(
        self, route: Route, queues: tuple[Queue, ...], envelope: Envelope, body: bytes
    ) -> None:
        """Publish to these queues, by way of the open transaction if there is one."""
        connection = self.connection
        routes = connection.routes
        assert routes is not None
        self.published += 1
        route.exchange.published_in += 1
        if route.is_observed:
            routes.vhost.observation.published(self.traced_as(), envelope, body, queues)
        if (route.is_reply or envelope.copies) and not route.exchange_name:
            # Direct replies go to channels, and only through the default exchange.
            self.vhost.reply(envelope, body, envelope.routing_keys)
        if self.transaction is not None:
            self.transaction.publish(route, envelope, queues, body)
            return
        if (quotas := routes.vhost.quotas) is not None:
            quotas.take(dict.fromkeys(queues, Stock(1, len(body))))
        confirms = self.confirms
        publish_seq = confirms.number() if confirms is not None else 0
        answers: tuple[Settlement, ...]
        if route.queues is None or envelope.copies:
            self.vhost.histories.keep(route.exchange, envelope.routing_keys, envelope, body)
        route.exchange.published_out += len(queues)
        if len(queues) == 1:
            (queue,) = queues
            queue.published += 1
            answers = (queue.publish(envelope, body, confirms, publish_seq),)
        elif len(queues) > QUEUES_AT_ONCE:
            publishing = publish_to_many(
                queues, envelope, body, confirms, publish_seq, routes.vhost
            )
            connection.go_through(outliving(publishing), self, PUBLISH_IDS)
            return
        else:
            connection.node.turns.spend(QUEUE_US * len(queues))
            for queue in queues:
                queue.published += 1
            answers = tuple(
                [queue.publish(envelope, body, confirms, publish_seq) for queue in queues]
            )
            if not queues:
                self.unroutable(route, envelope, body)
        if confirms is not None:
            confirms.record(publish_seq, answers)

    def unroutable(self, route: Route, envelope: Envelope, body: bytes) -> None:
        """Return a publish that reached no queue if it is mandatory; otherwise drop it."""
        self.vhost.observation.unroutable(envelope, route.mandatory)
        if route.mandatory:
            self.returned += 1
            method = make(
                commands.Basic.Return,
                reply_code=NO_ROUTE,
                reply_text="NO_ROUTE",
                exchange=envelope.exchange,
                routing_key=envelope.routing_key,
            )
            self.write_content(method, envelope, body)
        else:
            self.dropped += 1

    def write_content(self, method: Method, envelope: Envelope, body: bytes) -> None:
        """Write a method that carries content."""
        connection, payload = self.connection, encode_method(method)
        connection.output += delivery_frames(
            self.number, payload, envelope.header, body, connection.frame_max
        )
        connection.request_flush()

    def confirm_news(self) -> None:
        """The confirms of this channel have something to report."""
        self.connection.confirms_pending(self)

    def report_confirms(self) -> bytes:
        held = self.connection.node.holds_confirms
        return b"" if self.confirms is None or held else self.confirms.report(self.number)

    def fetched(self, message: Message, queue: Queue, no_ack: bool) -> int:
        """Number a message that basic.get fetched; returns its delivery tag."""
        self.last_delivery_tag += 1
        self.redelivered += message.redelivered
        if no_ack:
            self.got_no_ack += 1
        else:
            self.got += 1
            message.holder = Getter(queue)
            self.may_have_from(queue)
            self.unacked[self.last_delivery_tag] = message
            self.timeout.watch(self)
        return self.last_delivery_tag

    # Acknowledging

    def ack(self, delivery_tag: int, multiple: bool) -> None:
        """Serve basic.ack, the most frequent verdict."""
        if multiple or self.transaction is not None:
            self.judge(delivery_tag, multiple, ACK)
            return
        message = self.unacked.pop(delivery_tag, None)
        if message is None:
            raise unknown_delivery_tag(delivery_tag)
        self.acked += 1
        holder = message.holder
        queue = holder.queue
        queue.ack((message,))
        holder.settled(1)
        if queue.has_ready:
            queue.deliver()
        if self.limit is not None and holder.limited:
            self.limit.settled(1)

    def judge(self, delivery_tag: int, multiple: bool, verdict: Verdict) -> None:
        """Ack, nack or reject one message, or all up to a tag.

        Raises `PreconditionFailed` for a tag that is not outstanding.
        """
        first, last = self._judged(delivery_tag, multiple)
        tags = self._candidates(first, last)
        if len(tags) > SETTLED_AT_ONCE:
            judging = self.see_through(self._judge_many(tags, verdict))
            self.connection.go_through(judging, self, JUDGE_IDS)
        elif self.transaction is not None:
            self.transaction.judge(self._take(tags), verdict)
        else:
            pop = self.unacked.pop
            messages = [message for tag in tags if (message := pop(tag, None)) is not None]
            if len(messages) > FEW:
                self.connection.node.turns.spend(len(messages) // SETTLED_PER_US)
            self.settle(messages, verdict)

    async def _judge_many(self, tags: Sequence[int], verdict: Verdict) -> None:
        """`judge` for many messages; other work of the node has its turn in between."""
        turns = self.connection.node.turns
        for at in range(0, len(tags), SETTLED_AT_ONCE):
            await turns.pause()
            turns.spend(SETTLED_AT_ONCE * SETTLED_US)
            taken = self._take(slice_of(tags, at))
            if self.transaction is not None:
                self.transaction.judge(taken, verdict)
            else:
                self.settle(list(taken.values()), verdict)

    def see_through(self, waiting: Waiting[None]) -> Waiting[None]:
        """Run an operation to its end, even if the channel ends meanwhile.

        When the channel ends, it gives its messages back to the queues only after that.
        """

        async def to_its_end() -> None:
            under_way = self._under_way = Event()
            try:
                await waiting
            finally:
                self._under_way = None
                under_way.happen()

        return outliving(to_its_end())

    def _candidates(self, first: int, last: int) -> Sequence[int]:
        """The tags from `first` to `last` that may be outstanding, in ascending order.

        Counting up visits each tag once; but if few of many tags are outstanding, only those few
        are looked through.
        """
        if last - first > 2 * len(self.unacked):
            return [tag for tag in self.unacked if tag <= last]
        return range(first, last + 1)

    def _judged(self, delivery_tag: int, multiple: bool) -> tuple[int, int]:
        """The first and last tag that a verdict applies to."""
        if delivery_tag == 0 and multiple:
            last = self.last_delivery_tag
        elif delivery_tag in self.unacked:
            last = delivery_tag
        else:
            raise unknown_delivery_tag(delivery_tag)
        if not multiple:
            return last, last
        first, self._lowest_unacked = self._lowest_unacked, last + 1
        return first, last

    def _take(self, tags: Iterable[int]) -> dict[int, Message]:
        """Remove those of these messages that are outstanding; returns them by tag."""
        pop = self.unacked.pop
        return {tag: message for tag in tags if (message := pop(tag, None)) is not None}

    def put_back(self, unacked: dict[int, Message]) -> None:
        """Make messages outstanding again, after a rollback."""
        if not unacked:
            return
        merged = unacked | self.unacked
        tags = list(merged)
        ordered = sorted(tags)
        self.unacked = merged if tags == ordered else {tag: merged[tag] for tag in ordered}
        self._lowest_unacked = ordered[0]

    def settle(self, messages: list[Message], verdict: Verdict) -> None:
        """Carry out a verdict on messages that are no longer outstanding here."""
        if verdict is ACK:
            self.acked += len(messages)
        else:
            self.given_back += len(messages)
        holders = dict.fromkeys([message.holder for message in messages])
        if len(holders) == 1:
            (holder,) = holders
            groups = [(holder, messages)]
        else:
            by_holder: dict[Holder, list[Message]] = {holder: [] for holder in holders}
            for message in messages:
                by_holder[message.holder].append(message)
            groups = list(by_holder.items())
        by_queue: dict[HeldQueue, list[Message]] = {}
        limited = 0
        for holder, held in groups:
            by_queue.setdefault(holder.queue, []).extend(held)
            holder.settled(len(held))
            if holder.limited:
                limited += len(held)
        for queue, of_queue in by_queue.items():
            if verdict is Verdict.REQUEUE or verdict is Verdict.ABANDON:
                # A ready message must not keep the connection alive that held it before.
                for message in of_queue:
                    message.holder = NO_HOLDER
                (queue.requeue if verdict is Verdict.REQUEUE else queue.abandoned)(of_queue)
                continue
            if verdict is ACK:
                queue.ack(of_queue)
            else:
                queue.reject(of_queue)
            if queue.has_ready:
                queue.deliver()
        if self.limit is not None:
            # After the queues have the messages: those put back go out before new ones.
            self.limit.settled(limited)

    def unsettled(self) -> list[Message]:
        """Messages delivered to this channel whose verdicts have not reached their queues yet."""
        judged = () if self.transaction is None else self.transaction.judged_messages()
        return [*self.unacked.values(), *judged]

    def requeue_all(self, verdict: Verdict = Verdict.REQUEUE) -> Waiting[None] | None:
        """Put all unacknowledged messages back into their queues; many of them in turns."""
        turns = self.connection.node.turns
        if len(self.unacked) > SETTLED_AT_ONCE or (self.unacked and turns.over):
            return self.see_through(self._requeue_many(verdict))
        turns.spend(len(self.unacked) * SETTLED_US)
        self._requeue(list(self.unacked), verdict)
        return None

    def _requeue(self, tags: Iterable[int], verdict: Verdict) -> None:
        messages = list(self._take(tags).values())
        # Other messages may have been delivered meanwhile.
        self._lowest_unacked = next(iter(self.unacked), self.last_delivery_tag + 1)
        self.settle(messages, verdict)

    async def _requeue_many(self, verdict: Verdict) -> None:
        """Put messages back in turns. Queues deliver nothing meanwhile: these keep their place."""
        turns = self.connection.node.turns
        queues = list(self.sources)
        tags = list(self.unacked)
        for queue in queues:
            queue.pause_delivery()
        for at in range(0, len(tags), SETTLED_AT_ONCE):
            await turns.pause()
            self._requeue(slice_of(tags, at), verdict)
            turns.spend(SETTLED_AT_ONCE * SETTLED_US)
        for queue in queues:
            queue.resume_delivery()

    # Prefetch and back-pressure

    def set_limit(self, most: int) -> None:
        """basic.qos with global: one limit for all consumers of the channel; 0 removes it.

        All messages outstanding now count; later only deliveries to consumers do.
        """
        if not most and self.limit is None:
            return
        turns = self.connection.node.turns
        turns.spend((len(self.unacked) + len(self.consumers)) // LOOKS_PER_US)
        for message in self.unacked.values():
            if isinstance(message.holder, Getter):
                message.holder.limited = True
        limit, outstanding = self.limit, len(self.unacked)
        if limit is None:
            self.limit = DeliveryLimit(most, outstanding, self.consumers.values(), turns)
        elif most:
            limit.change(most, outstanding)
        else:
            self.limit = None
            limit.lift()

    def add_consumer(self, consumer: ChannelConsumer) -> None:
        """A new subscription of the channel."""
        self.may_have_from(consumer.queue)
        self.consumers[consumer.tag] = consumer
        if self.limit is not None:
            self.limit.add(consumer)

    def remove_consumer(self, tag: str) -> ChannelConsumer | None:
        """Forget a consumer that leaves its queue; None if there is none of this tag."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None and self.limit is not None:
            self.limit.discard(consumer)
        return consumer

    def may_have_from(self, queue: ConsumedQueue) -> None:
        """Note a queue that may hand out messages here; deleted queues are removed now and then."""
        sources = self.sources
        if queue in sources:
            return
        sources[queue] = None
        self.has_streams |= queue.is_stream
        if len(sources) > self._sources_max:
            self.sources = {source: None for source in sources if not source.deleted}
            self._sources_max = max(SOURCES_MAX, 2 * len(self.sources))

    def socket_writable(self, writable: bool) -> None:
        self._block_all(Blocked.SOCKET, not writable)

    def hold_back(self, held_back: bool) -> None:
        """Block the consumers because too much output waits for a commit, or unblock them."""
        self._block_all(Blocked.COMMITS, held_back)

    def _block_all(self, reason: int, blocked: bool) -> None:
        if blocked:
            for consumer in self.consumers.values():
                consumer.block(reason)
            return
        woken = [consumer for consumer in self.consumers.values() if consumer.unblock(reason)]
        for consumer in woken:
            consumer.queue.deliver()

    def initially_blocked(self) -> int:
        """The reasons (`Blocked`) why a new consumer of this channel gets nothing at first."""
        blocked = 0
        if self.limit is not None and self.limit.is_reached:
            blocked |= Blocked.CHANNEL_LIMIT
        if self.connection.held_back:
            blocked |= Blocked.COMMITS
        if not self.connection.socket_writable:
            blocked |= Blocked.SOCKET
        return blocked

    # Showing

    def stats(self) -> MessageStats:
        """The channel's statistics; deliveries follow from tags and outstanding messages."""
        confirms, transaction = self.confirms, self.transaction
        judged = transaction.judged if transaction is not None else 0
        taken = len(self.unacked) + judged + self.acked + self.given_back
        return MessageStats(
            publish=self.published,
            confirm=confirms.confirmed if confirms is not None else 0,
            return_unroutable=self.returned,
            drop_unroutable=self.dropped,
            get=self.got,
            get_no_ack=self.got_no_ack,
            get_empty=self.got_nothing,
            deliver=taken - self.got,
            deliver_no_ack=self.last_delivery_tag - taken - self.got_no_ack,
            redeliver=self.redelivered,
            ack=self.acked,
        )

    # Ending

    def consumer_cancelled(self, consumer: ChannelConsumer) -> None:
        """The queue of a consumer is gone: tell the client if it has the capability, unless it has
        cancelled it meanwhile, or the channel has ended."""
        if self.consumers.get(consumer.tag) is not consumer:
            return
        self.remove_consumer(consumer.tag)
        if "consumer_cancel_notify" not in self.connection.capabilities:
            return
        method = make(commands.Basic.Cancel, consumer_tag=consumer.tag, nowait=True)
        (self.reply if self._held_cancels is None else self._held_cancels.append)(method)

    @contextmanager
    def cancels_later(self) -> Iterator[None]:
        """Send the cancels of consumers at the end, after the reply written meanwhile."""
        held: list[Method] = []
        self._held_cancels = held
        yield
        self._held_cancels = None
        for method in held:
            self.reply(method)

    def fails(self, error: PreconditionFailed) -> None:
        """Close the channel for a reason that no method of the client has given."""
        self.connection.close_channel(self.number, error, NO_IDS)

    def tell(self, method: Method) -> None:
        """Reply to a request that took time, if the channel still exists."""
        if self.connection.channels.get(self.number) is self:
            self.reply(method)

    def traced_as(self) -> TracedClient:
        """This client, as observers are told of it."""
        connection = self.connection
        return TracedClient(connection.peer.name, self.number, connection.user_name)

    def stop(self) -> None:
        """End timers, direct replies and confirms. `give_back` must follow when the consumers have
        left their queues."""
        self.connection.node.giving_back[self] = None
        self.timeout.stop()
        if self.reply_consumer is not None:
            self.reply_consumer.end()
            self.reply_consumer = None
        if self.confirms is not None:
            self.connection.confirms_forgotten(self)
            self.confirms.close()

    def without_consumers(self) -> list[ChannelConsumer]:
        consumers = list(self.consumers.values())
        self.consumers.clear()
        if self.limit is not None:
            self.limit.clear()
        return consumers

    async def give_back(self) -> None:
        """Give unacknowledged messages back to their queues, after operations under way."""
        node = self.connection.node
        if self._under_way is not None:
            await self._under_way
        if self.transaction is not None:
            self.transaction.rollback()
        many = self.requeue_all(Verdict.ABANDON)
        if many is not None:
            await many
        del node.giving_back[self]
        self.vhost.count_past(self.stats())
        node.channel_closed(self.connection)
        # Both refer to the channel; without them it is in no reference cycle.
        self.confirms = None
        self.transaction = None
