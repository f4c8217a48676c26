"""The copy of a cluster's definitions that a node keeps for itself, so that it starts warm.

It may lag behind, never be ahead: what it says it has at a revision is what the cluster had then.
Nothing waits for it and nothing is lost with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from warren.core.definitions.definition_table import Change


class Replicated(NamedTuple):
    """The definitions at a revision of the cluster of that id."""

    cluster_id: str
    revision: int
    definitions: Iterable[Change]


class Replica(Protocol):
    """Where the copy is kept."""

    def load(self) -> Replicated | None:
        """Read the replica; None when there is none, or none that can be used."""
        ...

    def reset(self, cluster_id: str) -> None:
        """Forget everything and belong to that cluster."""
        ...

    def save(self, revision: int, changes: Sequence[Change]) -> None:
        """Note, in the background and in order, the changes up to a revision."""
        ...
