"""The settings of a run: the values of the command line, checked and complete.

A scenario is a plain value that goes to each worker process. All rules about which options go
together are in `Scenario.__post_init__`, which raises `ScenarioError` with a text for the user.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from warren.core.field import Field, Table, long, longstr

DEFAULT_URL = "amqp://guest:guest@localhost:5672/%2F"
DEFAULT_TIME_S = 10.0
"""The length of a run for which neither a time nor a number of messages is given."""

_PORTS = {"amqp": 5672, "amqps": 5671}


class ScenarioError(ValueError):
    """The options do not make a valid run."""


@dataclass(frozen=True, slots=True)
class PerfTarget:
    """The address of the broker, and the login there."""

    host: str = "localhost"
    port: int = 5672
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    tls: bool = False
    ca_file: str | None = None
    insecure: bool = False

    @property
    def place(self) -> str:
        """Host and port, as they are written in error texts."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(url: str, *, ca_file: str | None = None, insecure: bool = False) -> PerfTarget:
    """The address in an `amqp://` or `amqps://` URL; missing parts have RabbitMQ's defaults."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ScenarioError(f"{_without_password(url)} is no URL: {error}") from error
    if parts.scheme not in _PORTS:
        raise ScenarioError(
            f"the URL must start with amqp:// or amqps://, not {_without_password(url)!r}"
        )
    path = parts.path.removeprefix("/")
    if "/" in path:
        raise ScenarioError(f"a slash in the name of a vhost is written %2F, in {parts.path!r}")
    return PerfTarget(
        host=unquote(parts.hostname or "localhost"),
        port=port or _PORTS[parts.scheme],
        user="guest" if parts.username is None else unquote(parts.username),
        password="guest" if parts.password is None else unquote(parts.password),
        vhost=unquote(path) or "/",
        tls=parts.scheme == "amqps",
        ca_file=ca_file,
        insecure=insecure,
    )


def parse_pairs(pairs: Iterable[str]) -> Table:
    """`NAME=VALUE` texts as a table: whole numbers are `long`, true and false `bool`."""
    table: Table = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ScenarioError(f"expected NAME=VALUE, not {pair!r}")
        table[name] = _typed(value)
    return table


def parse_sizes(text: str) -> tuple[int, ...]:
    """Message sizes in bytes, from `100` or `100,2000,30000`."""
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        raise ScenarioError(f"expected sizes in bytes as 100 or 100,2000, not {text!r}") from None
    if min(sizes) < 0:
        raise ScenarioError(f"a message cannot have {min(sizes)} bytes")
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run. `confirm_window`, `prefetch`, `requeue_every` and `rate` are off at 0."""

    address: PerfTarget
    queue: str
    producers: int = 1
    consumers: int = 1
    queues: int = 1
    processes: int = 1
    producer_connections: int = 1

    messages: int | None = None
    time_s: float | None = None
    rate: float = 0.0
    sizes: tuple[int, ...] = (100,)
    persistent: bool = False
    headers: Table = field(default_factory=dict)
    mandatory: bool = False
    confirm_window: int = 0

    exchange: str = ""
    exchange_type: str | None = None
    routing_key: str | None = None
    binding_key: str | None = None

    durable: bool = True
    auto_delete: bool = False
    queue_arguments: Table = field(default_factory=dict)
    predeclared: bool = False
    keep: bool = False
    fresh_names: bool = False
    """The queue name was made for this run, so no queue of another user has that name."""

    auto_ack: bool = False
    ack_every: int = 1
    prefetch: int = 0
    requeue_every: int = 0
    consumer_delay_ms: float = 0.0
    consume_after_s: float = 0.0
    consume_after_publishing: bool = False

    def __post_init__(self) -> None:
        for wrong, text in (
            (not self.producers + self.consumers, "a run needs a producer or a consumer"),
            (
                self.auto_ack and self.prefetch > 0,
                "a prefetch has no effect with --auto-ack: the broker waits for no acks",
            ),
            (
                self.auto_ack and self.requeue_every > 0,
                "with --auto-ack no message can be requeued",
            ),
            (
                self.requeue_every == 1,
                "--requeue-every must be 2 or more: a consumer that gives all back never ends",
            ),
            (
                0 < self.prefetch < self.ack_every,
                f"with a prefetch of {self.prefetch} the broker stops before "
                f"--ack-every {self.ack_every} is reached",
            ),
            (
                self.exchange_type is not None and not self.exchange,
                "--exchange-type needs --exchange",
            ),
            (
                self.binding_key is not None and not self.exchange,
                "--binding-key needs --exchange",
            ),
            (
                self.consume_after_publishing and not self.producers,
                "without producers no publishing ends that the consumers could wait for",
            ),
            (
                self.consume_after_publishing and self.messages is None and self.time_s is None,
                "consumers cannot wait for publishing that only Ctrl-C ends: give a time or -n",
            ),
        ):
            if wrong:
                raise ScenarioError(text)

    @property
    def queue_names(self) -> list[str]:
        """The given name; with several queues, that name followed by -1, -2, ..."""
        if self.queues == 1:
            return [self.queue]
        return [f"{self.queue}-{number}" for number in range(1, self.queues + 1)]

    def consumer_queues(self, consumer: int) -> list[str]:
        """The queues that a consumer, counted from 0, consumes from."""
        return dealt(self.queue_names, consumer, self.consumers)

    def routing_keys(self, producer: int) -> list[str]:
        """The routing keys that a producer, counted from 0, uses in turn."""
        if self.routing_key is not None:
            return [self.routing_key]
        return dealt(self.queue_names, producer, self.producers)

    def binding_key_of(self, queue_name: str) -> str:
        for key in (self.binding_key, self.routing_key):
            if key is not None:
                return key
        return queue_name

    def messages_of(self, connection: int) -> int | None:
        """How many messages a connection sends; None for no limit.

        Connections are counted from 0 over all producers.
        """
        if self.messages is None:
            return None
        connections = self.producers * self.producer_connections
        return self.messages // connections + (connection < self.messages % connections)


def dealt(names: list[str], place: int, places: int) -> list[str]:
    """The names for one of `places`. Each place has at least one, each name at least one place."""
    if places >= len(names):
        return [names[place % len(names)]]
    return names[place::places]


def _typed(value: str) -> Field:
    if value in ("true", "false"):
        return Field("t", value == "true")
    try:
        number = int(value)
    except ValueError:
        return longstr(value)
    if not -(2**63) <= number < 2**63:
        raise ScenarioError(f"{value} does not fit the 64 bits of a number")
    return long(number)


def _without_password(url: str) -> str:
    """The URL for error texts, which end up in terminals and logs."""
    scheme, slashes, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if not at:
        return url
    return f"{scheme}{slashes}{user.partition(':')[0]}:***@{place}"
