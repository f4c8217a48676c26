"""Operations that may have to wait for other nodes, written as coroutines and run without a loop.

A coroutine of this kind awaits only objects with a `then` (`Awaited`), such as those defined here.
On a single node nothing ever waits: such a coroutine ends with its first `send`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import NoReturn, Protocol, TypeAlias, TypeVar

from warren.core.errors import BrokerError
from warren.core.ports import Commit, MetadataStore

Answer = TypeVar("Answer")


class Awaited(Protocol):
    """Something that a coroutine can wait for."""

    def then(self, callback: Callable[[], None]) -> None:
        """Call back once it has happened; at once if it has already."""
        ...


Waiting: TypeAlias = Coroutine[Awaited, None, Answer]


class Until:
    """`await Until(awaited, happened)` waits until `happened()` is true; it looks whenever
    `awaited` calls back."""

    __slots__ = ("_awaited", "_happened")

    def __init__(self, awaited: Awaited, happened: Callable[[], bool]) -> None:
        self._awaited = awaited
        self._happened = happened

    def __await__(self) -> Generator[Awaited, None, None]:
        while not self._happened():
            yield self._awaited


def decided(commit: Commit) -> Until:
    """Wait until the commit is visible, or refused."""
    return Until(commit, lambda: commit.visible or commit.done)


def at_risk(metadata: MetadataStore) -> Commit | None:
    """The youngest commit that is visible already and that a crash could still undo.

    In a cluster there is none: definitions become visible when they are durable.
    """
    commit = metadata.uncommitted()
    return commit if commit is not None and commit.visible else None


class Event:
    """Something that happens once."""

    __slots__ = ("_callbacks", "happened")

    def __init__(self) -> None:
        self.happened = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """Whether it has happened, under the name that commits have for it."""
        return self.happened

    def then(self, callback: Callable[[], None]) -> None:
        if self.happened:
            callback()
        else:
            self._callbacks.append(callback)

    def happen(self) -> None:
        self.happened = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def __await__(self) -> Generator[Awaited, None, None]:
        while not self.happened:
            yield self


async def taken(operation: Callable[[], Commit]) -> None:
    """Repeat an operation that writes definitions until no other node changes them first.

    The operation decides anew each time, by the definitions as they are then. An error that it
    raises ends the repetition.
    """
    while True:
        commit = operation()
        await decided(commit)
        if not commit.refused:
            return


async def outliving(waiting: Waiting[None]) -> None:
    """Await an operation that goes on even when the awaiting coroutine is closed meanwhile.

    Raises what it raises.
    """
    over = Event()
    results: list[Callable[[], None]] = []

    def finish(result: Callable[[], None]) -> None:
        results.append(result)
        over.happen()

    run(waiting, finish)
    await over
    results[0]()


def run(waiting: Waiting[Answer], finish: Callable[[Callable[[], Answer]], None]) -> None:
    """Go through a coroutine, however often it waits.

    `finish` is called once with a function that returns its result, or raises its error.
    """
    try:
        awaited = waiting.send(None)
    except StopIteration as end:
        result: Answer = end.value
        finish(lambda: result)
    except BrokerError as error:
        refusal = error
        finish(lambda: _raise(refusal))
    else:
        awaited.then(lambda: run(waiting, finish))


def _raise(error: BrokerError) -> NoReturn:
    raise error
