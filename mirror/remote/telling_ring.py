"""The consumers of a queue that another node leads."""

from __future__ import annotations

from collections.abc import Callable

from warren.core.queues.consumers import Consumer, ConsumerRing


class TellingRing(ConsumerRing):
    """Reports each consumer that can be served, or no longer can; it serves none itself."""

    __slots__ = ("_changed",)

    def __init__(self, changed: Callable[[Consumer], None]) -> None:
        super().__init__()
        self._changed = changed

    def add(self, consumer: Consumer) -> None:
        self._changed(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._changed(consumer)


UNHEARD = TellingRing(lambda consumer: None)
"""The ring of every queue that has ended here: it reports to nothing."""
