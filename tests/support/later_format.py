"""Files as a later version of the format would write them."""

from __future__ import annotations

from zlib import crc32

from warren.persist.layout.format import FORMAT_VERSION

LATER = FORMAT_VERSION + 1


def as_later(octets: bytes, head_bytes: int) -> bytes:
    """The octets with the number of a later format in their head of so many octets, the last four
    of which are its checksum."""
    head = bytearray(octets[: head_bytes - 4])
    head[8:10] = LATER.to_bytes(2, "little")
    return bytes(head) + crc32(head).to_bytes(4, "little") + octets[head_bytes:]
