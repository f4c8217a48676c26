"""The checksum around a value in LMDB, which has none of its own.

A sealed value is MessagePack of [2, crc, octets]: CRC-32 of the key and the octets, which are
MessagePack again. Octets under another key are as wrong as flipped ones.

Before there were checksums values were MessagePack of something else, without a 2 in front.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec

from warren.core.definitions.record_format import unpacked

SEALED = 2


class WrongChecksum(ValueError):
    """The octets are not those that were written."""


def sealed(key: bytes, octets: bytes) -> bytes:
    return msgspec.msgpack.encode((SEALED, crc32(octets, crc32(key)), octets))


def unsealed(key: bytes, parts: Any) -> Any:
    """The value that was sealed; `parts` is the unpacked seal. Raises one of `UNREADABLE`."""
    _, crc, octets = parts
    if crc32(octets, crc32(key)) != crc:
        raise WrongChecksum("its checksum is wrong")
    return unpacked(octets)
