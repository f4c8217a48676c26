"""The shell of one connection between two nodes: transport, TLS, timers, writing.

The shell decides nothing about the link: received octets go to the `LinkProtocol`, its output is
written once per turn of the loop, and its events go to the owner.

TLS begins after the connection was made, not in the listener. So the owner counts and limits
connections whose TLS handshake stalls like all others.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Callable, Sequence
from socket import IPPROTO_TCP, TCP_INFO
from typing import Any, NamedTuple, Protocol, cast

from warren.core.log_line import log_fault
from warren.core.ports import Clock, Timer
from warren.mirror.links.handshake import Ended, Established, Identified
from warren.mirror.links.pairing import EstablishedLink
from warren.mirror.links.ports import (
    LARGE_PART,
    REFUSALS,
    EndReason,
    Frame,
    LinkRole,
    LinkSettings,
    Part,
)
from warren.mirror.links.protocol import Frames, LinkEvent, LinkProtocol
from warren.mirror.links.tls import describe

log = logging.getLogger("warren.cluster")

READ_TURN = 128 * 1024
"""Octets after which a link that has more to read lets others have their turn: libuv would read up
to 8 MB from one connection before it serves the next."""

CLOSE_GRACE_S = 1.0
"""Time that a peer has to take our last octets."""

LAST_WORDS = REFUSALS | {EndReason.FORGOTTEN, EndReason.STOPPED, EndReason.PAUSED}
"""Reasons that the peer is told. For any other reason the connection is closed at once, with
output unwritten."""


TCP_INFO_BYTES = 104
ROUND_TRIP = struct.Struct("=I")
ROUND_TRIP_AT = 68
"""The offset of the smoothed round trip time, in microseconds, in what Linux tells of a socket
(`struct tcp_info`, linux/tcp.h)."""


class SocketOwner(Protocol):
    """The owner of a connection, which gets its events. Only `closed` follows `ended`."""

    def made(self, socket: LinkSocket) -> None: ...
    def identified(self, socket: LinkSocket, event: Identified) -> None: ...
    def established(self, socket: LinkSocket, event: Established) -> None: ...
    def frames(self, socket: LinkSocket, frames: list[Frame]) -> None: ...
    def congested(self, socket: LinkSocket, congested: bool) -> None: ...
    def ended(self, socket: LinkSocket, event: Ended) -> None: ...
    def closed(self, socket: LinkSocket) -> None:
        """The transport is gone."""
        ...


class Tls(NamedTuple):
    """TLS for a connection; `hostname` is the name a dialler expects in the certificate."""

    context: ssl.SSLContext
    hostname: str | None = None


class LinkSocket(asyncio.Protocol):
    """One connection. `node` is the node that it was dialled to, or the name of a proved peer."""

    def __init__(
        self,
        owner: SocketOwner,
        link: LinkProtocol,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        settings: LinkSettings,
        tls: Tls | None = None,
        node: str | None = None,
    ) -> None:
        self.link = link
        self.node = node
        self.agreed = False
        self.standing: EstablishedLink | None = None
        self.address = ""
        self._owner = owner
        self._loop = loop
        self._clock = clock
        self._settings = settings
        self._tls = tls
        self._securing: asyncio.Task[None] | None = None
        # Octets of TLS that came before its protocol was there to read them.
        self._early = b""
        self._transport: asyncio.Transport | None = None
        self._is_writable = False
        self._timer: Timer | None = None
        self._flush_asked = False
        self._finished = False

    @property
    def host(self) -> str:
        """The peer's address without its port."""
        return self.address.rpartition(":")[0]

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = raw = cast(asyncio.Transport, transport)
        self.address = _address_text(raw.get_extra_info("peername"))
        if self._finished:
            raw.abort()
            return
        self._limit_buffer(raw)
        self._timer = self._clock.call_later(self._settings.handshake_s, self._handshake_late)
        self._owner.made(self)
        if self._finished:
            return
        if self._tls is None:
            self._writable(raw)
        else:
            self._securing = self._loop.create_task(self._secure(raw, self._tls))

    def data_received(self, data: bytes) -> None:
        if self._finished:
            return
        if not self._is_writable:
            self._early += data
            return
        self._handle(self.link.receive_data(data))
        if self.link.unsent_bytes:
            self._ask_flush()
        if len(data) >= READ_TURN and not self._finished:
            self._yield_turn()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_writable:
            self.end(EndReason.TLS_FAILED, describe(error) if error is not None else None)
        elif isinstance(error, ssl.SSLError):
            self.end(EndReason.TLS_FAILED, describe(error))
        elif self._tls and self.link.role is LinkRole.DIALLER and not self.link.has_heard:
            # In TLS 1.3 the dialler has finished before the other side looks at its certificate,
            # and the alert may be lost with the connection.
            reason = "the peer closed; its log says whether it took our certificate"
            self.end(EndReason.TLS_FAILED, reason)
        elif not self._finished:
            self._handle(self.link.connection_lost())
        self._stop_timer()
        self._owner.closed(self)

    def pause_writing(self) -> None:
        self._tell_congested(True)

    def resume_writing(self) -> None:
        self._tell_congested(False)

    # Calls of the owner

    def send(self, kind: int, parts: tuple[Part, ...]) -> None:
        """Send a frame of a link that is up."""
        link = self.link
        link.send(kind, parts)
        if not self._flush_asked:
            self._ask_flush()
        elif link.unsent_bytes > self._settings.backlog_high_bytes:
            # A sender that sends piece by piece until the link is congested must learn of it now.
            self._write()

    def backlog_bytes(self) -> int:
        """Octets not yet given to the kernel."""
        assert self._transport is not None
        return self.link.unsent_bytes + self._transport.get_write_buffer_size()

    def round_trip_s(self) -> float | None:
        """The round trip time, as the kernel estimates it; None if it does not."""
        assert self._transport is not None
        connection = self._transport.get_extra_info("socket")
        if connection is None or self._transport.is_closing():
            return None
        try:
            info = connection.getsockopt(IPPROTO_TCP, TCP_INFO, TCP_INFO_BYTES)
        except OSError:
            return None
        (microseconds,) = ROUND_TRIP.unpack_from(info, ROUND_TRIP_AT)
        return float(microseconds) / 1e6

    def agree(self, stamp: int) -> None:
        """Accept a link with the peer that was identified."""
        self.agreed = True
        self._handle(self.link.agree(stamp))
        self._ask_flush()

    def refuse(self, reason: EndReason) -> None:
        """Refuse a link with the peer that was identified."""
        self._handle(self.link.refuse(reason))

    def end(self, reason: EndReason, detail: str | None = None) -> None:
        """End the connection from our side; a peer that is up is told reasons in `LAST_WORDS`."""
        if self._finished:
            return
        if self.link.up and reason in LAST_WORDS:
            self._handle(self.link.say_goodbye(reason))
        else:
            self._finish(Ended(reason, detail))

    def abort(self) -> None:
        """Close the transport without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()

    # Inside

    def _handle(self, events: Sequence[LinkEvent]) -> None:
        for event in events:
            if self._finished:
                # The owner ended the connection while it handled an earlier event.
                return
            try:
                _HANDLERS[type(event)](self, event)
            except Exception:
                log_fault(log, "link_fault", node=self.node, address=self.address)
                self.end(EndReason.FAULT)

    def _on_identified(self, event: Identified) -> None:
        self._owner.identified(self, event)

    def _on_established(self, event: Established) -> None:
        self._stop_timer()
        self._timer = self._clock.call_later(self._settings.interval_s, self._tick)
        self._owner.established(self, event)

    def _on_frames(self, event: Frames) -> None:
        self._owner.frames(self, event.frames)

    def _finish(self, ended: Ended) -> None:
        self._finished = True
        self._stop_timer()
        if self._transport is not None:
            if ended.reason in LAST_WORDS and self.link.authenticated:
                self._close(self._transport)
            else:
                self._transport.abort()
        self._owner.ended(self, ended)

    def _close(self, transport: asyncio.Transport) -> None:
        """Write the remaining output, and give the peer a while to take it."""
        self._write()
        transport.close()
        self._timer = self._clock.call_later(CLOSE_GRACE_S, self.abort)

    def _tick(self) -> None:
        self._timer = self._clock.call_later(self._settings.interval_s, self._tick)
        self._handle(self.link.tick())
        if not self._finished:
            self._ask_flush()

    def _handshake_late(self) -> None:
        self.end(EndReason.HANDSHAKE_TIMEOUT, f"not done after {self._settings.handshake_s} s")

    def _tell_congested(self, congested: bool) -> None:
        if self.link.up and not self._finished:
            try:
                self._owner.congested(self, congested)
            except Exception:
                log_fault(log, "link_fault", node=self.node, address=self.address)
                self.end(EndReason.FAULT)

    def _ask_flush(self) -> None:
        if not self._flush_asked:
            self._flush_asked = True
            self._clock.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_asked = False
        if not self._finished and self._is_writable:
            self._write()
        if not self._finished and self.backlog_bytes() > self._settings.backlog_bytes_max:
            self.end(EndReason.OVERRUN, f"{self.backlog_bytes()} octets were not taken")

    def _write(self) -> None:
        transport = self._transport
        assert transport is not None
        size = self.link.unsent_bytes
        parts = self.link.take_output()
        if not parts or transport.is_closing():
            return
        if size > LARGE_PART * len(parts):
            transport.writelines(parts)
        else:
            transport.write(b"".join(parts))

    def _yield_turn(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()
        self._clock.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _limit_buffer(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(
            self._settings.backlog_high_bytes, self._settings.backlog_low_bytes
        )

    async def _secure(self, raw: asyncio.Transport, tls: Tls) -> None:
        transport = None
        # Runs before anything that `start_tls` schedules on the loop.
        self._clock.call_soon(lambda: self._hand_on_early(raw))
        try:
            transport = await self._loop.start_tls(
                raw,
                self,
                tls.context,
                server_side=self.link.role is LinkRole.ACCEPTOR,
                server_hostname=tls.hostname,
                ssl_handshake_timeout=self._settings.handshake_s,
                ssl_shutdown_timeout=CLOSE_GRACE_S,
            )
        except OSError as error:
            # `ssl.SSLError` is an OSError.
            self.end(EndReason.TLS_FAILED, describe(error))
        if transport is not None and not self._finished:
            self._limit_buffer(transport)
            self._writable(transport)
        else:
            self._insecure(raw)

    def _hand_on_early(self, raw: asyncio.Transport) -> None:
        """Hand the octets that came early to TLS: a dialler sends at once, and uvloop reads them
        even though reading was paused."""
        early, self._early = self._early, b""
        # By now this is the protocol of TLS, unless the connection has ended.
        protocol = cast(asyncio.BufferedProtocol, raw.get_protocol())
        while early and not self._finished:
            buffer = memoryview(protocol.get_buffer(len(early)))
            count = min(len(buffer), len(early))
            buffer[:count] = early[:count]
            protocol.buffer_updated(count)
            early = early[count:]

    def _insecure(self, raw: asyncio.Transport) -> None:
        """End a connection whose TLS failed: uvloop does not call `connection_lost` for it."""
        self.end(EndReason.TLS_FAILED, "the peer closed")
        raw.abort()
        self._owner.closed(self)

    def _writable(self, transport: asyncio.Transport) -> None:
        """Write the link's octets from now on; where TLS is configured, it is established."""
        self._transport = transport
        self._is_writable = True
        self._ask_flush()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_HANDLERS: dict[type[LinkEvent], Callable[[LinkSocket, Any], None]] = {
    Frames: LinkSocket._on_frames,
    Identified: LinkSocket._on_identified,
    Established: LinkSocket._on_established,
    Ended: LinkSocket._finish,
}


def _address_text(address: Any) -> str:
    """Host and port of a socket address."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"
