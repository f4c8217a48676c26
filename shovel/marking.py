"""Additions of a shovel to the messages it moves: configured properties, and its trace.

`x-shovelled` is an array with a table for each shovel that a message went through, the newest
first. A header of that name that is not an array is moved to `x-invalid-headers`, as in RabbitMQ.
Everything else in a message stays, octet by octet.
"""

from __future__ import annotations

from collections.abc import Mapping

from warren.client.content_header import (
    Fields,
    array_items,
    array_value,
    header_fields,
    long_value,
    longstr_value,
    table_fields,
    table_octets,
    table_value,
    with_properties,
)
from warren.shovel.definition import Definition

SHOVELLED = b"x-shovelled"
SHOVELLED_AT = b"x-shovelled-timestamp"
INVALID = b"x-invalid-headers"


class Marking:
    """The marks of one shovel between two brokers."""

    def __init__(
        self, properties: Mapping[str, bytes], trace: bytes | None, *, timed: bool
    ) -> None:
        self._properties = properties
        self._trace = trace
        self._timed = timed

    def marked(self, header: bytes, now: float) -> bytes:
        """The content header with the marks; `now` is in seconds since 1970.

        Raises `MalformedContent`.
        """
        changed = dict(self._properties)
        if self._trace is not None or self._timed:
            fields = header_fields(header)
            if self._trace is not None:
                fields = _traced(fields, self._trace)
            if self._timed:
                fields = fields.with_field(SHOVELLED_AT, long_value(int(now)))
            changed["headers"] = table_octets(fields)
        return with_properties(header, changed) if changed else header


def marking(
    definition: Definition, name: str, vhost: str, cluster: str, source_uri: str, dest_uri: str
) -> Marking:
    """The marks of the shovel for messages between these two URIs, which are without secrets."""
    source, destination = definition.source, definition.destination
    said: list[tuple[str, str | None]] = [
        ("shovelled-by", cluster),
        ("shovel-type", "dynamic"),
        ("shovel-name", name),
        ("shovel-vhost", vhost),
        ("src-uri", source_uri),
        ("dest-uri", dest_uri),
        ("src-queue", source.queue),
        ("src-exchange", source.exchange),
        ("src-exchange-key", None if source.exchange is None else source.exchange_key),
        ("dest-exchange", destination.exchange),
        ("dest-exchange-key", destination.exchange_key),
        ("dest-queue", destination.queue),
    ]
    trace = table_value([(key, longstr_value(text)) for key, text in said if text is not None])
    return Marking(
        destination.properties,
        trace if destination.add_forward_headers else None,
        timed=destination.add_timestamp_header,
    )


def _traced(fields: Fields, trace: bytes) -> Fields:
    former = fields.get(SHOVELLED)
    earlier = b""
    if former is not None:
        items = array_items(former)
        if items is None:
            fields = _with_invalid(fields, former)
        else:
            earlier = items
    return fields.with_field(SHOVELLED, array_value(trace + earlier))


def _with_invalid(fields: Fields, value: bytes) -> Fields:
    there = fields.get(INVALID)
    invalid = table_fields(there) if there is not None else None
    if invalid is None:
        invalid = Fields(())
    before = array_items(invalid.get(SHOVELLED) or b"") or b""
    invalid = invalid.with_field(SHOVELLED, array_value(value + before))
    return fields.with_field(INVALID, b"F" + table_octets(invalid))
