"""Frames on a link: octets to frames.

    u32 octets of payload | u16 kind | u16 flags, 0 in this version | payload          little-endian

Kinds from `USER_KINDS` on are the link's own; those a version does not know are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

from warren.mirror.ports import FRAME_BYTES_MAX, USER_KINDS, Frame

HEADER = struct.Struct("<IHH")
HEADER_BYTES = HEADER.size


class Control(IntEnum):
    """Frames of the link itself."""

    HEARTBEAT = USER_KINDS
    """u64: octets received so far."""
    GOODBYE = USER_KINDS + 1
    """The sender ends the link; why, in UTF-8."""


class FrameError(Exception):
    """Octets that are no frame."""


class FrameReader:
    """Cuts what is received into frames; keeps the beginning of one that is incomplete."""

    __slots__ = ("_partial", "_wanted")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._wanted = 0

    def read(self, data: bytes, frames: list[Frame]) -> Sequence[Frame]:
        """Append the user's frames; returns the link's own.

        What is kept is less than a frame, and grows only with what came. Raises `FrameError`
        after appending the frames before the error.
        """
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._wanted:
                return ()
            data = bytes(partial)
            partial.clear()
        controls: tuple[Frame, ...] = ()
        unpack_from, append = HEADER.unpack_from, frames.append
        end = len(data)
        at, body, after = 0, HEADER_BYTES, HEADER_BYTES
        while body <= end:
            size, kind, flags = unpack_from(data, at)
            if size > FRAME_BYTES_MAX or flags:
                raise FrameError(
                    f"a frame of {size} octets, kind 0x{kind:04X}, flags 0x{flags:04X}; "
                    f"at most {FRAME_BYTES_MAX} octets and no flags are allowed"
                )
            after = body + size
            if after > end:
                break
            if kind < USER_KINDS:
                append((kind, data[body:after]))
            else:
                controls = (*controls, (kind, data[body:after]))
            at = after
            after = body = at + HEADER_BYTES
        if at < end:
            partial += memoryview(data)[at:]
            self._wanted = after - at
        return controls
