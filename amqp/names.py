"""Names of queues and exchanges as clients send them (amqp_semantics.md section 0)."""

from __future__ import annotations

from warren.core.errors import AccessRefused

RESERVED_PREFIX = "amq."


def clean_name(name: str) -> str:
    """The name without CR and LF; every other character is legal.

    RabbitMQ strips CR and LF from names in the methods declare, delete, bind and unbind, but not in
    publish, consume, get and purge.
    """
    if "\r" in name or "\n" in name:
        return name.replace("\r", "").replace("\n", "")
    return name


def checked_new_name(kind: str, name: str) -> str:
    """The name. Raises `AccessRefused` if it starts with the prefix reserved for the broker."""
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    return name
