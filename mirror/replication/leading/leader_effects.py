"""The calls of a leader to its queue; those of a leader that leads no more do nothing."""

from __future__ import annotations

from typing import Protocol


class LeaderEffects(Protocol):
    """The calls of a leader to its `LedQueue`."""

    def flush_soon(self) -> None:
        """Call `flush` when the turn is over."""
        ...

    def broadcast(self, payload: bytes) -> None: ...

    def send_slice(self, mirror: str, payload: bytes) -> None: ...

    def now_in_sync(self, mirror: str) -> None:
        """The mirror has everything that is in the queue."""
        ...

    def reported_by_all(self, batch: int) -> None:
        """Every mirror has everything up to this batch."""
        ...

    def withhold(self) -> None:
        """Messages may not be handed out yet."""
        ...

    def hand_out(self) -> None:
        """Messages may be handed out again."""
        ...


class NoEffects:
    """Does nothing: the `LeaderEffects` of a leader that leads no more."""

    def flush_soon(self) -> None:
        pass

    def broadcast(self, payload: bytes) -> None:
        pass

    def send_slice(self, mirror: str, payload: bytes) -> None:
        pass

    def now_in_sync(self, mirror: str) -> None:
        pass

    def reported_by_all(self, batch: int) -> None:
        pass

    def withhold(self) -> None:
        pass

    def hand_out(self) -> None:
        pass
