"""Tells observers of the messages that come to a copy of a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from warren.core.messages.message import Envelope
from warren.core.node import Node
from warren.core.ports import Key
from warren.mirror.replication.levels.instructions import Performer

Observe: TypeAlias = Callable[[Envelope], None]
"""Called with the envelope of each message that comes."""


def no_observer() -> Observe | None:
    """Return None: there is no observer."""
    return None


def observer_of(node: Node, key: Key) -> Observe | None:
    """The observer of messages that come to a copy of this queue; None if there is none."""
    _, vhost_name, name = key
    vhost = node.vhosts.get(vhost_name)
    if vhost is None or vhost.observer is None:
        return None
    return partial(vhost.observer.mirrored, name)


class ObservedCopy:
    """A `Performer` that tells an observer of each message before the copy takes it."""

    def __init__(self, copy: Performer, observe: Observe) -> None:
        self._copy = copy
        self._observe = observe
        self.run = copy.run
        self.note = copy.note
        self.purge = copy.purge
        self.origin = copy.origin
        self.control = copy.control

    def publish(
        self,
        level: int,
        position: int,
        envelope: Envelope,
        body: bytes,
        lives_s: float,
        delivered: bool,
    ) -> None:
        self._observe(envelope)
        self._copy.publish(level, position, envelope, body, lives_s, delivered)

    def publish_many(
        self,
        level: int,
        first: int,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        lives_s: float,
        delivered: bool,
    ) -> None:
        for envelope in envelopes:
            self._observe(envelope)
        self._copy.publish_many(level, first, envelopes, bodies, lives_s, delivered)
