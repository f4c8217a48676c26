"""A client that only publishes: AMQP 0-9-1 as bytes in and bytes out, without a socket or a clock.

    AWAITING_START -> AWAITING_TUNE -> AWAITING_OPEN_OK -> AWAITING_CHANNEL
        -> (AWAITING_SELECT_OK, with confirms) -> READY
        -> AWAITING_CHANNEL_CLOSE_OK -> AWAITING_CLOSE_OK -> CLOSED

The caller passes in received octets and the time, sends what `data_to_send` returns, and calls
`tick` at the time of `deadline`. It sends publishes itself, completely and in order, after it has
called `published` for them, and begins none while `blocked` is not None.

The n-th message on a channel has delivery tag n (RabbitMQ's publisher confirms). A message counts
as unconfirmed until a basic.ack names it, alone or among "all up to"; tags may come in any order.
Any other fate of a message is a failure of the whole: it is returned or nacked, the channel or the
connection is closed, or no answer comes in time. `failure` has the first failure, as a text for
people, and keeps it. Whatever a broker sends, no method raises.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from pamqp import base, commands, frame
from pamqp.exceptions import PAMQPException

from warren.client.frames import (
    BODY,
    FRAME_END,
    HEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    OVERHEAD,
)
from warren.client.handshake import (
    FRAME_BYTES_MAX,
    PROTOCOL_HEADER,
    SILENCES_MAX,
    Login,
    Tuning,
)
from warren.spark_export.sink.encoded_rows import EncodedRows, RowMessage
from warren.spark_export.values.basic_properties import message_id

CHANNEL: Final = 1
REPLY_SUCCESS: Final = 200

_BASIC_PUBLISH = (60, 40)
_ACK_START = struct.pack(">HH", 60, 80)
_ACK = struct.Struct(">QB")
_ACK_BYTES = 13


class SinkPhase(Enum):
    """The method that the broker has to send next."""

    AWAITING_START = "connection.start"
    AWAITING_TUNE = "connection.tune"
    AWAITING_OPEN_OK = "connection.open-ok"
    AWAITING_CHANNEL = "channel.open-ok"
    AWAITING_SELECT_OK = "confirm.select-ok"
    READY = "confirms"
    AWAITING_CHANNEL_CLOSE_OK = "channel.close-ok"
    AWAITING_CLOSE_OK = "connection.close-ok"
    CLOSED = "nothing"


OPENING = frozenset(
    {
        SinkPhase.AWAITING_START,
        SinkPhase.AWAITING_TUNE,
        SinkPhase.AWAITING_OPEN_OK,
        SinkPhase.AWAITING_CHANNEL,
        SinkPhase.AWAITING_SELECT_OK,
    }
)
ENDING = frozenset({SinkPhase.AWAITING_CLOSE_OK, SinkPhase.CLOSED})


class Patience(NamedTuple):
    """The seconds without progress after which the client gives up. `heartbeat_s` is the interval
    asked for, 0 for none; a broker that asks for a shorter one prevails."""

    confirm_s: float
    connect_s: float
    heartbeat_s: int


class _Sent(NamedTuple):
    """Rows `first` to `end` (exclusive) of `rows`, with the delivery tags from `tag` on."""

    tag: int
    rows: EncodedRows
    first: int
    end: int

    @property
    def tag_end(self) -> int:
        return self.tag + self.end - self.first


class PublisherProtocol:
    """One connection with one channel."""

    def __init__(self, login: Login, patience: Patience, *, confirms: bool, now: float) -> None:
        self.phase = SinkPhase.AWAITING_START
        self.failure: str | None = None
        self.blocked: str | None = None
        """Why the broker wants no publishes now; None if it takes them."""
        self.frame_max = FRAME_BYTES_MAX
        self.heartbeat_s = 0
        self._login = login
        self._patience = patience
        self._confirms = confirms
        self._received = b""
        self._to_send = [PROTOCOL_HEADER]
        self._returned: commands.Basic.Return | None = None
        self._sent: deque[_Sent] = deque()
        self._first_unconfirmed = 1
        self._next_tag = 1
        self._confirmed_ahead: set[int] = set()
        self._last_received = self._last_sent = self._last_progress = now

    @property
    def ready(self) -> bool:
        """Whether publishes may be sent, unless `blocked`."""
        return self.phase is SinkPhase.READY

    @property
    def unconfirmed(self) -> int:
        return self._next_tag - self._first_unconfirmed - len(self._confirmed_ahead)

    def data_to_send(self) -> bytes:
        """The octets to send, between publishes; each octet is returned once."""
        data = b"".join(self._to_send)
        self._to_send.clear()
        return data

    def sent(self, now: float) -> None:
        """Note that octets were sent."""
        self._last_sent = now

    def progressed(self, now: float) -> None:
        """Note that octets of publishes were sent."""
        self._last_sent = self._last_progress = now

    def published(self, rows: EncodedRows, first: int, end: int, now: float) -> None:
        """Note that the rows `first` to `end` (exclusive) are being sent."""
        if not self.unconfirmed:
            self._last_progress = now
        if self._confirms:
            self._sent.append(_Sent(self._next_tag, rows, first, end))
            self._next_tag += end - first

    def close(self, now: float) -> None:
        """Close the channel, then the connection. The broker answers the first close when it has
        dealt with everything published on the channel, so returned messages have come by then."""
        self._last_progress = now
        if self.phase is SinkPhase.READY and self.failure is None:
            self.phase = SinkPhase.AWAITING_CHANNEL_CLOSE_OK
            self._send(commands.Channel.Close(REPLY_SUCCESS, "done", 0, 0), CHANNEL)
        elif self.phase in (SinkPhase.AWAITING_START, SinkPhase.AWAITING_TUNE):
            # Before connection.open there is nothing to close (4.2.2).
            self.phase = SinkPhase.CLOSED
        elif self.phase not in ENDING:
            self._close_connection()

    def receive_eof(self, reason: str) -> None:
        """Note that the socket has ended."""
        if self.phase is SinkPhase.AWAITING_TUNE:
            reason += ", as some do who refuse a login"
        if self.phase not in ENDING:
            self._fail(f"the connection was lost: {reason}{self._at_stake()}")
        self.phase = SinkPhase.CLOSED

    def deadline(self) -> float | None:
        """The time at which `tick` has to be called next; None if nothing is waited for."""
        times = []
        if self.heartbeat_s and self.phase is not SinkPhase.CLOSED:
            times.append(self._last_sent + self.heartbeat_s / 2)
            times.append(self._last_received + SILENCES_MAX * self.heartbeat_s)
        patience_s = self._patience_now()
        if patience_s is not None:
            times.append(self._last_progress + patience_s)
        return min(times, default=None)

    def tick(self, now: float) -> None:
        """Send heartbeats and fail if time is up."""
        if self.phase in ENDING:
            return
        if self.heartbeat_s:
            if now - self._last_received >= SILENCES_MAX * self.heartbeat_s:
                self._fail(
                    f"the broker was silent for {now - self._last_received:.0f} s, with heartbeats"
                    f" every {self.heartbeat_s} s{self._at_stake()}"
                )
            if now - self._last_sent >= self.heartbeat_s / 2:
                self._to_send.append(HEARTBEAT_FRAME)
                # It counts as sent from now on: at a socket that takes nothing, heartbeats would
                # pile up.
                self._last_sent = now
        patience_s = self._patience_now()
        if patience_s is not None and now - self._last_progress >= patience_s:
            wanted = "a confirm" if self.ready else self.phase.value
            self._fail(f"{wanted} did not come within {patience_s:g} s{self._at_stake()}")

    def receive_data(self, data: bytes, now: float) -> None:
        """Take received octets."""
        self._last_received = now
        received = self._received + data if self._received else data
        at, end = 0, len(received)
        while end - at >= OVERHEAD and self.phase is not SinkPhase.CLOSED:
            kind, channel, size = HEAD.unpack_from(received, at)
            if kind == PROTOCOL_HEADER[0]:
                self._break_off(f"the broker speaks another protocol: {received[at : at + 8]!r}")
                break
            if size + OVERHEAD > self.frame_max:
                self._break_off(f"a frame of {size + OVERHEAD} octets, of {self.frame_max}")
                break
            stop = at + size + OVERHEAD
            if stop > end:
                break
            if received[stop - 1] != FRAME_END:
                self._break_off(f"a frame ends in 0x{received[stop - 1]:02X}")
                break
            payload_at = at + HEAD.size
            if (
                size == _ACK_BYTES
                and kind == METHOD
                and channel == CHANNEL
                and received.startswith(_ACK_START, payload_at)
            ):
                tag, multiple = _ACK.unpack_from(received, payload_at + 4)
                self._receive_ack(tag, bool(multiple), now)
            elif kind == METHOD:
                self._receive_method(received[at:stop], channel, now)
            elif kind == HEADER:
                self._receive_content_header(received[payload_at : stop - 1])
            elif kind not in (BODY, HEARTBEAT):
                # The body of a returned message is not needed.
                self._break_off(f"a frame of type {kind}")
            at = stop
        self._received = received[at:] if self.phase is not SinkPhase.CLOSED else b""

    # Opening

    def _receive_start(self, method: commands.Connection.Start, now: float) -> None:
        mechanisms = str(method.mechanisms).split()
        if "PLAIN" not in mechanisms:
            self._break_off(f"the broker offers {' '.join(mechanisms)}, not PLAIN")
            return
        self._to_send.append(self._login.start_ok(platform="Spark"))
        self.phase = SinkPhase.AWAITING_TUNE

    def _receive_tune(self, method: commands.Connection.Tune, now: float) -> None:
        agreed = Tuning(self._patience.heartbeat_s, CHANNEL).agreed(method)
        self.frame_max, self.heartbeat_s = agreed.frame_max, agreed.heartbeat_s
        self._to_send += (agreed.tune_ok(), self._login.open())
        self.phase = SinkPhase.AWAITING_OPEN_OK

    def _receive_open_ok(self, method: commands.Connection.OpenOk, now: float) -> None:
        self._send(commands.Channel.Open(), CHANNEL)
        self.phase = SinkPhase.AWAITING_CHANNEL

    def _receive_channel_open_ok(self, method: commands.Channel.OpenOk, now: float) -> None:
        if self._confirms:
            self._send(commands.Confirm.Select(), CHANNEL)
            self.phase = SinkPhase.AWAITING_SELECT_OK
        else:
            self.phase = SinkPhase.READY

    def _receive_select_ok(self, method: commands.Confirm.SelectOk, now: float) -> None:
        self.phase = SinkPhase.READY

    # Confirms, nacks and returns

    def _receive_ack(self, tag: int, multiple: bool, now: float) -> None:
        if not self._known(tag, multiple):
            self._break_off(f"an ack of tag {tag}, which was not waited for")
            return
        self._last_progress = now
        ahead = self._confirmed_ahead
        if multiple:
            end = (tag or self._next_tag - 1) + 1
            if ahead:
                ahead -= {one for one in ahead if one < end}
            self._first_unconfirmed = max(self._first_unconfirmed, end)
        elif tag == self._first_unconfirmed:
            self._first_unconfirmed += 1
        else:
            ahead.add(tag)
        while self._first_unconfirmed in ahead:
            ahead.remove(self._first_unconfirmed)
            self._first_unconfirmed += 1
        sent = self._sent
        while sent and sent[0].tag_end <= self._first_unconfirmed:
            sent.popleft()

    def _receive_nack(self, method: commands.Basic.Nack, now: float) -> None:
        tag = int(method.delivery_tag or 0)
        if not self._known(tag, bool(method.multiple)):
            self._break_off(f"a nack of tag {tag}, which was not waited for")
            return
        first = self._first_unconfirmed if method.multiple else tag
        self._fail(f"{self._row(first)} was nacked: the broker did not take it")

    def _receive_return(self, method: commands.Basic.Return, now: float) -> None:
        self._returned = method

    def _receive_content_header(self, payload: bytes) -> None:
        returned, self._returned = self._returned, None
        if self.phase in ENDING:
            return
        if returned is None:
            self._break_off("a content header that belongs to nothing")
            return
        try:
            identity = message_id(payload)
        except ValueError as error:
            self._break_off(str(error))
            return
        message = RowMessage(str(returned.exchange), str(returned.routing_key or ""), identity)
        self._fail(
            f"{self._row_of(message)} was returned:"
            f" {returned.reply_code} {returned.reply_text} ({message})"
        )

    def _known(self, tag: int, multiple: bool) -> bool:
        """Whether the broker may name this tag: alone, if unconfirmed; as "all up to", if used."""
        if multiple:
            return 0 <= tag < self._next_tag
        return self._first_unconfirmed <= tag < self._next_tag and tag not in self._confirmed_ahead

    def _row(self, tag: int) -> str:
        """A description of the message with this tag, for error texts."""
        for sent in self._sent:
            if sent.tag <= tag < sent.tag_end:
                number = sent.first + tag - sent.tag
                return f"row {sent.rows.first_row + number} ({sent.rows.message(number)})"
        return f"the message with delivery tag {tag}"

    def _row_of(self, message: RowMessage) -> str:
        """The first unconfirmed row that publishes such a message; basic.return does not name a
        tag, and comes before the ack."""
        for sent in self._sent:
            for tag in range(max(sent.tag, self._first_unconfirmed), sent.tag_end):
                number = sent.first + tag - sent.tag
                if tag not in self._confirmed_ahead and sent.rows.message(number) == message:
                    return f"row {sent.rows.first_row + number}"
        return "a message"

    def _at_stake(self) -> str:
        """The end of an error text about the unconfirmed messages; empty if there are none."""
        if not self.unconfirmed:
            return ""
        return (
            f"; {self.unconfirmed} messages were not confirmed, the first of them is"
            f" {self._row(self._first_unconfirmed)}"
        )

    def _refused(self, close: commands.Channel.Close | commands.Connection.Close) -> str:
        """The end of an error text: what the close says of unconfirmed messages. A close names the
        method that was refused, but not its delivery tag."""
        if not self.unconfirmed or (close.class_id, close.method_id) != _BASIC_PUBLISH:
            return self._at_stake()
        first, last = self._first_unconfirmed, self._next_tag - 1
        while last in self._confirmed_ahead:
            last -= 1
        if first == last:
            return f"; it refused {self._row(first)}"
        return (
            f"; AMQP does not say which message it refused: one of {self.unconfirmed} that were not"
            f" confirmed, from {self._row(first)} to {self._row(last)}"
        )

    # Blocking and closing

    def _receive_blocked(self, method: commands.Connection.Blocked, now: float) -> None:
        self.blocked = str(method.reason)

    def _receive_unblocked(self, method: commands.Connection.Unblocked, now: float) -> None:
        self.blocked = None
        self._last_progress = now

    def _receive_channel_close(self, method: commands.Channel.Close, now: float) -> None:
        self._fail(
            f"the broker closed the channel: {method.reply_code} {method.reply_text}"
            f"{self._refused(method)}"
        )
        self._send(commands.Channel.CloseOk(), CHANNEL)

    def _receive_channel_close_ok(self, method: commands.Channel.CloseOk, now: float) -> None:
        self._close_connection()

    def _receive_connection_close(self, method: commands.Connection.Close, now: float) -> None:
        self._fail(
            f"the broker closed the connection: {method.reply_code} {method.reply_text}"
            f"{self._refused(method)}"
        )
        self._send(commands.Connection.CloseOk(), 0)
        self.phase = SinkPhase.CLOSED

    def _receive_connection_close_ok(self, method: commands.Connection.CloseOk, now: float) -> None:
        self.phase = SinkPhase.CLOSED

    def _close_connection(self) -> None:
        self.phase = SinkPhase.AWAITING_CLOSE_OK
        self._send(commands.Connection.Close(REPLY_SUCCESS, "done", 0, 0), 0)

    # Methods of all kinds, and failures

    def _receive_method(self, octets: bytes, channel: int, now: float) -> None:
        try:
            _, _, method = frame.unmarshal(octets)
        except (PAMQPException, ValueError, LookupError, TypeError, struct.error) as error:
            self._break_off(f"a method that cannot be read: {error}")
            return
        rule = _RULES.get(type(method))
        if rule is None or channel != rule.channel:
            self._break_off(f"{type(method).__name__} on channel {channel}")
            return
        if rule.phase is None:
            if self.phase not in ENDING or channel == 0:
                rule.receive(self, method, now)
        elif rule.phase is self.phase:
            self._last_progress = now
            rule.receive(self, method, now)
        elif self.phase is not SinkPhase.AWAITING_CLOSE_OK:
            self._break_off(f"{rule.phase.value}, when {self.phase.value} was waited for")

    def _patience_now(self) -> float | None:
        """The time that the broker may take for its next answer; None if none is expected, or while
        it has blocked the connection."""
        if self.phase in OPENING:
            return self._patience.connect_s
        if self.blocked is not None or self.phase in ENDING:
            return None
        if self.unconfirmed or self.phase is SinkPhase.AWAITING_CHANNEL_CLOSE_OK:
            return self._patience.confirm_s
        return None

    def _fail(self, text: str) -> None:
        if self.failure is None:
            self.failure = text

    def _break_off(self, text: str) -> None:
        """Fail and end: the broker's octets make no sense, so those after them cannot either."""
        self._fail(f"the broker sent what was not to be expected: {text}{self._at_stake()}")
        self.phase = SinkPhase.CLOSED

    def _send(self, method: base.Frame, channel: int) -> None:
        self._to_send.append(frame.marshal(method, channel))


class _SinkRule(NamedTuple):
    """A method: its channel, the phase in which it is legal (None is any once the channel is open),
    and its handler."""

    channel: int
    phase: SinkPhase | None
    receive: Callable[[PublisherProtocol, Any, float], None]


_RULES: Final[Mapping[type[Any], _SinkRule]] = {
    commands.Connection.Start: _SinkRule(
        0, SinkPhase.AWAITING_START, PublisherProtocol._receive_start
    ),
    commands.Connection.Tune: _SinkRule(
        0, SinkPhase.AWAITING_TUNE, PublisherProtocol._receive_tune
    ),
    commands.Connection.OpenOk: _SinkRule(
        0, SinkPhase.AWAITING_OPEN_OK, PublisherProtocol._receive_open_ok
    ),
    commands.Channel.OpenOk: _SinkRule(
        CHANNEL, SinkPhase.AWAITING_CHANNEL, PublisherProtocol._receive_channel_open_ok
    ),
    commands.Confirm.SelectOk: _SinkRule(
        CHANNEL, SinkPhase.AWAITING_SELECT_OK, PublisherProtocol._receive_select_ok
    ),
    commands.Channel.CloseOk: _SinkRule(
        CHANNEL, SinkPhase.AWAITING_CHANNEL_CLOSE_OK, PublisherProtocol._receive_channel_close_ok
    ),
    commands.Connection.CloseOk: _SinkRule(
        0, SinkPhase.AWAITING_CLOSE_OK, PublisherProtocol._receive_connection_close_ok
    ),
    commands.Basic.Nack: _SinkRule(CHANNEL, None, PublisherProtocol._receive_nack),
    commands.Basic.Return: _SinkRule(CHANNEL, None, PublisherProtocol._receive_return),
    commands.Channel.Close: _SinkRule(CHANNEL, None, PublisherProtocol._receive_channel_close),
    commands.Connection.Blocked: _SinkRule(0, None, PublisherProtocol._receive_blocked),
    commands.Connection.Unblocked: _SinkRule(0, None, PublisherProtocol._receive_unblocked),
    commands.Connection.Close: _SinkRule(0, None, PublisherProtocol._receive_connection_close),
}
