"""Reads and edits the content headers of messages for `core` (`core.ports.ContentCodec`)."""

from __future__ import annotations

import struct
from collections.abc import Collection

from warren.amqp.added_header import AmqpAddedHeader
from warren.amqp.death_headers import FirstDeath, with_death
from warren.amqp.properties import (
    PROPERTIES,
    MalformedProperties,
    headers,
    identity,
    named_headers,
    property_bytes,
    replace,
    sorted_by_key,
)
from warren.core.field import Field, Table

_TRACEPARENT = b"\x0btraceparent"
"""The length and the octets of the name, as they are in a table."""

CONTEXT_MAX = 512
"""The most octets in a header of a trace context: `tracestate` may have them, `traceparent` has
55."""


class AmqpContentCodec:
    """`core.ports.ContentCodec` for AMQP 0-9-1 content headers."""

    def __init__(self) -> None:
        # The headers of the death that was added last, as a table and as octets.
        self._death: tuple[Table, FirstDeath] | None = None

    def headers(self, header: bytes) -> Table:
        """The headers; empty if the table is broken, which publishing does not check."""
        try:
            return headers(header)
        except MalformedProperties:
            return {}

    def named_headers(self, header: bytes, names: Collection[bytes]) -> Table:
        """Those of these names; empty if the table is broken."""
        try:
            return named_headers(header, names)
        except MalformedProperties:
            return {}

    def property_text(self, header: bytes, name: str) -> bytes | None:
        """The property as text: a timestamp as its decimal number of seconds."""
        value = property_bytes(header, name)
        if value is not None and name == "timestamp":
            return str(int.from_bytes(value, "big")).encode("ascii")
        return value

    def as_table(self, header: bytes) -> Table:
        """All properties as a table, under their names."""
        table = {
            name: _as_field(wire_type, name, header)
            for name, _, wire_type in PROPERTIES
            if wire_type != "table" and property_bytes(header, name) is not None
        }
        if property_bytes(header, "headers") is not None:
            table["headers"] = Field("F", self.headers(header))
        return table

    def content_header(self, body_size: int, headers: Table) -> bytes:
        """A header whose only property is these headers."""
        bare = struct.pack(">HHQH", 60, 0, body_size, 0)
        return replace(bare, headers=sorted_by_key(headers))

    def for_dead_letter(self, header: bytes, headers: Table) -> bytes:
        return replace(header, headers=sorted_by_key(headers), expiration=None)

    def with_death(
        self, header: bytes, first: Table, *, expires: bool
    ) -> tuple[bytes, list[tuple[bytes, bytes]]] | None:
        known = self._death
        if known is None or known[0] is not first:
            known = self._death = (first, FirstDeath.of(first))
        found = with_death(header, known[1])
        if found is None or not expires:
            return found
        return replace(found[0], expiration=None), found[1]

    def with_headers(self, header: bytes, headers: Table) -> bytes:
        return replace(header, headers=sorted_by_key(headers))

    def added_header(self, name: str) -> AmqpAddedHeader:
        return AmqpAddedHeader(name)

    def message_name(self, header: bytes) -> str | None:
        octets = identity(header)
        if octets is None:
            return self.trace_context(header)[0] or None
        return octets.decode("utf-8", "replace")

    def trace_context(self, header: bytes) -> tuple[str, str]:
        # Most messages have no trace context, and their headers need not be decoded.
        if header.find(_TRACEPARENT) < 0:
            return "", ""
        table = self.headers(header)
        return _context_text(table, "traceparent"), _context_text(table, "tracestate")

    def is_persistent(self, header: bytes) -> bool:
        return property_bytes(header, "delivery_mode") == b"\x02"


def _context_text(table: Table, name: str) -> str:
    """A header of a trace context as text; empty if it is not ASCII text or too long."""
    field = table.get(name)
    if field is None or field.kind != "S" or len(field.value) > CONTEXT_MAX:
        return ""
    text = field.value.decode("ascii", "ignore")
    return text if len(text) == len(field.value) else ""


def _as_field(wire_type: str, name: str, header: bytes) -> Field:
    value = property_bytes(header, name) or b""
    if wire_type == "timestamp":
        return Field("T", int.from_bytes(value, "big"))
    if wire_type == "octet":
        return Field("B", value[0])
    return Field("S", value)
