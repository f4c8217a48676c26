"""Content headers are edited without a change of what they have besides."""

from __future__ import annotations

import pytest

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.properties import encode_properties
from warren.client.content_header import (
    Fields,
    MalformedContent,
    array_items,
    array_value,
    header_fields,
    long_value,
    longstr_value,
    property_octets,
    table_octets,
    table_value,
    with_properties,
)
from warren.core.field import Field, Table, long, longstr

CODEC = AmqpContentCodec()
EVERY_TYPE: Table = {
    "array": Field("A", [long(1), longstr("two")]),
    "bool": Field("t", True),
    "byte": Field("b", -1),
    "decimal": Field("D", (2, 314)),
    "double": Field("d", 1.5),
    "float": Field("f", 0.5),
    "int": Field("I", -5),
    "long": long(1 << 40),
    "octets": Field("x", b"\0\xff"),
    "short": Field("s", 7),
    "string": longstr("text"),
    "table": Field("F", {"inner": Field("B", 3)}),
    "time": Field("T", 1_700_000_000),
    "ubyte": Field("B", 200),
    "uint": Field("i", 4_000_000_000),
    "ushort": Field("u", 60_000),
    "void": Field("V", None),
}
FULL = encode_properties(
    12,
    {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "priority": 4,
        "correlation_id": "c",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "user_id": "guest",
        "cluster_id": "k",
    },
    EVERY_TYPE,
)


def test_every_type_of_field_is_stepped_over() -> None:
    fields = header_fields(FULL)
    assert [name.decode() for name, _ in fields.pairs] == sorted(EVERY_TYPE)
    assert with_properties(FULL, {"headers": table_octets(fields)}) == FULL


def test_added_field_leaves_the_others_as_they_are() -> None:
    fields = header_fields(FULL).with_field(b"added", long_value(9))
    changed = with_properties(FULL, {"headers": table_octets(fields)})
    assert CODEC.headers(changed) == {**EVERY_TYPE, "added": long(9)}
    assert {**CODEC.as_table(changed), "headers": None} == {**CODEC.as_table(FULL), "headers": None}


def test_headers_are_made_where_there_are_none() -> None:
    bare = encode_properties(0, {"delivery_mode": 2})
    fields = header_fields(bare).with_field(b"a", longstr_value("b"))
    changed = with_properties(bare, {"headers": table_octets(fields)})
    assert CODEC.headers(changed) == {"a": longstr("b")}
    assert CODEC.is_persistent(changed)


def test_field_of_the_same_name_is_replaced_or_taken_away() -> None:
    fields = Fields(((b"a", long_value(1)), (b"b", long_value(2)), (b"a", long_value(3))))
    assert fields.get(b"a") == long_value(3)
    assert fields.with_field(b"a", None).pairs == ((b"b", long_value(2)),)
    assert fields.with_field(b"a", long_value(4)).pairs[-1] == (b"a", long_value(4))


def test_tables_and_arrays_are_what_the_broker_reads() -> None:
    value = array_value(table_value([("name", longstr_value("s"))]) + long_value(1))
    header = with_properties(FULL, {"headers": table_octets(Fields(((b"x", value),)))})
    expected = Field("A", [Field("F", {"name": longstr("s")}), long(1)])
    assert CODEC.headers(header) == {"x": expected}
    assert array_items(value) == value[5:]
    assert array_items(long_value(1)) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("delivery_mode", 1), ("priority", 9), ("timestamp", 5), ("app_id", "ä"), ("user_id", "u")],
)
def test_properties_are_replaced_and_set(name: str, value: str | int) -> None:
    changed = CODEC.as_table(with_properties(FULL, {name: property_octets(name, value)}))
    shown = changed[name].value
    assert (shown.decode() if isinstance(shown, bytes) else shown) == value
    assert {**changed, name: None} == {**CODEC.as_table(FULL), name: None}


@pytest.mark.parametrize(("name", "value"), [("priority", 256), ("app_id", "a" * 256)])
def test_property_that_does_not_fit_is_refused(name: str, value: str | int) -> None:
    with pytest.raises(ValueError):
        property_octets(name, value)


@pytest.mark.parametrize("end", range(13, len(FULL)))
def test_header_that_ends_too_early_is_malformed(end: int) -> None:
    with pytest.raises(MalformedContent):
        with_properties(FULL[:end], {})


def test_property_that_is_none_is_taken_out() -> None:
    changed = with_properties(FULL, {"user_id": None})
    assert CODEC.as_table(changed) == {
        name: field for name, field in CODEC.as_table(FULL).items() if name != "user_id"
    }


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_lowest_bits_of_the_flags_are_ignored_and_dropped(bits: int) -> None:
    odd = FULL[:13] + bytes((FULL[13] | bits,)) + FULL[14:]
    changes = {"priority": property_octets("priority", 5)}
    assert with_properties(odd, changes) == with_properties(FULL, changes)
