"""The definitions of queues, as this node knows them, and how they change: by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Clock, Key, MetadataStore, Precondition, Write
from warren.core.scheduling.waiting import Event
from warren.mirror.definitions.putting_off import when_written

NEWS_S = 0.5
"""How long a question of another node waits for news of a definition. Then that node asks again."""


class QueueDefinitions:
    """The definitions of queues in all virtual hosts."""

    def __init__(self, metadata: MetadataStore, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        # Events that happen when a definition has changed.
        self._news: dict[Key, list[Event]] = {}
        self._stopped = False

    def stop(self) -> None:
        """Have writes end without consequences here: the node has stopped."""
        self._stopped = True

    def items(self) -> Iterator[tuple[Key, QueueRecord]]:
        for stored in self._metadata.records(("queue",)):
            if isinstance(stored.record, QueueRecord):
                yield stored.key, stored.record

    def records(self) -> Iterator[QueueRecord]:
        return (record for _, record in self.items())

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call back when this node has written its definitions of any kind (`putting_off.py`)."""
        when_written(self._metadata, self._clock, callback)

    def record_of(self, key: Key, queue_id: int) -> QueueRecord | None:
        """The definition of this queue; None when it was deleted, whatever has its name now."""
        stored = self._metadata.get(key)
        record = stored.record if stored is not None else None
        return record if isinstance(record, QueueRecord) and record.queue_id == queue_id else None

    def write_record(
        self,
        key: Key,
        queue_id: int,
        change: Callable[[QueueRecord], QueueRecord | None],
        then: Callable[[], None] = lambda: None,
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:
        """Change the definition, trying again while others are faster, until `change` returns None.

        `then` is called when the change is written, `otherwise` when there is nothing to change.
        """
        stored, record = self._metadata.get(key), self.record_of(key, queue_id)
        changed = change(record) if record is not None else None
        if stored is None or changed is None:
            otherwise()
            return
        commit = self._metadata.transact([Write(key, changed)], [Precondition(key, stored.version)])

        def decided() -> None:
            if self._stopped:
                return
            if commit.refused:
                self.write_record(key, queue_id, change, then, otherwise)
            else:
                then()

        commit.then(decided)

    async def record_as_seen_by(self, leader: str, key: Key, queue_id: int) -> QueueRecord | None:
        """Return the definition in which the node `leader` leads the queue. It may still be on its
        way here: wait for it, `NEWS_S` at least, and return None if it does not come."""
        too_late = False
        while True:
            record = self.record_of(key, queue_id)
            if record is not None and record.leader == leader:
                return record
            if too_late:
                return None
            news = Event()
            waiting = self._news.setdefault(key, [])
            waiting.append(news)
            timer = self._clock.call_later(NEWS_S, news.happen)
            await news
            timer.cancel()
            too_late = self._news.get(key) is waiting
            if too_late:
                waiting.remove(news)
                if not waiting:
                    del self._news[key]

    def changed(self, key: Key) -> None:
        """A definition has changed: wake its waiters after all watchers have seen it."""
        for news in self._news.pop(key, ()):
            self._clock.call_soon(news.happen)
