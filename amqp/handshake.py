"""The beginning of a connection: greeting, login, and the limits that client and broker agree on.

The rules are those of amqp_semantics.md section 1. `Connection` is the state machine; this module
makes the decisions of its states before RUNNING. It writes to no socket.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pamqp import commands

from warren.amqp import sasl
from warren.amqp.field_table import TableError
from warren.amqp.frames import FRAME_MIN_SIZE, METHOD, frame
from warren.amqp.methods import encode_method, make
from warren.amqp.peer import CAPABILITIES, ConnectionSettings, Peer
from warren.core.access.access_control import User
from warren.core.field import Field, Table
from warren.core.node import Node

FROM_WITHIN = ("EXTERNAL",)
"""The login mechanism of clients within the node, which are admitted already."""

FAILURE_DELAY_S = 3.0
"""How long a failed handshake or an unreadable stream stays open before the socket is cut."""

NO_FRAME_MAX = 1 << 32
"""The maximum size of frames if neither side has set a limit."""


class HandshakeFault(Exception):
    """The handshake cannot go on; the text is the reason, for the log."""


class Agreed(NamedTuple):
    """The limits agreed on in tune and tune-ok; octets and seconds."""

    channel_max: int
    frame_max: int
    heartbeat_s: int


def mechanisms(settings: ConnectionSettings, peer: Peer) -> tuple[str, ...]:
    """The login mechanisms that this peer is offered."""
    return FROM_WITHIN if peer.admitted is not None else sasl.offered(settings.mechanisms, peer.tls)


def greeting(node: Node, offered: tuple[str, ...]) -> bytes:
    """The frame of connection.start, made once for all peers with the same offer."""
    known = node.greetings.get(offered)
    if known is None:
        flags: Table = {name: Field("t", True) for name in CAPABILITIES}
        properties = {**node.server_properties(), "capabilities": Field("F", flags)}
        start = make(
            commands.Connection.Start,
            version_major=0,
            version_minor=9,
            server_properties=dict(sorted(properties.items())),
            mechanisms=" ".join(offered),
            locales="en_US",
        )
        known = node.greetings[offered] = frame(METHOD, 0, encode_method(start))
    return known


def capabilities_of(client_properties: Table) -> frozenset[str]:
    """The names of the capabilities that the client claims."""
    capabilities = client_properties.get("capabilities")
    if capabilities is None or capabilities.kind != "F":
        return frozenset()
    yes = Field("t", True)
    return frozenset([name for name, flag in capabilities.value.items() if flag == yes])


class Authentication:
    """One login by one mechanism. Raises `HandshakeFault` for a mechanism that was not offered."""

    def __init__(
        self, mechanism: str, node: Node, settings: ConnectionSettings, peer: Peer
    ) -> None:
        if mechanism not in mechanisms(settings, peer):
            raise HandshakeFault(f"mechanism {mechanism} is not offered")
        self.mechanism = mechanism
        self._node = node
        self._peer = peer
        self._dialogue = sasl.Dialogue(mechanism)

    def respond(self, response: Any) -> User | sasl.Challenge:
        """The user, or the next challenge to the client.

        Raises `LoginRefused`; also `HandshakeFault` for octets that are not a response of the
        mechanism.
        """
        peer = self._peer
        try:
            step = self._dialogue.respond(response, peer.certificate_name)
            if isinstance(step, sasl.Challenge):
                return step
            return peer.admitted or self._node.log_in(
                step.user, step.password, peer.host, peer.loopback
            )
        except (sasl.SyntaxFault, TableError):
            raise HandshakeFault(f"not a response of {self.mechanism}") from None

    def refusal(self) -> commands.Connection.Close:
        """The close for clients that understand it: those with `authentication_failure_close`."""
        return make(
            commands.Connection.Close,
            reply_code=403,
            reply_text=(
                "ACCESS_REFUSED - Login was refused using authentication mechanism "
                f"{self.mechanism}. For details see the broker logfile."
            ),
            class_id=0,
            method_id=0,
        )


def agreed(settings: ConnectionSettings, method: commands.Connection.TuneOk) -> Agreed:
    """The limits in tune-ok. Raises `HandshakeFault` if they exceed the offer."""
    frame_max: int = method.frame_max
    channel_max: int = method.channel_max
    frame_max_ok = frame_max >= FRAME_MIN_SIZE or frame_max == 0
    if settings.frame_max:
        frame_max_ok = FRAME_MIN_SIZE <= frame_max <= settings.frame_max
    channel_max_ok = not settings.channel_max or 0 < channel_max <= settings.channel_max
    if not (frame_max_ok and channel_max_ok):
        raise HandshakeFault(f"tune-ok with frame_max {frame_max} and channel_max {channel_max}")
    return Agreed(channel_max, frame_max or NO_FRAME_MAX, method.heartbeat)
