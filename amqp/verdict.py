"""The fate of a message that a client got: basic.ack, basic.nack, basic.reject, or (`ABANDON`) none
of them before its channel closed."""

from __future__ import annotations

from enum import Enum, auto


class Verdict(Enum):
    ACK = auto()
    REJECT = auto()
    REQUEUE = auto()
    ABANDON = auto()
