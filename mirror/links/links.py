"""The links of a node over TCP or TLS: listening, dialling, one link to each peer.

Implements `ports.NodeLinks`. pairing.py decides which of two connections to a node stays, and
protocol.py what is said on a connection. This file does what needs a socket or a timer: it accepts
and limits connections, dials again, and logs.

**Strangers.** An accepted connection counts as a stranger until the peer has proved that it knows
the secret. At most `strangers_max` strangers are kept, each for at most `handshake_s`. One more
drops the oldest: an outsider may stall, while a node of the cluster proves itself in milliseconds.

**Dialling again.** The delay is `redial_first_s` at first and doubles up to `redial_max_s`. Each
delay is shortened at random by up to half, so that nodes that lost each other at the same moment do
not dial at the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import ssl
from collections.abc import Callable
from socket import socket as BoundSocket

from warren.core.log_line import log_event, log_fault
from warren.core.ports import Clock, Timer
from warren.mirror.links.handshake import (
    NONCE_BYTES,
    SECRET_BYTES_MIN,
    Ended,
    Established,
    Identified,
)
from warren.mirror.links.limited_log import LimitedLog
from warren.mirror.links.pairing import EstablishedLink, judge_acceptor, judge_dialler
from warren.mirror.links.ports import (
    EndReason,
    Frame,
    Identity,
    LinkRole,
    LinkSettings,
    LinkUser,
    NodeLinks,
    Part,
)
from warren.mirror.links.protocol import LinkProtocol
from warren.mirror.links.records import check_identity
from warren.mirror.links.socket import CLOSE_GRACE_S, LinkSocket, Tls
from warren.mirror.links.traffic import LinkTraffic, TrafficAccount

log = logging.getLogger("warren.cluster")

BACKLOG = 128
"""Connections that the kernel may hold while the loop is busy: clusters are small."""

EXPECTED = frozenset(
    {EndReason.ALREADY_LINKED, EndReason.STOPPED, EndReason.PAUSED, EndReason.FORGOTTEN}
)
"""Ends of connections that are part of normal operation, and logged quietly."""


class Dialling:
    """A node to keep a link with: its address, and the attempt or the delay under way."""

    __slots__ = ("attempt", "delay_s", "host", "port", "timer")

    def __init__(self, host: str, port: int, delay_s: float) -> None:
        self.host = host
        self.port = port
        self.delay_s = delay_s
        self.attempt: LinkSocket | None = None
        self.timer: Timer | None = None

    def stop_waiting(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Links(NodeLinks):
    """The links of one node. Call `start` before `connect` and the other methods.

    `rng` spreads dialling; `random_octets` makes nonces and must be unforeseeable. Raises
    ValueError for a secret that is too short and for an identity that every peer would refuse.
    """

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        user: LinkUser,
        *,
        clock: Clock,
        rng: random.Random,
        listen: tuple[str, int] | BoundSocket | None = None,
        settings: LinkSettings = LinkSettings(),  # noqa: B008
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        random_octets: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(
                f"a cluster secret of {len(secret)} octets, at least {SECRET_BYTES_MIN} are needed"
            )
        check_identity(identity)
        self.identity = identity
        self._secret = secret
        self._user = user
        self._clock = clock
        self._rng = rng
        self._listen = listen
        self._settings = settings
        self._server_tls = Tls(server_tls) if server_tls is not None else None
        self._client_tls = client_tls
        self._random_octets = random_octets
        self._limited_log = LimitedLog(log, clock)
        self._loop: asyncio.AbstractEventLoop
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._stamp = 0
        self._up: dict[str, LinkSocket] = {}
        self._traffic = TrafficAccount()
        # Nodes that ended their link because they paused, as they told us.
        self.paused: set[str] = set()
        self._wanted: dict[str, Dialling] = {}
        self._strangers: dict[LinkSocket, None] = {}
        self._sockets: set[LinkSocket] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._all_closed = asyncio.Event()

    # NodeLinks

    def connect(self, node: str, host: str, port: int) -> None:
        dialling = self._wanted.get(node)
        if self._stopping:
            return
        if dialling is None:
            dialling = Dialling(host, port, self._settings.redial_first_s)
            self._wanted[node] = dialling
            self._dial_soon(node, 0.0)
        else:
            dialling.host, dialling.port = host, port

    def forget(self, node: str) -> None:
        dialling = self._wanted.pop(node, None)
        if dialling is not None:
            dialling.stop_waiting()
            if dialling.attempt is not None:
                dialling.attempt.end(EndReason.FORGOTTEN)
        socket = self._up.get(node)
        if socket is not None:
            socket.end(EndReason.FORGOTTEN)

    def send(self, node: str, kind: int, *parts: Part) -> bool:
        socket = self._up.get(node)
        if socket is None:
            return False
        socket.send(kind, parts)
        return True

    def backlog_bytes(self, node: str) -> int:
        socket = self._up.get(node)
        return socket.backlog_bytes() if socket is not None else 0

    def peers(self) -> dict[str, Identity]:
        return {
            node: socket.standing.peer
            for node, socket in self._up.items()
            if socket.standing is not None
        }

    def is_up(self, node: str) -> bool:
        socket = self._up.get(node)
        return socket is not None and socket.standing is not None

    def traffic(self, node: str) -> LinkTraffic:
        return self._traffic.of(node, self._up)

    def use_certificates(self, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
        """Use these certificates for connections that are made from now on."""
        self._server_tls = Tls(server_tls)
        self._client_tls = client_tls

    # Life

    async def start(self) -> None:
        """Listen, if configured, at an address or with a socket that is bound already.

        Raises OSError when the address cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        if isinstance(self._listen, BoundSocket):
            self._server = await self._loop.create_server(
                self._accept, sock=self._listen, backlog=BACKLOG
            )
        elif self._listen is not None:
            host, port = self._listen
            self._server = await self._loop.create_server(self._accept, host, port, backlog=BACKLOG)

    @property
    def port(self) -> int:
        """The port on which this node listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self, reason: EndReason = EndReason.STOPPED) -> None:
        """Tell the peers the reason, report all links down, and leave nothing open."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for node in list(self._wanted):
            self._wanted.pop(node).stop_waiting()
        for socket in list(self._sockets):
            socket.end(reason)
        for dial in self._dials:
            dial.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
        await self._wait_closed()
        if self._server is not None:
            await self._server.wait_closed()

    async def _wait_closed(self) -> None:
        """Wait until every transport is gone; abort those that take longer than the grace time."""
        for _ in range(2):
            if not self._sockets:
                return
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_GRACE_S):
                    await self._all_closed.wait()
            for socket in list(self._sockets):
                socket.abort()

    # SocketOwner

    def made(self, socket: LinkSocket) -> None:
        self._sockets.add(socket)
        if self._stopping:
            socket.end(EndReason.STOPPED)
        elif socket.link.role is LinkRole.ACCEPTOR:
            self._strangers[socket] = None
            if len(self._strangers) > self._settings.strangers_max:
                next(iter(self._strangers)).end(EndReason.CROWDED_OUT)

    def identified(self, socket: LinkSocket, event: Identified) -> None:
        self._strangers.pop(socket, None)
        peer = event.peer
        socket.node = peer.name
        other = self._up.get(peer.name)
        standing = other.standing if other is not None else None
        if socket.link.role is LinkRole.DIALLER:
            reason = judge_acceptor(peer, standing)
        else:
            awaiting = self._is_awaiting(peer.name)
            reason = judge_dialler(self.identity.name, peer, event.stamp, standing, awaiting)
        if reason is None:
            self._stamp += 1
            socket.agree(self._stamp)
        else:
            socket.refuse(reason)

    def established(self, socket: LinkSocket, event: Established) -> None:
        node = event.peer.name
        other = self._up.get(node)
        if other is not None:
            other.end(EndReason.SUPERSEDED)
        self._stop_dialling(node, socket)
        self._up[node] = socket
        self.paused.discard(node)
        socket.standing = EstablishedLink(event.peer, event.stamp)
        log_event(
            log,
            logging.INFO,
            "link_up",
            node=node,
            address=socket.address,
            dialled_by=self.identity.name if socket.link.role is LinkRole.DIALLER else node,
            incarnation=event.peer.incarnation,
            software=event.peer.software or None,
        )
        self._user.on_up(node, event.peer)

    def frames(self, socket: LinkSocket, frames: list[Frame]) -> None:
        assert socket.node is not None
        self._user.on_frames(socket.node, frames)

    def congested(self, socket: LinkSocket, congested: bool) -> None:
        assert socket.node is not None
        self._user.on_congested(socket.node, congested)

    def ended(self, socket: LinkSocket, event: Ended) -> None:
        self._strangers.pop(socket, None)
        node = socket.node
        was_up = node is not None and self._up.get(node) is socket
        if was_up:
            del self._up[node or ""]
            self._traffic.down(node or "", socket)
        self._dial_again(node, socket)
        if was_up:
            self._report_down(node or "", socket, event)
        else:
            self._log_failed(socket, event)

    def closed(self, socket: LinkSocket) -> None:
        self._sockets.discard(socket)
        if not self._sockets:
            self._all_closed.set()

    # Inside

    def _accept(self) -> LinkSocket:
        return self._new_socket(LinkRole.ACCEPTOR, self._server_tls)

    def _new_socket(self, role: LinkRole, tls: Tls | None, node: str | None = None) -> LinkSocket:
        link = LinkProtocol(
            role,
            self._secret,
            self.identity,
            self._random_octets(NONCE_BYTES),
            expected=node,
            silent_ticks_max=self._settings.silent_ticks_max,
        )
        return LinkSocket(
            self,
            link,
            loop=self._loop,
            clock=self._clock,
            settings=self._settings,
            tls=tls,
            node=node,
        )

    def _is_awaiting(self, node: str) -> bool:
        """Whether we introduced ourselves to a node that we dialled and wait for its Acceptance."""
        dialling = self._wanted.get(node)
        return dialling is not None and dialling.attempt is not None and dialling.attempt.agreed

    def _dial_soon(self, node: str, delay_s: float) -> None:
        self._wanted[node].timer = self._clock.call_later(delay_s, lambda: self._dial(node))

    def _dial(self, node: str) -> None:
        dialling = self._wanted[node]
        dialling.timer = None
        if node in self._up or dialling.attempt is not None:
            return
        tls = Tls(self._client_tls, dialling.host) if self._client_tls is not None else None
        socket = dialling.attempt = self._new_socket(LinkRole.DIALLER, tls, node)
        dial = self._loop.create_task(self._connect(socket, dialling.host, dialling.port))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)

    async def _connect(self, socket: LinkSocket, host: str, port: int) -> None:
        connected = False
        try:
            async with asyncio.timeout(self._settings.handshake_s):
                await self._loop.create_connection(lambda: socket, host, port)
            connected = True
        except (OSError, ValueError, OverflowError) as error:
            reason = str(error) or type(error).__name__
            socket.end(EndReason.UNREACHABLE, f"{host}:{port}: {reason}")
        finally:
            if not connected:
                # If the task was cancelled in the turn in which the connection was made, uvloop
                # reports `connection_made` but never `connection_lost`.
                socket.abort()
                self.closed(socket)

    def _stop_dialling(self, node: str, linked: LinkSocket) -> None:
        """Stop dialling: there is a link now. The next delay is the first one again."""
        dialling = self._wanted.get(node)
        if dialling is None:
            return
        dialling.stop_waiting()
        dialling.delay_s = self._settings.redial_first_s
        attempt, dialling.attempt = dialling.attempt, None
        if attempt is not None and attempt is not linked:
            attempt.end(EndReason.ALREADY_LINKED)

    def _dial_again(self, node: str | None, ended: LinkSocket) -> None:
        """Dial after the end of a connection, if the node is wanted and no attempt is under way."""
        dialling = self._wanted.get(node) if node is not None else None
        if node is None or dialling is None:
            return
        if dialling.attempt is ended:
            dialling.attempt = None
        if dialling.attempt is None and dialling.timer is None and node not in self._up:
            delay_s = dialling.delay_s
            dialling.delay_s = min(delay_s * 2, self._settings.redial_max_s)
            self._dial_soon(node, delay_s * self._rng.uniform(0.5, 1.0))

    def _report_down(self, node: str, socket: LinkSocket, event: Ended) -> None:
        wanted = event.reason in EXPECTED or event.reason is EndReason.PEER_STOPPED
        if event.reason is EndReason.PEER_STOPPED and event.detail == EndReason.PAUSED:
            self.paused.add(node)
        log_event(
            log,
            logging.INFO if wanted else logging.WARNING,
            "link_down",
            node=node,
            reason=event.reason,
            detail=event.detail,
            address=socket.address,
        )
        try:
            self._user.on_down(node, event.reason)
        except Exception:
            log_fault(log, "link_fault", node=node, address=socket.address)

    def _log_failed(self, socket: LinkSocket, event: Ended) -> None:
        reason = event.reason
        dialled = socket.link.role is LinkRole.DIALLER
        quiet = reason in EXPECTED or (reason is EndReason.CONNECTION_LOST and not dialled)
        self._limited_log.event(
            logging.DEBUG if quiet else logging.WARNING,
            f"link_{reason}",
            socket.node if dialled and socket.node is not None else socket.host,
            node=socket.node,
            address=socket.address or None,
            detail=event.detail,
            told_by="peer" if event.by_peer else None,
        )
