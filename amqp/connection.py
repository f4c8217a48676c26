"""One peer of the broker: bytes in, bytes out.

Answerable for the handshake, cutting the stream into frames, heartbeats, blocking by alarms, the
close handshakes, and for turning errors into the closes that AMQP demands. The functions that serve
methods are listed in `connection_methods.py` and `channel_methods.py`; sockets are in `server.py`.

The shell calls `receive_data`, `connection_lost` and `writable`; the connection calls the shell to
be flushed, paused or cut. `receive_data` never raises for what a peer did.

Reading is one loop over one buffer. Two kinds of frames are recognised by their octets: publishes
that have arrived with all their content, which are served many at a time (`publish_stream.py`), and
basic.ack. All other methods are decoded to pamqp's objects.

Durable definitions: a reply that promises durability holds the output of the connection until the
commit is on disk (`hold_output`); output written later stands behind it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection
from typing import Protocol

from pamqp import commands

from warren.amqp.ack_stream import serve_acks
from warren.amqp.blocking import PAUSE, Blocking
from warren.amqp.channel import Channel, Content
from warren.amqp.channel_methods import serve
from warren.amqp.connection_methods import HANDLERS
from warren.amqp.errors import (
    NO_IDS,
    ChannelError,
    ConnectionForced,
    FatalFrameError,
    FrameError,
    TooManyChannels,
    UnexpectedFrame,
    check_open,
    method_ids,
    offender,
    reply_to,
    short_text,
    unreadable,
)
from warren.amqp.frames import (
    BODY,
    FRAME_END,
    FRAME_MIN_SIZE,
    FRAME_US,
    HEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    OLD_PROTOCOL_HEADER,
    OVERHEAD,
    PROTOCOL_HEADER,
    described,
    frame,
)
from warren.amqp.guarded_clock import GuardedClock
from warren.amqp.handshake import (
    FAILURE_DELAY_S,
    Authentication,
    HandshakeFault,
    greeting,
    mechanisms,
)
from warren.amqp.heartbeat import Heartbeat
from warren.amqp.held_output import HeldOutput
from warren.amqp.leaving import end_all
from warren.amqp.methods import (
    MalformedMethod,
    MalformedText,
    Method,
    UnknownMethod,
    decode_method,
    encode_method,
    make,
)
from warren.amqp.peer import ConnectionSettings, Peer, client_name
from warren.amqp.publish_stream import serve_publishes
from warren.amqp.publishing import PublishRoutes
from warren.amqp.state import NAMES, NEXT, State, Transition
from warren.amqp.waiting_methods import WaitingMethod, WaitingMethods
from warren.core.access.access_control import User
from warren.core.errors import BrokerError, ChannelFault, InternalFault, NotAllowed
from warren.core.exchanges.routing import table_us
from warren.core.field import Table
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.ports import Timer
from warren.core.scheduling.waiting import Event, Waiting, at_risk
from warren.core.vhosts.vhost import VirtualHost

log = logging.getLogger("warren.connection")
channel_log = logging.getLogger("warren.channel")

CLOSE_TIMEOUT_S = 30.0
"""The longest a peer may take to finish a close handshake."""

METHOD_US = 30
"""The cost of a method (`core/scheduling/turns.py`), without the changes that it makes."""

LITTLE_US = 50
"""The cost that a connection may cause, after the turn is over, before it has to wait."""

LARGE_OCTETS = 4096
"""A method or header with more octets may hold a table that takes long to decode."""

READ_US = 500
"""The least cost counted for reading on: a connection that had to wait has mostly sent much."""

METHODS_A_TURN = 100
"""Methods served before others have their turn, not counting publishes served by `publish_stream`;
some milliseconds even of queue.declare."""

_BASIC_PUBLISH = 60 << 16 | 40
_BASIC_ACK = 60 << 16 | 80
_CHANNEL_OPEN = 20 << 16 | 10
_LONG = struct.Struct(">I")


class Shell(Protocol):
    """What a connection asks of the owner of its socket."""

    def request_flush(self) -> None:
        """Call `take_output` once this turn is over."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def owed_octets(self) -> int:
        """Octets written that the peer has not read yet."""
        ...

    def close(self) -> None:
        """Write the remaining output, then end the socket."""
        ...

    def abort(self) -> None:
        """End the socket at once."""
        ...

    def fault(self) -> None:
        """The exception being handled is a fault of the broker: log it, and end this connection."""
        ...


class Connection:
    """The state machine of one AMQP 0-9-1 peer."""

    __slots__ = (
        "_beat_due",
        "_buffer",
        "_closing_channels",
        "_confirming",
        "_crossed_closes",
        "_deadline",
        "_pauses",
        "_shell",
        "authentication",
        "blocking",
        "capabilities",
        "channel_max",
        "channels",
        "client_properties",
        "clock",
        "connected_at",
        "flush_requested",
        "frame_max",
        "frame_size_max",
        "heartbeat",
        "heartbeat_s",
        "held",
        "held_back",
        "mechanism",
        "methods_waiting",
        "node",
        "output",
        "peer",
        "pid",
        "received_count",
        "received_octets",
        "routes",
        "sent_count",
        "sent_octets",
        "served",
        "settings",
        "socket_writable",
        "state",
        "user",
        "vhost",
    )

    def __init__(self, node: Node, settings: ConnectionSettings, shell: Shell, peer: Peer) -> None:
        self.node = node
        self.settings = settings
        self.peer = peer
        self.state = State.AWAITING_HEADER
        self.pid = node.number_client()
        self.connected_at = node.clock.wall_time()
        self.mechanism = ""
        # Octets received and sent, and the number of reads and writes; the shell counts them.
        self.received_octets = 0
        self.received_count = 0
        self.sent_octets = 0
        self.sent_count = 0
        self.user: User | None = None
        self.vhost: VirtualHost | None = None
        self.client_properties: Table = {}
        self.capabilities: frozenset[str] = frozenset()
        # Negotiated
        self.channel_max = settings.channel_max
        self.frame_max = FRAME_MIN_SIZE
        self.heartbeat_s = 0
        # Reading
        self.channels: dict[int, Channel] = {}
        self.routes: PublishRoutes | None = None
        self._closing_channels: set[int] = set()
        self._crossed_closes: set[int] = set()
        self._buffer = b""
        self.frame_size_max = FRAME_MIN_SIZE
        self._pauses: set[str] = set()
        # The open channels without a method that waits while others are served.
        self.served: dict[int, Channel] = {}
        self.methods_waiting = WaitingMethods()
        self.authentication: Authentication | None = None
        # Writing
        self.output: list[bytes] = []
        self.flush_requested = False
        self.socket_writable = True
        self._shell = shell
        self._confirming: dict[int, Channel] = {}
        self.held = HeldOutput(self.request_flush)
        self.held_back = False
        self._beat_due = False
        self.blocking = Blocking()
        # Time
        self.clock = GuardedClock(node.clock, shell.fault)
        self.heartbeat = Heartbeat(
            self.clock, self._send_heartbeat, lambda: not self._pauses, self._give_up
        )
        self._deadline: Timer | None = self.clock.call_later(
            settings.handshake_timeout_s, self._handshake_timed_out
        )

    @property
    def name(self) -> str:
        return client_name(self.client_properties) or self.peer.name

    @property
    def user_name(self) -> str:
        return self.user.name if self.user is not None else ""

    @property
    def channel_count(self) -> int:
        return len(self.channels) + len(self._closing_channels)

    def holdings(self) -> Collection[Channel]:
        return self.channels.values()

    @property
    def owed_octets(self) -> int:
        """Octets that wait for the peer to read them."""
        return self._shell.owed_octets()

    @property
    def blocked(self) -> bool:
        """Whether the connection is not read because it has published during an alarm."""
        return PAUSE in self._pauses

    def alarms_changed(self) -> None:
        """An alarm was raised or cleared, or has become more or less severe."""
        self.blocking.alarms_changed(self)

    def growth_changed(self) -> None:
        """The set of queues that hold their publishers back has changed."""
        self.blocking.growth_changed(self)

    # Reading

    def receive_data(self, data: bytes) -> None:
        """Take octets from the peer and serve them."""
        self.heartbeat.heard = True
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        start = 0
        if self._buffer:
            if self._pauses or self.state is not State.RUNNING or len(self._buffer) < HEAD.size:
                data = self._buffer + data
                self._buffer = b""
            else:
                start = self._complete_frame(data)
                if self._buffer and start < len(data):
                    # More than one frame had waited, and the last of them is incomplete.
                    data = self._buffer + data[start:]
                    self._buffer = b""
                    start = 0
        if self._pauses:
            self._buffer += data[start:]
            return
        if self.state is State.AWAITING_HEADER:
            if len(data) < 8:
                self._buffer = data
                return
            if not self._protocol_header(data[:8]):
                return
            start = 8
        end = self._read_frames(data, start)
        if end < len(data) and self.state is not State.FAILED:
            self._buffer = data[end:]

    def _complete_frame(self, data: bytes) -> int:
        """Serve the frame begun in the buffer; returns how many octets of `data` belong to it.

        Large frames arrive in pieces: joining each with all that has arrived would copy it twice.
        """
        begun, self._buffer = self._buffer, b""
        _, _, size = HEAD.unpack_from(begun)
        missing: int = max(size + OVERHEAD - len(begun), 0)
        if size <= self.frame_size_max and len(data) < missing:
            self._buffer = begun + data
            return len(data)
        frame_octets = begun + data[:missing]
        self._buffer = frame_octets[self._read_frames(frame_octets, 0) :]
        return missing

    def _read_frames(self, data: bytes, pos: int) -> int:
        """Serve the complete frames in `data` from `pos` on; returns the offset of the rest."""
        end, served = len(data), self.served
        turns, alarms = self.node.turns, self.node.alarms
        # A connection waits only if it has itself caused more than a little cost in this turn.
        left_us = turns.left_us - LITTLE_US
        methods_left = METHODS_A_TURN
        while True:
            if end - pos < HEAD.size:
                return pos
            kind, number, size = HEAD.unpack_from(data, pos)
            stop = pos + 7 + size
            if size > self.frame_size_max:
                self._too_large(kind, size)
                return end
            if stop >= end:
                return pos
            if data[stop] != FRAME_END:
                self._wrong_end(kind, data[pos + 7 : stop], data[stop])
                return end
            channel = served.get(number)
            try:
                if channel is None:
                    self._frame(kind, number, data[pos + 7 : stop])
                elif kind == METHOD:
                    if channel.expects is not Content.METHOD:
                        raise channel.unexpected_method()
                    index = _LONG.unpack_from(data, pos + 7)[0] if size >= 4 else 0
                    if index == _BASIC_PUBLISH:
                        behind = serve_publishes(self, data, pos, end)
                        if behind > pos:
                            pos = behind
                            if turns.left_us <= 0 and turns.left_us < left_us:
                                self.wait_for_turn()
                            if self._pauses:
                                return pos
                            continue
                        channel.begin_publish(data[pos : stop + 1])
                    elif index == _BASIC_ACK and size == 13:
                        stop += serve_acks(channel, data, pos)
                    elif size > LARGE_OCTETS and self._gives_way(channel, b""):
                        return pos
                    else:
                        self._channel_method(channel, data[pos + 7 : stop])
                elif kind == BODY:
                    if alarms.raised and self.blocking.holds_back(channel, channel.header):
                        return pos
                    channel.content_body(data[pos + 7 : stop])
                elif kind == HEADER:
                    header = data[pos + 7 : stop]
                    if alarms.raised and self.blocking.holds_back(channel, header):
                        return pos
                    if size > LARGE_OCTETS and self._gives_way(channel, header):
                        return pos
                    channel.content_header(header)
                else:
                    self._frame(kind, number, data[pos + 7 : stop])
            except BrokerError as error:
                self.refuse(number, error, method_ids(kind, data, pos))
            pos = stop + 1
            if kind == METHOD:
                methods_left -= 1
            spent = turns.left_us <= 0 and turns.left_us < left_us
            if spent or (not methods_left and pos < end):
                self.wait_for_turn()
            if self._pauses:
                return pos

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        """Serve a frame of channel 0, or of a channel that is not open or waits, or of an unknown
        type."""
        if self.methods_waiting.keeps(self, kind, number, payload):
            return
        state = self.state
        if kind != METHOD:
            self.node.turns.spend(FRAME_US)
        if state is State.CLOSED or state is State.FAILED:
            return
        if kind == HEARTBEAT:
            if payload:
                raise FrameError(f"{described(kind, payload)}: unknown_frame")
            if number:
                raise UnexpectedFrame(described(kind, payload))
            return
        if kind not in (METHOD, HEADER, BODY):
            raise FrameError(f"{described(kind, payload)}: unknown_frame")
        if number == 0 and kind == METHOD:
            self._connection_method(payload)
        elif number == 0 or state is State.AWAITING_OPEN:
            raise UnexpectedFrame(described(kind, payload))
        elif state is State.RUNNING:
            self._unopened_channel(kind, number, payload)
        elif state is not State.CLOSING:
            self._fail("a frame of a channel")

    def _channel_method(self, channel: Channel, payload: bytes) -> None:
        try:
            method = decode_method(payload)
        except (UnknownMethod, MalformedMethod) as error:
            raise unreadable(payload, error, channel.number) from error
        self.node.turns.spend(METHOD_US + table_us(len(payload)))
        if (waiting := serve(channel, method)) is not None:
            self.go_through(waiting, channel, (method.index >> 16, method.index & 0xFFFF))

    def go_through(self, waiting: Waiting[None], channel: Channel, method: tuple[int, int]) -> None:
        """Serve a method that may have to wait (`waiting_methods.py`)."""
        self.methods_waiting.go_through(self, WaitingMethod(waiting, channel, method))

    def serve_first(self, octets: bytes) -> None:
        """Serve these frames before all others that have not been served, and read on."""
        self.pause("kept")
        self._buffer = octets + self._buffer
        self.resume("kept")

    def _unopened_channel(self, kind: int, number: int, payload: bytes) -> None:
        """Serve a frame on a channel that is not open, or that waits for its close-ok."""
        index = _LONG.unpack_from(payload)[0] if kind == METHOD and len(payload) >= 4 else 0
        if number in self._closing_channels:
            if index == _CHANNEL_OPEN:
                raise ChannelError("second 'channel.open' seen")
            if index == commands.Channel.CloseOk.index:
                self._closing_channels.discard(number)
            elif index == commands.Channel.Close.index:
                # Both sides closed at once: the client answers our close after we answer its own.
                self._closing_channels.discard(number)
                self._crossed_closes.add(number)
                self.send(number, make(commands.Channel.CloseOk))
            return
        crossed = number in self._crossed_closes
        self._crossed_closes.discard(number)
        if crossed and index == commands.Channel.CloseOk.index:
            return
        assert self.user is not None and self.vhost is not None
        opened = self.channel_count
        if self.channel_max and opened >= self.channel_max:
            raise TooManyChannels(
                f"number of channels opened ({opened}) has reached the negotiated channel_max "
                f"({self.channel_max})"
            )
        try:
            self.node.check_channel_limit(self.user)
        except NotAllowed as error:
            raise TooManyChannels(error.text) from error
        check_open(kind, payload)
        self.channels[number] = self.served[number] = Channel(self, number)
        self.node.channel_opened(self)
        self.send(number, make(commands.Channel.OpenOk, channel_id=b""))

    # Errors

    def _too_large(self, kind: int, size: int) -> None:
        if self.state is not State.RUNNING:
            self._fail(f"a frame of {size} octets")
            return
        limit = self.frame_size_max - OVERHEAD
        self._close(
            FatalFrameError(f"{described(kind, b'')}: {{frame_too_large,{size},{limit}}}"), NO_IDS
        )

    def _wrong_end(self, kind: int, payload: bytes, octet: int) -> None:
        if self.state is not State.RUNNING:
            self._fail("a frame without its end")
            return
        text = f"{described(kind, payload)}: {{invalid_frame_end_marker,{octet}}}"
        self._close(FatalFrameError(text), NO_IDS)

    def refuse(self, number: int, error: BrokerError, method: tuple[int, int]) -> None:
        """Answer an error with the close it calls for."""
        ids = offender(error, method)
        if isinstance(error, ChannelFault):
            self.close_channel(number, error, ids)
        elif self.state in NAMES:
            self._close(error, ids)
        elif self.state is not State.CLOSING:
            self._fail(error.text)

    def close_channel(self, number: int, error: ChannelFault, ids: tuple[int, int]) -> None:
        """Close a channel for an error of the peer, which may be a failure to act in time."""
        channel = self.channels.pop(number, None)
        if channel is None:
            return
        self.served.pop(number, None)
        self.output.append(channel.report_confirms())
        end_all([channel], self.node.turns)
        self._closing_channels.add(number)
        code, text = reply_to(error)
        self.note(
            channel_log, logging.WARNING, "channel_closed", channel=number, code=code, reason=text
        )
        self.send(
            number,
            make(
                commands.Channel.Close,
                reply_code=code,
                reply_text=short_text(text),
                class_id=ids[0],
                method_id=ids[1],
            ),
        )

    def force_close(self, reason: str) -> None:
        """End the connection at the wish of an operator or of the node."""
        if self.state is State.RUNNING:
            self._close(ConnectionForced(reason), NO_IDS)
        elif self.state not in (State.CLOSING, State.CLOSED):
            self.fall_silent()

    def lose(self) -> None:
        """End the socket without sending a close."""
        self._shell.abort()

    def internal_error(self) -> None:
        """End the connection after a fault of the broker; the caller has logged it."""
        if self.state is State.RUNNING:
            self._close(InternalFault(""), NO_IDS)
        else:
            self.fall_silent()

    def _close(self, error: BrokerError, ids: tuple[int, int]) -> None:
        self.end_channels()
        self.enter(Transition.CLOSE)
        code, text = reply_to(error)
        level = logging.INFO if isinstance(error, ConnectionForced) else logging.WARNING
        self.note(log, level, "connection_closed", by="broker", code=code, reason=text)
        self.send(
            0,
            make(
                commands.Connection.Close,
                reply_code=code,
                reply_text=short_text(text),
                class_id=ids[0],
                method_id=ids[1],
            ),
        )
        self._unpause()
        fatal = isinstance(error, FatalFrameError)
        if fatal:
            self.enter(Transition.FAIL)
        self.cut_after(FAILURE_DELAY_S if fatal else self.close_timeout())

    def _fail(self, reason: str) -> None:
        """End a handshake that cannot go on."""
        if self.state is not State.FAILED and self.state is not State.CLOSED:
            state = self.state.name.lower()
            self.note(log, logging.WARNING, "handshake_failed", state=state, reason=reason)
        self.fall_silent()

    def fall_silent(self) -> None:
        """Send nothing more, and cut the socket after a delay."""
        if self.state is not State.FAILED:
            self.enter(Transition.FAIL)
            self.cut_after(FAILURE_DELAY_S)

    def close_timeout(self) -> float:
        """The longest the peer may take to finish a close, in seconds."""
        return min(self.heartbeat_s or CLOSE_TIMEOUT_S, CLOSE_TIMEOUT_S)

    def end_socket(self) -> None:
        """Write the remaining output, then end the socket."""
        self.stop_timers()
        self._shell.close()

    def cut_after(self, delay_s: float) -> None:
        """Cut the socket if the peer has not ended it by then."""
        self.stop_timers()
        self._deadline = self.clock.call_later(delay_s, self._abort)

    def _handshake_timed_out(self) -> None:
        state = self.state.name.lower()
        self.note(log, logging.WARNING, "handshake_timed_out", state=state)
        self.enter(Transition.FAIL)
        self._abort()

    def _abort(self) -> None:
        self._deadline = None
        self._shell.abort()

    # The handshake and the methods of channel 0

    def _protocol_header(self, header: bytes) -> bool:
        if header not in (PROTOCOL_HEADER, OLD_PROTOCOL_HEADER):
            self.output.append(PROTOCOL_HEADER)
            self.note(log, logging.WARNING, "protocol_refused", header=header.hex())
            self.enter(Transition.FAIL)
            self._shell.close()
            return False
        self.note(log, logging.INFO, "connection_accepted", tls=self.peer.tls)
        self.enter(Transition.GREET)
        self.output.append(greeting(self.node, mechanisms(self.settings, self.peer)))
        self.request_flush()
        return True

    def _connection_method(self, payload: bytes) -> None:
        try:
            method = decode_method(payload)
        except (UnknownMethod, MalformedMethod) as error:
            if self.state is State.RUNNING or isinstance(error, MalformedText):
                raise unreadable(payload, error, 0) from error
            if self.state is not State.CLOSING:
                self._fail("a method that cannot be read")
            return
        handle = HANDLERS.get((self.state, type(method)))
        if handle is not None:
            try:
                handle(self, method)
            except HandshakeFault as fault:
                self._fail(str(fault))
        elif self.state in NAMES:
            raise ChannelError(f"unexpected method in connection state {NAMES[self.state]}")
        elif self.state is not State.CLOSING:
            self._fail(f"unexpected {method.name}")

    def enter(self, transition: Transition) -> None:
        """Change the state."""
        self.state = NEXT[self.state, transition]

    def handshake_done(self) -> None:
        """End the time limit of the handshake."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Ending

    def connection_lost(self) -> None:
        """The socket is gone."""
        if self.state is State.AWAITING_HEADER:
            # The peer only checked whether the port is open.
            self.note(log, logging.DEBUG, "connection_lost", state="awaiting_header")
        elif self.state not in (State.CLOSING, State.CLOSED, State.FAILED):
            state = self.state.name.lower()
            self.note(log, logging.WARNING, "connection_lost", state=state)
        self.stop_timers()
        self.end_channels()
        # References back to this object are dropped: no cycle is left for the garbage collector.
        self.held.drop()
        self.routes = None
        self._buffer = b""
        self.enter(Transition.LOSE)

    def end_channels(self) -> list[Event]:
        """Leave the node, end channels and exclusive queues. Returns the events to wait for."""
        self.methods_waiting.end()
        if self.vhost is not None and self in self.node.clients:
            self.vhost.connection_ended(self.received_octets, self.sent_octets)
            self.node.connection_ended(self)
        left = end_all(list(self.channels.values()), self.node.turns)
        self.channels.clear()
        self.served.clear()
        self._closing_channels.clear()
        if self.vhost is not None:
            self.vhost.delete_exclusive_queues(self)
        return left

    def channel_closed(self, number: int) -> None:
        """Forget a channel that the client has closed and that has ended."""
        del self.channels[number], self.served[number]

    def stop_timers(self) -> None:
        self.heartbeat.stop()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _send_heartbeat(self) -> None:
        self._beat_due = True
        self.request_flush()

    def _give_up(self) -> None:
        self.node.heartbeat_missed(self.peer.name, self.heartbeat_s)
        self.enter(Transition.FAIL)
        self._abort()

    def note(
        self, category: logging.Logger, level: int, event: str, **more: str | int | None
    ) -> None:
        """Log an event of this connection with what is known of the connection so far."""
        log_event(
            category,
            level,
            event,
            peer=self.peer.name,
            user=self.user.name if self.user is not None else None,
            vhost=self.vhost.name if self.vhost is not None else None,
            name=client_name(self.client_properties),
            **more,
        )

    # Writing

    def send(self, channel: int, method: Method) -> None:
        self.output.append(frame(METHOD, channel, encode_method(method)))
        self.request_flush()

    def request_flush(self) -> None:
        if not self.flush_requested:
            self.flush_requested = True
            self._shell.request_flush()

    def confirms_pending(self, channel: Channel) -> None:
        """This channel has confirms to report at the next flush."""
        self._confirming[channel.number] = channel
        if not self.flush_requested:
            self.request_flush()

    def confirms_forgotten(self, channel: Channel) -> None:
        self._confirming.pop(channel.number, None)

    def hold_output(self) -> None:
        """Hold output written from now on until the definitions seen so far are on disk."""
        self.held.hold(at_risk(self.node.metadata), self.output)

    def take_output(self) -> list[bytes]:
        """The octets that may go to the peer now, in parts."""
        self.flush_requested = False
        output = self.output
        if self._confirming and not self.node.holds_confirms:
            output += [channel.report_confirms() for channel in self._confirming.values()]
            self._confirming.clear()
        if self.held.active:
            parts = self.held.release(output)
            self._hold_back(self.held.full)
        else:
            parts = output[:]
            output.clear()
        if parts:
            self.heartbeat.sent = True
        if self._beat_due:
            # Parts are complete frames: a heartbeat may go before output that waits for a commit.
            self._beat_due = False
            parts.insert(0, HEARTBEAT_FRAME)
        return parts

    def _hold_back(self, held_back: bool) -> None:
        """Stop writing and reading while too much output waits for a commit."""
        if held_back == self.held_back:
            return
        self.held_back = held_back
        for channel in list(self.channels.values()):
            channel.hold_back(held_back)
        if held_back:
            self.pause("commits")
        else:
            self.resume("commits")

    # Back-pressure

    def writable(self, writable: bool) -> None:
        """Wake the consumers, as the socket takes octets again, or block them, as it has enough."""
        self.socket_writable = writable
        for channel in list(self.channels.values()):
            channel.socket_writable(writable)

    def pause(self, reason: str) -> None:
        """Stop reading for this reason until `resume`."""
        if not self._pauses:
            self._shell.pause_reading()
        self._pauses.add(reason)

    def wait_for_turn(self) -> None:
        """Stop reading until it is this connection's turn again: it has had its turn
        (`core/scheduling/turns.py`), or enough of it."""
        if not self._pauses:
            self.pause("work")
            self.node.turns.soon_for_client(self.clock.guarded(self._go_on_working))

    def _gives_way(self, channel: Channel, header: bytes) -> bool:
        """Whether a method, or this header, has to wait: it takes long to decode, and the turn is
        over."""
        assert self.routes is not None
        over = self.node.turns.over
        if over and header:
            over = self.routes.reads_headers(channel.publish_method, header)
        if over:
            self.wait_for_turn()
        return over

    def _go_on_working(self) -> None:
        # So few connections go on in one turn, and those that send little find their place.
        self.node.turns.spend(READ_US)
        self._pauses.discard("work")
        self._read_on()

    def resume(self, reason: str) -> None:
        """Lift one reason to pause; after the last, serve what was read already, then read more."""
        if reason in self._pauses:
            self._pauses.discard(reason)
            if not self._pauses:
                self.clock.call_soon(self._read_on)

    def _unpause(self) -> None:
        for reason in list(self._pauses):
            self.resume(reason)

    def _read_on(self) -> None:
        if self._buffer and not self._pauses:
            self._receive(b"")
        if not self._pauses:
            self._shell.resume_reading()
