"""Field tables: every type survives, and bytes that are none give `TableError` and nothing else."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from warren.amqp.field_table import (
    NESTING_MAX,
    TableError,
    decode_fields,
    decode_named,
    decode_table,
    encode_table,
)
from warren.core.field import Field, Table, longstr, to_octets

INTEGER_BITS = {
    "b": (8, True),
    "B": (8, False),
    "s": (16, True),
    "u": (16, False),
    "I": (32, True),
    "i": (32, False),
    "l": (64, True),
}


def integers_of(bits: int, signed: bool) -> st.SearchStrategy[int]:
    if signed:
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.integers(0, 2**bits - 1)


def of_kind(kind: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Field]:
    return values.map(lambda value: Field(kind, value))


names = st.binary(max_size=255).map(lambda name: name.decode("utf-8", "surrogateescape"))
scalars = st.one_of(
    *(of_kind(kind, integers_of(*bits)) for kind, bits in INTEGER_BITS.items()),
    of_kind("S", st.binary(max_size=20)),
    of_kind("x", st.binary(max_size=20)),
    of_kind("T", integers_of(64, False)),
    of_kind("D", st.tuples(integers_of(8, False), integers_of(32, False))),
    of_kind("f", st.floats(width=32, allow_nan=False)),
    of_kind("d", st.floats(allow_nan=False)),
    of_kind("t", st.booleans()),
    st.just(Field("V", None)),
)
fields = st.recursive(
    scalars,
    lambda inner: st.one_of(
        of_kind("A", st.lists(inner, max_size=3)),
        of_kind("F", st.dictionaries(names, inner, max_size=3)),
    ),
    max_leaves=8,
)
tables = st.dictionaries(names, fields, max_size=5)


@given(tables, st.binary(max_size=5), st.binary(max_size=5))
def test_a_table_survives_the_round_trip_wherever_it_lies(
    table: Table, before: bytes, after: bytes
) -> None:
    encoded = encode_table(table)
    decoded, end = decode_table(before + encoded + after, len(before))
    assert decoded == table
    assert list(decoded) == list(table)
    assert end == len(before) + len(encoded)
    assert decode_fields(encoded[4:]) == table


@given(tables)
def test_a_cut_table_is_an_error_at_every_length(table: Table) -> None:
    encoded = encode_table(table)
    for length in range(len(encoded)):
        with pytest.raises(TableError):
            decode_table(encoded[:length], 0)


@given(tables, tables, st.binary(max_size=5), st.binary(max_size=5))
def test_of_a_table_those_with_some_names_are_decoded(
    asked_for: Table, others: Table, before: bytes, after: bytes
) -> None:
    table = {**asked_for, **others}
    octets = {to_octets(name) for name in asked_for}
    decoded = decode_named(before + encode_table(table) + after, len(before), octets)
    assert decoded == {name: table[name] for name in table if name in asked_for}


def is_table(data: bytes) -> bool:
    try:
        decode_table(data, 0)
    except TableError:
        return False
    return True


@given(st.binary(max_size=40), st.integers(-2, 2), st.binary(max_size=9))
def test_a_table_is_broken_for_some_names_if_it_is_for_all(
    octets: bytes, longer: int, after: bytes
) -> None:
    letters = b"STFAIiDbBsulLfdtxV\x00\x00\x00\x01\x02\x04"
    likely = bytes(letters[octet % len(letters)] for octet in octets)
    data = struct.pack(">I", max(0, len(likely) + longer)) + likely + after
    for names in ((), (b"", b"S", b"\x00")):
        if is_table(data):
            table = decode_table(data, 0)[0]
            assert repr(decode_named(data, 0, names)) == repr(
                {name: table[name] for name in table if to_octets(name) in names}
            )
        else:
            with pytest.raises(TableError):
                decode_named(data, 0, names)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_give_a_table_or_a_table_error(data: bytes) -> None:
    try:
        table = decode_fields(data)
    except TableError:
        return
    again = decode_fields(encode_table(table)[4:])
    assert encode_table(again) == encode_table(table)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_of_likely_letters_give_a_table_or_a_table_error(data: bytes) -> None:
    letters = b"STFAIiDbBsulLfdtxV\x00\x01\x02\x04"
    likely = bytes(letters[byte % len(letters)] for byte in data)
    try:
        decode_table(struct.pack(">I", len(likely)) + likely, 0)
    except TableError:
        pass


def test_what_pamqp_can_say_reads_the_same() -> None:
    encoded = encode.field_table(
        {"text": "word", "flag": True, "number": 5, "list": ["a", 7], "table": {"inner": None}}
    )
    table, end = decode_table(encoded, 0)
    assert end == len(encoded)
    assert table["text"] == longstr("word")
    assert table["flag"] == Field("t", True)
    assert table["number"].value == 5
    assert table["list"].value[0] == longstr("a")
    assert table["table"] == Field("F", {"inner": Field("V", None)})
    assert encode_table(table) == encoded


@given(
    st.dictionaries(
        st.text(max_size=10),
        st.one_of(
            st.text(max_size=10).map(longstr),
            of_kind("t", st.booleans()),
            of_kind("I", integers_of(32, True)),
            of_kind("l", integers_of(64, True)),
            of_kind("d", st.floats(allow_nan=False)),
        ),
        max_size=4,
    )
)
def test_pamqp_reads_what_is_written(table: Table) -> None:
    encoded = encode_table(table)
    consumed, plain = decode.field_table(encoded)
    assert consumed == len(encoded)
    expected = {
        name: field.value.decode() if field.kind == "S" else field.value
        for name, field in table.items()
    }
    assert plain == expected


def test_both_letters_of_a_long_are_read_and_one_is_written() -> None:
    data = b"\x01aL" + struct.pack(">q", -2) + b"\x01bl" + struct.pack(">q", 3)
    table = decode_fields(data)
    assert table == {"a": Field("l", -2), "b": Field("l", 3)}
    assert encode_table(table)[4:] == data.replace(b"L", b"l")
    assert encode_table({"a": Field("L", -2)}) == encode_table({"a": Field("l", -2)})


def test_any_octet_but_zero_is_true() -> None:
    assert decode_fields(b"\x01at\x07\x01bt\x00") == {"a": Field("t", True), "b": Field("t", False)}


def test_of_two_fields_with_one_name_the_later_counts() -> None:
    assert decode_fields(b"\x01ab\x01\x01ab\x02") == {"a": Field("b", 2)}


def test_a_double_that_is_no_number_stays_one() -> None:
    table = decode_fields(b"\x01ad" + struct.pack(">d", math.nan))
    assert math.isnan(table["a"].value)


def nested(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        data = b"\x01tF" + struct.pack(">I", len(data)) + data
    return data


def test_tables_nest_up_to_the_limit() -> None:
    table = decode_fields(nested(NESTING_MAX - 1))
    assert encode_table(table)[4:] == nested(NESTING_MAX - 1)


@pytest.mark.parametrize("levels", [NESTING_MAX, 1000, 20_000])
def test_tables_nested_deeper_than_the_limit_are_an_error(levels: int) -> None:
    with pytest.raises(TableError, match="nested deeper"):
        decode_fields(nested(levels))


def test_arrays_nested_deeper_than_the_limit_are_an_error() -> None:
    data = b""
    for _ in range(1000):
        data = b"A" + struct.pack(">I", len(data)) + data
    with pytest.raises(TableError, match="nested deeper"):
        decode_fields(b"\x01a" + data)
    field = Field("A", [])
    for _ in range(1000):
        field = Field("A", [field])
    with pytest.raises(TableError, match="nested deeper"):
        encode_table({"a": field})


@pytest.mark.parametrize(
    "table",
    [
        {"a": Field("b", 128)},
        {"a": Field("T", -1)},
        {"a": Field("f", 1e300)},
        {"a": Field("S", "no bytes")},
        {"a": Field("?", 1)},
        {"a" * 256: Field("V", None)},
        {"\ud800": Field("V", None)},
    ],
)
def test_a_table_that_cannot_be_written_is_an_error(table: Table) -> None:
    with pytest.raises(TableError):
        encode_table(table)


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",
        b"\x01a",
        b"\x05ab",
        b"\x01aZ",
        b"\x01aS\x00\x00\x00\x05abcd",
        b"\x01aA\x00\x00\x00\x02b",
        b"\x01aA\x00\x00\x00\x01l",
        b"\x01aD\x00\x00\x00\x00",
    ],
)
def test_broken_fields_are_an_error(data: bytes) -> None:
    with pytest.raises(TableError):
        decode_fields(data)
