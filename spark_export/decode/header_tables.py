"""The column `headers` of many messages: each distinct table is decoded once.

Publishers send few different tables, or each message has its own (a trace id). Decoded tables are
kept for the next batches while there is room, which helps in the first case and costs little in the
second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warren.spark_export.decode.schema import VARIANT
from warren.spark_export.snapshot.options import Headers
from warren.spark_export.values.field_tables import (
    TableBroken,
    decode_fields,
    to_json,
    to_strings,
    to_variant,
)

TABLES_KEPT = 4096


class Tables(NamedTuple):
    """The decoded column. `broken`: rows whose table cannot be read, and why; they are null."""

    column: pa.Array
    broken: dict[int, str]


class HeaderTables:
    """Decodes the tables of one unit."""

    def __init__(self, form: Headers) -> None:
        self._render, self._column = _FORMS[form]
        self._kept: dict[bytes, Any] = {}

    def decode(self, raw: pa.BinaryArray) -> Tables:
        """Decode tables; `raw` has the fields of each without its length, null where there is
        none."""
        encoded = raw.dictionary_encode()
        rendered = [self._rendered(octets) for octets in encoded.dictionary.to_pylist()]
        failed = [at for at, value in enumerate(rendered) if isinstance(value, TableBroken)]
        reasons = {at: str(rendered[at]) for at in failed}
        for at in failed:
            rendered[at] = None
        column = self._column([*rendered, None]).take(encoded.indices.fill_null(len(rendered)))
        return Tables(column, _rows_of(encoded.indices, reasons) if reasons else {})

    def _rendered(self, octets: bytes) -> Any:
        try:
            return self._kept[octets]
        except KeyError:
            pass
        value: Any
        try:
            value = self._render(decode_fields(octets))
        except TableBroken as error:
            value = error
        if len(self._kept) == TABLES_KEPT:
            self._kept.clear()
        self._kept[octets] = value
        return value


def _rows_of(indices: pa.Array, reasons: dict[int, str]) -> dict[int, str]:
    numbers: NDArray[np.int64] = indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(np.isin(numbers, list(reasons)))
    return {row: reasons[int(numbers[row])] for row in rows.tolist()}


def _maps(rendered: list[dict[str, str | None] | None]) -> pa.Array:
    keys: list[str] = []
    values: list[str | None] = []
    ends: list[int | None] = []
    for table in rendered:
        if table is None:
            ends.append(None)
            continue
        ends.append(len(keys))
        keys += table.keys()
        values += table.values()
    ends.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )


def _texts(rendered: list[str | None]) -> pa.Array:
    return pa.array(rendered, pa.string())


def variants(rendered: list[tuple[bytes, bytes] | None]) -> pa.Array:
    """A column of variants from values and metadata."""
    absent = np.array([pair is None for pair in rendered], np.bool_)
    pairs = [pair or (b"", b"") for pair in rendered]
    return pa.StructArray.from_arrays(
        [
            pa.array([value for value, _ in pairs], pa.binary()),
            pa.array([metadata for _, metadata in pairs], pa.binary()),
        ],
        fields=list(VARIANT),
        mask=pa.array(absent),
    )


def nulls(kind: pa.DataType, count: int) -> pa.Array:
    """Nulls. Those of a variant have values inside, without which Parquet cannot be written."""
    return variants([None] * count) if kind == VARIANT else pa.nulls(count, kind)


_FORMS: dict[Headers, tuple[Callable[..., Any], Callable[..., pa.Array]]] = {
    Headers.MAP: (to_strings, _maps),
    Headers.JSON: (to_json, _texts),
    Headers.VARIANT: (to_variant, variants),
}
