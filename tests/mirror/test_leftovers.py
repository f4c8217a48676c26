"""What is deleted with the queues of a node that is down."""

from __future__ import annotations

from warren.core.definitions.records import (
    BindingRecord,
    ExchangeRecord,
    GroupRecord,
    QueueRecord,
    forgotten,
    group_key,
)
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.ports import Key, Write
from warren.mirror.members import leftovers


def exchange(name: str, *, auto_delete: bool = True, kind: str = "fanout") -> Write:
    return Write(("exchange", "/", name), ExchangeRecord(kind, auto_delete, False, {}))


def queue(name: str, leader: str) -> Write:
    record = QueueRecord(False, {}, len(name), leader=leader, durable=True, exclusive=True)
    return Write(("queue", "/", name), record)


def binding(source: str, kind: str, destination: str) -> Write:
    return Write(("binding", "/", source, kind, destination, "", ""), BindingRecord({}))


def deleted(*there: Write) -> set[Key]:
    store = VolatileMetadataStore()
    store.transact(there)
    return {write.key for write in leftovers.of_node(store, "a")}


def test_exchanges_go_that_are_deleted_automatically_with_their_last_binding() -> None:
    inner, outer = exchange("inner"), exchange("outer")
    mine = queue("mine", "a")
    bound, chained = binding("inner", "queue", "mine"), binding("outer", "exchange", "inner")
    all_of_it = [inner, outer, mine, bound, chained]
    assert deleted(*all_of_it) == {write.key for write in all_of_it}


def test_exchanges_stay_that_have_other_bindings_or_are_not_deleted_automatically() -> None:
    mine, other = queue("mine", "a"), queue("other's", "b")
    kept = [
        exchange("x"),
        exchange("y", auto_delete=False),
        exchange("z", kind="x-delayed-message"),
    ]
    bound = [binding(name, "queue", "mine") for name in "xyz"]
    gone = deleted(mine, other, *kept, *bound, binding("x", "queue", "other's"))
    assert gone == {write.key for write in (mine, *bound)}


def test_queues_go_of_which_forgotten_nodes_had_the_only_copies() -> None:
    mine, lost = queue("mine", "a"), queue("lost", forgotten("b"))
    awaited = QueueRecord(False, {}, 7, leader=forgotten("b"), mirrors=["c"])
    store = VolatileMetadataStore()
    left = [Write(("queue", "/", "awaited"), awaited), queue("other's", "c")]
    group = Write(group_key(len("lost")), GroupRecord(1, ()))
    store.transact([mine, lost, group, *left])
    gone = {write.key for write in leftovers.of_forgotten(store, "a")}
    assert gone == {mine.key, lost.key, group.key}
