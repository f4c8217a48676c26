"""The storage of a node with queues over it: its disk and its clock are simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from disk import SimulatedDisk
from jobs import Jobs
from manual_clock import ManualClock

from warren.core.backing.paging import Pager
from warren.core.backing.variable_queue import DEFAULT_MODE, VariableQueue
from warren.core.definitions.definition_table import CompletedCommit
from warren.core.messages.message import Envelope
from warren.core.messages.settlement import PublishConfirms
from warren.core.ports import Commit
from warren.persist.definitions.deleted_queues import DeletedQueues, Puts
from warren.persist.disk.group_commit import PendingCommit
from warren.persist.index.queue_index import QueueIndex
from warren.persist.layout.format import FILE_HEADER_BYTES
from warren.persist.log.store_context import StorageSizes, StoreContext
from warren.persist.recovery.recovery import Recovery
from warren.persist.storage.storage import NodeCalls, Storage, empty_transient

STORE = Path("/data/store")


NODE_ID = b"n" * 16


QUEUE, OTHER = 0x100, 0x200


LIMITS = StorageSizes(file_bytes_max=1 << 20, checkpoint_bytes=1 << 40, combine_bytes_min=1000)


class Publisher(PublishConfirms):
    """Remembers which publishes are safe, in order."""

    def __init__(self) -> None:
        self.settled: list[int] = []

    def refuse(self, publish_seq: int) -> None:
        raise AssertionError("a queue of this node never takes it back")

    def settle(self, publish_seq: int) -> None:
        self.settled.append(publish_seq)


class Node:
    """The storage of a node, with queues over it."""

    def __init__(
        self,
        disk: SimulatedDisk,
        limits: StorageSizes = LIMITS,
        defined: Sequence[int] = (),
        deleted: Sequence[int] = (),
        is_deleted: Callable[[int], bool] | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.disk = disk
        self.clock = clock or ManualClock()
        self.jobs = Jobs()
        self.publisher = Publisher()
        self.definitions: PendingCommit | None = None
        self.flow: list[bool] = []
        self.published = 0
        self.faults: list[BaseException] = []
        disk.make_directory(STORE)
        empty_transient(disk, STORE)
        recovery = Recovery(disk, STORE, NODE_ID, report=lambda progress: None)
        recovery.run()
        self.noted: list[Puts] = []
        deleted_queues = DeletedQueues(self._note)
        deleted_queues.noted.update(deleted)
        context = StoreContext(
            filesystem=disk,
            directory=STORE,
            node_id=NODE_ID,
            clock=self.clock,
            run_journal=self.jobs.lane("journal"),
            run_transient=self.jobs.lane("transient"),
            run_background=self.jobs.lane("background"),
            call_on_loop=self.jobs.call_on_loop,
            on_fault=self._fault,
            limits=limits,
        )
        self.storage = Storage.start(
            context,
            recovery,
            NodeCalls(definitions=lambda: self.definitions, on_flow=self.flow.append),
            deleted_queues,
        )
        self.memory_ratio = 0.0
        self.pager = Pager(self.clock, lambda: self.memory_ratio)
        self.stores: dict[int, QueueIndex] = {}
        self.queues: dict[int, VariableQueue] = {}
        self.open(QUEUE)
        self.open(OTHER)
        self.storage.settle_unclaimed(defined, is_deleted)

    def _fault(self, fault: BaseException) -> None:
        self.faults.append(fault)
        self.storage.abandon()

    def _note(self, puts: Puts) -> Commit:
        self.noted.append(puts)
        return CompletedCommit()

    def open(self, queue_id: int, mode: str = DEFAULT_MODE) -> VariableQueue:
        self.stores[queue_id] = self.storage.open(queue_id, durable=True)
        queue = VariableQueue(self.stores[queue_id], self.pager, mode=mode)
        self.queues[queue_id] = queue
        return queue

    def publish(self, body: bytes, *to: int) -> None:
        """Publish one persistent message to these queues; its confirm has its number."""
        envelope = Envelope("", "key", b"header", True, 0, None)
        self.published += 1
        for queue_id in to or (QUEUE,):
            self.queues[queue_id].publish(envelope, body, None, self.publisher, self.published)

    def turn(self) -> None:
        """What is to run on the loop runs; no thread does anything."""
        while self.jobs.waiting("loop"):
            self.jobs.step_lane("loop")
        self.clock.settle()

    def rest(self, seconds: float = 0.1) -> None:
        """Everything happens that is under way."""
        for _ in range(20):
            self.turn()
            self.jobs.run_all()
            self.clock.advance(seconds / 20)
        self.turn()

    def checkpoint(self) -> None:
        taken = self.storage.checkpointer.taken
        self.storage.checkpointer.request()
        self.rest()
        assert self.storage.checkpointer.taken > taken

    def stop(self) -> None:
        for queue in self.queues.values():
            queue.stop()
        self.storage.stop()
        self.jobs.run_all()
        self.storage.close()

    def written(self) -> int:
        """Octets on the disk in the log."""
        return sum(
            size - FILE_HEADER_BYTES
            for path, size in self.disk.files().items()
            if path.parent == STORE / "log"
        )


def bodies(queue: VariableQueue) -> list[bytes]:
    return [message.body for message in queue.fetch_many(queue.length)]


def numbered(number: int, size: int) -> bytes:
    return b"%08d" % number * (size // 8)


def span(node: Node, start: int, end: int) -> tuple[int, int]:
    """Positions of the messages published as number start to end since the node started."""
    first = node.stores[QUEUE].first_position()
    return first + start, first + end
