"""What is said about a user or a virtual host by a node that has not heard yet that it is gone."""

from __future__ import annotations

import pytest

from warren.core.definitions.records import (
    BindingRecord,
    ExchangeRecord,
    PermissionRecord,
    QueueRecord,
    UserRecord,
    VirtualHostRecord,
)
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.ports import Key, Write
from warren.mirror.members.ownerless import Ownerless

ANN = Write(("user", "ann"), UserRecord(b""))
SHOP = Write(("vhost", "shop"), VirtualHostRecord())
ALL = PermissionRecord(".*", ".*", ".*")
MAY = Write(("permission", "ann", "shop"), ALL)
EXCHANGE = Write(("exchange", "shop", "x"), ExchangeRecord("fanout", False, False, {}))


class Deletes:
    """Whether this node is the one that deletes."""

    def __init__(self) -> None:
        self.store = VolatileMetadataStore()
        self.is_first = True
        self.bindings: list[Key] = []
        Ownerless(self.store, lambda: self.is_first, lambda vhost, queue: self.bindings)

    def said(self) -> list[Key]:
        return [stored.key for stored in self.store.records(())]


@pytest.fixture
def deletes() -> Deletes:
    return Deletes()


def test_what_belongs_to_somebody_stays(deletes: Deletes) -> None:
    deletes.store.transact([ANN, SHOP, MAY, EXCHANGE])
    assert len(deletes.said()) == 4


@pytest.mark.parametrize(
    ("late", "gone"),
    [(MAY, "user"), (MAY, "vhost"), (EXCHANGE, "vhost")],
    ids=["permission of a user", "permission in a virtual host", "exchange"],
)
def test_what_comes_after_its_owner_has_gone_goes_too(
    deletes: Deletes, late: Write, gone: str
) -> None:
    there = [one for one in (ANN, SHOP) if one.key[0] != gone]
    deletes.store.transact(there)
    deletes.store.transact([late])
    assert deletes.said() == [one.key for one in there]


@pytest.mark.parametrize("gone", [ANN, SHOP], ids=["user", "vhost"])
def test_what_the_one_who_deletes_did_not_know_of_goes_with_its_owner(
    deletes: Deletes, gone: Write
) -> None:
    deletes.store.transact([ANN, SHOP, MAY])
    deletes.store.transact([Write(gone.key, None)])
    assert MAY.key not in deletes.said() and len(deletes.said()) == 1


def test_a_binding_goes_with_its_queue(deletes: Deletes) -> None:
    queue = Write(("queue", "shop", "q"), QueueRecord(False, {}, 7))
    late = Write(("binding", "shop", "x", "queue", "q", "k", ""), BindingRecord({}))
    deletes.bindings.append(late.key)
    deletes.store.transact([SHOP, EXCHANGE, queue, late])
    deletes.store.transact([Write(queue.key, None)])
    assert deletes.said() == [EXCHANGE.key, SHOP.key]
    deletes.store.transact([late])
    assert deletes.said() == [EXCHANGE.key, SHOP.key]


def test_only_one_node_deletes(deletes: Deletes) -> None:
    deletes.is_first = False
    deletes.store.transact([MAY])
    assert deletes.said() == [MAY.key]
