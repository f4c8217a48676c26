"""Output that waits for definitions to be on disk.

A reply such as queue.declare-ok for a durable queue promises that the queue survives a crash. The
reply is written at once, but stands behind a gate until the commit is done. Output written after it
stands behind the gate too, which keeps the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from warren.core.ports import Commit, MetadataStore
from warren.core.scheduling.waiting import Event

HELD_OCTETS_MAX = 256 * 1024
"""Octets that may wait; with more, nothing is read from the peer. Some 8,000 replies."""


class HeldOutput:
    """The gates of one connection, and the output behind each. `wake` asks for a flush."""

    __slots__ = ("_gate", "_octets", "_segments", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._gate: Commit | None = None
        self._segments: deque[tuple[Commit | Event | None, bytes]] = deque()
        self._octets = 0

    @property
    def full(self) -> bool:
        return self._octets > HELD_OCTETS_MAX

    @property
    def active(self) -> bool:
        """Whether output has to pass through `release`."""
        return self._gate is not None or bool(self._segments)

    @contextmanager
    def leaving(self, metadata: MetadataStore, written: list[bytes]) -> Iterator[list[Event]]:
        """Hold output written after the block until everything that the block ends is gone.

        A client that has got close-ok must no longer find objects that ended with its channel or
        connection, such as queues. Other nodes may have a part in removing them: the block adds the
        events to wait for to the list that it gets.
        """
        before = metadata.uncommitted()
        left: list[Event] = []
        yield left
        commit = metadata.uncommitted()
        if commit is not before and commit is not None and not commit.visible:
            self.hold(commit, written)
        for event in left:
            self._append(written)
            self._segments.append((event, b""))
            event.then(self._wake)

    def hold(self, commit: Commit | None, written: list[bytes]) -> None:
        """Hold output written after `written` until the commit, if there is one, is done."""
        if commit is None:
            return
        if self._gate is None:
            self._append(written)
        self._gate = commit

    def release(self, written: list[bytes]) -> list[bytes]:
        """Take the output written, and return the output that may go out by now, in order."""
        gate = self._gate
        self._append(written)
        self._gate = None
        if gate is not None:
            gate.then(self._wake)
        released = []
        while self._segments and (self._segments[0][0] is None or self._segments[0][0].done):
            released.append(self._segments.popleft()[1])
            self._octets -= len(released[-1])
        return released

    def drop(self) -> None:
        """The connection is gone: forget the held output and the connection."""
        self._gate = None
        self._segments.clear()
        self._wake = _nothing

    def _append(self, written: list[bytes]) -> None:
        if written:
            octets = b"".join(written)
            written.clear()
            self._segments.append((self._gate, octets))
            self._octets += len(octets)


def _nothing() -> None:
    """Stands in for a callback that is no longer wanted."""
