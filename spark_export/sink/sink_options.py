"""The options of a sink: where to publish, as which user, and how.

`SinkOptions.parse` reads Spark's options, which are text under names that ignore case; unknown
options and wrong values are an `OptionRefused` on the driver, before a task has begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from warren.spark_export.errors import OptionRefused

AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671
SHORT_STRING_MAX: Final = 255
"""The most octets in an exchange's name or a routing key."""

VHOST_MAX: Final = 127
"""The most octets in a virtual host's name in connection.open (its domain is `path`)."""

JOB_ID_MAX: Final = 190
"""The most octets in a job id; a message id has 255, and three numbers with dashes follow."""

MAX_IN_FLIGHT: Final = 1000
CONFIRM_TIMEOUT_MS: Final = 60_000
CONNECT_TIMEOUT_MS: Final = 30_000
HEARTBEAT_S: Final = 60

_OURS: Final = {
    name.lower(): name
    for name in (
        "url",
        "host",
        "port",
        "username",
        "password",
        "vhost",
        "tls",
        "caFile",
        "certFile",
        "keyFile",
        "exchange",
        "routingKey",
        "bodyColumn",
        "deliveryMode",
        "mandatory",
        "confirms",
        "maxInFlight",
        "confirmTimeoutMs",
        "connectTimeoutMs",
        "heartbeatSeconds",
        "generateMessageIds",
        "jobId",
        "ignoreExtraColumns",
    )
}
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Options for Spark itself that a sink gets too."""

_IN_PLACE_OF_URL: Final = ("host", "port", "username", "password", "vhost", "tls")


@dataclass(frozen=True)
class BrokerAddress:
    """The address of a broker, and the login. The files are read where tasks run."""

    host: str
    port: int
    vhost: str
    username: str
    password: str = field(repr=False)
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __str__(self) -> str:
        """The address for error texts, without the password."""
        return f"{self.host}:{self.port}, virtual host {self.vhost!r}"


@dataclass(frozen=True)
class SinkOptions:
    """All options, checked. `exchange` and `routing_key` are None if only columns have them."""

    address: BrokerAddress
    exchange: str | None
    routing_key: str | None
    body_column: str
    delivery_mode: int | None
    mandatory: bool
    confirms: bool
    max_in_flight: int
    confirm_timeout_s: float
    connect_timeout_s: float
    heartbeat_s: int
    generate_message_ids: bool
    job_id: str | None
    ignore_extra_columns: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """The options in Spark's texts. Raises `OptionRefused`."""
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in _OURS and name not in _OF_SPARK:
                raise OptionRefused(f"a sink has no option {name!r}; it has {_all_names()}")
        return cls(
            address=_address(given),
            exchange=_short_string(given, "exchange"),
            routing_key=_short_string(given, "routingKey"),
            body_column=given.get("bodycolumn", "body"),
            delivery_mode=_delivery_mode(given),
            mandatory=_flag(given, "mandatory", True),
            confirms=_flag(given, "confirms", True),
            max_in_flight=_number(given, "maxInFlight", MAX_IN_FLIGHT, 1),
            confirm_timeout_s=_number(given, "confirmTimeoutMs", CONFIRM_TIMEOUT_MS, 1) / 1000,
            connect_timeout_s=_number(given, "connectTimeoutMs", CONNECT_TIMEOUT_MS, 1) / 1000,
            heartbeat_s=_number(given, "heartbeatSeconds", HEARTBEAT_S, 0, 65_535),
            generate_message_ids=_flag(given, "generateMessageIds", True),
            job_id=_job_id(given),
            ignore_extra_columns=_flag(given, "ignoreExtraColumns", False),
        )


def _all_names() -> str:
    return ", ".join(_OURS.values())


def _address(given: Mapping[str, str]) -> BrokerAddress:
    files = {
        "ca_file": given.get("cafile"),
        "cert_file": given.get("certfile"),
        "key_file": given.get("keyfile"),
    }
    if "url" in given:
        both = [name for name in _IN_PLACE_OF_URL if name in given]
        if both:
            raise OptionRefused(f"url and {both[0]} are both given; a url says all of it")
        address = _from_url(given["url"], files)
    elif "host" in given:
        tls = _flag(given, "tls", False)
        address = BrokerAddress(
            host=given["host"],
            port=_number(given, "port", AMQPS_PORT if tls else AMQP_PORT, 1, 65_535),
            vhost=given.get("vhost", "/"),
            username=given.get("username", "guest"),
            password=given.get("password", "guest"),
            tls=tls,
            **files,
        )
    else:
        raise OptionRefused("a sink needs the option url (amqp://user:password@host/vhost) or host")
    if len(address.vhost.encode()) > VHOST_MAX:
        raise OptionRefused(f"the virtual host's name is longer than {VHOST_MAX} octets")
    if any(files.values()) and not address.tls:
        raise OptionRefused("caFile, certFile and keyFile are for TLS: use amqps://, or tls=true")
    if address.key_file and not address.cert_file:
        raise OptionRefused("keyFile is given without certFile")
    return address


def _from_url(url: str, files: Mapping[str, str | None]) -> BrokerAddress:
    """The address in an AMQP URL; missing parts are RabbitMQ's defaults."""
    # The error texts do not show the URL: it may have a password.
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise OptionRefused(f"the url cannot be read: {error}") from error
    if parts.scheme not in ("amqp", "amqps"):
        raise OptionRefused(f"the url begins with {parts.scheme!r}, not with amqp or amqps")
    if parts.query or parts.fragment:
        raise OptionRefused("the url has a query; heartbeats, timeouts and files are options")
    tls = parts.scheme == "amqps"
    vhost = unquote(parts.path[1:])
    if "/" in parts.path[1:]:
        raise OptionRefused("a virtual host with a slash is written %2F in a url")
    return BrokerAddress(
        host=parts.hostname or "localhost",
        port=port or (AMQPS_PORT if tls else AMQP_PORT),
        vhost=vhost or "/",
        username=unquote(parts.username) if parts.username is not None else "guest",
        password=unquote(parts.password) if parts.password is not None else "guest",
        tls=tls,
        **files,
    )


def _short_string(given: Mapping[str, str], name: str) -> str | None:
    text = given.get(name.lower())
    if text is not None and len(text.encode()) > SHORT_STRING_MAX:
        raise OptionRefused(
            f"{name} has {len(text.encode())} octets, of {SHORT_STRING_MAX} at most"
        )
    return text


def _job_id(given: Mapping[str, str]) -> str | None:
    text = given.get("jobid")
    if text is not None and not 1 <= len(text.encode()) <= JOB_ID_MAX:
        raise OptionRefused(f"jobId has {len(text.encode())} octets, not 1 to {JOB_ID_MAX}")
    return text


def _delivery_mode(given: Mapping[str, str]) -> int | None:
    text = given.get("deliverymode", "2").lower()
    modes = {"1": 1, "2": 2, "none": None}
    if text not in modes:
        raise OptionRefused(f"deliveryMode is {text!r}, not 1 (transient), 2 (persistent) or none")
    return modes[text]


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise OptionRefused(f"{name} is {text!r}, not true or false")
    return text.lower() == "true"


def _number(
    given: Mapping[str, str], name: str, default: int, least: int, most: int = (1 << 31) - 1
) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise OptionRefused(f"{name} is {text!r}, not a whole number from {least} to {most}")
    return int(text)
