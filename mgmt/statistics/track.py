"""The samples of all objects of one kind, such as all queues.

An object that was never active takes no memory. Of an idle one the last figures are kept, and its
history for an hour. Each object is looked at in every round, but its figures are only read while it
is active.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from warren.mgmt.http.slices import chunks
from warren.mgmt.statistics.detail import Detail
from warren.mgmt.statistics.history import (
    RETENTION_OF_ONE,
    Figures,
    History,
    Packed,
    Recent,
    Sample,
    pack,
    unpack,
)

IDLE_AFTER_S = 60.0
"""An object without changes for so long is not sampled until it changes again."""

KEPT_S = max([kept_s for _, kept_s in RETENTION_OF_ONE])
"""An object without changes for so long has no history: its figures were the same all the time."""


class SampledKind(NamedTuple):
    """How the objects of one kind are sampled.

    `figures` reads the numbers; those named in `levels` are not counters. `activity` is a number
    that changes when any figure does, and is 0 before the first activity. `key` names an object
    over restarts; without a key its history ends with the node.
    """

    names: Sequence[str]
    figures: Callable[[Any], Figures]
    activity: Callable[[Any], float]
    levels: Collection[str] = ()
    key: Callable[[Any], Hashable] | None = None

    @property
    def counters(self) -> list[int]:
        return [at for at, name in enumerate(self.names) if name not in self.levels]


class Active:
    """An object that has changed lately."""

    __slots__ = ("history", "recent")

    def __init__(self, recent: Recent, history: History) -> None:
        self.recent = recent
        self.history = history


class Idle(NamedTuple):
    """An object that has not changed for a while."""

    activity: float
    changed_at: float
    last: Packed
    history: History | None


class Track:
    """The samples of all objects of one kind."""

    def __init__(
        self, kind: SampledKind, detail: Detail, restored: dict[Hashable, History] | None = None
    ) -> None:
        self._kind = kind
        self._detail = detail
        self._zeros = pack((0,) * len(kind.names))
        self._active: dict[Any, Active] = {}
        self._idle: dict[Any, Idle] = {}
        self._idle_histories = 0
        # Histories from before this start, until their objects become active.
        self._restored = restored if restored is not None else {}
        self._began_at: float | None = None
        self._sampled_at: float | None = None

    async def sample(self, now: float, things: list[Any]) -> None:
        """Take a sample of each object; objects that are not in the list any more are forgotten."""
        active: dict[Any, Active] = {}
        idle: dict[Any, Idle] = {}
        idle_histories = 0
        figures, activity = self._kind.figures, self._kind.activity
        spacing = self._detail.coarse, self._detail.wall_offset_s
        async for chunk in chunks(things):
            for thing in chunk:
                known = self._active.get(thing)
                if known is None:
                    level = activity(thing)
                    before = self._idle.get(thing)
                    if before is not None and before.activity == level:
                        before = idle[thing] = self._idle[thing] = _aged(before, now)
                        idle_histories += before.history is not None
                        continue
                    if before is None and not level:
                        continue
                    known = self._begun(thing, before, now)
                packed = pack(figures(thing))
                if known.recent.add(now, packed):
                    known.history.add(now, packed, *spacing)
                if now - known.recent.changed_at > IDLE_AFTER_S:
                    changed_at = known.recent.changed_at
                    # Replaces the active record, which is freed here and not later with all the
                    # others.
                    del self._active[thing]
                    idle[thing] = Idle(activity(thing), changed_at, packed, known.history)
                    self._idle[thing] = idle[thing]
                    idle_histories += 1
                else:
                    active[thing] = known
        past = self._active, self._idle
        self._active, self._idle, self._idle_histories = active, idle, idle_histories
        self._sampled_at = now
        if self._began_at is None:
            self._began_at = now
        for things_before in past:
            await _let_go(things_before)

    def _begun(self, thing: Any, before: Idle | None, now: float) -> Active:
        """Start with the figures of the last round, so that changes since then are visible."""
        history = before.history if before is not None else None
        if history is None:
            history = self._claimed(thing)
        active = Active(Recent(now), history or History(RETENTION_OF_ONE))
        if self._sampled_at is not None:
            last = before.last if before is not None else self._zeros
            active.recent.add(self._sampled_at, last)
            spacing = self._detail.coarse, self._detail.wall_offset_s
            active.history.add(self._sampled_at, last, *spacing)
        self._active[thing] = active
        return active

    def _claimed(self, thing: Any) -> History | None:
        """The object's history from before this start."""
        if self._kind.key is None or not self._restored:
            return None
        history = self._restored.pop(self._kind.key(thing), None)
        if history is not None:
            history.go_on(self._kind.counters)
        return history

    def rates(self, thing: Any, now: float, current: Figures) -> Figures:
        active = self._active.get(thing)
        return (0.0,) * len(current) if active is None else active.recent.rates(now, current)

    def changed_at(self, thing: Any) -> float | None:
        """When the object last changed, as of the last round; None if it never did."""
        active = self._active.get(thing)
        if active is not None:
            return active.recent.changed_at
        idle = self._idle.get(thing)
        return None if idle is None else idle.changed_at

    def samples(self, thing: Any, times: Sequence[float]) -> list[Sample]:
        """The figures at these times, newest first, as far back as they are known."""
        history = self._history(thing)
        if history is not None:
            return history.at(times)
        idle = self._idle.get(thing)
        if idle is not None:
            # It has not changed for as long as samples are kept.
            last = unpack(idle.last)
            return [Sample(at, last) for at in times]
        # It was never active, or not before the last round.
        began = self._began_at if self._began_at is not None else times[0]
        zeros = unpack(self._zeros)
        return [Sample(at, zeros) for at in times if at >= began]

    def _history(self, thing: Any) -> History | None:
        active = self._active.get(thing)
        if active is not None:
            return active.history
        idle = self._idle.get(thing)
        if idle is not None:
            return idle.history
        return self._restored.get(self._kind.key(thing)) if self._kind.key is not None else None

    # Memory

    @property
    def history_count(self) -> int:
        return len(self._active) + self._idle_histories + len(self._restored)

    def histories(self) -> Iterator[History]:
        """All histories; they must not change meanwhile."""
        for active in self._active.values():
            yield active.history
        for idle in self._idle.values():
            if idle.history is not None:
                yield idle.history
        yield from self._restored.values()

    def let_go_of_restored(self) -> None:
        """Drop histories of objects without activity since the start: they are too old by now."""
        self._restored = {}

    # Keeping

    async def kept(self) -> AsyncIterator[tuple[Hashable, History]]:
        """The histories to keep over a restart, with their keys."""
        key = self._kind.key
        if key is None:
            return
        for known in (self._active, self._idle):
            async for things in chunks(list(known)):
                for thing in things:
                    history = known[thing].history if thing in known else None
                    if history is not None:
                        yield key(thing), history
        async for names in chunks(list(self._restored)):
            for name in names:
                if name in self._restored:
                    yield name, self._restored[name]


async def _let_go(things: dict[Any, Any]) -> None:
    """Clear in slices: to free what is known of 100,000 queues at once takes 50 ms."""
    async for chunk in chunks(list(things)):
        for thing in chunk:
            del things[thing]


def _aged(idle: Idle, now: float) -> Idle:
    """Drop its history if that has become too old."""
    if idle.history is not None and now - idle.changed_at > KEPT_S:
        return idle._replace(history=None)
    return idle
