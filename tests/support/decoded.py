"""Units of a store, decoded as Spark would have them."""

from collections.abc import Sequence
from typing import Any

from reference_decoder import variant_to_python

from warren.spark_export.decode.decode import decode_unit
from warren.spark_export.decode.schema import all_columns, arrow_schema
from warren.spark_export.snapshot.options import ReadOptions, parse_options
from warren.spark_export.snapshot.unit import Unit


def options_of(**given: str) -> ReadOptions:
    return parse_options({"path": "/nowhere"} | given)


def read(
    unit: Unit,
    options: ReadOptions | None = None,
    columns: Sequence[str] | None = None,
    **arguments: Any,
) -> list[dict[str, Any]]:
    options = options or options_of()
    chosen = all_columns(options)
    if columns is not None:
        chosen = tuple(column for column in chosen if column.name in columns)
    schema = arrow_schema(chosen)
    rows: list[dict[str, Any]] = []
    for batch in decode_unit(unit, schema, options, **arguments):
        batch.validate(full=True)
        rows += batch.to_pylist()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, dict) and value.keys() == {"value", "metadata"}:
                row[name] = variant_to_python(value)
    return rows
