"""A broker and its clients in one process: a real node, real connections, no socket, no time.

    broker = Broker()
    client = broker.connects()
    client.opens_channel(1)
    client.sends(commands.Queue.Declare, queue="q")
    assert client.receives(commands.Queue.DeclareOk).queue == "q"

A `Pipe` stands where the socket would: it is the `Shell` of its connection. What a client sends
while the connection does not read waits in the pipe, as it would in the socket, and is handed over
before anything else once reading goes on. Everything that is not done at once is on the manual
clock: `broker.settle()` runs what is to run soon, `broker.advance(s)` lets time pass.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple, TypeVar

from manual_clock import ManualClock
from pamqp import base, commands

from warren.amqp.connection import Connection
from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER
from warren.amqp.methods import Method, decode_method, encode_method, make
from warren.amqp.peer import ConnectionSettings, Peer
from warren.core.access.access_control import AccessControl, create_defaults
from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.field import Field, Table
from warren.core.messages.message import NO_HOLDER, Message
from warren.core.node import Node, default_server_properties
from warren.core.ports import MetadataStore
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.placement import Placement
from warren.core.resources.alarms import Alarms, Resource
from warren.core.vhosts.vhost import VirtualHost

M = TypeVar("M", bound=base.Frame)

FRAME_HEAD = struct.Struct(">BHI")

CAPABILITIES = ("authentication_failure_close", "connection.blocked", "consumer_cancel_notify")


class Frame(NamedTuple):
    """One frame; `octets` is what stands on the wire."""

    kind: int
    channel: int
    payload: bytes

    @property
    def octets(self) -> bytes:
        head = FRAME_HEAD.pack(self.kind, self.channel, len(self.payload))
        return head + self.payload + b"\xce"

    @property
    def method(self) -> Method:
        assert self.kind == METHOD, self
        return decode_method(self.payload)

    def __repr__(self) -> str:
        if self.kind != METHOD:
            return f"<frame {self.kind} on {self.channel}: {self.payload[:40]!r}>"
        method = self.method
        values = {name: getattr(method, name) for name in type(method).__slots__}
        return f"<{method.name} on {self.channel}: {values}>"


class Content(NamedTuple):
    """A method that came with content."""

    method: Any
    header: bytes
    body: bytes

    @property
    def headers(self) -> Table:
        return AmqpContentCodec().headers(self.header)


def cut_frames(octets: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames at the start of the octets, and what is left."""
    frames = []
    at = 0
    length = len(octets)
    while length - at >= 8:
        kind, channel, size = FRAME_HEAD.unpack_from(octets, at)
        end = at + 7 + size
        if end >= length:
            break
        assert octets[end] == 0xCE, octets[at : at + 40]
        frames.append(Frame(kind, channel, octets[at + 7 : end]))
        at = end + 1
    return frames, octets[at:]


def method_frame(channel: int, kind: type[base.Frame], **arguments: Any) -> bytes:
    return Frame(METHOD, channel, encode_method(make(kind, **arguments))).octets


def content_header(
    body_size: int,
    *,
    headers: Table | None = None,
    delivery_mode: int | None = None,
    priority: int | None = None,
    expiration: str | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    message_id: str | None = None,
    user_id: str | None = None,
) -> bytes:
    """The payload of a header frame."""
    header = struct.pack(">HHQH", 60, 0, body_size, 0)
    if headers is not None:
        header = AmqpContentCodec().content_header(body_size, headers)
    (flags,) = struct.unpack_from(">H", header, 12)
    out = header[14:]
    for flag, octets in (
        (0x1000, None if delivery_mode is None else bytes((delivery_mode,))),
        (0x0800, None if priority is None else bytes((priority,))),
        (0x0400, _short(correlation_id)),
        (0x0200, _short(reply_to)),
        (0x0100, _short(expiration)),
        (0x0080, _short(message_id)),
        (0x0010, _short(user_id)),
    ):
        if octets is not None:
            flags |= flag
            out += octets
    return header[:12] + struct.pack(">H", flags) + out


def _short(text: str | None) -> bytes | None:
    if text is None:
        return None
    raw = text.encode()
    return bytes((len(raw),)) + raw


def publish_frames(
    channel: int,
    exchange: str,
    routing_key: str,
    body: bytes,
    *,
    mandatory: bool = False,
    frame_size: int = 4088,
    **properties: Any,
) -> bytes:
    """A basic.publish with its content, as octets."""
    parts = [
        _publish_frame(channel, exchange, routing_key, mandatory),
        Frame(HEADER, channel, content_header(len(body), **properties)).octets,
    ]
    for start in range(0, len(body), frame_size):
        parts.append(Frame(BODY, channel, body[start : start + frame_size]).octets)
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _publish_frame(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    return method_frame(
        channel,
        commands.Basic.Publish,
        exchange=exchange,
        routing_key=routing_key,
        mandatory=mandatory,
    )


class Pipe:
    """The `Shell` of one connection, and both ends of what would be its socket."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.connection: Connection
        self.reading = True
        self.ended = False
        self.aborted = False
        self.pauses = 0
        self.written = b""
        self._unread: deque[bytes] = deque()

    # What the connection calls

    def request_flush(self) -> None:
        self._clock.call_soon(self.flush)

    def pause_reading(self) -> None:
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        self.reading = True
        self._clock.call_soon(self._feed)

    def close(self) -> None:
        self.flush()
        self._end()

    def owed_octets(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True
        self._end()

    def fault(self) -> None:
        raise

    # What the socket would do

    def flush(self) -> None:
        if not self.ended:
            self.written += b"".join(self.connection.take_output())

    def feed(self, octets: bytes) -> None:
        """Octets arrive from the client."""
        self._unread.append(octets)
        self._feed()

    def lose(self) -> None:
        """The client's end is gone."""
        if not self.ended:
            self.ended = True
            self.connection.connection_lost()

    def _feed(self) -> None:
        while self._unread and self.reading and not self.ended:
            self.connection.receive_data(self._unread.popleft())

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self._clock.call_soon(self.connection.connection_lost)


class Client:
    """A client of the broker. Channel 1 is meant where no channel is given."""

    def __init__(self, broker: Broker, pipe: Pipe) -> None:
        self.broker = broker
        self.pipe = pipe
        self.inbox: deque[Frame] = deque()
        self._partial = b""

    @property
    def connection(self) -> Connection:
        return self.pipe.connection

    # Sending

    def sends_octets(self, octets: bytes) -> None:
        self.pipe.feed(octets)

    def sends(self, kind: type[base.Frame], channel: int = 1, **arguments: Any) -> None:
        self.pipe.feed(method_frame(channel, kind, **arguments))

    def publishes(
        self, routing_key: str, body: bytes = b"x", channel: int = 1, **more: Any
    ) -> None:
        """Publish, to the default exchange unless `exchange` is given."""
        exchange = more.pop("exchange", "")
        self.pipe.feed(publish_frames(channel, exchange, routing_key, body, **more))

    def vanishes(self) -> None:
        """The socket ends without a word."""
        self.pipe.lose()
        self.broker.settle()

    # Receiving

    def frames(self) -> list[Frame]:
        """Everything that arrived and was not looked at yet."""
        self._collect()
        frames = list(self.inbox)
        self.inbox.clear()
        return frames

    def receives(self, kind: type[M], channel: int | None = None) -> M:
        """The next frame, which must be this method."""
        frame = self._next(f"{kind.name}")
        method = frame.method
        assert isinstance(method, kind), f"wanted {kind.name}, got {frame}"
        assert channel is None or frame.channel == channel, f"wanted channel {channel}, got {frame}"
        return method

    def receives_content(self, kind: type[base.Frame] = commands.Basic.Deliver) -> Content:
        """The next frames, which must be this method with its content."""
        method = self.receives(kind)
        header = self._next("a content header")
        assert header.kind == HEADER, header
        (left,) = struct.unpack_from(">Q", header.payload, 4)
        body = b""
        while len(body) < left:
            part = self._next("a content body")
            assert part.kind == BODY, part
            body += part.payload
        return Content(method, header.payload, body)

    def receives_deliveries(self) -> list[Content]:
        """All deliveries there are, and nothing else."""
        deliveries = []
        self._collect()
        while self.inbox:
            deliveries.append(self.receives_content())
        return deliveries

    def receives_bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.receives_deliveries()]

    def receives_nothing(self) -> None:
        frames = self.frames()
        assert not frames, frames

    def receives_close(self, code: int) -> commands.Channel.Close:
        """The next frame closes a channel for this reason; the close is answered."""
        self._collect()
        frame = self.inbox[0]
        close = self.receives(commands.Channel.Close)
        assert close.reply_code == code, close.reply_text
        self.sends(commands.Channel.CloseOk, frame.channel)
        return close

    def receives_connection_close(self, code: int) -> commands.Connection.Close:
        close = self.receives(commands.Connection.Close)
        assert close.reply_code == code, close.reply_text
        return close

    # What tests do most

    def opens_channel(self, number: int) -> None:
        self.sends(commands.Channel.Open, number)
        self.receives(commands.Channel.OpenOk, number)

    def declares(self, queue: str, channel: int = 1, **more: Any) -> commands.Queue.DeclareOk:
        arguments = more.pop("arguments", {})
        self.sends(commands.Queue.Declare, channel, queue=queue, arguments=arguments, **more)
        return self.receives(commands.Queue.DeclareOk)

    def counts(self, queue: str, channel: int = 1) -> tuple[int, int]:
        """Ready messages and consumers of a queue."""
        self.sends(commands.Queue.Declare, channel, queue=queue, passive=True)
        answer = self.receives(commands.Queue.DeclareOk)
        return answer.message_count, answer.consumer_count

    def consumes(self, queue: str, tag: str = "c", channel: int = 1, **more: Any) -> None:
        self.sends(commands.Basic.Consume, channel, queue=queue, consumer_tag=tag, **more)
        assert self.receives(commands.Basic.ConsumeOk).consumer_tag == tag

    def gets(self, queue: str, channel: int = 1, no_ack: bool = False) -> Content | None:
        self.sends(commands.Basic.Get, channel, queue=queue, no_ack=no_ack)
        self._collect()
        if isinstance(self.inbox[0].method, commands.Basic.GetEmpty):
            self.inbox.popleft()
            return None
        return self.receives_content(commands.Basic.GetOk)

    def acks(self, tag: int, channel: int = 1, multiple: bool = False) -> None:
        self.sends(commands.Basic.Ack, channel, delivery_tag=tag, multiple=multiple)

    def nacks(
        self, tag: int, channel: int = 1, multiple: bool = False, requeue: bool = True
    ) -> None:
        self.sends(
            commands.Basic.Nack, channel, delivery_tag=tag, multiple=multiple, requeue=requeue
        )

    def selects_confirms(self, channel: int = 1) -> None:
        self.sends(commands.Confirm.Select, channel)
        self.receives(commands.Confirm.SelectOk)

    def sets_prefetch(self, count: int, channel: int = 1, whole_channel: bool = False) -> None:
        self.sends(commands.Basic.Qos, channel, prefetch_count=count, global_=whole_channel)
        self.receives(commands.Basic.QosOk)

    def _collect(self) -> None:
        self.broker.settle()
        if self.pipe.written:
            frames, self._partial = cut_frames(self._partial + self.pipe.written)
            self.pipe.written = b""
            self.inbox.extend(frames)

    def _next(self, wanted: str) -> Frame:
        if not self.inbox:
            self._collect()
        assert self.inbox, f"wanted {wanted}, got nothing"
        return self.inbox.popleft()


class Broker:
    """One node and the clients connected to it. `settings` are fields of `ConnectionSettings`."""

    def __init__(
        self,
        *,
        metadata: MetadataStore | None = None,
        new_backing_queue: Callable[[BackingSpec], BackingQueue] = lambda spec: MemoryQueue(),
        loopback_users: tuple[str, ...] = ("guest",),
        clock: ManualClock | None = None,
        name: str = "warren@test",
        new_placement: Callable[[Broker], Placement] | None = None,
        random_seed: str | None = None,
        **settings: Any,
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.name = name
        self.settings = ConnectionSettings(**settings)
        self.metadata = VolatileMetadataStore() if metadata is None else metadata
        self._random = Random(random_seed or name)
        create_defaults(self.metadata, random_bytes=self._random.randbytes)
        self.access = AccessControl(
            self.metadata, random_bytes=self._random.randbytes, loopback_users=loopback_users
        )
        self.alarms = Alarms(name)
        self._tokens = 0
        self.node = Node(
            name,
            clock=self.clock,
            codec=AmqpContentCodec(),
            metadata=self.metadata,
            access=self.access,
            alarms=self.alarms,
            random=self._random,
            new_token=self._new_token,
            new_backing_queue=new_backing_queue,
            server_properties=default_server_properties("0", "test"),
            placement=None if new_placement is None else new_placement(self),
        )
        self._ports = 40000

    def settle(self) -> None:
        self.clock.settle()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def alarm(self, short: bool, resource: Resource = Resource.MEMORY) -> None:
        self.alarms.report(resource, short)

    def lets_go(self) -> None:
        """Nothing will happen here any more: let the collector have all of this.

        It does not look at messages, so those that consumers hold would keep everything.
        """
        node = self.node
        holding = [*node.giving_back]
        for client in node.clients:
            assert isinstance(client, Connection)
            holding += client.channels.values()
        held: list[Iterable[Message]] = [one.unsettled() for one in holding]
        for queue in node.local_queues:
            held += [afar.messages.values() for afar in node.held_afar(queue)]
        for messages in held:
            for message in messages:
                message.holder = NO_HOLDER

    @property
    def vhost(self) -> VirtualHost:
        return self.node.vhosts["/"]

    def queue(self, name: str) -> LocalQueue:
        return self.vhost.queues[name]

    def accepts(self, host: str = "127.0.0.1") -> Client:
        """A client that has said nothing yet."""
        pipe = Pipe(self.clock)
        self._ports += 1
        peer = Peer(host, self._ports, "127.0.0.1", 5672)
        pipe.connection = Connection(self.node, self.settings, pipe, peer)
        return Client(self, pipe)

    def connects(
        self,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        heartbeat_s: int = 0,
        frame_max: int = 4096,
        channel_max: int | None = None,
        capabilities: tuple[str, ...] = CAPABILITIES,
    ) -> Client:
        """A client that is through with the handshake."""
        client = self.accepts()
        client.sends_octets(PROTOCOL_HEADER)
        client.receives(commands.Connection.Start)
        client.sends_octets(start_ok(user, password, capabilities))
        client.receives(commands.Connection.Tune)
        client.sends(
            commands.Connection.TuneOk,
            0,
            channel_max=self.settings.channel_max if channel_max is None else channel_max,
            frame_max=frame_max,
            heartbeat=heartbeat_s,
        )
        client.sends(commands.Connection.Open, 0, virtual_host=vhost)
        client.receives(commands.Connection.OpenOk)
        return client

    def _new_token(self) -> str:
        self._tokens += 1
        return f"token{self._tokens:017}"


def start_ok(
    user: str = "guest",
    password: str = "guest",
    capabilities: tuple[str, ...] = CAPABILITIES,
) -> bytes:
    flags: Table = {name: Field("t", True) for name in capabilities}
    return method_frame(
        0,
        commands.Connection.StartOk,
        client_properties={"capabilities": Field("F", flags)},
        mechanism="PLAIN",
        response=f"\0{user}\0{password}",
        locale="en_US",
    )
