"""What a leader that stops in order writes into the definition of its queue."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.mirror.replication.replicas import WHEN_SYNCED, Wanted


def at_stop(
    wanted: Wanted, epoch: int, have_all: Sequence[str], record: QueueRecord
) -> QueueRecord | None:
    """What the definition says when its leader has stopped in order.

    Where no mirror is in sync, those are named again that stopped before and still have all, for
    the time after a start without the leader. Without one the leader may be waited for.
    """
    if record.epoch != epoch or record.in_sync:
        return None
    have_all = [mirror for mirror in have_all if mirror in record.stores]
    if have_all:
        others = [mirror for mirror in record.mirrors if mirror not in have_all]
        mirrors = [*have_all, *others]
        return msgspec.structs.replace(record, mirrors=mirrors, in_sync=list(have_all))
    if record.mirrors and wanted.promote_on_shutdown == WHEN_SYNCED:
        # Nobody but a mirror in sync may take the place of the leader.
        return msgspec.structs.replace(record, down=True)
    return None
