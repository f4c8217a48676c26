from __future__ import annotations

import math
import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoded import options_of, read
from handmade_snapshot import (
    ENQUEUED_US,
    FIRST_POSITION,
    NODE_ID,
    QUEUE,
    VHOST,
    Sent,
    log_directory,
    record_of,
    sent,
    write_snapshot,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_decoder import reference_rows

from warren.amqp.field_table import encode_table
from warren.core.field import Field, Table
from warren.persist.layout import format as persist_format
from warren.spark_export.decode import decode
from warren.spark_export.decode.decode import decode_unit
from warren.spark_export.decode.schema import all_columns, arrow_schema
from warren.spark_export.errors import RecordDamaged, StoreRefused
from warren.spark_export.snapshot.deliveries import UNKNOWN, Deliveries
from warren.spark_export.snapshot.filters import Interval, RowFilter
from warren.spark_export.snapshot.layout import HEAD, HEAD_BYTES
from warren.spark_export.snapshot.options import ReadOptions
from warren.spark_export.snapshot.unit import Unit
from warren.spark_export.values.basic_properties import PROPERTIES


def same(left: Any, right: Any) -> bool:
    """Equal, and of one type where Python would not mind; what is no number is equal to itself."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[at], right[at]) for at in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


def assert_as_reference(
    unit: Unit, options: ReadOptions, deliveries: Deliveries = UNKNOWN
) -> list[dict[str, Any]]:
    columns = [column.name for column in all_columns(options)]
    found = read(unit, options, deliveries=deliveries)
    expected = reference_rows(unit, columns, options, deliveries)
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        for name in columns:
            assert same(row[name], other[name]), (name, row[name], other[name])
    return found


def test_layout_is_that_of_the_store() -> None:
    record = persist_format.RECORD
    head = np.frombuffer(bytes(range(HEAD_BYTES)), HEAD)[0]
    fixed = record.unpack(bytes(range(persist_format.RECORD_BYTES)))
    names = ["length", "crc", "type", "flags", "unused", "envelope", "queue", "position"]
    names += ["expires_us", "enqueued_us"]
    assert [int(head[name]) for name in names] == list(fixed)
    record_bytes = record_of(Sent(b"", b"H" * 7, "four", "five5", ("copy",)), FIRST_POSITION)
    head = np.frombuffer(record_bytes[:HEAD_BYTES], HEAD)[0]
    assert [int(head[name]) for name in ("header", "exchange", "routing_key", "copies")] == [
        7,
        4,
        5,
        8,
    ]


def test_properties_are_those_of_the_broker() -> None:
    from warren.amqp.properties import PROPERTIES as OF_THE_BROKER

    assert [tuple(one) for one in PROPERTIES] == [tuple(one) for one in OF_THE_BROKER]


short_texts = st.one_of(
    st.sampled_from(["", "/", "0123", "a=b", "application/json", "é" * 100]),
    st.text(max_size=40).filter(lambda text: len(text.encode()) <= 255),
)

broken_texts = st.binary(max_size=60).map(lambda octets: octets.decode("utf-8", "surrogateescape"))

names = short_texts | broken_texts


def fields(kind: str, strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Field]:
    return strategy.map(lambda value: Field(kind, value))


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    if signed:
        return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    return st.integers(0, (1 << bits) - 1)


leaves = st.one_of(
    fields("t", st.booleans()),
    fields("b", integers(8, True)),
    fields("B", integers(8, False)),
    fields("s", integers(16, True)),
    fields("u", integers(16, False)),
    fields("I", integers(32, True)),
    fields("i", integers(32, False)),
    fields("l", integers(64, True)),
    fields("f", st.floats(width=32)),
    fields("d", st.floats()),
    fields("D", st.tuples(integers(8, False), integers(32, False))),
    fields("T", st.integers(0, 1 << 34) | integers(64, False)),
    fields("S", st.binary(max_size=80)),
    fields("x", st.binary(max_size=20)),
    fields("V", st.none()),
)

values = st.recursive(
    leaves,
    lambda nested: st.one_of(
        fields("F", st.dictionaries(names, nested, max_size=4)),
        fields("A", st.lists(nested, max_size=4)),
    ),
    max_leaves=8,
)

tables: st.SearchStrategy[Table] = st.dictionaries(names, values, max_size=6)


@st.composite
def property_octets(draw: st.DrawFn) -> bytes:
    """Flags and properties: whole ones, or what is none."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=40))
    flags, out = 0, b""
    for _, flag, wire in PROPERTIES:
        if not draw(st.booleans()):
            continue
        flags |= flag
        if wire == "shortstr":
            octets = draw(names).encode("utf-8", "surrogateescape")[:255]
            out += bytes((len(octets),)) + octets
        elif wire == "octet":
            out += bytes((draw(st.integers(0, 255)),))
        elif wire == "timestamp":
            out += draw(st.integers(0, 1 << 40) | integers(64, False)).to_bytes(8, "big")
        else:
            encoded = encode_table(draw(tables))
            if draw(st.integers(0, 9)) == 0:
                octets = draw(st.binary(max_size=20))
                encoded = struct.pack(">I", len(octets)) + octets
            out += encoded
    words = struct.pack(">H", flags)
    if draw(st.integers(0, 9)) == 0:
        words = struct.pack(">HHH", flags | 1, draw(integers(15, False)) << 1 | 1, 2)
    whole = words + out
    return whole[: draw(st.integers(0, len(whole)))] if draw(st.integers(0, 9)) == 0 else whole


@st.composite
def messages(draw: st.DrawFn) -> Sent:
    body = draw(
        st.one_of(
            st.binary(max_size=300),
            st.sampled_from([b'{"a": [1, 2.5, null, true], "b": "x"}', b"{", b"[1e3]"]),
        )
    )
    header = struct.pack(">HHQ", 60, 0, len(body)) + draw(property_octets())
    return Sent(
        body,
        header,
        draw(names.filter(lambda name: len(name.encode("utf-8", "surrogateescape")) < 256)),
        draw(names.filter(lambda name: len(name.encode("utf-8", "surrogateescape")) < 256)),
        draw(st.lists(short_texts, max_size=2).map(tuple)),
        draw(st.booleans()),
        draw(st.sampled_from([0, 0, 16, 5000])),
    )


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[list[Sent]], dict[str, Any]]:
    files = draw(st.lists(st.lists(messages(), min_size=1, max_size=6), min_size=1, max_size=3))
    count = sum(map(len, files))
    order = draw(st.permutations(range(count)) | st.just(tuple(range(count))))
    kind = draw(st.sampled_from([{"sealed": True}, {"sealed": False}, {"combined": True}]))
    return files, {"order": order, **kind}


read_options = st.fixed_dictionaries(
    {
        "headers": st.sampled_from(["map", "json", "variant", "none"]),
        "bodyFormat": st.sampled_from(["binary", "string"]),
        "mode": st.sampled_from(["PERMISSIVE", "DROPMALFORMED"]),
        "includeMetadata": st.sampled_from(["true", "false"]),
    }
)

many = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@many
@given(layouts(), read_options)
def test_decodes_as_the_reference_does(
    tmp_path_factory: pytest.TempPathFactory,
    layout: tuple[list[list[Sent]], dict[str, Any]],
    given_options: dict[str, str],
) -> None:
    files, kind = layout
    unit = write_snapshot(tmp_path_factory.mktemp("snapshot") / "s", files, **kind)
    options = options_of(**given_options)
    unacked = ((FIRST_POSITION, FIRST_POSITION + 2), (FIRST_POSITION + 5, FIRST_POSITION + 6))
    assert_as_reference(unit, options, Deliveries(unacked, FIRST_POSITION + 7))


@many
@given(
    layouts(),
    read_options,
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), integers(8, False)), max_size=6),
    st.sampled_from([None, 0.5, 0.9]),
)
def test_damage_is_found_as_the_reference_finds_it(
    tmp_path_factory: pytest.TempPathFactory,
    layout: tuple[list[list[Sent]], dict[str, Any]],
    given_options: dict[str, str],
    hits: list[tuple[float, int]],
    cut: float | None,
) -> None:
    files, kind = layout
    unit = write_snapshot(tmp_path_factory.mktemp("snapshot") / "s", files, **kind)
    for path in log_directory(unit).iterdir():
        data = bytearray(path.read_bytes())
        for where, value in hits:
            # A damaged header of a file is another test's.
            data[64 + int(where * (len(data) - 64))] = value
        if cut is not None:
            del data[max(64, int(len(data) * cut)) :]
        path.write_bytes(data)
    assert_as_reference(unit, options_of(**given_options))


EVERYTHING: Table = {
    "t": Field("t", True),
    "b": Field("b", -1),
    "B": Field("B", 255),
    "s": Field("s", -300),
    "u": Field("u", 65535),
    "I": Field("I", -70000),
    "i": Field("i", 4_000_000_000),
    "l": Field("l", -(1 << 40)),
    "f": Field("f", 0.5),
    "d": Field("d", 0.1),
    "D": Field("D", (2, 12345)),
    "T": Field("T", 1_767_225_600),
    "S": Field("S", "grün".encode()),
    "F": Field("F", {"deep": Field("A", [Field("I", 1), Field("S", b"two")])}),
    "A": Field("A", [Field("t", False), Field("V", None)]),
    "x": Field("x", b"\0\xff"),
    "V": Field("V", None),
}


def everything() -> Sent:
    return sent(
        b"body",
        EVERYTHING,
        "trade",
        "eu.de",
        content_type="text/plain",
        content_encoding="gzip",
        delivery_mode=2,
        priority=9,
        correlation_id="c-1",
        reply_to="answers",
        expiration="60000",
        message_id="m-1",
        timestamp=1_767_225_601,
        type="kind",
        user_id="guest",
        app_id="shop",
        cluster_id="old",
    )


def test_every_property_has_its_column(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[everything()]])
    options = options_of(headers="none", includeMetadata="true")
    (row,) = read(unit, options, deliveries=Deliveries((), 0))
    assert row == {
        "vhost": VHOST,
        "queue": QUEUE,
        "seq": FIRST_POSITION,
        "enqueued_at": datetime(2026, 1, 1, tzinfo=UTC),
        "exchange": "trade",
        "routing_key": "eu.de",
        "redelivered": False,
        "state": "ready",
        "delivery_mode": 2,
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "priority": 9,
        "correlation_id": "c-1",
        "reply_to": "answers",
        "expiration": "60000",
        "message_id": "m-1",
        "timestamp": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
        "type": "kind",
        "user_id": "guest",
        "app_id": "shop",
        "cluster_id": "old",
        "body": b"body",
        "segment": 1,
        "generation": 0,
        "offset": 96,
        "store_uuid": NODE_ID.hex(),
        "expires_at": None,
        "_corrupt_record": None,
    }


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
def test_a_time_from_the_year_10000_on_is_null_and_no_damage(tmp_path: Path, mode: str) -> None:
    """Among them are the milliseconds of this century."""
    seconds = [253_402_300_799, 253_402_300_800, 1_767_225_601_000, (1 << 64) - 1]
    messages = [sent(b"%d" % at, timestamp=at) for at in seconds]
    unit = write_snapshot(tmp_path / "s", [messages])
    rows = read(unit, options_of(mode=mode), ["body", "timestamp", "_corrupt_record"])
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert [row["timestamp"] for row in rows] == [last, None, None, None]
    assert [row["body"] for row in rows] == [b"%d" % at for at in seconds]
    assert {row.get("_corrupt_record") for row in rows} == {None}


def test_messages_say_when_they_expire(tmp_path: Path) -> None:
    moments = [0, ENQUEUED_US, 1 << 62]
    messages = [replace(sent(b"%d" % at), expires_us=at) for at in moments]
    unit = write_snapshot(tmp_path / "s", [messages])
    found = [
        row["expires_at"] for row in read(unit, options_of(includeMetadata="true"), ["expires_at"])
    ]
    assert found == [None, datetime(2026, 1, 1, tzinfo=UTC), None]


def test_headers_as_a_map_are_texts(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[everything()]])
    (row,) = read(unit)
    assert dict(row["headers"]) == {
        "t": "true",
        "b": "-1",
        "B": "255",
        "s": "-300",
        "u": "65535",
        "I": "-70000",
        "i": "4000000000",
        "l": "-1099511627776",
        "f": "0.5",
        "d": "0.1",
        "D": "123.45",
        "T": "1767225600",
        "S": "grün",
        "F": '{"deep":[1,"two"]}',
        "A": "[false,null]",
        "x": "AP8=",
        "V": None,
    }


def test_headers_as_json_keep_what_json_has(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[everything()]])
    (row,) = read(unit, options_of(headers="json"))
    assert row["headers"] == (
        '{"t":true,"b":-1,"B":255,"s":-300,"u":65535,"I":-70000,"i":4000000000,'
        '"l":-1099511627776,"f":0.5,"d":0.1,"D":123.45,"T":1767225600,"S":"grün",'
        '"F":{"deep":[1,"two"]},"A":[false,null],"x":"AP8=","V":null}'
    )


def test_invalid_utf8_is_replaced_everywhere(tmp_path: Path) -> None:
    bad = b"a\xff".decode("utf-8", "surrogateescape")
    message = sent(b"\xfe", {bad: Field("S", b"\xfd")}, bad, bad, message_id=bad)
    unit = write_snapshot(tmp_path / "s", [[message]])
    (row,) = read(unit, options_of(bodyFormat="string"))
    wanted = ("a\ufffd", "a\ufffd", "a\ufffd", [("a\ufffd", "\ufffd")], "\ufffd")
    columns = ("exchange", "routing_key", "message_id", "headers", "body")
    assert tuple(row[name] for name in columns) == wanted


def test_bodies_are_parsed_as_json(tmp_path: Path) -> None:
    bodies = [b'{"n": 12345678901234567890, "x": [1.50, null]}', b"no", b'"\\ud800"']
    unit = write_snapshot(tmp_path / "s", [[sent(body) for body in bodies]])
    good, bad, half = read(unit, options_of(bodyFormat="json"))
    assert good["body"]["n"] == 12345678901234567890
    assert str(good["body"]["x"][0]) == "1.50" and good["body"]["x"][1] is None
    assert bad["body"] is None and bad["_corrupt_record"].endswith(b"no")
    assert bad["exchange"] == "" and half["body"] == "?"
    with pytest.raises(RecordDamaged, match="not JSON"):
        read(unit, options_of(bodyFormat="json", mode="FAILFAST"))


@pytest.mark.parametrize("queue", ["/", "0123", "a=b", "é" * 127 + "x"])
def test_names_of_queues_come_as_they_are(tmp_path: Path, queue: str) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(b"1")]], vhost=queue, queue=queue)
    (row,) = read(unit)
    assert (row["vhost"], row["queue"]) == (queue, queue)


def test_only_columns_asked_for_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = Sent(b"body", b"not a content header")
    unit = write_snapshot(tmp_path / "s", [[message]])
    rows = read(unit, options_of(mode="FAILFAST"), ["body", "seq"])
    assert rows == [{"seq": FIRST_POSITION, "body": b"body"}]
    with pytest.raises(RecordDamaged, match="content header"):
        read(unit, options_of(mode="FAILFAST"))


def test_no_messages_are_no_batches(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[]])
    assert read(unit) == []


def test_large_bodies_come_in_small_batches(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(bytes(6 << 20)) for _ in range(5)]])
    schema = arrow_schema(all_columns(options_of()))
    sizes = [batch.num_rows for batch in decode_unit(unit, schema, options_of())]
    assert sizes == [2, 2, 1]


def test_rows_of_a_batch_are_limited() -> None:
    lengths = np.full(25_000, 100, np.uint32)
    assert list(decode.cuts(lengths)) == [(0, 20_000), (20_000, 25_000)]


def test_messages_of_a_time_or_an_exchange(tmp_path: Path) -> None:
    files = [[sent(b"%d" % at, exchange="xy"[at % 2]) for at in range(10)]]
    unit = write_snapshot(tmp_path / "s", files)
    second = 1_000_000
    span = Interval(ENQUEUED_US + 2 * second, ENQUEUED_US + 7 * second)
    rows = read(unit, keep=RowFilter(span, frozenset({"y", "z"})))
    assert [row["body"] for row in rows] == [b"3", b"5"]


def test_messages_below_a_position_are_redelivered(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(b"%d" % at) for at in range(3)]])
    for below, flags in (
        (None, [None] * 3),
        (0, [False] * 3),
        (FIRST_POSITION + 2, [True, True, False]),
        (1 << 63, [True] * 3),
    ):
        rows = read(unit, deliveries=Deliveries(None, below))
        assert [(row["redelivered"], row["state"]) for row in rows] == [(at, None) for at in flags]


def test_what_is_unacknowledged_can_be_left_out(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(b"%d" % at) for at in range(5)]])
    deliveries = Deliveries(((FIRST_POSITION + 1, FIRST_POSITION + 3),))
    states = [row["state"] for row in read(unit, deliveries=deliveries)]
    assert states == ["ready", "unacked", "unacked", "ready", "ready"]
    ready = read(unit, options_of(include="ready"), deliveries=deliveries)
    assert [row["body"] for row in ready] == [b"0", b"3", b"4"]
    out = read(unit, options_of(include="unacked"), deliveries=deliveries)
    assert [row["body"] for row in out] == [b"1", b"2"]
    with pytest.raises(StoreRefused, match="include"):
        read(unit, options_of(include="ready"))
    assert [row["state"] for row in read(unit)] == [None] * 5


def test_batches_stay_as_they_are_when_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Octets of files are read over one another; what was yielded is a copy."""
    monkeypatch.setattr(decode, "BATCH_ROWS_MAX", 7)
    files = [[sent(b"%d-%d" % (number, at)) for at in range(10)] for number in range(6)]
    unit = write_snapshot(tmp_path / "s", files)
    schema = arrow_schema(all_columns(options_of()))
    batches = list(decode_unit(unit, schema, options_of()))
    bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
    assert bodies == [b"%d-%d" % (number, at) for number in range(6) for at in range(10)]
