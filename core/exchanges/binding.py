"""A binding: which messages of an exchange go on to a queue or to another exchange.

Two bindings are the same when source, destination, routing key and arguments are (types of the
arguments included, their order not): binding twice is one binding, and binding with other
arguments is a second one (amqp_semantics.md section 3).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, TypeAlias

from warren.core.field import Field, Table, has_more_than
from warren.core.scheduling.turns import TURN_US, Turns

DestinationKind: TypeAlias = Literal["queue", "exchange"]

MANY_ARGUMENTS = 500
"""With more arguments than that, a binding is read in one turn, gets its fingerprint in another,
and is stored in a third."""


class Binding:
    """Equal and hashed by what identifies it; its arguments must not be changed.

    `fingerprint` stands for the arguments wherever a text must: in keys of the metadata store and
    in addresses of the HTTP API. It is empty without arguments and the same on every node. To make
    it takes long for large arguments, so give it if it is known.
    """

    __slots__ = (
        "_hash",
        "arguments",
        "destination",
        "destination_kind",
        "fingerprint",
        "routing_key",
        "source",
    )

    def __init__(
        self,
        source: str,
        destination_kind: DestinationKind,
        destination: str,
        routing_key: str,
        arguments: Table,
        known_fingerprint: str | None = None,
    ) -> None:
        self.source = source
        self.destination_kind: DestinationKind = destination_kind
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments
        self.fingerprint = (
            fingerprint(arguments) if known_fingerprint is None else known_fingerprint
        )
        self._hash = hash(self._identity())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Binding):
            return NotImplemented
        return self is other or self._identity() == other._identity()

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        arguments = f" {self.arguments}" if self.arguments else ""
        return (
            f"<Binding {self.source!r} -> {self.destination_kind} {self.destination!r}"
            f" by {self.routing_key!r}{arguments}>"
        )

    def _identity(self) -> tuple[str, str, str, str, str]:
        return (
            self.source,
            self.destination_kind,
            self.destination,
            self.routing_key,
            self.fingerprint,
        )


def fingerprint(arguments: Table) -> str:
    """32 hexadecimal digits that differ when arguments do; empty when there are none."""
    if not arguments:
        return ""
    return blake2b(repr(_canonical(arguments)).encode("ascii"), digest_size=16).hexdigest()


async def binding_in_turns(
    turns: Turns,
    source: str,
    kind: DestinationKind,
    destination: str,
    routing_key: str,
    arguments: Table,
) -> Binding:
    """Make a binding that can be stored in the present turn. Its arguments were read just before,
    so one with many arguments waits for two more turns."""
    large = has_more_than(arguments, MANY_ARGUMENTS)
    if large:
        await turns.pause()
        turns.spend(TURN_US)
    binding = Binding(source, kind, destination, routing_key, arguments)
    if large:
        await turns.pause()
    return binding


def _canonical(table: Table) -> list[tuple[str, str, object]]:
    """The table as nested lists whose `repr` depends on nothing but names, types and values."""
    return [(ascii(name), field.kind, _canonical_value(field)) for name, field in _sorted(table)]


def _canonical_value(field: Field) -> object:
    kind, value = field
    if kind == "F":
        return _canonical(value)
    if kind == "A":
        return [(item.kind, _canonical_value(item)) for item in value]
    return value


def _sorted(table: Table) -> list[tuple[str, Field]]:
    return sorted(table.items(), key=lambda pair: pair[0])
