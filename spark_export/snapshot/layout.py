"""The store's structures for numpy: `persist/layout/format.py` in the language of arrays.

A test compares the two. Strings of octets stay where they are; these structures are the parts of
fixed size, which say where the strings begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

RECORD_HEAD = np.dtype(
    [
        ("length", "<u4"),
        ("crc", "<u4"),
        ("type", "u1"),
        ("flags", "u1"),
        ("unused", "<u2"),
        ("envelope", "<u4"),
        ("queue", "<u8"),
        ("position", "<u8"),
        ("expires_us", "<u8"),
        ("enqueued_us", "<u8"),
    ]
)
"""The fixed part of a record, without the envelope's."""

HEAD = np.dtype(
    [
        *RECORD_HEAD.descr,
        ("expiration_ms", "<u8"),
        ("header", "<u4"),
        ("copies", "<u4"),
        ("priority", "u1"),
        ("exchange", "u1"),
        ("routing_key", "u1"),
        ("unused_too", "u1"),
    ]
)
"""The fixed parts of a record and of the envelope after it. `envelope`, `header`, `copies`,
`exchange` and `routing_key` are numbers of octets."""

HEAD_BYTES = HEAD.itemsize
"""The octets of the shortest record of a message."""

OFFSET_MASK = np.uint64(0xFFFFFFFE)
FILE_SHIFT = np.uint64(32)
SHARED = np.uint64(1)


def gather(
    kind: np.dtype[np.void], data: NDArray[np.uint8], at: NDArray[np.int64]
) -> NDArray[np.void]:
    """The structures that begin at these offsets, which need not be aligned.

    Each of them must end within `data`.
    """
    # numpy copies untyped octets in one go, and structures field by field.
    plain: np.dtype[np.void] = np.dtype((np.void, kind.itemsize))
    return _everywhere(plain, data)[at].view(kind)


def octets_at(data: NDArray[np.uint8], at: NDArray[np.int64], count: int) -> NDArray[np.uint64]:
    """Big-endian numbers of 1, 2, 4 or 8 octets, as AMQP has them."""
    return _everywhere(np.dtype(f">u{count}"), data)[at].astype(np.uint64)


def grouped(keys: NDArray[np.uint64]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each key and its rows in their order; the keys ascend."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, starts):
        yield int(keys[rows[0]]), rows


def sums_wrong(
    data: NDArray[np.uint8],
    at: NDArray[np.int64],
    lengths: NDArray[np.int64],
    sums: NDArray[np.uint32],
) -> list[int]:
    """The numbers of the records at these offsets whose octets do not match their checksum.

    This is a loop, and the greatest cost when records are verified one by one.
    """
    view = data.data
    ends = (at + lengths).tolist()
    return [
        number
        for number, (start, end, crc) in enumerate(
            zip(at.tolist(), ends, sums.tolist(), strict=True)
        )
        if crc32(view[start + 8 : start + 48], crc32(view[start + 48 : end])) != crc
    ]


def _everywhere(kind: np.dtype[Any], data: NDArray[np.uint8]) -> NDArray[Any]:
    """A view of `data` with a value of this kind beginning at each octet."""
    count = max(0, len(data) - kind.itemsize + 1)
    return np.ndarray(shape=(count,), dtype=kind, buffer=data.data, strides=(1,))
