"""The parameter of a shovel: its checks, which report every problem at once, and its meaning.

The error texts are RabbitMQ's, and scripts match on them. Keys of older versions are accepted if
the present key is missing (`FORMER`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warren.client.content_header import PROPERTIES, property_octets
from warren.core.definitions.validation import ValidationFailed, is_integer, term
from warren.shovel import checks
from warren.shovel.checks import Check, Problems
from warren.shovel.redrive import Back, DecidingDeath
from warren.shovel.transfer import AckMode
from warren.shovel.uri import Uri, parse_uri

QUEUE_LENGTH: Final = "queue-length"
NEVER: Final = "never"

FORMER: Final[Mapping[str, str]] = {
    "src-prefetch-count": "prefetch-count",
    "src-delete-after": "delete-after",
    "dest-add-forward-headers": "add-forward-headers",
    "dest-add-timestamp-header": "add-timestamp-header",
    "dest-publish-properties": "publish-properties",
}

QUEUE_ARGUMENTS: Final = frozenset(
    {
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-delivery-limit",
        "x-expires",
        "x-initial-cluster-size",
        "x-max-age",
        "x-max-in-memory-bytes",
        "x-max-in-memory-length",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-message-ttl",
        "x-overflow",
        "x-queue-leader-locator",
        "x-queue-master-locator",
        "x-queue-mode",
        "x-queue-type",
        "x-queue-version",
        "x-quorum-initial-group-size",
        "x-single-active-consumer",
        "x-stream-max-segment-size-bytes",
    }
)
CONSUMER_ARGUMENTS: Final = frozenset({"x-priority", "x-cancel-on-ha-failover", "x-stream-offset"})
PUBLISH_PROPERTIES: Final = frozenset(PROPERTIES) - {"headers"}

PROTOCOL: Final = "amqp091"


@dataclass(frozen=True)
class Source:
    """The source of messages: a queue, or an exchange with a queue of the shovel's own."""

    uris: Sequence[Uri]
    queue: str | None
    exchange: str | None
    exchange_key: str
    queue_arguments: Mapping[str, Any]
    consumer_arguments: Mapping[str, Any]
    prefetch: int
    """0: no limit."""


@dataclass(frozen=True)
class Destination:
    """The destination of messages. Exchange and routing key None: as in the message."""

    uris: Sequence[Uri]
    queue: str | None
    exchange: str | None
    exchange_key: str | None
    queue_arguments: Mapping[str, Any]
    properties: Mapping[str, bytes]
    add_forward_headers: bool
    add_timestamp_header: bool
    redrive: tuple[Back, DecidingDeath] | None = None
    """If set, dead letters go back to the queue or exchange they came from."""


@dataclass(frozen=True)
class Definition:
    """A shovel. `delete_after` is a number of messages, `QUEUE_LENGTH`, or None for never."""

    source: Source
    destination: Destination
    ack_mode: AckMode
    delete_after: int | str | None
    reconnect_delay_s: float | None
    """None: a shovel that has failed is not tried again."""


def check(name: str, value: Any) -> None:
    """Raise `ValidationFailed` with every problem of a parameter, one on each line."""
    problems = _problems(name, value)
    if problems:
        raise ValidationFailed("\n".join(problems))


def parse(value: Mapping[str, Any]) -> Definition:
    """The shovel defined by a parameter that has passed `check`."""

    def given(key: str, default: Any = None) -> Any:
        return value.get(key, value.get(FORMER.get(key, key), default))

    delete_after = given("src-delete-after", NEVER)
    return Definition(
        Source(
            uris=[parse_uri(uri) for uri in checks.listed(value["src-uri"])],
            queue=value.get("src-queue"),
            exchange=value.get("src-exchange"),
            exchange_key=given("src-exchange-key", ""),
            queue_arguments=given("src-queue-args", {}),
            consumer_arguments=given("src-consumer-args", {}),
            prefetch=checks.prefetch(given("src-prefetch-count", 1000)),
        ),
        Destination(
            uris=[parse_uri(uri) for uri in checks.listed(value["dest-uri"])],
            queue=value.get("dest-queue"),
            exchange=value.get("dest-exchange"),
            exchange_key=given("dest-exchange-key"),
            queue_arguments=given("dest-queue-args", {}),
            properties={
                key: property_octets(key, item)
                for key, item in given("dest-publish-properties", {}).items()
            },
            add_forward_headers=given("dest-add-forward-headers", False),
            add_timestamp_header=given("dest-add-timestamp-header", False),
            redrive=None
            if "dest-redrive" not in value
            else (Back(value["dest-redrive"]), DecidingDeath(given("dest-redrive-death", "last"))),
        ),
        AckMode(given("ack-mode", "on-confirm")),
        None if delete_after == NEVER else delete_after,
        checks.delay_s(given("reconnect-delay", 5)),
    )


def uris(value: Mapping[str, Any]) -> list[Uri]:
    """All URIs of a parameter that has passed `check`."""
    return [parse_uri(uri) for key in ("src-uri", "dest-uri") for uri in checks.listed(value[key])]


# Problems


def _problems(name: str, value: Any) -> Problems:
    if not isinstance(value, dict):
        return [f"{name} not a list {term(value)}"]
    problems = checks.missing(name, value, ("src-uri", "dest-uri"))
    for key, checked in CHECKS.items():
        if key in value:
            problems += checked(key, value[key])
        if FORMER.get(key) in value:
            problems += checked(FORMER[key], value[FORMER[key]])
    problems += checks.unrecognised(name, value, CHECKS.keys() | FORMER_NAMES)
    return problems + _contradictions(value)


def _contradictions(value: dict[str, Any]) -> Problems:
    problems = []
    if "src-queue" in value and "src-exchange" in value:
        problems.append("Cannot specify 'src-exchange' and 'src-queue'")
    if "src-queue" not in value and "src-exchange" not in value:
        problems.append("Must specify 'src-exchange' or 'src-queue'")
    if "dest-queue" in value and "dest-exchange" in value:
        problems.append("Cannot specify 'dest-exchange' and 'dest-queue'")
    if "dest-redrive" in value:
        for other in ("dest-queue", "dest-exchange", "dest-exchange-key"):
            if other in value:
                problems.append(f"Cannot specify 'dest-redrive' and '{other}'")
        if value.get("ack-mode", AckMode.ON_CONFIRM.value) != AckMode.ON_CONFIRM.value:
            problems.append("Cannot specify 'dest-redrive' without 'on-confirm'")
    delete_after = value.get("src-delete-after", value.get("delete-after"))
    if value.get("ack-mode") == AckMode.NO_ACK.value and is_integer(delete_after):
        problems.append("Cannot specify 'no-ack' and numerical 'delete-after'")
    return problems


def _object_of(known: frozenset[str]) -> Check:
    def check(key: str, value: Any) -> Problems:
        # Some languages write an empty object as an empty list.
        if value == []:
            return []
        if not isinstance(value, dict):
            return [f"{key} should be list, actually was {term(value)}"]
        return checks.unrecognised(key, value, known)

    return check


def _properties(key: str, value: Any) -> Problems:
    problems = _object_of(PUBLISH_PROPERTIES)(key, value)
    if not isinstance(value, dict):
        return problems
    for name in sorted(value.keys() & PUBLISH_PROPERTIES):
        item = value[name]
        check = checks.text if PROPERTIES[name] == "shortstr" else checks.number
        wrong = check(name, item)
        if not wrong:
            try:
                property_octets(name, item)
            except ValueError as error:
                wrong = [f"{key}: {error}"]
        problems += wrong
    return problems


def _delete_after(key: str, value: Any) -> Problems:
    if value in (NEVER, QUEUE_LENGTH) or (is_integer(value) and value >= 0):
        return []
    return [
        f'{key} should be a number greater than or equal to 0, "never" or "queue-length",'
        f" actually was {term(value)}"
    ]


CHECKS: Final[Mapping[str, Check]] = {
    "src-uri": checks.uris,
    "dest-uri": checks.uris,
    "src-protocol": checks.one_of(PROTOCOL),
    "dest-protocol": checks.one_of(PROTOCOL),
    "src-queue": checks.queue_name,
    "src-exchange": checks.name,
    "src-exchange-key": checks.name,
    "src-queue-args": _object_of(QUEUE_ARGUMENTS),
    "src-consumer-args": _object_of(CONSUMER_ARGUMENTS),
    "src-prefetch-count": checks.number,
    "src-delete-after": _delete_after,
    "dest-queue": checks.queue_name,
    "dest-exchange": checks.name,
    "dest-exchange-key": checks.name,
    "dest-queue-args": _object_of(QUEUE_ARGUMENTS),
    "dest-publish-properties": _properties,
    "dest-redrive": checks.one_of(*[back.value for back in Back]),
    "dest-redrive-death": checks.one_of(*[death.value for death in DecidingDeath]),
    "dest-add-forward-headers": checks.boolean,
    "dest-add-timestamp-header": checks.boolean,
    "ack-mode": checks.ack_mode,
    "reconnect-delay": checks.number,
}
FORMER_NAMES: Final = frozenset(FORMER.values())
