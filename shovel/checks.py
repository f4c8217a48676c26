"""Checks of values in parameters that name brokers, and the error texts.

A check gets a key and its value, and returns every problem. The texts are RabbitMQ's, and scripts
match on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

from warren.core.definitions.validation import is_number, term
from warren.shovel.uri import InvalidUri, parse_uri

PREFETCH_MAX: Final = 65_535
"""The largest prefetch count in basic.qos."""

NAME_OCTETS_MAX: Final = 255
"""The longest name in AMQP."""

Problems: TypeAlias = list[str]
Check: TypeAlias = Callable[[str, Any], Problems]


def missing(name: str, value: Mapping[str, Any], mandatory: Iterable[str]) -> Problems:
    """The mandatory keys that the parameter of this name lacks, as problems."""
    return [f'Key "{key}" not found in {name}' for key in mandatory if key not in value]


def unrecognised(name: str, value: Mapping[str, Any], known: Collection[str]) -> Problems:
    """The unknown keys that the object of this name has, as a problem."""
    unknown = {key: item for key, item in value.items() if key not in known}
    return [f"Unrecognised terms {term(unknown)} in {name}"] if unknown else []


def wants(valid: Callable[[Any], bool], what: str) -> Check:
    """A check that `valid` accepts the value; its error text says that it should be `what`."""

    def check(key: str, value: Any) -> Problems:
        return [] if valid(value) else [f"{key} should be {what}, actually was {term(value)}"]

    return check


def one_of(*names: str) -> Check:
    shown = ",".join(map(term, names))
    return wants(lambda value: value in names, f"one of [{shown}]")


def uris(key: str, value: Any) -> Problems:
    """A check for a URI or a list of URIs."""
    if not isinstance(value, str | list):
        return [f"{key} should be list, actually was {term(value)}"]
    problems = []
    for uri in listed(value):
        try:
            parse_uri(uri)
        except InvalidUri as error:
            problems.append(str(error))
    return problems


def name(key: str, value: Any) -> Problems:
    """A check for the name of a queue, an exchange or a consumer, or a routing key."""
    problems = text(key, value)
    if not problems and (octets := len(value.encode())) > NAME_OCTETS_MAX:
        problems = [f"{key} should have {NAME_OCTETS_MAX} bytes at most, actually had {octets}"]
    return problems


def queue_name(key: str, value: Any) -> Problems:
    """A check for the name of a queue that is declared if it is not there.

    RabbitMQ takes an empty name, and makes one more queue at each attempt.
    """
    return name(key, value) or ([] if value else [f"{key} should not be empty"])


def listed(value: str | list[str]) -> list[str]:
    """A list of one text, or the list given."""
    return [value] if isinstance(value, str) else value


text = wants(lambda value: isinstance(value, str), "binary")
number = wants(is_number, "a number")
boolean = wants(lambda value: isinstance(value, bool), "boolean")
ack_mode = one_of("no-ack", "on-publish", "on-confirm")


def prefetch(value: float) -> int:
    """The prefetch count to use; 0: no limit."""
    return min(max(int(value), 0), PREFETCH_MAX)


def delay_s(value: float) -> float | None:
    """The reconnect delay to use; None: no retry after a failure."""
    return value if value > 0 else None
