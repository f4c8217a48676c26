"""The head of each batch that a leader broadcasts: the epoch and number of the batch.

A batch is what a queue does in one turn of the loop. The leader numbers its batches from 1 in each
epoch.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from warren.mirror.messages.post import Undeliverable

HEAD = struct.Struct("<QQ")
"""Epoch, number of the batch."""

Position: TypeAlias = tuple[int, int]
"""Epoch and number of a batch: later batches compare as greater."""

NOTHING: Position = (0, 0)
"""The position before every batch."""


def epoch_and_batch(payload: bytes) -> Position:
    """The position of a batch, read from its octets. Raises `Undeliverable`."""
    if len(payload) < HEAD.size:
        raise Undeliverable(f"a batch of {len(payload)} octets")
    epoch, batch = HEAD.unpack_from(payload)
    return epoch, batch
