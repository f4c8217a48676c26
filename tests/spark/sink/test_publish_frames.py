"""Frames made by columns are the frames a message at a time would give."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from warren.amqp.field_table import decode_table
from warren.amqp.frames import frame
from warren.amqp.properties import PROPERTIES, encode_properties, headers
from warren.core.field import Field, Table
from warren.spark_export.errors import PublishFailed
from warren.spark_export.sink.encoded_rows import EncodedRows
from warren.spark_export.sink.publish_frames import ENCODED_BYTES, FrameEncoder
from warren.spark_export.sink.sink_columns import SinkColumns
from warren.spark_export.sink.sink_options import SinkOptions

FRAME_MAX = 4096
SHORT_STRINGS = [name for name, _, kind in PROPERTIES if kind == "shortstr"]

STRING, BINARY = types.StringType(), types.BinaryType()
MAP = types.MapType(STRING, STRING)
SPARK = {
    "exchange": STRING,
    "routing_key": STRING,
    "body": BINARY,
    "headers": MAP,
    "delivery_mode": types.ShortType(),
    "priority": types.ShortType(),
    "timestamp": types.TimestampType(),
    **dict.fromkeys(SHORT_STRINGS, STRING),
}
ARROW = {
    "exchange": pa.string(),
    "routing_key": pa.string(),
    "body": pa.binary(),
    "headers": pa.map_(pa.string(), pa.string()),
    "delivery_mode": pa.int16(),
    "priority": pa.int16(),
    "timestamp": pa.timestamp("us", "UTC"),
    **dict.fromkeys(SHORT_STRINGS, pa.string()),
}


def options(**more: str) -> SinkOptions:
    return SinkOptions.parse({"host": "localhost", "exchange": "trade", **more})


def encoder(schema: types.StructType, chosen: SinkOptions, frame_max: int = FRAME_MAX) -> Any:
    return FrameEncoder(
        SinkColumns.of(schema, chosen), chosen, id_prefix="job-7-3-", frame_max=frame_max
    )


def encode(
    values: dict[str, list[Any]], chosen: SinkOptions, first_row: int = 0
) -> list[EncodedRows]:
    batch = pa.record_batch({name: pa.array(one, ARROW[name]) for name, one in values.items()})
    schema = types.StructType([types.StructField(name, SPARK[name]) for name in values])
    return list(encoder(schema, chosen).encode(batch, first_row))


def messages(portions: list[EncodedRows]) -> list[bytes]:
    """The frames of each row."""
    return [
        bytes(rows.view(number, number + 1)) for rows in portions for number in range(len(rows))
    ]


def short_string(text: str) -> bytes:
    return bytes((len(text.encode()),)) + text.encode()


def reference(row: dict[str, Any], number: int, chosen: SinkOptions) -> bytes:
    """The frames of one message, made by the broker's own encoder of properties."""
    properties = {name: row[name] for name, _, _ in PROPERTIES if row.get(name) is not None}
    table: Table | None = None
    if (fields := properties.pop("headers", None)) is not None:
        table = {
            name: Field("V", None) if value is None else Field("S", value.encode())
            for name, value in fields
        }
    if "timestamp" in properties:
        properties["timestamp"] //= 1_000_000
    if chosen.delivery_mode is not None:
        properties.setdefault("delivery_mode", chosen.delivery_mode)
    if chosen.generate_message_ids:
        properties.setdefault("message_id", f"job-7-3-{number}")
    exchange = row.get("exchange")
    key = row.get("routing_key")
    body = row["body"] or b""
    publish = (
        bytes((0, 60, 0, 40, 0, 0))
        + short_string(exchange if chosen.exchange is None else chosen.exchange)
        + short_string((key or "") if chosen.routing_key is None else chosen.routing_key)
        + bytes((chosen.mandatory,))
    )
    most = FRAME_MAX - 8
    return b"".join(
        (
            frame(1, 1, publish),
            frame(2, 1, encode_properties(len(body), properties, table)),
            *(frame(3, 1, body[at : at + most]) for at in range(0, len(body), most)),
        )
    )


def or_none(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


SHORT = st.text(max_size=20)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "exchange": or_none(SHORT),
    "routing_key": or_none(SHORT | st.just("k" * 255)),
    "body": or_none(st.binary(max_size=40) | st.integers(0, 13_000).map(lambda n: b"x" * n)),
    "headers": or_none(
        st.dictionaries(SHORT, or_none(SHORT), max_size=3).map(lambda one: list(one.items()))
    ),
    "delivery_mode": or_none(st.integers(0, 255)),
    "priority": or_none(st.integers(0, 255)),
    "timestamp": or_none(st.integers(0, 1 << 55)),
    **dict.fromkeys(SHORT_STRINGS, or_none(SHORT)),
}


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    names = draw(st.sets(st.sampled_from(sorted(VALUES)))) | {"body"}
    rows = draw(st.integers(1, 8))
    return {
        name: draw(st.lists(VALUES[name], min_size=rows, max_size=rows)) for name in sorted(names)
    }


@settings(max_examples=200)
@given(
    values=tables(),
    mandatory=st.booleans(),
    ids=st.booleans(),
    mode=st.sampled_from(["1", "2", "none"]),
    first_row=st.sampled_from([0, 95, 1 << 40]),
    named=st.booleans(),
)
def test_rows_become_the_frames_that_each_of_them_would(
    values: dict[str, list[Any]],
    mandatory: bool,
    ids: bool,
    mode: str,
    first_row: int,
    named: bool,
) -> None:
    given_ = {
        "host": "localhost",
        "mandatory": str(mandatory),
        "generateMessageIds": str(ids),
        "deliveryMode": mode,
        "jobId": "job",
    }
    if named or None in values.get("exchange", [None]):
        given_["exchange"] = "always"
    if named:
        given_["routingKey"] = "always"
    chosen = SinkOptions.parse(given_)
    rows = len(values["body"])
    expected = [
        reference({name: one[at] for name, one in values.items()}, first_row + at, chosen)
        for at in range(rows)
    ]
    assert messages(encode(values, chosen, first_row)) == expected


@given(values=tables(), start=st.integers(0, 8))
def test_a_slice_of_a_batch_becomes_the_frames_of_its_rows(
    values: dict[str, list[Any]], start: int
) -> None:
    chosen = options()
    batch = pa.record_batch({name: pa.array(one, ARROW[name]) for name, one in values.items()})
    schema = types.StructType([types.StructField(name, SPARK[name]) for name in values])
    whole = messages(list(encoder(schema, chosen).encode(batch, 0)))
    part = messages(list(encoder(schema, chosen).encode(batch.slice(start), start)))
    assert part == whole[start:]


def test_a_null_map_has_no_fields_even_if_arrow_holds_some() -> None:
    offsets = pa.py_buffer(pa.array([0, 1, 2], pa.int32()).buffers()[1])
    entries = pa.StructArray.from_arrays(
        [pa.array(["a", "b"]), pa.array(["1", "2"])],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
    )
    valid = pa.py_buffer(b"\x02")
    column = pa.Array.from_buffers(ARROW["headers"], 2, [valid, offsets], children=[entries])
    assert column.to_pylist() == [None, [("b", "2")]]
    schema = types.StructType().add("body", BINARY).add("headers", MAP)
    batch = pa.record_batch({"body": pa.array([b"", b""], pa.binary()), "headers": column})
    chosen = options(generateMessageIds="false", deliveryMode="none")
    assert messages(list(encoder(schema, chosen).encode(batch, 0))) == [
        reference({"body": b""}, 0, chosen),
        reference({"body": b"", "headers": [("b", "2")]}, 1, chosen),
    ]


def test_much_is_encoded_in_portions_whose_rows_go_on_counting() -> None:
    octets = ENCODED_BYTES // 2 + 1
    values = {"body": [b"a" * octets, b"b", b"c" * octets, b"d" * octets, b"e"]}
    portions = encode(values, options())
    assert len(portions) > 1
    ends = [rows.first_row + len(rows) for rows in portions]
    assert [rows.first_row for rows in portions] == [0, *ends[:-1]]
    ids = [rows.message(number).message_id for rows in portions for number in range(len(rows))]
    assert ids == [f"job-7-3-{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("routing_key", "k" * 256, "row 12: routing_key has 256 octets, of 255 at most"),
        ("correlation_id", "é" * 128, "row 12: correlation_id has 256 octets, of 255 at most"),
        ("priority", 256, "row 12: priority is 256, not 0 to 255"),
        ("delivery_mode", -1, "row 12: delivery_mode is -1, not 0 to 255"),
        ("timestamp", -1, r"row 12: timestamp is -1, not 0 or more \(seconds since 1970\)"),
        ("headers", [("n" * 256, "v")], "row 12: the name of a header has 256 octets"),
        (
            "headers",
            [("n", "v" * 4096)],
            "row 12: its properties and headers have 41.. octets, of 4088",
        ),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(name: str, value: Any, text: str) -> None:
    values = {"body": [b"", b"", b""], name: [None, None, value]}
    with pytest.raises(PublishFailed, match=text):
        encode(values, options(), first_row=10)


def test_properties_and_headers_may_fill_a_frame() -> None:
    values: dict[str, list[Any]] = {"body": [b""], "headers": [[("n", "")]]}
    (smallest,) = messages(encode(values, options()))
    room = FRAME_MAX - (len(smallest) - smallest.index(bytes((0xCE, 2))) - 1)
    values["headers"] = [[("n", "v" * room)]]
    (largest,) = messages(encode(values, options()))
    assert len(largest) == len(smallest) + room
    values["headers"] = [[("n", "v" * (room + 1))]]
    with pytest.raises(PublishFailed, match="row 0: its properties and headers have 4089 octets"):
        encode(values, options())


def test_an_option_counts_for_all_rows_whatever_columns_say() -> None:
    chosen = SinkOptions.parse({"host": "localhost", "exchange": "e", "routingKey": "k"})
    values = {"body": [b"", b""], "exchange": ["x", None], "routing_key": [None, "y"]}
    found = [rows.message(number) for rows in encode(values, chosen) for number in range(len(rows))]
    assert [(one.exchange, one.routing_key) for one in found] == [("e", "k"), ("e", "k")]


def test_a_null_exchange_needs_an_option() -> None:
    chosen = SinkOptions.parse({"host": "localhost"})
    with pytest.raises(PublishFailed, match="row 1: exchange is null, and there is no option"):
        encode({"body": [b"", b""], "exchange": ["x", None]}, chosen)


# Headers of other types


def headers_of(data_type: types.DataType, column: pa.Array) -> list[Table]:
    """The header table of each row."""
    schema = types.StructType().add("body", BINARY).add("headers", data_type)
    batch = pa.record_batch({"body": pa.array([b""] * len(column), pa.binary()), "headers": column})
    chosen = options(generateMessageIds="false", deliveryMode="none")
    found = []
    for octets in messages(list(encoder(schema, chosen).encode(batch, 0))):
        publish_bytes = 8 + int.from_bytes(octets[3:7], "big")
        found.append(headers(octets[publish_bytes + 7 : -1]))
    return found


def test_each_type_of_a_struct_has_its_letter() -> None:
    integer = types.IntegerType()
    kinds: dict[str, types.DataType] = {
        "t": types.BooleanType(),
        "b": types.ByteType(),
        "s": types.ShortType(),
        "I": integer,
        "l": types.LongType(),
        "f": types.FloatType(),
        "d": types.DoubleType(),
        "S": STRING,
        "x": BINARY,
        "D": types.DecimalType(10, 2),
        "negative": types.DecimalType(9, 2),
        "large": types.DecimalType(10, 0),
        "big": types.DecimalType(38, 2),
        "T": types.TimestampType(),
        "N": types.TimestampNTZType(),
        "date": types.DateType(),
        "A": types.ArrayType(STRING),
        "F": types.MapType(STRING, integer),
        "nested": types.StructType().add("a", integer).add("b", integer),
        "gone": STRING,
    }
    schema = types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])
    time = datetime(2026, 1, 2, 3, 4, 5, 678901)
    value = {
        "t": True,
        "b": -5,
        "s": -300,
        "I": 70000,
        "l": 1 << 40,
        "f": 1.5,
        "d": 0.1,
        "S": "é",
        "x": b"\xff",
        "D": Decimal("42949672.95"),
        "negative": Decimal("-12.34"),
        "large": Decimal(1 << 32),
        "big": Decimal("123456789012.34"),
        "T": time.replace(tzinfo=UTC),
        "N": time,
        "date": time.date(),
        "A": ["a", None],
        "F": [("k", 1), ("n", None)],
        "nested": {"a": 1, "b": None},
        "gone": None,
    }
    arrow = pa.struct(
        [
            ("t", pa.bool_()),
            ("b", pa.int8()),
            ("s", pa.int16()),
            ("I", pa.int32()),
            ("l", pa.int64()),
            ("f", pa.float32()),
            ("d", pa.float64()),
            ("S", pa.string()),
            ("x", pa.binary()),
            ("D", pa.decimal128(10, 2)),
            ("negative", pa.decimal128(9, 2)),
            ("large", pa.decimal128(10, 0)),
            ("big", pa.decimal128(38, 2)),
            ("T", pa.timestamp("us", "UTC")),
            ("N", pa.timestamp("us")),
            ("date", pa.date32()),
            ("A", pa.list_(pa.string())),
            ("F", pa.map_(pa.string(), pa.int32())),
            ("nested", pa.struct([("a", pa.int32()), ("b", pa.int32())])),
            ("gone", pa.string()),
        ]
    )
    seconds = int(time.replace(tzinfo=UTC).timestamp())
    assert headers_of(schema, pa.array([value, None], arrow)) == [
        {
            "t": Field("t", True),
            "b": Field("b", -5),
            "s": Field("s", -300),
            "I": Field("I", 70000),
            "l": Field("l", 1 << 40),
            "f": Field("f", 1.5),
            "d": Field("d", 0.1),
            "S": Field("S", "é".encode()),
            "x": Field("x", b"\xff"),
            "D": Field("D", (2, (1 << 32) - 1)),
            "negative": Field("d", -12.34),
            "large": Field("d", float(1 << 32)),
            "big": Field("d", 123456789012.34),
            "T": Field("T", seconds),
            "N": Field("T", seconds),
            "date": Field("S", b"2026-01-02"),
            "A": Field("A", [Field("S", b"a"), Field("V", None)]),
            "F": Field("F", {"k": Field("I", 1), "n": Field("V", None)}),
            "nested": Field("F", {"a": Field("I", 1)}),
        },
        {},
    ]


@pytest.mark.parametrize("zone", ["GMT+8", "PST", "+08:00"])
def test_times_in_headers_are_the_same_whatever_the_time_zone_of_the_session(zone: str) -> None:
    times = pa.array([1, None]).cast(pa.timestamp("s")).cast(pa.timestamp("us", zone))
    columns = {
        "one": times,
        "many": pa.ListArray.from_arrays([0, 1, 2], times),
        "named": pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], times),
        "nothing": pa.nulls(2),
    }
    data_type = types.StructType()
    for name, kind in {
        "one": types.TimestampType(),
        "many": types.ArrayType(types.TimestampType()),
        "named": types.MapType(STRING, types.TimestampType()),
        "nothing": types.NullType(),
    }.items():
        data_type.add(name, kind)
    time, null = Field("T", 1), Field("V", None)
    assert headers_of(data_type, pa.StructArray.from_arrays(columns.values(), columns)) == [
        {"one": time, "many": Field("A", [time]), "named": Field("F", {"a": time})},
        {"many": Field("A", [null]), "named": Field("F", {"b": null})},
    ]


def test_a_time_from_the_year_10000_on_names_its_row() -> None:
    data_type = types.StructType().add("due", types.TimestampType())
    seconds = pa.array([1, 253_402_300_800]).cast(pa.timestamp("s")).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(PublishFailed, match="row 1: a header cannot be read: date value out of"):
        headers_of(data_type, pa.StructArray.from_arrays([seconds], ["due"]))


def test_a_map_of_octets_has_octets() -> None:
    column = pa.array([[("a", b"\xff")]], pa.map_(pa.string(), pa.binary()))
    data_type = types.MapType(STRING, BINARY)
    assert headers_of(data_type, column) == [{"a": Field("x", b"\xff")}]


def test_json_headers_have_the_types_of_json() -> None:
    text = json.dumps({"t": True, "n": None, "i": 1, "d": 1.5, "s": "é", "a": [1], "o": {"k": -1}})
    column = pa.array([text, None, "{}", text])
    expected = {
        "t": Field("t", True),
        "n": Field("V", None),
        "i": Field("l", 1),
        "d": Field("d", 1.5),
        "s": Field("S", "é".encode()),
        "a": Field("A", [Field("l", 1)]),
        "o": Field("F", {"k": Field("l", -1)}),
    }
    assert headers_of(STRING, column) == [expected, {}, {}, expected]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "row 1: the headers are not JSON"),
        ("[1]", "row 1: the headers are no object with names"),
        ('{"a": 9223372036854775808}', "row 1: 9223372036854775808 does not fit in 64 bits"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "row 1: headers are nested deeper than 128"),
    ],
)
def test_json_that_is_no_table_names_its_row(text: str, reason: str) -> None:
    with pytest.raises(PublishFailed, match=reason):
        headers_of(STRING, pa.array(["{}", text]))


def variants(*values: Any) -> pa.Array:
    """A column of them; None is null."""
    arrow = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    rows = [
        None if one is None else {"value": bytes(one.value), "metadata": bytes(one.metadata)}
        for one in values
    ]
    return pa.array(rows, arrow)


def test_variant_headers_keep_their_types_but_integers_are_long() -> None:
    long = "long text " * 10
    one = types.VariantVal.parseJson(
        json.dumps(
            {"t": True, "f": False, "n": None, "i": 5, "I": 1 << 40, "s": "é", "long": long}
        )[:-1]
        + ', "D": 1.25, "negative": -1.25, "d": 1e100, "a": [1, "x", {"k": []}]}'
    )
    expected = {
        "t": Field("t", True),
        "f": Field("t", False),
        "n": Field("V", None),
        "i": Field("l", 5),
        "I": Field("l", 1 << 40),
        "s": Field("S", "é".encode()),
        "long": Field("S", long.encode()),
        "D": Field("D", (2, 125)),
        "negative": Field("d", -1.25),
        "d": Field("d", 1e100),
        "a": Field("A", [Field("l", 1), Field("S", b"x"), Field("F", {"k": Field("A", [])})]),
    }
    assert headers_of(types.VariantType(), variants(one, None, one)) == [expected, {}, expected]


def test_a_variant_that_is_no_object_names_its_row() -> None:
    with pytest.raises(PublishFailed, match="row 1: the headers are no object"):
        headers_of(types.VariantType(), variants(None, types.VariantVal.parseJson("[1]")))


def test_tables_written_are_tables_read() -> None:
    """The broker reads what is written here, to the last octet."""
    column = pa.array([[("a", "1"), ("b", None)]], ARROW["headers"])
    schema = types.StructType().add("body", BINARY).add("headers", MAP)
    batch = pa.record_batch({"body": pa.array([b""], pa.binary()), "headers": column})
    chosen = options(generateMessageIds="false", deliveryMode="none")
    (octets,) = messages(list(encoder(schema, chosen).encode(batch, 0)))
    table_at = 8 + int.from_bytes(octets[3:7], "big") + 7 + 14
    table, end = decode_table(octets, table_at)
    assert table == {"a": Field("S", b"1"), "b": Field("V", None)}
    assert end == len(octets) - 1
