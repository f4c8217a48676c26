"""What a client says of a message it got: basic.ack, basic.nack, basic.reject."""

from __future__ import annotations

from enum import Enum, auto


class Verdict(Enum):
    ACK = auto()
    REJECT = auto()
    REQUEUE = auto()
