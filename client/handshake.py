"""The opening of a connection: the login of a client, and the limits that both ends agree on."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from pamqp import commands
from pamqp.common import FieldTable

from warren.client.frames import method_frame

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
FRAME_BYTES_MAX: Final = 131_072
"""RabbitMQ's default. A broker may ask for less."""
FRAME_BYTES_MIN: Final = 4096
CHANNELS_MAX: Final = 2047
SILENCES_MAX: Final = 2
"""Heartbeats of the broker that may be missing in a row (4.2.7)."""

CAPABILITIES: Final[FieldTable] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}

Mechanism: TypeAlias = Literal["PLAIN", "EXTERNAL"]


class Login(NamedTuple):
    """The user and the virtual host to log in to; brokers show `connection_name` to their
    operators."""

    username: str
    password: str
    vhost: str
    connection_name: str
    mechanism: Mechanism = "PLAIN"

    @property
    def response(self) -> str:
        return f"\0{self.username}\0{self.password}" if self.mechanism == "PLAIN" else ""

    def start_ok(self, **others: str) -> bytes:
        """The answer to connection.start, with `others` among the client's properties."""
        properties: FieldTable = {
            "product": "Warren",
            **others,
            "connection_name": self.connection_name,
            "capabilities": CAPABILITIES,
        }
        return method_frame(0, commands.Connection.StartOk, client_properties=properties,
                            mechanism=self.mechanism, response=self.response,
                            locale="en_US")  # fmt: skip

    def open(self) -> bytes:
        """The connection.open that follows the answer to connection.tune."""
        return method_frame(0, commands.Connection.Open, virtual_host=self.vhost)


class Tuning(NamedTuple):
    """The limits the client asks for; a broker that asks for less prevails. `heartbeat_s` 0 asks
    for no heartbeats."""

    heartbeat_s: int = 10
    channel_max: int = CHANNELS_MAX
    frame_max: int = FRAME_BYTES_MAX

    def agreed(self, offered: commands.Connection.Tune) -> Tuning:
        """The limits for both ends. 0 of a broker means no limit, or no heartbeats."""
        frame_max = min(offered.frame_max or self.frame_max, self.frame_max)
        return Tuning(
            min(self.heartbeat_s, offered.heartbeat or self.heartbeat_s),
            min(offered.channel_max or self.channel_max, self.channel_max),
            max(FRAME_BYTES_MIN, frame_max),
        )

    def tune_ok(self) -> bytes:
        """The answer to connection.tune, with the limits that were agreed on."""
        return method_frame(0, commands.Connection.TuneOk, channel_max=self.channel_max,
                            frame_max=self.frame_max, heartbeat=self.heartbeat_s)  # fmt: skip
