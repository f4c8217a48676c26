"""The functions that serve the methods of channel 0: the handshake, and the ends of a connection.

The rules are those of amqp_semantics.md section 1. `handshake.py` makes the decisions, `state.py`
says what state follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

from pamqp import commands

from warren.amqp import sasl
from warren.amqp.handshake import FAILURE_DELAY_S, Authentication, agreed, capabilities_of
from warren.amqp.heartbeat import Heartbeat
from warren.amqp.held_output import HeldOutput
from warren.amqp.methods import Method, make
from warren.amqp.peer import ConnectionSettings, Peer
from warren.amqp.publishing import PublishRoutes
from warren.amqp.state import State, Transition
from warren.core.access.access_control import LoginRefused
from warren.core.field import Table
from warren.core.node import Client, Node
from warren.core.scheduling.waiting import Event

log = logging.getLogger("warren.connection")


class ServedConnection(Client, Protocol):
    """The part of a connection that its methods read and change: `Connection` explains it."""

    node: Node
    settings: ConnectionSettings
    peer: Peer
    client_properties: Table
    capabilities: frozenset[str]
    authentication: Authentication | None
    mechanism: str
    channel_max: int
    frame_max: int
    frame_size_max: int
    heartbeat_s: int
    heartbeat: Heartbeat
    routes: PublishRoutes | None
    held: HeldOutput
    output: list[bytes]

    def enter(self, transition: Transition) -> None:
        """Change the state."""
        ...

    def send(self, channel: int, method: Method) -> None: ...

    def note(
        self, category: logging.Logger, level: int, event: str, **more: str | int | None
    ) -> None:
        """Log an event of this connection with what is known of the connection so far."""
        ...

    def handshake_done(self) -> None:
        """End the time limit of the handshake."""
        ...

    def end_channels(self) -> list[Event]:
        """Leave the node, end channels and exclusive queues. Returns the events to wait for."""
        ...

    def fall_silent(self) -> None:
        """Send nothing more, and cut the socket after a delay."""
        ...

    def cut_after(self, delay_s: float) -> None:
        """Cut the socket if the peer has not ended it by then."""
        ...

    def close_timeout(self) -> float:
        """The longest the peer may take to finish a close, in seconds."""
        ...

    def end_socket(self) -> None:
        """Write the remaining output, then end the socket."""
        ...


def start_ok(connection: ServedConnection, method: commands.Connection.StartOk) -> None:
    connection.client_properties = cast(Table, method.client_properties)
    connection.capabilities = capabilities_of(connection.client_properties)
    login = Authentication(method.mechanism, connection.node, connection.settings, connection.peer)
    connection.authentication = login
    connection.mechanism = method.mechanism
    _authenticate(connection, login, method.response)


def secure_ok(connection: ServedConnection, method: commands.Connection.SecureOk) -> None:
    assert connection.authentication is not None
    _authenticate(connection, connection.authentication, method.response)


def _authenticate(connection: ServedConnection, login: Authentication, response: Any) -> None:
    try:
        answer = login.respond(response)
    except LoginRefused as refusal:
        connection.node.login_refused(connection.peer.name, refusal)
        if "authentication_failure_close" in connection.capabilities:
            connection.enter(Transition.CLOSE)
            connection.send(0, login.refusal())
            connection.cut_after(FAILURE_DELAY_S)
        else:
            connection.fall_silent()
        return
    if isinstance(answer, sasl.Challenge):
        connection.enter(Transition.CHALLENGE)
        connection.send(0, make(commands.Connection.Secure, challenge=answer.octets))
        return
    connection.user = answer
    connection.enter(Transition.LOG_IN)
    settings = connection.settings
    connection.send(
        0,
        make(
            commands.Connection.Tune,
            channel_max=settings.channel_max,
            frame_max=settings.frame_max,
            heartbeat=settings.heartbeat_s,
        ),
    )


def tune_ok(connection: ServedConnection, method: commands.Connection.TuneOk) -> None:
    limits = agreed(connection.settings, method)
    connection.channel_max, connection.frame_max, connection.heartbeat_s = limits
    connection.frame_size_max = limits.frame_max
    connection.enter(Transition.TUNE)
    connection.heartbeat.start(limits.heartbeat_s)


def open_vhost(connection: ServedConnection, method: commands.Connection.Open) -> None:
    user = connection.user
    assert user is not None
    connection.vhost = vhost = connection.node.open_vhost(connection, user, method.virtual_host)
    connection.routes = PublishRoutes(connection.node, vhost, user)
    connection.handshake_done()
    connection.enter(Transition.OPEN)
    connection.send(0, make(commands.Connection.OpenOk))
    connection.note(log, logging.INFO, "connection_opened", tls=connection.peer.tls)


def close(connection: ServedConnection, _: commands.Connection.Close) -> None:
    with connection.held.leaving(connection.node.metadata, connection.output) as left:
        left += connection.end_channels()
    connection.enter(Transition.CLOSE_BY_CLIENT)
    connection.note(log, logging.INFO, "connection_closed", by="client")
    connection.send(0, make(commands.Connection.CloseOk))
    connection.cut_after(connection.close_timeout())


def close_ok(connection: ServedConnection, _: commands.Connection.CloseOk) -> None:
    connection.enter(Transition.CLOSE_OK)
    connection.end_socket()


def close_while_closing(connection: ServedConnection, _: commands.Connection.Close) -> None:
    connection.send(0, make(commands.Connection.CloseOk))


def update_secret(connection: ServedConnection, _: commands.Connection.UpdateSecret) -> None:
    # Only login backends with expiring tokens need the secret, and this broker has none.
    connection.send(0, make(commands.Connection.UpdateSecretOk))


Handler: TypeAlias = Callable[[ServedConnection, Any], None]

HANDLERS: Mapping[tuple[State, type[Method]], Handler] = {
    (State.AWAITING_START_OK, commands.Connection.StartOk): start_ok,
    (State.AWAITING_SECURE_OK, commands.Connection.SecureOk): secure_ok,
    (State.AWAITING_TUNE_OK, commands.Connection.TuneOk): tune_ok,
    (State.AWAITING_OPEN, commands.Connection.Open): open_vhost,
    (State.RUNNING, commands.Connection.Close): close,
    (State.RUNNING, commands.Connection.UpdateSecret): update_secret,
    (State.CLOSING, commands.Connection.Close): close_while_closing,
    (State.CLOSING, commands.Connection.CloseOk): close_ok,
}
"""The methods that are legal in each state, and the functions that serve them. These raise
`HandshakeFault`, and the errors by which the node refuses a virtual host."""
