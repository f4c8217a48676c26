"""Which other nodes may have a whole copy of a queue whose leader is gone.

The definition of the queue names them: its leader and the mirrors in sync. A node is counted out
only when it is down for the cluster, that is, when its presence has ended, or when it has said
itself that it has no copy: it may have been started anew since. That a node cannot be reached from
here says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

Ask: TypeAlias = Callable[[str, Callable[[bool], None]], None]
"""Ask a node; call back with whether it has a copy, or not at all if it cannot be reached."""


class WholeCopies:
    """The answers of nodes about their copies of one queue, in one epoch."""

    def __init__(self, present: Callable[[], Collection[str]]) -> None:
        self._present = present
        self._epoch = -1
        self._without: set[str] = set()

    def ask(self, ask: Ask, nodes: Iterable[str], epoch: int, then: Callable[[], None]) -> None:
        """Ask nodes whether they have a copy; they may be asked repeatedly. `then` is called when a
        node says that it has none."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._without.clear()
        for node in nodes:
            if node not in self._without:
                ask(node, self._answer_of(node, epoch, then))

    def _answer_of(self, node: str, epoch: int, then: Callable[[], None]) -> Callable[[bool], None]:
        return lambda has_one: self._said(node, epoch, has_one, then)

    def _said(self, node: str, epoch: int, has_one: bool, then: Callable[[], None]) -> None:
        if epoch == self._epoch and not has_one:
            self._without.add(node)
            then()

    def without(self, epoch: int) -> Collection[str]:
        """The nodes that have said that they have no copy."""
        return self._without if epoch == self._epoch else ()

    def may_have(self, nodes: Iterable[str], epoch: int) -> list[str]:
        """Return the nodes among these that may have a copy."""
        present, without = self._present(), self.without(epoch)
        return [node for node in nodes if node in present and node not in without]
