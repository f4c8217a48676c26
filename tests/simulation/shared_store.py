"""A store of versioned values that all processes share, as a cluster's metadata store.

It is one place: changes happen in some order, each at one moment, by compare-and-set. What is not
reliable is the way there and back. Requests and answers take their time, so they overtake each
other; a request may be refused, or time out, and then it may have been carried out before, may be
later, or never. Watchers hear of changes late, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from scheduler import Scheduler

Value = TypeVar("Value")
Key: TypeAlias = Hashable


class Outcome(Enum):
    DONE = "done"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"


class Answer(NamedTuple, Generic[Value]):
    """`value` is what the store has: for CONFLICT, and for reads."""

    outcome: Outcome
    value: Value | None


class SharedStore(Generic[Value]):
    """`version_of` tells the version of a value; without one it is 0."""

    def __init__(self, scheduler: Scheduler, version_of: Callable[[Value], int]) -> None:
        self._scheduler = scheduler
        self.random = scheduler.random
        self._version_of = version_of
        self.values: dict[Key, Value] = {}
        self.history: dict[Key, list[Value]] = {}
        self.delay_s = (0.0002, 0.02)
        self.failure_chance = 0.0
        self.watch_chance = 0.0
        """That a watcher hears of a change."""
        self.faults: list[str] = []
        self._watchers: dict[Key, list[Callable[[int], None]]] = {}

    def read(self, key: Key, answer: Callable[[Answer[Value]], None]) -> None:
        self._request(lambda: Answer(Outcome.DONE, self.values.get(key)), answer)

    def compare_and_set(
        self, key: Key, expected: int, value: Value, answer: Callable[[Answer[Value]], None]
    ) -> None:
        self._request(lambda: self._set(key, expected, value), answer)

    def delete(self, key: Key) -> None:
        """At once."""
        self.values.pop(key, None)
        self._tell(key, 0)

    def watch(self, key: Key, callback: Callable[[int], None]) -> None:
        """Call back with versions, 0 for a deletion."""
        self._watchers.setdefault(key, []).append(callback)

    def version(self, key: Key) -> int:
        value = self.values.get(key)
        return 0 if value is None else self._version_of(value)

    def _request(
        self, act: Callable[[], Answer[Value]], answer: Callable[[Answer[Value]], None]
    ) -> None:
        if self.random.random() < self.failure_chance:
            self._fail(act, answer)
            return
        self._scheduler.after(self._delay(), lambda: self._answer(act(), answer))

    def _answer(self, result: Answer[Value], answer: Callable[[Answer[Value]], None]) -> None:
        self._scheduler.after(self._delay(), lambda: answer(result))

    def _fail(
        self, act: Callable[[], Answer[Value]], answer: Callable[[Answer[Value]], None]
    ) -> None:
        fault = self.random.choice(("refused", "done, no answer", "done later, no answer"))
        self.faults.append(fault)
        if fault == "done, no answer":
            self._scheduler.after(self._delay(), lambda: _ignore(act()))
            self._scheduler.after(
                2 * self.delay_s[1], lambda: answer(Answer(Outcome.UNAVAILABLE, None))
            )
            return
        if fault == "done later, no answer":
            self._scheduler.after(self.random.uniform(0.0, 0.5), lambda: _ignore(act()))
        self._scheduler.after(self._delay(), lambda: answer(Answer(Outcome.UNAVAILABLE, None)))

    def _set(self, key: Key, expected: int, value: Value) -> Answer[Value]:
        present = self.values.get(key)
        if self.version(key) != expected:
            return Answer(Outcome.CONFLICT, present)
        assert self._version_of(value) == expected + 1, (expected, value)
        self.values[key] = value
        self.history.setdefault(key, []).append(value)
        self._tell(key, expected + 1)
        return Answer(Outcome.DONE, value)

    def _tell(self, key: Key, version: int) -> None:
        for callback in self._watchers.get(key, ()):
            if self.random.random() < self.watch_chance:
                self._scheduler.after(self._delay(), lambda c=callback: c(version))

    def _delay(self) -> float:
        return self.random.uniform(*self.delay_s)


def _ignore(result: object) -> None:
    """An answer that gets lost."""
