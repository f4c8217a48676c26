"""Arrow arrays of values within octets, made without a Python object for each value."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warren.spark_export.values.variant import TIMESTAMP_END_S

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_END_US = TIMESTAMP_END_S * 1_000_000


def octets(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    present: NDArray[np.bool_] | None = None,
) -> pa.BinaryArray:
    """The values at these places, copied; places must be ascending; null where not `present`.

    Arrow is given an array in which every second value is one of these, and the values between are
    the octets between them; then it takes every second one.
    """
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    borders = np.empty(2 * count, np.int32)
    borders[0::2] = start
    np.add(start, size, out=borders[1::2], casting="unsafe")
    alternating = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(borders), pa.py_buffer(data)]
    )
    taken = alternating.take(_every_second(count))
    if present is None:
        return taken
    _, ends, values = taken.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [_bits(present), ends, values])


def texts(binary: pa.BinaryArray) -> pa.StringArray:
    """The values as UTF-8 text; invalid octets become U+FFFD."""
    if not len(binary):
        return pa.array([], pa.string())
    bits, ends, values = binary.buffers()
    same = pa.Array.from_buffers(pa.string(), len(binary), [bits, ends, values])
    # Nearly all values are ASCII, which is quickly checked.
    if values is None or not values.size or np.frombuffer(values, np.uint8).max() < 0x80:
        return same
    try:
        same.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([_replaced(value) for value in binary.to_pylist()], pa.string())
    return same


def _replaced(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def numbers(
    kind: pa.DataType, values: NDArray[np.generic], present: NDArray[np.bool_] | None = None
) -> pa.Array:
    """An array with numbers as they are in memory; null where not `present`."""
    return pa.Array.from_buffers(
        kind,
        len(values),
        [None if present is None else _bits(present), pa.py_buffer(np.ascontiguousarray(values))],
    )


def timestamps(
    microseconds: NDArray[np.uint64], present: NDArray[np.bool_] | None = None
) -> pa.TimestampArray:
    """Times from microseconds since 1970; null from the year 10000 on."""
    late = microseconds >= np.uint64(TIMESTAMP_END_US)
    if late.any():
        present = ~late if present is None else present & ~late
    return numbers(TIMESTAMP, microseconds.view(np.int64), present)


@lru_cache(maxsize=64)
def repeated(text: str, count: int) -> pa.StringArray:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def chosen(words: tuple[str, ...], which: NDArray[np.bool_]) -> pa.StringArray:
    """One word for each element of `which`: the first for false, the second for true."""
    return pa.array(words, pa.string()).take(pa.array(which.astype(np.int8)))


def _bits(present: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(present, bitorder="little"))


@lru_cache(maxsize=16)
def _every_second(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))
