"""What a publisher is told while definitions are on their way to a slow disk: a whole broker."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from disk import SimulatedDisk
from manual_clock import ManualClock
from pamqp import commands
from pipe import Broker, Client
from stores import SlowMetadataStore

from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.backing.paging import Pager
from warren.core.backing.variable_queue import VariableQueue
from warren.core.field import Field, Table
from warren.core.scheduling.waiting import at_risk
from warren.persist.log.store_context import StoreContext
from warren.persist.recovery.recovery import Recovery
from warren.persist.storage.storage import NodeCalls, Storage, empty_transient

STORE = Path("/data/store")
NODE_ID = b"n" * 16


class StoredBroker(Broker):
    """Its messages are on a disk that is quick, its definitions on one that may be slow."""

    def __init__(self) -> None:
        self.definitions = SlowMetadataStore()
        clock = ManualClock()
        disk = SimulatedDisk(Random(1))
        disk.make_directory(STORE)
        empty_transient(disk, STORE)
        recovery = Recovery(disk, STORE, NODE_ID, report=lambda progress: None)
        recovery.run()
        context = StoreContext(
            filesystem=disk,
            directory=STORE,
            node_id=NODE_ID,
            clock=clock,
            run_journal=lambda job: job(),
            run_transient=lambda job: job(),
            run_background=lambda job: job(),
            call_on_loop=lambda callback: callback(),
        )
        self.storage = Storage.start(
            context, recovery, NodeCalls(definitions=lambda: at_risk(self.definitions))
        )
        self.pager = Pager(clock, lambda: 0.0)
        super().__init__(
            clock=clock, metadata=self.definitions, new_backing_queue=self._backing_queue
        )

    def _backing_queue(self, spec: BackingSpec) -> BackingQueue:
        store = self.storage.open(spec.queue_id, durable=spec.durable)
        return VariableQueue(store, self.pager, mode=spec.mode)


@pytest.fixture
def broker() -> StoredBroker:
    return StoredBroker()


def connects(broker: StoredBroker) -> Client:
    client = broker.connects()
    client.opens_channel(1)
    return client


def is_confirmed(publisher: Client, queue: str) -> bool:
    """Whether a message that is published now is confirmed before time passes."""
    publisher.publishes(queue, delivery_mode=2, priority=2)
    acks = [frame for frame in publisher.frames() if isinstance(frame.method, commands.Basic.Ack)]
    return bool(acks)


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": Field("l", 3)}])
def test_a_message_is_confirmed_when_its_own_queue_is_on_disk(
    broker: StoredBroker, arguments: Table
) -> None:
    declaring, publisher = connects(broker), connects(broker)
    declaring.declares("old", durable=True)
    publisher.selects_confirms()
    broker.definitions.slow = True
    declaring.sends(commands.Queue.Declare, queue="new", durable=True, arguments=arguments)
    declaring.receives_nothing()
    assert is_confirmed(publisher, "old")
    assert not is_confirmed(publisher, "new")
    declaring.sends(commands.Queue.Declare, queue="newer", durable=True)
    broker.definitions.complete()
    assert publisher.receives(commands.Basic.Ack).delivery_tag == 2
    assert declaring.receives(commands.Queue.DeclareOk).queue == "new"
    declaring.receives_nothing()
    assert is_confirmed(publisher, "new")
    assert not is_confirmed(publisher, "newer")


def test_a_queue_of_the_same_name_is_another_queue(broker: StoredBroker) -> None:
    declaring, publisher = connects(broker), connects(broker)
    declaring.declares("q", durable=True)
    publisher.selects_confirms()
    broker.definitions.slow = True
    declaring.sends(commands.Queue.Delete, queue="q")
    declaring.sends(commands.Queue.Declare, queue="q", durable=True)
    broker.settle()
    assert not is_confirmed(publisher, "q")
    broker.definitions.complete()
    publisher.receives_nothing()
    broker.definitions.complete()
    assert publisher.receives(commands.Basic.Ack).delivery_tag == 1
