"""The parameter of a shovel: what may stand in it, every problem at once, and what it says.

The texts are RabbitMQ's, and scripts match on them. Names of older versions are taken where the
present name does not stand (`FORMER`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from warren.client.content_header import PROPERTIES, property_octets
from warren.core.validation import ValidationFailed, is_integer, is_number, term
from warren.shovel.uri import InvalidUri, Uri, parse_uri

PREFETCH_MAX = 65_535
"""What basic.qos has room for."""


class AckMode(Enum):
    """When the source may forget a message."""

    ON_CONFIRM = "on-confirm"
    ON_PUBLISH = "on-publish"
    NO_ACK = "no-ack"


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
    """Where messages come from: a queue, or an exchange with a queue of the shovel's own."""

    uris: Sequence[Uri]
    queue: str | None
    exchange: str | None
    exchange_key: str
    queue_arguments: Mapping[str, Any]
    consumer_arguments: Mapping[str, Any]
    prefetch: int
    """0: as many as come."""


@dataclass(frozen=True)
class Destination:
    """Where messages go. What is None is as the message came."""

    uris: Sequence[Uri]
    queue: str | None
    exchange: str | None
    exchange_key: str | None
    queue_arguments: Mapping[str, Any]
    properties: Mapping[str, bytes]
    add_forward_headers: bool
    add_timestamp_header: bool


@dataclass(frozen=True)
class Definition:
    """A shovel. `delete_after` is a number of messages, `QUEUE_LENGTH`, or None for never."""

    source: Source
    destination: Destination
    ack_mode: AckMode
    delete_after: int | str | None
    reconnect_delay_s: float | None
    """None: after a failure the shovel stays as it is."""


def check(name: str, value: Any) -> None:
    """Raise `ValidationFailed` with every problem of a parameter, one in a line."""
    problems = _problems(name, value)
    if problems:
        raise ValidationFailed("\n".join(problems))


def parse(value: Mapping[str, Any]) -> Definition:
    """What a parameter says that `check` has let pass."""

    def given(key: str, default: Any = None) -> Any:
        return value.get(key, value.get(FORMER.get(key, key), default))

    delete_after = given("src-delete-after", NEVER)
    delay_s = given("reconnect-delay", 5)
    return Definition(
        Source(
            uris=[parse_uri(uri) for uri in _listed(value["src-uri"])],
            queue=value.get("src-queue"),
            exchange=value.get("src-exchange"),
            exchange_key=given("src-exchange-key", ""),
            queue_arguments=given("src-queue-args", {}),
            consumer_arguments=given("src-consumer-args", {}),
            prefetch=min(max(int(given("src-prefetch-count", 1000)), 0), PREFETCH_MAX),
        ),
        Destination(
            uris=[parse_uri(uri) for uri in _listed(value["dest-uri"])],
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
        ),
        AckMode(given("ack-mode", "on-confirm")),
        None if delete_after == NEVER else delete_after,
        delay_s if delay_s > 0 else None,
    )


def uris(value: Mapping[str, Any]) -> list[Uri]:
    """All URIs of a parameter that `check` has let pass."""
    return [parse_uri(uri) for key in ("src-uri", "dest-uri") for uri in _listed(value[key])]


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


# Problems

Problems: TypeAlias = list[str]
Check: TypeAlias = Callable[[str, Any], Problems]


def _problems(name: str, value: Any) -> Problems:
    if not isinstance(value, dict):
        return [f"{name} not a list {term(value)}"]
    problems: Problems = []
    for key in ("src-uri", "dest-uri"):
        if key not in value:
            problems.append(f'Key "{key}" not found in {name}')
    for key, checked in CHECKS.items():
        if key in value:
            problems += checked(key, value[key])
        if FORMER.get(key) in value:
            problems += checked(FORMER[key], value[FORMER[key]])
    unknown = {
        key: item for key, item in value.items() if key not in CHECKS and key not in FORMER_NAMES
    }
    if unknown:
        problems.append(f"Unrecognised terms {term(unknown)} in {name}")
    return problems + _contradictions(value)


def _contradictions(value: dict[str, Any]) -> Problems:
    problems = []
    if "src-queue" in value and "src-exchange" in value:
        problems.append("Cannot specify 'src-exchange' and 'src-queue'")
    if "src-queue" not in value and "src-exchange" not in value:
        problems.append("Must specify 'src-exchange' or 'src-queue'")
    if "dest-queue" in value and "dest-exchange" in value:
        problems.append("Cannot specify 'dest-exchange' and 'dest-queue'")
    delete_after = value.get("src-delete-after", value.get("delete-after"))
    if value.get("ack-mode") == AckMode.NO_ACK.value and is_integer(delete_after):
        problems.append("Cannot specify 'no-ack' and numerical 'delete-after'")
    return problems


def _wants(valid: Callable[[Any], bool], what: str) -> Check:
    def check(key: str, value: Any) -> Problems:
        return [] if valid(value) else [f"{key} should be {what}, actually was {term(value)}"]

    return check


def _one_of(*names: str) -> Check:
    shown = ",".join(map(term, names))
    return _wants(lambda value: value in names, f"one of [{shown}]")


def _uris(key: str, value: Any) -> Problems:
    if not isinstance(value, str | list):
        return [f"{key} should be list, actually was {term(value)}"]
    problems = []
    for uri in _listed(value):
        try:
            parse_uri(uri)
        except InvalidUri as error:
            problems.append(str(error))
    return problems


def _object_of(known: frozenset[str]) -> Check:
    def check(key: str, value: Any) -> Problems:
        # An empty list is how an empty object is written in some languages.
        if value == []:
            return []
        if not isinstance(value, dict):
            return [f"{key} should be list, actually was {term(value)}"]
        unknown = {name: item for name, item in value.items() if name not in known}
        return [f"Unrecognised terms {term(unknown)} in {key}"] if unknown else []

    return check


def _properties(key: str, value: Any) -> Problems:
    problems = _object_of(PUBLISH_PROPERTIES)(key, value)
    if not isinstance(value, dict):
        return problems
    for name in sorted(value.keys() & PUBLISH_PROPERTIES):
        item = value[name]
        check = _text if PROPERTIES[name] == "shortstr" else _number
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


def _name(key: str, value: Any) -> Problems:
    problems = _text(key, value)
    if not problems and len(value.encode()) > 255:
        problems = [f"{key} should have 255 bytes at most, actually had {len(value.encode())}"]
    return problems


_text = _wants(lambda value: isinstance(value, str), "binary")
_number = _wants(is_number, "a number")
_boolean = _wants(lambda value: isinstance(value, bool), "boolean")

CHECKS: Final[Mapping[str, Check]] = {
    "src-uri": _uris,
    "dest-uri": _uris,
    "src-protocol": _one_of(PROTOCOL),
    "dest-protocol": _one_of(PROTOCOL),
    "src-queue": _name,
    "src-exchange": _name,
    "src-exchange-key": _name,
    "src-queue-args": _object_of(QUEUE_ARGUMENTS),
    "src-consumer-args": _object_of(CONSUMER_ARGUMENTS),
    "src-prefetch-count": _number,
    "src-delete-after": _delete_after,
    "dest-queue": _name,
    "dest-exchange": _name,
    "dest-exchange-key": _name,
    "dest-queue-args": _object_of(QUEUE_ARGUMENTS),
    "dest-publish-properties": _properties,
    "dest-add-forward-headers": _boolean,
    "dest-add-timestamp-header": _boolean,
    "ack-mode": _one_of("no-ack", "on-publish", "on-confirm"),
    "reconnect-delay": _number,
}
FORMER_NAMES: Final = frozenset(FORMER.values())
