"""The head of what a leader broadcasts: which batch it is.

A batch is what a queue does in one turn of the loop. Its leader numbers them from 1 in each epoch.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from warren.mirror.messages.post import Undeliverable

HEAD = struct.Struct("<QQ")
"""Epoch, number of the batch."""

Position: TypeAlias = tuple[int, int]
"""Epoch and number of a batch: later ones compare as greater."""

NOTHING: Position = (0, 0)
"""Before every batch."""


def epoch_and_batch(payload: bytes) -> Position:
    """Of a whole batch. Raises `Undeliverable`."""
    if len(payload) < HEAD.size:
        raise Undeliverable(f"a batch of {len(payload)} octets")
    epoch, batch = HEAD.unpack_from(payload)
    return epoch, batch
