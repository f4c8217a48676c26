"""Frames on a link, read from its octets.

    u32 octets of payload | u16 kind | u16 flags, 0 in this version | payload          little-endian

Kinds from `USER_KINDS` on are the link's own; unknown kinds of these are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

from warren.mirror.links.ports import FRAME_BYTES_MAX, USER_KINDS, Frame

HEADER = struct.Struct("<IHH")
HEADER_BYTES = HEADER.size


class Control(IntEnum):
    """Frames of the link itself."""

    HEARTBEAT = USER_KINDS
    """Payload, u64: the octets that the sender has received so far."""
    GOODBYE = USER_KINDS + 1
    """The sender ends the link. Payload: the reason, in UTF-8."""


class LinkFrameError(Exception):
    """Octets that do not form a frame."""


class FrameReader:
    """Cuts received octets into frames, and keeps the beginning of an incomplete frame."""

    __slots__ = ("_partial", "_wanted")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._wanted = 0

    def read(self, data: bytes, frames: list[Frame]) -> Sequence[Frame]:
        """Append the user's frames to `frames`; returns the link's own.

        The reader keeps less than one frame, and only octets that have come. Raises
        `LinkFrameError` after appending the frames before the error.
        """
        controls: list[Frame] = []
        at = self._complete(data, frames, controls) if self._partial else 0
        unpack_from, append = HEADER.unpack_from, frames.append
        end = len(data)
        after = body = at + HEADER_BYTES
        while body <= end:
            size, kind, flags = unpack_from(data, at)
            if size > FRAME_BYTES_MAX or flags:
                raise _no_frame(size, kind, flags)
            after = body + size
            if after > end:
                break
            if kind < USER_KINDS:
                append((kind, data[body:after]))
            else:
                controls.append((kind, data[body:after]))
            at = after
            after = body = at + HEADER_BYTES
        if at < end:
            self._partial += memoryview(data)[at:]
            self._wanted = after - at
        return controls

    def _complete(self, data: bytes, frames: list[Frame], controls: list[Frame]) -> int:
        """Complete the frame that was begun; returns how many octets of the data belong to it.

        Only that much is copied: a read of 256 KiB ends within a frame nearly every time.
        """
        partial = self._partial
        at = 0
        while True:
            missing = self._wanted - len(partial)
            partial += memoryview(data)[at : at + missing]
            at = min(at + missing, len(data))
            if len(partial) < self._wanted:
                return at
            size, kind, flags = HEADER.unpack_from(partial)
            if size > FRAME_BYTES_MAX or flags:
                raise _no_frame(size, kind, flags)
            self._wanted = HEADER_BYTES + size
            if len(partial) == self._wanted:
                payload = bytes(memoryview(partial)[HEADER_BYTES:])
                partial.clear()
                (frames if kind < USER_KINDS else controls).append((kind, payload))
                return at


def _no_frame(size: int, kind: int, flags: int) -> LinkFrameError:
    return LinkFrameError(
        f"a frame of {size} octets, kind 0x{kind:04X}, flags 0x{flags:04X}; "
        f"at most {FRAME_BYTES_MAX} octets and no flags are allowed"
    )
