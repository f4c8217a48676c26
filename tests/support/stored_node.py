"""A data directory as a node leaves it, with everything in it that a storage can hold.

The storage and the definitions are the real ones on the real disk; jobs run where they are
handed over, and time passes when the test says so.
"""

from __future__ import annotations

from pathlib import Path

from manual_clock import ManualClock

from warren.core.definitions.records import QueueRecord
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.ports import Write
from warren.persist.definitions.metadata import LmdbMetadataStore
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.index.queue_index import QueueIndex
from warren.persist.log.store_context import StorageSizes, StoreContext
from warren.persist.recovery.recovery import STORE_DIRECTORY, Recovery
from warren.persist.storage.storage import NodeCalls, Storage, empty_transient

LIMITS = StorageSizes(file_bytes_max=65536, checkpoint_bytes=1 << 40, combine_bytes_min=1000)

ORDERS, INVOICES, EMPTY = 0x100, 0x200, 0x300
NAMES = {ORDERS: "orders", INVOICES: "invoices", EMPTY: "empty"}


class Confirms(PublishConfirms):
    """Counts the publishes that are safe."""

    def __init__(self) -> None:
        self.settled = 0

    def refuse(self, publish_seq: int) -> None:
        raise AssertionError("a queue of this node never takes it back")

    def settle(self, publish_seq: int) -> None:
        self.settled += 1


class StoredNode:
    """A node without connections; started when made. `header` is that of what is published."""

    def __init__(self, path: Path, header: bytes = b"header") -> None:
        self.header = header
        self.clock = ManualClock()
        self.directory = DataDirectory.open(path)
        self.metadata = LmdbMetadataStore(
            self.directory,
            call_on_loop=lambda callback: callback(),
            call_later=self.clock.call_later,
            sync_thread=None,
        )
        self.metadata.transact(
            [Write(("queue", "/", name), QueueRecord(False, {}, at)) for at, name in NAMES.items()]
        )
        filesystem = RealFileSystem()
        store = path / STORE_DIRECTORY
        node_id = bytes.fromhex(self.directory.node_id)
        empty_transient(filesystem, store)
        recovery = Recovery(filesystem, store, node_id, report=lambda progress: None)
        recovery.run()
        context = StoreContext(
            filesystem=filesystem,
            directory=store,
            node_id=node_id,
            clock=self.clock,
            run_journal=lambda job: job(),
            run_transient=lambda job: job(),
            run_background=lambda job: job(),
            call_on_loop=lambda callback: callback(),
            limits=LIMITS,
        )
        self.storage = Storage.start(context, recovery, NodeCalls())
        self.queues = {at: self.storage.open(at, durable=True) for at in NAMES}
        self.storage.settle_unclaimed((), lambda queue_id: True)
        self.positions = {at: queue.first_position() for at, queue in self.queues.items()}
        self.confirms = Confirms()

    def publish(self, body: bytes, *queues: int, expires_at: float | None = None) -> None:
        """Publish a message to these queues at once."""
        envelope = Envelope("trade", "eu.de", self.header, True, 0, None)
        for at in queues:
            message = Message(envelope, body, self.positions[at], expires_at)
            self.positions[at] += 1
            self.queues[at].write(message, self.confirms, 1)

    def flush(self) -> None:
        """Let the journal be written."""
        self.clock.settle()
        self.clock.advance(0.1)

    def remove(self, queue: int, start: int, end: int) -> None:
        """Remove the messages published to the queue as number start to end."""
        index: QueueIndex = self.queues[queue]
        index.remove_range(index.first_position() + start, index.first_position() + end)

    def checkpoint(self) -> None:
        self.storage.checkpointer.request()
        self.flush()

    def stop(self) -> None:
        """As on SIGTERM."""
        for index in self.queues.values():
            index.close(index.first_position())
        self.storage.stop()
        self.storage.close()
        self.die()

    def die(self) -> None:
        """As with SIGKILL, as far as the files go."""
        self.metadata.close()
        self.directory.close()


def fill(path: Path, header: bytes = b"header") -> StoredNode:
    """A node with combined files, whole ones, a checkpoint, and a journal after it.

    Orders 0-399 and 500-519 are small, 400-429 large and also invoices 0-29; of the first 300 every
    tenth is left.
    """
    node = StoredNode(path, header)
    for number in range(400):
        node.publish(b"%06d" % number * 100, ORDERS)
        if number % 50 == 49:
            node.flush()
    for number in range(30):
        node.publish(b"%06d" % number * 1000, ORDERS, INVOICES)
        node.flush()
    for number in range(300):
        if number % 10:
            node.remove(ORDERS, number, number + 1)
    node.flush()
    node.checkpoint()
    node.flush()
    assert node.storage.combiners[0].combined, "no file was written anew"
    for number in range(20):
        node.publish(b"late %d" % number, ORDERS, expires_at=node.clock.now() + 1000)
        node.flush()
    node.remove(INVOICES, 0, 5)
    node.flush()
    return node
