"""The decoder again, slow and obvious: one message after the other, with the broker's own code.

What the vectorised one makes of a unit must be the same. Nothing here is shared with it but the
options and the names of columns.
"""

from __future__ import annotations

import base64
import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from handmade_snapshot import log_directory
from pyspark.sql.types import VariantVal

from warren.amqp.field_table import TableError, decode_table
from warren.amqp.properties import PROPERTIES, MalformedProperties, property_bytes
from warren.core.field import Field
from warren.persist.layout.envelopes import decode_envelope
from warren.persist.layout.format import (
    FILE_HEADER_BYTES,
    OFFSET_MASK,
    PUBLISH,
    SHARED,
    SHARED_MESSAGE,
    Damaged,
    Record,
    decode_file_header,
    decode_record,
    decode_survivors,
    file_of,
)
from warren.persist.log.log_files import find_log_files
from warren.persist.log.log_writer import file_name
from warren.spark_export.snapshot.deliveries import UNKNOWN, Deliveries
from warren.spark_export.snapshot.options import BodyFormat, Headers, Mode, ReadOptions
from warren.spark_export.snapshot.unit import Unit

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_10000_S = 253_402_300_800


def reference_rows(
    unit: Unit,
    columns: Sequence[str],
    options: ReadOptions,
    deliveries: Deliveries = UNKNOWN,
) -> list[dict[str, Any]]:
    """Rows as `RecordBatch.to_pylist` has them, variants as Python has them."""
    rows = []
    for position, place, expires_us, length, body_bytes in unit.entries().tolist():
        row: dict[str, Any] = dict.fromkeys(columns)
        row.update(seq=position, vhost=unit.vhost, queue=unit.queue)
        octets, reason = None, ""
        try:
            data, where = _find(unit, place)
            row.update(_where(data, place, where, unit))
            octets = data[where : where + length]
            row.update(_message(_record(unit, data, where, position, place, length, body_bytes)))
        except (Damaged, MalformedProperties) as damage:
            kept = dict.fromkeys(columns)
            row = kept | {"seq": position, "vhost": unit.vhost, "queue": unit.queue}
            reason = str(damage)
        else:
            if expires_us:
                row["expires_at"] = _moment(expires_us)
            if deliveries.unacked is not None:
                out = any(start <= position < end for start, end in deliveries.unacked)
                row["state"] = "unacked" if out else "ready"
            if deliveries.redelivered_below is not None:
                row["redelivered"] = position < deliveries.redelivered_below
            reason = _convert(row, options)
        if reason:
            if options.mode is Mode.DROPMALFORMED:
                continue
            row[options.corrupt_column] = octets
        rows.append({name: row[name] for name in columns})
    return rows


def _find(unit: Unit, place: int) -> tuple[bytes, int]:
    file_id, offset = file_of(place), place & OFFSET_MASK
    names = [path.name for path in log_directory(unit).iterdir()]
    generation = find_log_files(names).newest[file_id]
    data = (log_directory(unit) / file_name(file_id, generation)).read_bytes()
    try:
        combined = decode_file_header(data[:FILE_HEADER_BYTES]).combined
    except Damaged:
        combined = False
    if combined:
        survivors = decode_survivors(data)
        at = bisect_left(survivors.before, offset)
        if at == len(survivors.before) or survivors.before[at] != offset:
            raise Damaged("not in the table")
        offset = survivors.after[at]
    return data, offset


def _moment(us: int) -> datetime | None:
    return EPOCH + timedelta(microseconds=us) if us < YEAR_10000_S * 1_000_000 else None


def _where(data: bytes, place: int, offset: int, unit: Unit) -> dict[str, Any]:
    header: dict[str, Any] = {"segment": file_of(place), "offset": offset}
    try:
        decoded = decode_file_header(data[:FILE_HEADER_BYTES])
        header["store_uuid"] = decoded.node_id.hex()
        header["generation"] = decoded.generation
    except Damaged:
        header["generation"] = 0
    return header


def _record(
    unit: Unit, data: bytes, at: int, position: int, place: int, length: int, body_bytes: int
) -> Record:
    record = decode_record(data, at, length)
    identity = (record.type, record.queue, record.position)
    if place & SHARED:
        wanted = (SHARED_MESSAGE, 0, 0)
    else:
        wanted = (PUBLISH, unit.queue_id, position)
    if identity != wanted or len(record.payload) != body_bytes:
        raise Damaged(f"{identity} where {wanted} was entered")
    return record


def _message(record: Record) -> dict[str, Any]:
    envelope = decode_envelope(record.envelope, True)
    row: dict[str, Any] = {
        "enqueued_at": EPOCH + timedelta(microseconds=record.enqueued_us),
        "exchange": _replaced(envelope.exchange.encode("utf-8", "surrogateescape")),
        "routing_key": _replaced(envelope.routing_key.encode("utf-8", "surrogateescape")),
        "redelivered": None,
        "state": None,
        "body": record.payload,
    }
    for name, _, wire_type in PROPERTIES:
        value = property_bytes(envelope.header, name)
        row[name] = None if value is None else _property(value, wire_type)
    return row


def _property(value: bytes, wire_type: str) -> Any:
    if wire_type == "shortstr":
        return _replaced(value)
    if wire_type == "table":
        return value
    number = int.from_bytes(value, "big")
    if wire_type == "octet":
        return number
    return EPOCH + timedelta(seconds=number) if number < YEAR_10000_S else None


def _replaced(octets: bytes) -> str:
    return octets.decode("utf-8", "replace")


def _convert(row: dict[str, Any], options: ReadOptions) -> str:
    """Headers and body as they are wanted; returns what cannot be read in them."""
    reason = ""
    if options.headers is Headers.NONE:
        row["headers"] = None
    elif row["headers"] is not None:
        try:
            table, _ = decode_table(row["headers"], 0)
            row["headers"] = _headers({_name(at): table[at] for at in table}, options.headers)
        except TableError as error:
            row["headers"], reason = None, str(error)
    if options.body_format is BodyFormat.STRING:
        row["body"] = _replaced(row["body"])
    elif options.body_format is BodyFormat.JSON:
        try:
            row["body"] = json.loads(row["body"], parse_constant=_refuse)
        except ValueError as error:
            row["body"], reason = None, str(error)
    return reason


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _name(name: str) -> str:
    return _replaced(name.encode("utf-8", "surrogateescape"))


def _headers(table: dict[str, Field], form: Headers) -> Any:
    if form is Headers.MAP:
        return [(name, _text(field)) for name, field in table.items()]
    if form is Headers.JSON:
        return _compact(_json(Field("F", table)))
    return _typed(Field("F", table))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(field: Field) -> str | None:
    kind, value = field
    if kind == "V":
        return None
    if kind == "D":
        scale, unscaled = value
        return f"{Decimal(unscaled).scaleb(-scale):f}"
    plain = _json(field)
    return plain if isinstance(plain, str) else _compact(plain)


def _json(field: Field) -> Any:
    kind, value = field
    if kind == "F":
        return {_name(name): _json(item) for name, item in value.items()}
    if kind == "A":
        return [_json(item) for item in value]
    if kind == "S":
        return _replaced(value)
    if kind == "x":
        return base64.b64encode(value).decode()
    if kind == "D":
        scale, unscaled = value
        return float(Decimal(unscaled).scaleb(-scale)) if scale else unscaled
    if kind in "fd" and math.isnan(value):
        return "NaN"
    if kind in "fd" and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _typed(field: Field) -> Any:
    kind, value = field
    if kind == "F":
        return {_name(name): _typed(item) for name, item in value.items()}
    if kind == "A":
        return [_typed(item) for item in value]
    if kind == "S":
        return _replaced(value)
    if kind == "D":
        scale, unscaled = value
        decimal = Decimal(unscaled).scaleb(-scale)
        return decimal if scale <= 38 else f"{decimal:f}"
    if kind == "T":
        return value if value >= YEAR_10000_S else EPOCH + timedelta(seconds=value)
    return value


def variant_to_python(value: dict[str, bytes] | None) -> Any:
    """What Spark's own reader of variants makes of one."""
    return None if value is None else VariantVal(value["value"], value["metadata"]).toPython()
