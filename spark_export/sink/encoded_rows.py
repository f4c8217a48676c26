"""Rows as the frames that publish them, one row after the other in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from warren.spark_export.values.basic_properties import message_id

METHOD_FIXED_BYTES = 13
"""Octets of a basic.publish before the exchange: frame header 7, class and method 4, reserved 2."""
FRAME_HEADER_BYTES = 7


class RowMessage(NamedTuple):
    """The description of a message in a text for people."""

    exchange: str
    routing_key: str
    message_id: str | None

    def __str__(self) -> str:
        text = f"exchange {self.exchange!r}, routing key {self.routing_key!r}"
        return text if self.message_id is None else f"{text}, message id {self.message_id!r}"


class EncodedRows:
    """The frames of row `first_row + n` are octets `offsets[n]` to `offsets[n + 1]` of `data`."""

    __slots__ = ("data", "first_row", "offsets")

    def __init__(self, data: memoryview, offsets: Sequence[int], first_row: int) -> None:
        self.data = data
        self.offsets = offsets
        self.first_row = first_row

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def view(self, first: int, end: int) -> memoryview:
        """The frames of the rows `first` to `end` (exclusive)."""
        return self.data[int(self.offsets[first]) : int(self.offsets[end])]

    def message(self, number: int) -> RowMessage:
        """The message that this row publishes, read from its frames."""
        octets = bytes(self.view(number, number + 1))
        exchange, at = _short_string(octets, METHOD_FIXED_BYTES)
        routing_key, at = _short_string(octets, at)
        # Skips the bits and the end of this frame, and the header of the next one.
        return RowMessage(exchange, routing_key, message_id(octets[at + 2 + FRAME_HEADER_BYTES :]))


def _short_string(octets: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + octets[at]
    return octets[at + 1 : end].decode("utf-8", "replace"), end
