"""A slice of a queue that is being synchronised, as it goes to a mirror over the link of its node.

Queue, epoch and number come first, 8 octets each, little-endian; then instructions.
"""

from __future__ import annotations

import struct

from warren.mirror.messages.post import Undeliverable

SLICE_COUNT = 128
SLICE_BYTES = 64 << 10
"""Messages and octets sent to a mirror at a time: less than a millisecond of work."""

_HEAD = struct.Struct("<QQQ")


def pack_slice(queue_id: int, epoch: int, number: int, content: bytes) -> bytes:
    return _HEAD.pack(queue_id, epoch, number) + content


def unpack_slice(payload: bytes) -> tuple[int, int, int, bytes]:
    """Queue, epoch, number and instructions. Raises `Undeliverable`."""
    try:
        queue_id, epoch, number = _HEAD.unpack_from(payload)
    except struct.error as error:
        raise Undeliverable(f"a slice that cannot be read: {error}") from None
    return queue_id, epoch, number, payload[_HEAD.size :]
