"""A metadata store that keeps nothing: for embedded brokers and tests.

Every commit is done when `transact` returns.
"""

from __future__ import annotations

from collections.abc import Sequence

from warren.core.definitions.definition_table import Change, CompletedCommit, DefinitionTable
from warren.core.ports import Commit


class VolatileMetadataStore(DefinitionTable):
    """Definitions that vanish with the process."""

    def uncommitted(self) -> Commit | None:
        return None

    def close(self) -> int:
        """Return 0: no change is pending."""
        return 0

    def _persist(self, changes: Sequence[Change]) -> Commit:
        return CompletedCommit()
