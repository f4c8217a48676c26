"""A client of AMQP 0-9-1 as octets in, events and octets out; without a socket or a clock.

    AWAITING_START -> AWAITING_TUNE -> AWAITING_OPEN_OK -> OPEN -> AWAITING_CLOSE_OK -> CLOSED

The user of the protocol passes in received octets and the time, and gets events (`events.py`). It
sends what `data_to_send` returns, and calls `tick` at the time of `deadline`. Whatever a broker
sends, no method raises: octets that make no sense end the connection.

A broker answers the questions on a channel in the order in which they were asked (4.2.5 of the
specification: methods are synchronous or not). So an answer is for the oldest unanswered question.

The n-th publish on a channel with confirms has delivery tag n. Every publish ends once, as
`PublishesConfirmed` or as `PublishRefused`. A return does not name the tag, and comes before the
ack: it is taken to be for the first unconfirmed publish that is the same, octet by octet. If
several are the same, it does not matter which of them is meant: they are the same message. A return
of another message ends the connection: unconfirmed messages count as not arrived.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from pamqp import base, commands, frame
from pamqp.exceptions import PAMQPException

from warren.client.events import (
    Answered,
    Cancelled,
    ChannelClosed,
    ConnectionEnded,
    Delivered,
    Event,
    Opened,
    PublishesConfirmed,
    PublishingBlocked,
    PublishRefused,
)
from warren.client.frames import (
    BODY,
    FRAME_END,
    HEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    OVERHEAD,
    ack_frame,
    content_frames,
    method_frame,
    nack_frame,
    publish_frame,
    read_short_string,
)
from warren.client.handshake import PROTOCOL_HEADER, SILENCES_MAX, Login, Tuning

BODY_BYTES_MAX: Final = 512 << 20
"""The largest message that any version of RabbitMQ takes."""
ANSWER_S: Final = 60.0
"""The time a broker may take for an answer: a queue of millions of messages may be slow."""

_DELIVER = 60 << 16 | 60
_ACK = 60 << 16 | 80
_NACK = 60 << 16 | 120
_RETURN = 60 << 16 | 50
_LONG = struct.Struct(">I")
_SHORT = struct.Struct(">H")
_LONGLONG = struct.Struct(">Q")
_TAG_AND_BITS = struct.Struct(">QB")
_BODY_SIZE_AT = 4
_HEADER_BYTES_MIN = 14


class Phase(Enum):
    """The method that the broker has to send next."""

    AWAITING_START = "connection.start"
    AWAITING_TUNE = "connection.tune"
    AWAITING_OPEN_OK = "connection.open-ok"
    OPEN = "anything"
    AWAITING_CLOSE_OK = "connection.close-ok"
    CLOSED = "nothing"


ENDING: Final = frozenset({Phase.AWAITING_CLOSE_OK, Phase.CLOSED})


class _SentPublish(NamedTuple):
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes


class _Content:
    """A message that is being received: its method has come, the rest has not."""

    __slots__ = ("body", "finish", "header", "missing")

    def __init__(self, finish: Callable[[bytes, bytes], None]) -> None:
        self.finish = finish
        self.header = b""
        self.missing = 0
        self.body: list[bytes] = []


class _Channel:
    """One channel: its unanswered questions, and the publishes that wait for confirms."""

    __slots__ = ("closing", "content", "next_tag", "questions", "returned", "unconfirmed")

    def __init__(self) -> None:
        self.questions: deque[type[base.Frame]] = deque()
        self.content: _Content | None = None
        self.next_tag = 0
        """0 as long as the channel has no confirms."""
        self.unconfirmed: dict[int, _SentPublish] = {}
        self.returned: dict[int, str] = {}
        self.closing = False


class ClientProtocol:
    """One connection with as many channels as its user opens."""

    def __init__(self, login: Login, tuning: Tuning, now: float) -> None:
        self.phase = Phase.AWAITING_START
        self.frame_max = tuning.frame_max
        self.heartbeat_s = 0
        self.blocked: str | None = None
        """Why the broker wants no publishes now; None if it takes them."""
        self.server_properties: Mapping[str, Any] = {}
        """The server properties of the broker."""
        self._login = login
        self._tuning = tuning
        self._received = b""
        self._to_send: list[bytes] = [PROTOCOL_HEADER]
        self._events: list[Event] = []
        self._channels: dict[int, _Channel] = {}
        self._last_received = self._last_sent = self._asked_at = now

    # Sending

    def data_to_send(self, now: float) -> list[bytes]:
        """The octets to send now, in parts; each octet is returned once."""
        parts, self._to_send = self._to_send, []
        if parts:
            self._last_sent = now
        return parts

    def ask(self, channel: int, kind: type[base.Frame], now: float, **arguments: Any) -> None:
        """Send a method that has an answer: an `Answered` follows, or the end of the channel.

        channel.open opens a channel, and confirm.select gives it confirms. Raises ValueError for
        arguments that do not fit their wire type.
        """
        octets = method_frame(channel, kind, **arguments)
        if kind is commands.Channel.Open:
            self._channels[channel] = _Channel()
        asked = self._channels[channel]
        if kind is commands.Confirm.Select:
            asked.next_tag = 1
        if kind is commands.Channel.Close:
            asked.closing = True
        if not self._waits:
            self._asked_at = now
        asked.questions.append(kind)
        self._to_send.append(octets)

    def publish(
        self,
        channel: int,
        exchange: bytes,
        routing_key: bytes,
        header: bytes,
        body: bytes,
        *,
        mandatory: bool = False,
    ) -> int:
        """Send a message; returns its tag, or 0 on a channel without confirms.

        Raises ValueError, with nothing sent, for names and properties that do not fit a frame.
        """
        method = publish_frame(channel, exchange, routing_key, mandatory=mandatory)
        content = content_frames(channel, header, body, self.frame_max)
        self._to_send.append(method)
        self._to_send += content
        publisher = self._channels[channel]
        tag = publisher.next_tag
        if tag:
            publisher.unconfirmed[tag] = _SentPublish(exchange, routing_key, header, body)
            publisher.next_tag += 1
        return tag

    def ack(self, channel: int, delivery_tag: int, *, multiple: bool = False) -> None:
        self._to_send.append(ack_frame(channel, delivery_tag, multiple=multiple))

    def nack(
        self, channel: int, delivery_tag: int, *, multiple: bool = False, requeue: bool = True
    ) -> None:
        frame_octets = nack_frame(channel, delivery_tag, multiple=multiple, requeue=requeue)
        self._to_send.append(frame_octets)

    def has_channel(self, channel: int) -> bool:
        return channel in self._channels

    def unconfirmed(self, channel: int) -> int:
        """The number of publishes of the channel that wait for a confirm."""
        found = self._channels.get(channel)
        return len(found.unconfirmed) if found is not None else 0

    def close(self, now: float) -> None:
        """Close the connection; `ConnectionEnded` follows when the broker has answered."""
        if self.phase in (Phase.AWAITING_START, Phase.AWAITING_TUNE):
            # Before connection.open there is nothing to close (4.2.2).
            self._end(0, "closed before it was open")
        elif self.phase not in ENDING:
            self.phase = Phase.AWAITING_CLOSE_OK
            self._asked_at = now
            self._send(0, commands.Connection.Close, reply_code=200, reply_text="Goodbye",
                       class_id=0, method_id=0)  # fmt: skip

    # Time

    def deadline(self) -> float | None:
        """The time at which `tick` has to be called next; None if nothing is waited for."""
        if self.phase is Phase.CLOSED:
            return None
        times = []
        if self.heartbeat_s:
            times.append(self._last_sent + self.heartbeat_s / 2)
            times.append(self._last_received + SILENCES_MAX * self.heartbeat_s)
        if self._waits:
            times.append(self._asked_at + ANSWER_S)
        return min(times, default=None)

    def tick(self, now: float) -> list[Event]:
        """Send heartbeats and end the connection if time is up; returns the events."""
        if self.phase is Phase.CLOSED:
            return self._take_events()
        if self.heartbeat_s:
            silence_s = now - self._last_received
            if silence_s >= SILENCES_MAX * self.heartbeat_s:
                self._end(0, f"heartbeat timeout: the broker was silent for {silence_s:.0f} s")
            elif now - self._last_sent >= self.heartbeat_s / 2:
                self._to_send.append(HEARTBEAT_FRAME)
        if self._waits and now - self._asked_at >= ANSWER_S:
            self._end(0, f"the broker gave no answer for {ANSWER_S:g} s")
        return self._take_events()

    def did_not_listen(self, now: float) -> None:
        """Restart the timeouts: nothing was read until now, so the broker's silence means
        nothing."""
        self._last_received = self._asked_at = now

    @property
    def _waits(self) -> bool:
        """Whether the broker owes an answer."""
        if self.phase is not Phase.OPEN:
            return self.phase is not Phase.CLOSED
        return any(channel.questions for channel in self._channels.values())

    # Receiving

    def receive_eof(self, reason: str) -> list[Event]:
        """The socket has ended; returns the events."""
        if self.phase is Phase.AWAITING_TUNE:
            reason += ", as some brokers do that refuse a login"
        self._end(0, reason)
        return self._take_events()

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Take received octets; returns their events."""
        self._last_received = now
        received = self._received + data if self._received else data
        at, end = 0, len(received)
        try:
            while end - at >= OVERHEAD and self.phase is not Phase.CLOSED:
                kind, number, size = HEAD.unpack_from(received, at)
                if kind == PROTOCOL_HEADER[0]:
                    raise _Nonsense(f"another protocol: {received[at : at + 8]!r}")
                if size + OVERHEAD > self.frame_max:
                    raise _Nonsense(f"a frame of {size + OVERHEAD} octets, of {self.frame_max}")
                stop = at + size + OVERHEAD
                if stop > end:
                    break
                if received[stop - 1] != FRAME_END:
                    raise _Nonsense(f"a frame that ends in 0x{received[stop - 1]:02X}")
                self._frame(kind, number, received[at:stop], now)
                at = stop
        except _Nonsense as nonsense:
            self._end(0, f"the broker sent {nonsense}")
        except (IndexError, struct.error) as error:
            self._end(0, f"the broker sent a method that cannot be read: {error}")
        self._received = received[at:] if self.phase is not Phase.CLOSED else b""
        return self._take_events()

    def _frame(self, kind: int, number: int, octets: bytes, now: float) -> None:
        if kind == HEARTBEAT:
            return
        channel = self._channels.get(number)
        if kind == METHOD:
            index = _LONG.unpack_from(octets, 7)[0]
            receive = _EVERY_MESSAGE.get(index)
            if receive is None or number == 0:
                self._method(number, channel, octets, now)
            elif channel is None:
                raise _Nonsense(f"a message on channel {number}, which is not open")
            elif channel.content is not None:
                raise _Nonsense("a method where the rest of a message was due")
            elif not channel.closing:
                receive(self, number, channel, octets)
            elif index in (_DELIVER, _RETURN):
                channel.content = _Content(_drop)
        elif kind == HEADER:
            self._content_header(channel, octets[7:-1])
        elif kind == BODY:
            self._content_body(channel, octets[7:-1])
        else:
            raise _Nonsense(f"a frame of type {kind}")

    # Messages and their confirms

    def _deliver(self, number: int, channel: _Channel, octets: bytes) -> None:
        _, at = read_short_string(octets, 11)
        tag, bits = _TAG_AND_BITS.unpack_from(octets, at)
        exchange, at = read_short_string(octets, at + 9)
        routing_key, _ = read_short_string(octets, at)
        redelivered = bool(bits & 1)

        def finish(header: bytes, body: bytes) -> None:
            self._events.append(
                Delivered(number, tag, redelivered, exchange, routing_key, header, body)
            )

        channel.content = _Content(finish)

    def _return(self, number: int, channel: _Channel, octets: bytes) -> None:
        (code,) = _SHORT.unpack_from(octets, 11)
        text, at = read_short_string(octets, 13)
        exchange, at = read_short_string(octets, at)
        routing_key, _ = read_short_string(octets, at)
        reason = f"{code} {text.decode(errors='replace')}"

        def finish(header: bytes, body: bytes) -> None:
            sent = _SentPublish(exchange, routing_key, header, body)
            for tag, publish in channel.unconfirmed.items():
                if publish == sent and tag not in channel.returned:
                    channel.returned[tag] = reason
                    return
            raise _Nonsense("a return of a message that was not published like that")

        channel.content = _Content(finish)

    def _content_header(self, channel: _Channel | None, header: bytes) -> None:
        content = channel.content if channel is not None else None
        if content is None or content.header or len(header) < _HEADER_BYTES_MIN:
            raise _Nonsense("a content header that belongs to nothing")
        (content.missing,) = _LONGLONG.unpack_from(header, _BODY_SIZE_AT)
        if content.missing > BODY_BYTES_MAX:
            raise _Nonsense(f"a message of {content.missing} octets")
        content.header = header
        self._finish_if_whole(channel, content)

    def _content_body(self, channel: _Channel | None, body: bytes) -> None:
        content = channel.content if channel is not None else None
        if content is None or not content.header or len(body) > content.missing:
            raise _Nonsense("a content body that belongs to nothing")
        content.body.append(body)
        content.missing -= len(body)
        self._finish_if_whole(channel, content)

    def _finish_if_whole(self, channel: _Channel | None, content: _Content) -> None:
        if content.missing:
            return
        assert channel is not None
        channel.content = None
        body = content.body[0] if len(content.body) == 1 else b"".join(content.body)
        content.finish(content.header, body)

    def _acked(self, number: int, channel: _Channel, octets: bytes) -> None:
        tag, bits = _TAG_AND_BITS.unpack_from(octets, 11)
        self._settle(number, channel, tag, bits, None)

    def _nacked(self, number: int, channel: _Channel, octets: bytes) -> None:
        tag, bits = _TAG_AND_BITS.unpack_from(octets, 11)
        self._settle(number, channel, tag, bits, "nacked: the broker did not take it")

    def _settle(
        self, number: int, channel: _Channel, tag: int, bits: int, nack: str | None
    ) -> None:
        unconfirmed = channel.unconfirmed
        if bits & 1:
            last = tag or channel.next_tag - 1
            if last >= channel.next_tag:
                raise _Nonsense(f"a confirm up to tag {last}, which was not used")
            tags = []
            for waiting in unconfirmed:
                if waiting > last:
                    break
                tags.append(waiting)
        elif tag in unconfirmed:
            tags = [tag]
        else:
            raise _Nonsense(f"a confirm of tag {tag}, which was not waited for")
        confirmed = []
        for settled in tags:
            del unconfirmed[settled]
            reason = channel.returned.pop(settled, nack) if channel.returned else nack
            if reason is None:
                confirmed.append(settled)
            else:
                self._events.append(PublishRefused(number, settled, reason))
        if confirmed:
            newest = self._events[-1] if self._events else None
            if isinstance(newest, PublishesConfirmed) and newest.channel == number:
                newest.tags.extend(confirmed)
            else:
                self._events.append(PublishesConfirmed(number, confirmed))

    # Everything else

    def _method(self, number: int, channel: _Channel | None, octets: bytes, now: float) -> None:
        try:
            _, _, method = frame.unmarshal(octets)
        except (PAMQPException, ValueError, LookupError, TypeError, struct.error, Warning) as error:
            raise _Nonsense(f"a method that cannot be read: {error}") from error
        kind = type(method)
        if number == 0:
            rule = _CONNECTION.get(kind)
            if rule is None or (rule.phase is not None and rule.phase is not self.phase):
                if self.phase is Phase.AWAITING_CLOSE_OK:
                    return
                raise _Nonsense(f"{_name(method)} where {self.phase.value} was due")
            rule.receive(self, method, now)
        elif channel is None:
            raise _Nonsense(f"{_name(method)} on channel {number}, which is not open")
        elif kind is commands.Channel.Close:
            self._channel_closed(number, method)
        elif kind is commands.Basic.Cancel:
            assert isinstance(method, commands.Basic.Cancel)
            self._events.append(Cancelled(number, str(method.consumer_tag)))
        else:
            self._answer(number, channel, method, now)

    def _answer(self, number: int, channel: _Channel, method: Any, now: float) -> None:
        asked = channel.questions[0] if channel.questions else None
        if asked is None or _name(method) not in asked.valid_responses:
            raise _Nonsense(f"{_name(method)}, which nothing on channel {number} waits for")
        channel.questions.popleft()
        self._asked_at = now
        if isinstance(method, commands.Channel.CloseOk):
            del self._channels[number]
        self._events.append(Answered(number, method))

    def _channel_closed(self, number: int, method: Any) -> None:
        del self._channels[number]
        self._send(number, commands.Channel.CloseOk)
        self._events.append(ChannelClosed(number, method.reply_code, str(method.reply_text)))

    def _start(self, method: commands.Connection.Start, now: float) -> None:
        offered = str(method.mechanisms).split()
        self.server_properties = method.server_properties or {}
        login = self._login
        if login.mechanism not in offered:
            raise _Nonsense(f"the login mechanisms {' '.join(offered)}, not {login.mechanism}")
        self._to_send.append(login.start_ok())
        self._asked_at = now
        self.phase = Phase.AWAITING_TUNE

    def _tune(self, method: commands.Connection.Tune, now: float) -> None:
        agreed = self._tuning.agreed(method)
        self.frame_max, self.heartbeat_s = agreed.frame_max, agreed.heartbeat_s
        self._to_send += (agreed.tune_ok(), self._login.open())
        self._asked_at = now
        self.phase = Phase.AWAITING_OPEN_OK

    def _open_ok(self, method: commands.Connection.OpenOk, now: float) -> None:
        self.phase = Phase.OPEN
        self._events.append(Opened())

    def _blocked(self, method: commands.Connection.Blocked, now: float) -> None:
        self.blocked = str(method.reason)
        self._events.append(PublishingBlocked(self.blocked))

    def _unblocked(self, method: commands.Connection.Unblocked, now: float) -> None:
        self.blocked = None
        self._events.append(PublishingBlocked(None))

    def _closed(self, method: commands.Connection.Close, now: float) -> None:
        self._send(0, commands.Connection.CloseOk)
        self._end(method.reply_code or 0, str(method.reply_text))

    def _close_ok(self, method: commands.Connection.CloseOk, now: float) -> None:
        self._end(200, "Goodbye")

    def _end(self, code: int, text: str) -> None:
        if self.phase is not Phase.CLOSED:
            self.phase = Phase.CLOSED
            self._events.append(ConnectionEnded(code, text))

    def _send(self, channel: int, kind: type[base.Frame], **arguments: Any) -> None:
        self._to_send.append(method_frame(channel, kind, **arguments))

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class _Nonsense(Exception):
    """Octets of the broker cannot be understood, so the octets after them cannot be either."""


class _Rule(NamedTuple):
    """A method of channel 0: the phase in which it is legal (None is any), and its handler."""

    phase: Phase | None
    receive: Callable[[ClientProtocol, Any, float], None]


_CONNECTION: Final[Mapping[type[Any], _Rule]] = {
    commands.Connection.Start: _Rule(Phase.AWAITING_START, ClientProtocol._start),
    commands.Connection.Tune: _Rule(Phase.AWAITING_TUNE, ClientProtocol._tune),
    commands.Connection.OpenOk: _Rule(Phase.AWAITING_OPEN_OK, ClientProtocol._open_ok),
    commands.Connection.CloseOk: _Rule(Phase.AWAITING_CLOSE_OK, ClientProtocol._close_ok),
    commands.Connection.Blocked: _Rule(Phase.OPEN, ClientProtocol._blocked),
    commands.Connection.Unblocked: _Rule(Phase.OPEN, ClientProtocol._unblocked),
    commands.Connection.Close: _Rule(None, ClientProtocol._closed),
}

_EVERY_MESSAGE: Final[Mapping[int, Callable[[ClientProtocol, int, _Channel, bytes], None]]] = {
    _DELIVER: ClientProtocol._deliver,
    _RETURN: ClientProtocol._return,
    _ACK: ClientProtocol._acked,
    _NACK: ClientProtocol._nacked,
}


def _name(method: Any) -> str:
    return str(method.name)


def _drop(_header: bytes, _body: bytes) -> None:
    """Drop a message on a channel that is being closed."""
