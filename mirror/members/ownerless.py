"""Deletes definitions that belong to a deleted user, virtual host or queue.

The node that deletes one of these deletes what it knows to belong to it. Another node may add
something before it hears of that: a permission that was left would be that of the next user of this
name, a binding that of the next queue. So the first node that is up looks for such definitions
whenever one is made, and whenever a user, a virtual host or a queue goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from warren.core.log_line import log_event
from warren.core.node import Node
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
"""By kind of a definition: the kind of each owner, and the place of the owner's name in the
definition's key. A binding belongs to its queue, too."""

BindingsTo: TypeAlias = Callable[[str, str], Iterable[Key]]
"""The keys of the bindings to a queue, by its virtual host and name."""


def bindings_to_queues_of(node: Node) -> BindingsTo:
    def bindings_to(vhost: str, queue: str) -> Iterator[Key]:
        there = node.vhosts.get(vhost)
        for each in there.bindings_to("queue", queue) if there is not None else ():
            end_to_end = (each.source, "queue", queue)
            yield ("binding", vhost, *end_to_end, each.routing_key, each.fingerprint)

    return bindings_to


class Ownerless:
    """Watches the definitions of one node. `is_first` says whether it is this node that deletes."""

    def __init__(
        self, store: MetadataStore, is_first: Callable[[], bool], bindings_to: BindingsTo
    ) -> None:
        self._store = store
        self._is_first = is_first
        self._bindings_to = bindings_to
        for kind in OWNERS:
            store.watch((kind,), self._made)
        for kind in ("user", "vhost", "queue"):
            store.watch((kind,), self._gone)

    def _made(self, key: Key, record: object | None) -> None:
        if record is not None and self._missing(key) and self._is_first():
            self._delete([key])

    def _gone(self, owner: Key, record: object | None) -> None:
        if record is None and self._is_first():
            kind, *names = owner
            left = self._bindings_to(*names) if kind == "queue" else self._left_by(kind, *names)
            self._delete(list(left))

    def _left_by(self, kind: str, name: str) -> Iterator[Key]:
        for each, owners in OWNERS.items():
            for owner_kind, place in owners:
                if owner_kind == kind:
                    prefix: Key = (each, name) if place == 1 else (each,)
                    found = self._store.records(prefix)
                    yield from (one.key for one in found if one.key[place] == name)

    def _missing(self, key: Key) -> Key | None:
        """Return an owner of the definition that does not exist; None if all exist."""
        owners: list[Key] = [(kind, key[place]) for kind, place in OWNERS[key[0]]]
        if key[0] == "binding" and key[3] == "queue":
            owners.append(("queue", key[1], key[4]))
        return next((owner for owner in owners if self._store.get(owner) is None), None)

    def _delete(self, keys: Iterable[Key]) -> None:
        for key in keys:
            stored, owner = self._store.get(key), self._missing(key)
            if stored is None or owner is None:
                continue
            log_event(log, logging.INFO, "ownerless_definition_deleted", key=key, missing=owner)
            # Only if both are as they were: a client may make the owner anew, and this definition
            # for it.
            unchanged = [Precondition(key, stored.version), Precondition(owner, 0)]
            self._store.transact([Write(key, None)], unchanged)
