"""Damage that does not appear as rows: unreadable places of the index and the journal.

A damaged record is still a row if the index leads to it. Where the index itself, or the journal
that it is built from, cannot be read, it is unknown which messages were there. In mode FAILFAST
this ends the query; in other modes it is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from warren.spark_export.errors import RecordDamaged
from warren.spark_export.snapshot.options import Mode
from warren.spark_export.snapshot.snapshot_file import PinnedQueue, PinnedStore

log = logging.getLogger("warren.spark_export")


def check_unreadable(snapshot: PinnedStore, queues: Iterable[PinnedQueue], mode: Mode) -> int:
    """The number of unreadable places that concern these queues of the snapshot; it is logged.

    Raises `RecordDamaged` if there are any and the mode is FAILFAST.
    """
    places = snapshot.unreadable_in(queues)
    if places and mode is Mode.FAILFAST:
        raise RecordDamaged(
            f"{places} places of the index and the journal cannot be read, and messages that were"
            " there are no rows; `warren store check` says where. Modes other than FAILFAST read"
            " the rest"
        )
    if places:
        log.warning(
            "store_unreadable snapshot=%s places=%d: messages that were there are no rows",
            snapshot.name,
            places,
        )
    return places
