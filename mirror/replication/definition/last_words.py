"""The last change of a definition by a leader that stops in order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.mirror.replication.definition.former_nodes import former_without
from warren.mirror.replication.definition.replicas import WHEN_SYNCED, WantedMirrors


def at_stop(
    wanted: WantedMirrors, epoch: int, have_all: Sequence[str], record: QueueRecord
) -> QueueRecord | None:
    """The definition that a leader which stops in order leaves; None if it needs no change.

    If no mirror is in sync, the mirrors that stopped before and still have everything are named
    again, so that the queue can be started without this leader. If there are none, the definition
    may say that the leader is to be waited for (`down`).
    """
    if record.epoch != epoch or record.in_sync:
        return None
    have_all = [mirror for mirror in have_all if mirror in record.stores]
    if have_all:
        others = [mirror for mirror in record.mirrors if mirror not in have_all]
        mirrors = [*have_all, *others]
        former = former_without(record, record.leader, have_all)
        return msgspec.structs.replace(
            record, mirrors=mirrors, in_sync=list(have_all), former=former
        )
    if record.mirrors and wanted.promote_on_shutdown == WHEN_SYNCED:
        # Only a mirror in sync may take the place of the leader.
        return msgspec.structs.replace(record, down=True)
    return None
