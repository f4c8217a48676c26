"""One more header in content headers: from a shape that was kept as if the header had been read."""

from __future__ import annotations

import struct

import pytest
from content_headers import TYPES, content_header, encoded_properties
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.added_header import SHAPE_BYTES_MAX, SHAPES_MAX, AmqpAddedHeader
from warren.amqp.field_table import encode_table, list_values
from warren.amqp.properties import MalformedProperties, headers, property_bytes, replace
from warren.core.field import Field, Table, long, longstr

ALL_KINDS: Table = {
    "a": longstr("text"),
    "b": Field("b", -3),
    "d": Field("d", 1.5),
    "l": long(1 << 40),
    "t": Field("t", True),
    "x": Field("x", b"\x00\x01"),
    "T": Field("T", 1_700_000_000),
    "V": Field("V", None),
    "D": Field("D", (2, 314)),
    "F": Field("F", {"n": long(1)}),
    "A": Field("A", [long(1), longstr("i")]),
}


@given(encoded_properties, st.text(max_size=2), st.integers(-(1 << 63), (1 << 63) - 1))
def test_one_more_header_leaves_all_else_as_it_was(
    properties: dict[str, bytes], name: str, number: int
) -> None:
    raw = content_header(properties)
    added = AmqpAddedHeader(name)
    made = added.add(raw, number)
    assert added.add(raw, number) == made
    assert headers(made) == {**headers(raw), name: long(number)}
    assert made[:12] == raw[:12]
    for other in TYPES:
        if other != "headers":
            assert property_bytes(made, other) == property_bytes(raw, other)
    kept = [one for one in headers(made) if one != name]
    if name not in headers(raw):
        assert kept == list(headers(raw))


@given(encoded_properties, st.data())
def test_no_header_is_taken_for_one_of_another_shape(
    properties: dict[str, bytes], data: st.DataObject
) -> None:
    """Any octets may be others than in the header whose shape is known."""
    raw = content_header(properties)
    added = AmqpAddedHeader("x")
    added.add(raw, 1)
    other = bytearray(raw)
    for at in data.draw(st.lists(st.integers(12, len(raw) - 1), min_size=1, max_size=3)):
        other[at] = data.draw(st.integers(0, 255))
    assert outcome(added, bytes(other)) == outcome(AmqpAddedHeader("x"), bytes(other))


def outcome(added: AmqpAddedHeader, raw: bytes) -> tuple[Table, bytes] | str:
    """The headers that come out, and all the rest; or that the header is refused."""
    try:
        made = added.add(raw, 7)
    except MalformedProperties:
        return "malformed"
    try:
        return headers(made), replace(made, headers=None)
    except MalformedProperties:
        return "malformed"


def test_values_differ_and_the_shape_is_the_same() -> None:
    added = AmqpAddedHeader("o")
    for number in range(20):
        table = {**ALL_KINDS, "a": longstr(f"te{number:02}"), "l": long(number)}
        size = number * 1000
        raw = content_header({"headers": encode_table(table), "priority": b"\x05"}, size)
        made = added.add(raw, number)
        assert headers(made) == {**table, "o": long(number)}
        assert made[:12] == raw[:12]
        assert property_bytes(made, "priority") == b"\x05"
    assert len(added._shapes) == 1


def test_all_values_of_fixed_places_are_found() -> None:
    octets = encode_table(ALL_KINDS)
    found = [octets[start:end] for start, end in list_values(octets, 4, len(octets))]
    assert found[0] == b"text"
    assert b"\x00\x01" in found
    assert struct.pack(">q", 1 << 40) in found
    # What is in tables and arrays has to be the same, as has a decimal.
    assert len(found) == len(ALL_KINDS) - 4


@pytest.mark.parametrize("broken", [b"\x01a?", b"\x01aS\x00\x00\x00\x09b", b"\x09a"])
def test_headers_that_are_no_table_are_left_out(broken: bytes) -> None:
    table = struct.pack(">I", len(broken)) + broken
    raw = content_header({"headers": table, "priority": b"\x05"})
    made = AmqpAddedHeader("x").add(raw, 1)
    assert headers(made) == {"x": long(1)}
    assert property_bytes(made, "priority") == b"\x05"


def test_a_header_of_that_name_is_replaced_though_one_of_the_same_size_was_known() -> None:
    added = AmqpAddedHeader("xx")
    for name in ("ab", "xx", "ab"):
        raw = content_header({"headers": encode_table({name: long(3)})})
        assert headers(added.add(raw, 1)) == {**headers(raw), "xx": long(1)}


def test_few_shapes_are_kept_and_none_of_large_headers() -> None:
    added = AmqpAddedHeader("x")
    for size in range(2 * SHAPES_MAX + 10):
        table = {"a": longstr("v" * size)}
        raw = content_header({"headers": encode_table(table)})
        assert headers(added.add(raw, 1)) == {**table, "x": long(1)}
        assert len(added._shapes) <= SHAPES_MAX
    known = dict(added._shapes)
    table = {"a": longstr("v" * SHAPE_BYTES_MAX)}
    assert headers(added.add(content_header({"headers": encode_table(table)}), 1))["x"] == long(1)
    assert added._shapes == known


def test_a_content_header_that_ends_too_early_is_malformed() -> None:
    raw = content_header({"headers": encode_table({"a": long(1)}), "message_id": b"\x03abc"})
    for length in range(len(raw)):
        with pytest.raises(MalformedProperties):
            AmqpAddedHeader("x").add(raw[:length], 1)
