"""The client at the other end of a connection, and the settings that the node offers it."""

from __future__ import annotations

from dataclasses import dataclass

from warren.amqp.tls_session import TlsSession
from warren.core.access.access_control import User
from warren.core.field import Table, to_text

CAPABILITIES = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "consumer_priorities",
    "direct_reply_to",
    "exchange_exchange_bindings",
    "per_consumer_qos",
    "publisher_confirms",
)
"""The broker's capabilities in connection.start (amqp_semantics.md section 1.2)."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The addresses of a socket and the identity of the client. `certificate_name` is the user
    named by its TLS certificate, `session` what TLS agreed on; None without TLS. `admitted` is the
    user of a client within the node, which needs no password."""

    host: str
    port: int
    local_host: str
    local_port: int
    tls: bool = False
    certificate_name: str | None = None
    session: TlsSession | None = None
    admitted: User | None = None

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port} -> {self.local_host}:{self.local_port}"

    @property
    def loopback(self) -> bool:
        return self.host.startswith("127.") or self.host in ("::1", "::ffff:127.0.0.1")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings that the node offers its peers; the defaults are RabbitMQ's.

    `consumer_timeout_s` None: messages may stay unacknowledged for ever.
    """

    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat_s: int = 60
    handshake_timeout_s: float = 10.0
    max_message_size: int = 134_217_728
    consumer_timeout_s: float | None = 1800.0
    default_prefetch: int = 0
    mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")


def client_name(properties: Table) -> str | None:
    """The name that the client gave its connection, or None."""
    name = properties.get("connection_name")
    return to_text(name.value) if name is not None and name.kind == "S" else None
