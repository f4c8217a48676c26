"""Refusals of settings of operators, and the form in which they show the wrong value.

RabbitMQ's texts show values as Erlang terms, and scripts match on them; `term` writes JSON values
that way. The caller adds what stands around a text (`Validation failed`, an HTTP status).
"""

from __future__ import annotations

from typing import Any

from warren.core.errors import BrokerError
from warren.core.ports import MetadataStore

INTEGER_MAX = (1 << 63) - 1
"""The store keeps integers in 64 bits."""


class ValidationFailed(BrokerError):
    """A policy, parameter, limit, user or permission is not valid."""


class NotThere(BrokerError):
    """An operator wants to change or clear something that does not exist."""


class NoSuchVhost(NotThere):
    """There is no virtual host of that name."""


def expect_vhost(store: MetadataStore, vhost: str) -> None:
    """Raise `NoSuchVhost` unless the virtual host is defined."""
    if store.get(("vhost", vhost)) is None:
        raise NoSuchVhost(f"vhost '{vhost}' does not exist")


def term(value: Any) -> str:
    """A JSON value as Erlang prints it: `<<"text">>`, `[{<<"key">>,1}]` for an object."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _binary(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, dict):
        return pairs(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(term(item) for item in value) + "]"
    return str(value)


def pairs(items: dict[str, Any]) -> str:
    """An object as a list of pairs."""
    return "[" + ",".join(f"{{{term(name)},{term(value)}}}" for name, value in items.items()) + "]"


def string(text: str) -> str:
    """A text as an Erlang string, in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def is_integer(value: object) -> bool:
    """Whether a JSON value is an integer; `true` is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return is_integer(value) or isinstance(value, float)


def is_storable(value: object) -> bool:
    """Whether the store can hold a JSON value: its integers must fit in 64 bits."""
    if is_integer(value):
        assert isinstance(value, int)
        return -INTEGER_MAX - 1 <= value <= INTEGER_MAX
    if isinstance(value, dict):
        return all(is_storable(item) for item in value.values())
    return not isinstance(value, list) or all(is_storable(item) for item in value)


def _binary(text: str) -> str:
    return f"<<{string(text)}>>" if text.isascii() else f"<<{string(text)}/utf8>>"


def _float(value: float) -> str:
    text = repr(value)
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent.replace('+', '')}"
