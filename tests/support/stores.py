"""Stores whose disk is the test: nothing is safe before the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from warren.core.backing.backing_queue import BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.definition_table import Change, DefinitionTable
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.ports import Commit


class SlowBackingQueue(MemoryQueue):
    """Keeps messages in memory, and settles the persistent ones when told to."""

    __slots__ = ("_unsafe",)

    def __init__(self, unsafe: deque[tuple[PublishConfirms, int]]) -> None:
        super().__init__()
        self.defers_confirms = True
        self._unsafe = unsafe

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        super().publish(envelope, body, expires_at, confirms, publish_seq)
        self._remember(envelope, confirms, publish_seq)

    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message:
        self._remember(envelope, confirms, publish_seq)
        return super().publish_delivered(envelope, body, expires_at, confirms, publish_seq)

    def publish_many_delivered(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        for publish_seq, envelope in enumerate(envelopes, first_seq):
            self._remember(envelope, confirms, publish_seq)
        return super().publish_many_delivered(envelopes, bodies, expires_at, confirms, first_seq)

    def _remember(
        self, envelope: Envelope, confirms: PublishConfirms | None, publish_seq: int
    ) -> None:
        if confirms is not None and envelope.persistent:
            self._unsafe.append((confirms, publish_seq))


class SlowQueues:
    """Makes the backing queues of a broker; `settle(n)` makes the n-th unsafe message safe."""

    def __init__(self) -> None:
        self.made: list[SlowBackingQueue] = []
        self.unsafe: deque[tuple[PublishConfirms, int]] = deque()

    def new(self, spec: BackingSpec) -> SlowBackingQueue:
        self.made.append(SlowBackingQueue(self.unsafe))
        return self.made[-1]

    def settle(self, number: int = 1) -> None:
        confirms, publish_seq = self.unsafe[number - 1]
        del self.unsafe[number - 1]
        confirms.settle(publish_seq)


class HandCommit:
    """A commit that is done when the test says so."""

    def __init__(self) -> None:
        self.done = False
        self.visible = True
        self.refused = False
        self._callbacks: list[Callable[[], None]] = []

    def then(self, callback: Callable[[], None]) -> None:
        if self.done:
            callback()
        else:
            self._callbacks.append(callback)

    def complete(self) -> None:
        self.done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class SlowMetadataStore(DefinitionTable):
    """A store with a slow disk; while `slow` is false every commit is done at once."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.pending: deque[HandCommit] = deque()

    def uncommitted(self) -> Commit | None:
        return self.pending[-1] if self.pending else None

    def complete(self, count: int = 1) -> None:
        """The oldest commits reach the disk."""
        for _ in range(count):
            self.pending.popleft().complete()

    def close(self) -> int:
        """Nothing is held."""
        return 0

    def _persist(self, changes: Sequence[Change]) -> Commit:
        commit = HandCommit()
        if self.slow:
            self.pending.append(commit)
        else:
            commit.complete()
        return commit
