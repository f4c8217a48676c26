"""The columns of a message, with Arrow's and Spark's types.

Every column except those in `ALWAYS_PRESENT` may be null. In the schema all of them are nullable,
since Spark compares that, too. The order is that of `docs/spark.md`.

A test keeps the two forms equal: by Spark's own rules, the result of `spark_schema` becomes that of
`arrow_schema`, with timestamps in UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from warren.spark_export.errors import OptionRefused
from warren.spark_export.snapshot.options import BodyFormat, Headers, Mode, ReadOptions, near_names

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

ALWAYS_PRESENT = frozenset({"vhost", "queue", "seq"})
"""Columns that have values even for a damaged record."""

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""A struct marked as a VARIANT in Spark's way."""

_ARROW_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.field("value", pa.string())),
    "variant": VARIANT,
}

_STANDARD: Mapping[str, str] = {
    "vhost": "string",
    "queue": "string",
    "seq": "bigint",
    "enqueued_at": "timestamp",
    "exchange": "string",
    "routing_key": "string",
    "redelivered": "boolean",
    "state": "string",
    "delivery_mode": "smallint",
    "content_type": "string",
    "content_encoding": "string",
    "headers": "map<string,string>",
    "priority": "smallint",
    "correlation_id": "string",
    "reply_to": "string",
    "expiration": "string",
    "message_id": "string",
    "timestamp": "timestamp",
    "type": "string",
    "user_id": "string",
    "app_id": "string",
    "cluster_id": "string",
    "body": "binary",
}

_METADATA: Mapping[str, str] = {
    "segment": "int",
    "generation": "int",
    "offset": "bigint",
    "store_uuid": "string",
    "expires_at": "timestamp",
}

_HEADERS = {
    Headers.MAP: "map<string,string>",
    Headers.JSON: "string",
    Headers.VARIANT: "variant",
}
_BODIES = {
    BodyFormat.BINARY: "binary",
    BodyFormat.STRING: "string",
    BodyFormat.JSON: "variant",
}


class Column(NamedTuple):
    """A column; `kind` is its type in SQL."""

    name: str
    kind: str
    nullable: bool = True


def all_columns(options: ReadOptions) -> tuple[Column, ...]:
    """All columns that can be chosen. Raises `OptionRefused`."""
    kinds = dict(_STANDARD)
    kinds["body"] = _BODIES[options.body_format]
    if options.headers is Headers.NONE:
        del kinds["headers"]
    else:
        kinds["headers"] = _HEADERS[options.headers]
    if options.include_metadata:
        kinds.update(_METADATA)
    if options.mode is Mode.PERMISSIVE:
        # Spark ignores case.
        if options.corrupt_column.lower() in kinds:
            raise OptionRefused(
                f"option columnNameOfCorruptRecord is {options.corrupt_column!r}, "
                "and there is another column of that name"
            )
        kinds[options.corrupt_column] = "binary"
    return tuple(Column(name, kind) for name, kind in kinds.items())


def columns(options: ReadOptions) -> tuple[Column, ...]:
    """The columns to read: all, or those that the option `columns` names, in its order.

    Raises `OptionRefused`.
    """
    every = all_columns(options)
    if options.columns is None:
        return every
    return tuple(_named(options.columns, every))


def _named(names: Iterable[str], every: Iterable[Column]) -> Iterable[Column]:
    by_name = {column.name: column for column in every}
    for name in names:
        column = by_name.get(name)
        if column is None:
            raise OptionRefused(_unknown(name, by_name))
        yield column


def _unknown(name: str, known: Iterable[str]) -> str:
    if name in _METADATA:
        return f"column {name} is there with the option includeMetadata only"
    return f"there is no column {name}; {near_names(name, known)}"


def arrow_schema(chosen: Iterable[Column]) -> pa.Schema:
    return pa.schema(
        [pa.field(name, _ARROW_TYPES[kind], nullable) for name, kind, nullable in chosen]
    )


def spark_schema(chosen: Iterable[Column]) -> StructType:
    from pyspark.sql.types import StructType

    schema = StructType()
    for name, kind, nullable in chosen:
        schema.add(name, _spark_type(kind), nullable)
    return schema


def _spark_type(kind: str) -> DataType:
    from pyspark.sql import types

    kinds: Mapping[str, DataType] = {
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "boolean": types.BooleanType(),
        "smallint": types.ShortType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
        "variant": types.VariantType(),
    }
    return kinds[kind]


def columns_of(schema: StructType, options: ReadOptions) -> tuple[Column, ...]:
    """The columns that a user's schema asks for: any of the existing ones, in any order.

    Raises `OptionRefused` for a column that does not exist, is of another type, or is named twice.
    """
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise OptionRefused(f"column {twice[0]} is named twice")
    chosen = []
    for field, column in zip(
        schema.fields, _named(schema.names, all_columns(options)), strict=True
    ):
        if field.dataType != _spark_type(column.kind):
            raise OptionRefused(
                f"column {field.name} is {column.kind}, not {field.dataType.simpleString()}"
                + _HINTS.get(field.name, "")
            )
        if not field.nullable and field.name not in ALWAYS_PRESENT:
            raise OptionRefused(f"column {field.name} may be null")
        chosen.append(column._replace(nullable=field.nullable))
    return tuple(chosen)


_HINTS = {
    "headers": " (see the option headers)",
    "body": " (see the option bodyFormat)",
}
