"""One end of a link between two nodes: octets in, octets and events out.

Answerable for the handshake (handshake.py), frames (frames.py), heartbeats and the orderly end. Not
for sockets, for the choice between two connections to a node (pairing.py), or for time: the owner
limits the handshake and calls `tick` once an interval.

**The sender cuts large bodies** into frames of at most `FRAME_BYTES_MAX`. The link keeps the order
of frames, as it cannot know which may overtake which: if it did the cutting, a body of 512 MiB
would still delay all other frames. A sender can send a piece whenever the link is not congested, so
that others get their turns. For the same reason a heartbeat waits at most behind the backlog of a
congested link.

**Heartbeats.** Each tick sends one, with the number of octets received so far. Octets of any kind
are a sign of life; `silent_ticks_max` ticks without any end the link. If a peer's heartbeats report
no new octets for as many ticks, the peer does not read: each of our own heartbeats should have
raised its count. Both are counted in ticks, not in time. So a process that was stopped or busy does
not blame its peers: the pause is one tick, however long it was, and octets that arrived meanwhile
are read before the next tick.

**The end.** `Ended` is the last event. Frames that were received before it are handed on before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from warren.mirror.links.frames import HEADER, HEADER_BYTES, Control, FrameReader, LinkFrameError
from warren.mirror.links.handshake import (
    Ended,
    Established,
    Handshake,
    HandshakeEvent,
    Identified,
)
from warren.mirror.links.ports import (
    FRAME_BYTES_MAX,
    USER_KINDS,
    EndReason,
    Frame,
    Identity,
    LinkRole,
    Part,
)

RECEIVED = struct.Struct("<Q")
GOODBYE_BYTES_MAX = 64


class Frames(NamedTuple):
    """The frames that one call of `receive_data` completed."""

    frames: list[Frame]


LinkEvent: TypeAlias = Identified | Established | Frames | Ended


class LinkProtocol:
    """One end of one connection. After `Identified` the owner calls `agree` or `refuse`.

    After each call the owner takes the octets to write with `take_output`.
    """

    __slots__ = (
        "_beaten",
        "_handshake",
        "_heard",
        "_output",
        "_reader",
        "_received",
        "_reported",
        "_reported_before",
        "_silent_ticks",
        "_silent_ticks_max",
        "_unread_ticks",
        "ended",
        "received_frames",
        "role",
        "sent_frames",
        "sent_octets",
        "unsent_bytes",
        "up",
    )

    def __init__(
        self,
        role: LinkRole,
        secret: bytes,
        own: Identity,
        nonce: bytes,
        *,
        expected: str | None = None,
        silent_ticks_max: int = 5,
    ) -> None:
        self.role = role
        self.up = False
        self.ended = False
        self.unsent_bytes = 0
        # Octets that were taken for writing, and the user's frames sent and received.
        self.sent_octets = 0
        self.sent_frames = 0
        self.received_frames = 0
        self._handshake = Handshake(role, secret, own, nonce, expected)
        self._reader = FrameReader()
        self._output: list[Part] = []
        self._silent_ticks_max = silent_ticks_max
        self._received = 0
        self._heard = False
        self._silent_ticks = 0
        self._beaten = False
        self._reported = self._reported_before = 0
        self._unread_ticks = 0
        self._take_handshake_output()

    @property
    def authenticated(self) -> bool:
        """Whether the peer has proved that it knows the secret."""
        return self._handshake.authenticated

    @property
    def has_heard(self) -> bool:
        """Whether anything has come from the peer."""
        return self._received > 0

    # Receiving

    def receive_data(self, data: bytes) -> Sequence[LinkEvent]:
        """Take received octets. Nothing that a peer sends raises an exception."""
        self._received += len(data)
        self._heard = True
        if self.up:
            return self._receive_frames(data)
        if self.ended:
            return ()
        event = self._handshake.receive_data(data)
        self._take_handshake_output()
        return self._handshake_events(event)

    def agree(self, stamp: int) -> Sequence[LinkEvent]:
        """Accept a link with the peer that was `Identified`."""
        event = self._handshake.agree(stamp)
        self._take_handshake_output()
        return self._handshake_events(event)

    def refuse(self, reason: EndReason, detail: str | None = None) -> Sequence[LinkEvent]:
        """Refuse a link with the peer that was `Identified`, and tell it why."""
        event = self._handshake.refuse(reason, detail)
        self._take_handshake_output()
        return self._handshake_events(event)

    def connection_lost(self) -> Sequence[LinkEvent]:
        """Note that the connection is gone."""
        if self.ended:
            return ()
        if self.up:
            return (self._end(EndReason.CONNECTION_LOST),)
        return self._handshake_events(self._handshake.connection_lost())

    # Sending

    def send(self, kind: int, parts: tuple[Part, ...]) -> None:
        """Send the parts as one frame of a link that is up. Raises ValueError for a bad frame."""
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size > FRAME_BYTES_MAX or not 0 <= kind < USER_KINDS:
            raise ValueError(
                f"a frame of kind {kind} and {size} octets; kinds are below {USER_KINDS}, "
                f"frames have at most {FRAME_BYTES_MAX} octets"
            )
        output = self._output
        output.append(HEADER.pack(size, kind, 0))
        output += parts
        self.unsent_bytes += size + HEADER_BYTES
        self.sent_frames += 1

    @property
    def received_octets(self) -> int:
        return self._received

    def take_output(self) -> list[Part]:
        """Remove and return the parts to write now, in order."""
        output, self._output = self._output, []
        self.sent_octets += self.unsent_bytes
        self.unsent_bytes = 0
        return output

    def say_goodbye(self, reason: EndReason) -> Sequence[LinkEvent]:
        """End a link that is up, after all frames sent before."""
        self._control(Control.GOODBYE, reason.encode())
        return (self._end(reason),)

    # Time

    def tick(self) -> Sequence[LinkEvent]:
        """To be called once an interval while the link is up."""
        if not self.up:
            return ()
        self._silent_ticks = 0 if self._heard else self._silent_ticks + 1
        self._heard = False
        if self._beaten:
            advanced = self._reported > self._reported_before
            self._unread_ticks = 0 if advanced else self._unread_ticks + 1
            self._reported_before = self._reported
            self._beaten = False
        if self._silent_ticks >= self._silent_ticks_max:
            return (self._end(EndReason.SILENT),)
        if self._unread_ticks >= self._silent_ticks_max:
            return (self._end(EndReason.NOT_READING),)
        self._control(Control.HEARTBEAT, RECEIVED.pack(self._received))
        return ()

    # Inside

    def _handshake_events(self, event: HandshakeEvent | None) -> Sequence[LinkEvent]:
        if event is None:
            return ()
        if isinstance(event, Ended):
            self.ended = True
        elif isinstance(event, Established):
            self.up = True
            rest = self._handshake.take_rest()
            if rest:
                return (event, *self._receive_frames(rest))
        return (event,)

    def _receive_frames(self, data: bytes) -> Sequence[LinkEvent]:
        frames: list[Frame] = []
        ended = None
        try:
            controls = self._reader.read(data, frames)
        except LinkFrameError as error:
            ended = self._end(EndReason.DAMAGED, str(error))
        else:
            if controls:
                ended = self._take_controls(controls)
        self.received_frames += len(frames)
        if ended is None:
            return (Frames(frames),) if frames else ()
        return (Frames(frames), ended) if frames else (ended,)

    def _take_controls(self, controls: Sequence[Frame]) -> Ended | None:
        for kind, payload in controls:
            take = _CONTROLS.get(kind)
            ended = take(self, payload) if take is not None else None
            if ended is not None:
                return ended
        return None

    def _take_heartbeat(self, payload: bytes) -> Ended | None:
        if len(payload) != RECEIVED.size:
            return self._end(EndReason.DAMAGED, f"a heartbeat of {len(payload)} octets")
        (self._reported,) = RECEIVED.unpack(payload)
        self._beaten = True
        return None

    def _take_goodbye(self, payload: bytes) -> Ended:
        said = payload[:GOODBYE_BYTES_MAX].decode("utf-8", "replace")
        return self._end(EndReason.PEER_STOPPED, said, by_peer=True)

    def _end(self, reason: EndReason, detail: str | None = None, by_peer: bool = False) -> Ended:
        self.up = False
        self.ended = True
        return Ended(reason, detail, by_peer)

    def _control(self, kind: Control, payload: bytes) -> None:
        self._output += (HEADER.pack(len(payload), kind, 0), payload)
        self.unsent_bytes += len(payload) + HEADER_BYTES

    def _take_handshake_output(self) -> None:
        output = self._handshake.take_output()
        if output:
            self._output.append(output)
            self.unsent_bytes += len(output)


_CONTROLS: dict[int, Callable[[LinkProtocol, bytes], Ended | None]] = {
    Control.HEARTBEAT: LinkProtocol._take_heartbeat,
    Control.GOODBYE: LinkProtocol._take_goodbye,
}
