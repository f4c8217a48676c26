"""Deletes what is said about a user or a virtual host that is gone.

Whoever deletes a user or a virtual host deletes what it knows to be said about it. Another node may
say something more before it hears of that: a permission that was left would be that of the next
user of this name. So the first node that is up looks for such definitions whenever one is made, and
whenever a user or a virtual host goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from warren.core.log_line import log_event
from warren.core.ports import Key, MetadataStore, Precondition, Write

log = logging.getLogger("warren.cluster")

OWNERS: dict[str, tuple[tuple[str, int], ...]] = {
    "permission": (("user", 1), ("vhost", 2)),
    "topic_permission": (("user", 1), ("vhost", 2)),
    "exchange": (("vhost", 1),),
    "queue": (("vhost", 1),),
    "binding": (("vhost", 1),),
    "policy": (("vhost", 1),),
    "operator_policy": (("vhost", 1),),
    "parameter": (("vhost", 2),),
}
"""By kind: what a definition belongs to, and at which place of its key the name of that is."""


class Ownerless:
    """Watches the definitions of one node. `is_first` says whether it is this node that deletes."""

    def __init__(self, store: MetadataStore, is_first: Callable[[], bool]) -> None:
        self._store = store
        self._is_first = is_first
        for kind in OWNERS:
            store.watch((kind,), self._made)
        for kind in ("user", "vhost"):
            store.watch((kind,), self._gone)

    def _made(self, key: Key, record: object | None) -> None:
        if record is not None and self._missing(key):
            self._delete([key])

    def _gone(self, owner: Key, record: object | None) -> None:
        if record is None:
            self._delete(list(self._left_by(owner)))

    def _left_by(self, owner: Key) -> Iterator[Key]:
        kind, name = owner[0], owner[1]
        for each, owners in OWNERS.items():
            for owner_kind, place in owners:
                if owner_kind == kind:
                    prefix: Key = (each, name) if place == 1 else (each,)
                    found = self._store.records(prefix)
                    yield from (one.key for one in found if one.key[place] == name)

    def _missing(self, key: Key) -> Key | None:
        """An owner of the definition that is not there; None if all are."""
        for kind, place in OWNERS[key[0]]:
            owner: Key = (kind, str(key[place]))
            if self._store.get(owner) is None:
                return owner
        return None

    def _delete(self, keys: Iterable[Key]) -> None:
        if not self._is_first():
            return
        for key in keys:
            stored, owner = self._store.get(key), self._missing(key)
            if stored is None or owner is None:
                continue
            log_event(log, logging.INFO, "ownerless_definition_deleted", key=key, missing=owner)
            # Somebody may make the owner anew, and this for it.
            unchanged = [Precondition(key, stored.version), Precondition(owner, 0)]
            self._store.transact([Write(key, None)], unchanged)
