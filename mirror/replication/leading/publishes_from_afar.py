"""The publishes of other nodes that queues of this node have, and those that they have refused.

A node whose client publishes to a queue that another node leads numbers its publishes, and keeps
each until it is answered. The leader notes up to which number it has all of them (the *origin* is
that node, in one of its lives), and which it has refused. Both go to the mirrors, so that the next
leader can say what it has, and be sent the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext

from warren.mirror.messages.origin import SOME_ORIGINS
from warren.mirror.replication.copies.refusals import Refusals
from warren.mirror.replication.leading.led_queue import LedQueue


class PublishesFromAfar:
    """For each queue of this node: the number up to which it has all publishes of each origin
    (mirrored queues only), and the publishes that it has refused."""

    def __init__(self, led: Mapping[int, LedQueue]) -> None:
        self.origins: dict[int, dict[str, int]] = {}
        self.refusals: dict[int, Refusals] = {}
        self._led = led

    def forget(self, queue_id: int) -> None:
        """Forget a queue: it is deleted, or another node leads it."""
        self.origins.pop(queue_id, None)
        self.refusals.pop(queue_id, None)

    def received_from(self, queue_id: int, origin: str) -> int | None:
        """Return up to which number the queue has all publishes of a node; None if not known."""
        origins = self.origins.get(queue_id)
        if origins is None:
            return None
        return origins.get(origin, None if SOME_ORIGINS in origins else 0)

    def note_origin(self, queue_id: int, origin: str, number: int) -> None:
        """Note that the queue has everything that another node has published up to this number."""
        led = self._led.get(queue_id)
        if led is not None:
            self.origins[queue_id][origin] = number
            led.leader.origin(origin, number)

    def note_refused(self, queue_id: int, origin: str, number: int) -> None:
        """Note that the queue has refused a publish of another node. This leader or a later one
        tells that node."""
        self.refusals.setdefault(queue_id, Refusals()).note(origin, (number,))
        led = self._led.get(queue_id)
        if led is not None:
            led.leader.refused(origin, number)

    def note_heard(self, queue_id: int, origin: str, upto: int) -> None:
        """Note that another node knows of refusals up to this number."""
        refusals = self.refusals.get(queue_id)
        if refusals is None or not refusals.of(origin):
            return
        refusals.heard(origin, upto)
        led = self._led.get(queue_id)
        if led is not None:
            led.leader.heard(origin, upto)

    def refused_of(self, queue_id: int, origin: str) -> Collection[int]:
        """Publishes of another node that were refused, and of which it may not know."""
        refusals = self.refusals.get(queue_id)
        return refusals.of(origin) if refusals is not None else ()

    def publishing(self, queue_id: int, origin: str) -> AbstractContextManager[None]:
        """Within this, another node keeps the published messages until it has the answer."""
        led = self._led.get(queue_id)
        return nullcontext() if led is None else led.leader.publishing_from_afar(origin)
