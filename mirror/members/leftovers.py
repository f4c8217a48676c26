"""The definitions to delete when nodes are gone.

Exclusive queues end with their connection. Queues that are not durable and have no mirrors end with
the node that leads them. Exchanges that are not durable, and their bindings, end with the last node
of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from warren.core.definitions.records import (
    BindingRecord,
    ExchangeRecord,
    GroupRecord,
    QueueRecord,
    group_key,
)
from warren.core.exchanges.delay import DELAYED_TYPE
from warren.core.ports import Key, MetadataStore, Write


def of_node(store: MetadataStore, node: str) -> list[Write]:
    """The deletions for a node that is down: its exclusive queues and those that are not durable,
    with their groups, the bindings to them and the exchanges that only these have kept.

    Queues with mirrors are not among them: they get another leader.
    """
    gone: dict[Key, QueueRecord] = {}
    queue_ids: set[int] = set()
    for stored in store.records(("queue",)):
        record = stored.record
        if not isinstance(record, QueueRecord):
            continue
        queue_ids.add(record.queue_id)
        if (
            record.leader == node
            and not record.mirrors
            and (record.exclusive or not record.durable)
        ):
            gone[stored.key] = record
    groups = [*_groups_of(store, gone.values()), *_groups_of_nothing(store, node, queue_ids)]
    return [Write(key, None) for key in (*sorted(gone), *groups, *_unbound(store, gone))]


def of_forgotten(store: MetadataStore, node: str) -> list[Write]:
    """The deletions for a node that will not come back: all queues that only this node has, or of
    which no copy is left (`QueueMembers.forget`), with their groups. Members of a queue may have
    former copies, and so may the nodes that its definition names as `former`."""
    gone = {
        stored.key: stored.record
        for stored in store.records(("queue",))
        if isinstance(stored.record, QueueRecord)
        and (stored.record.leader == node or stored.record.leader_is_forgotten)
        and not stored.record.mirrors
        and not {*stored.record.members, *stored.record.former} - {node}
    }
    groups = _groups_of(store, gone.values())
    return [Write(key, None) for key in (*sorted(gone), *groups, *_unbound(store, gone))]


def of_cluster(store: MetadataStore) -> list[Write]:
    """The deletions after the last node of a cluster has stopped: all exclusive queues, and all
    queues and exchanges that are not durable."""
    gone: set[Key] = set()
    groups: list[Key] = []
    for stored in store.records(("queue",)):
        record = stored.record
        if isinstance(record, QueueRecord) and (record.exclusive or not record.durable):
            gone.add(stored.key)
            groups += _groups_of(store, [record])
    for stored in store.records(("exchange",)):
        if isinstance(stored.record, ExchangeRecord) and not stored.record.durable:
            gone.add(stored.key)
    return [Write(key, None) for key in (*sorted(gone), *groups, *_bindings_of(store, gone))]


def _groups_of(store: MetadataStore, queues: Iterable[QueueRecord]) -> Iterator[Key]:
    """The keys of these queues' groups, for those that have one."""
    for queue in queues:
        key = group_key(queue.queue_id)
        if store.get(key) is not None:
            yield key


def _groups_of_nothing(store: MetadataStore, node: str, queue_ids: set[int]) -> Iterator[Key]:
    """Groups without a queue whose members are all at this node: it made them while the queue was
    being deleted."""
    for stored in store.records(("group",)):
        record = stored.record
        if (
            isinstance(record, GroupRecord)
            and int(stored.key[1]) not in queue_ids
            and all(member.node == node for member in record.members)
        ):
            yield stored.key


def _unbound(store: MetadataStore, queues: Iterable[Key]) -> list[Key]:
    """The bindings to these queues, the auto-delete exchanges that lose their last binding with
    them, and the bindings to those exchanges."""
    going = dict.fromkeys(_bindings_to(store, queues))
    sources = [(key[1], key[2]) for key in going]
    while sources:
        vhost, name = sources.pop()
        exchange: Key = ("exchange", vhost, name)
        stored = store.get(exchange)
        record = None if stored is None else stored.record
        # A delayed exchange has a queue of its own, which may have messages.
        if (
            not isinstance(record, ExchangeRecord)
            or not record.auto_delete
            or record.type == DELAYED_TYPE
            or exchange in going
            or any(one.key not in going for one in store.records(("binding", vhost, name)))
        ):
            continue
        behind = [key for key in _bindings_to(store, [exchange]) if key not in going]
        going |= dict.fromkeys([exchange, *behind])
        sources += [(key[1], key[2]) for key in behind]
    return list(going)


def _bindings_to(store: MetadataStore, gone: Iterable[Key]) -> Iterator[Key]:
    gone = frozenset(gone)
    for key in _bindings(store) if gone else ():
        _, vhost, _, kind, destination, _, _ = key
        if (kind, vhost, destination) in gone:
            yield key


def _bindings_of(store: MetadataStore, gone: Iterable[Key]) -> Iterator[Key]:
    """The bindings whose source or destination is deleted."""
    gone = frozenset(gone)
    for key in _bindings(store):
        _, vhost, source, kind, destination, _, _ = key
        if (kind, vhost, destination) in gone or ("exchange", vhost, source) in gone:
            yield key


def _bindings(store: MetadataStore) -> Iterator[Key]:
    for stored in store.records(("binding",)):
        assert isinstance(stored.record, BindingRecord)
        yield stored.key
