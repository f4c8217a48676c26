"""How much a stream keeps of its messages, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT_BYTES = 500_000_000
"""Octets of a piece of a stream, which goes as a whole. The queue or a policy may say otherwise."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What a stream keeps: so many octets, for so long. Either may be None, for no limit.

    Messages beyond the limits go in whole pieces of `segment_bytes`, from the front.
    """

    octets_max: int | None = None
    age_max_s: int | None = None
    segment_bytes: int = SEGMENT_BYTES

    @property
    def keeps_all(self) -> bool:
        return self.octets_max is None and self.age_max_s is None


KEEP_ALL = StreamLimits()
