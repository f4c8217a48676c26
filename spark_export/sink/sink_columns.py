"""The columns of a DataFrame that are parts of a message; found before a task begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from warren.spark_export.errors import OptionRefused
from warren.spark_export.sink.sink_options import SinkOptions
from warren.spark_export.values.basic_properties import PROPERTIES
from warren.spark_export.values.field_writing import writer_for

_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXT: Final = (StringType, BinaryType)

_TYPES: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "exchange": _TEXT,
    "routing_key": _TEXT,
    "body": _TEXT,
    **{
        name: {
            "shortstr": _TEXT,
            "octet": _INTEGERS,
            "timestamp": (TimestampType, TimestampNTZType, *_INTEGERS),
            "table": (MapType, StructType, VariantType, StringType),
        }[wire_type]
        for name, _, wire_type in PROPERTIES
    },
    # Brokers expect digits in an expiration.
    "expiration": (*_TEXT, *_INTEGERS),
}

_HINTS: Final = {
    "body": "; make it a string or a binary, for example with to_json(struct(...))",
    "headers": "; it is a map of names, a struct, a VARIANT or a string with a JSON object",
    "timestamp": "; it is a timestamp, or seconds since 1970",
}


@dataclass(frozen=True)
class SinkColumns:
    """The number of the column of each part of a message that has a column.

    `headers_type` is the type of the column `headers`, None if there is none.
    """

    numbers: Mapping[str, int]
    headers_type: DataType | None

    @classmethod
    def of(cls, schema: StructType, options: SinkOptions) -> SinkColumns:
        """The columns in this schema. Raises `OptionRefused`."""
        numbers: dict[str, int] = {}
        extra: list[str] = []
        for number, field in enumerate(schema.fields):
            part = _part(field.name, options)
            if part is None:
                extra.append(field.name)
                continue
            if part in numbers:
                raise OptionRefused(f"there are two columns {part}")
            _check(field.name, part, field.dataType)
            numbers[part] = number
        if extra and not options.ignore_extra_columns:
            raise OptionRefused(
                f"no part of a message is in column {', '.join(extra)}: leave it out, or set"
                " ignoreExtraColumns=true"
            )
        if "body" not in numbers:
            raise OptionRefused(
                f"there is no column {options.body_column} (see the option bodyColumn)"
            )
        if options.exchange is None and "exchange" not in numbers:
            raise OptionRefused(
                "there is neither an option nor a column exchange; the default exchange, which"
                ' routes to the queue the routing key names, is ""'
            )
        if options.exchange == "" and "exchange" not in numbers:
            _check_routing_key(numbers, options)
        headers = numbers.get("headers")
        return cls(numbers, None if headers is None else schema.fields[headers].dataType)


def _part(name: str, options: SinkOptions) -> str | None:
    """The part of a message in a column of this name; names ignore case, as in SQL."""
    if name.lower() == options.body_column.lower():
        return "body"
    part = name.lower()
    return part if part in _TYPES and part != "body" else None


def _check(name: str, part: str, data_type: DataType) -> None:
    wanted = _TYPES[part]
    if not isinstance(data_type, wanted) or (
        part == "headers" and not isinstance(data_type, StringType) and not _is_table(data_type)
    ):
        kinds = ", ".join(kind.typeName() for kind in wanted)
        raise OptionRefused(
            f"column {name} is {data_type.simpleString()}, not one of {kinds}"
            + _HINTS.get(part, "")
        )


def _is_table(data_type: DataType) -> bool:
    """Whether values of this type can be written as header tables."""
    return writer_for(data_type) is not None


def _check_routing_key(numbers: Mapping[str, int], options: SinkOptions) -> None:
    if options.routing_key is None and "routing_key" not in numbers:
        raise OptionRefused(
            "the default exchange routes to the queue that the routing key names, and there is"
            " neither an option routingKey nor a column routing_key"
        )
