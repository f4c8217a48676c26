"""The interface through which a remote queue reaches the node that leads it."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from warren.core.ports import Clock
from warren.mirror.links.ports import Part
from warren.mirror.messages.calls import Call
from warren.mirror.messages.cargo import CarriedMessage
from warren.mirror.messages.post import PostKind
from warren.mirror.remote.publishes_under_way import AllPublishes

Q_contra = TypeVar("Q_contra", contravariant=True)
"""The remote queues of this node."""


class Leaders(AllPublishes, Protocol[Q_contra]):
    """The leaders of the queues that clients of this node use."""

    clock: Clock

    def is_up(self, node: str) -> bool: ...

    def send(self, node: str, kind: PostKind, *parts: Part) -> bool: ...

    def ask(self, node: str, method: str, *arguments: Any) -> Call: ...

    def entry(self, packed: bytes) -> CarriedMessage:
        """The only message in an answer."""
        ...

    def flush_soon(self, queue: Q_contra) -> None:
        """Have the queue flushed when the turn of the loop is over."""
        ...

    def forget(self, queue: Q_contra) -> None:
        """Forget an object whose queue was deleted, or which another object has replaced."""
        ...
