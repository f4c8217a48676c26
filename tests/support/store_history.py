"""A store to which things happen at random."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

from stored_node import INVOICES, NAMES, ORDERS, StoredNode

from warren.persist.disk.filesystem import RealFile, RealFileSystem
from warren.persist.layout.format import SEGMENT_ENTRIES
from warren.spark_export.snapshot.creation import Creation
from warren.spark_export.snapshot.log_links import Linker
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import Snapshot

BUSY = 0.5


"""How often something happens between two steps."""


class History:
    """A node, what it was told, and what of that is on its disk."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = Random(seed)
        self.returns = Random(seed)
        self.path = path
        self.node = StoredNode(path)
        self.published: dict[int, dict[int, bytes]] = {queue: {} for queue in NAMES}
        self.alive: dict[int, dict[int, bytes]] = {queue: {} for queue in NAMES}
        self.met: Counter[str] = Counter()
        self.within = False

    def act(self) -> None:
        """Something happens, or nothing."""
        if self.random.random() < BUSY:
            choice = self.random.choices(
                [self.publish, self.remove, self.node.flush, self.checkpoint, self.next_segment],
                [4, 5, 3, 3, 1],
            )[0]
            choice()
            if self.returns.random() < 0.1:
                self.give_back()

    def publish(self) -> None:
        random = self.random
        both = random.random() < 0.2
        queues = (ORDERS, INVOICES) if both else (random.choice((ORDERS, INVOICES)),)
        for _ in range(random.randrange(1, 40)):
            size = random.choice((10, 300, 3000, 6000))
            positions = [self.node.positions[queue] for queue in queues]
            body = (b"%r" % positions).ljust(size, b".")
            for queue, position in zip(queues, positions, strict=True):
                self.published[queue][position] = self.alive[queue][position] = body
            self.node.publish(body, *queues)

    def remove(self) -> None:
        """Mostly the oldest, as consumers do; now and then all, or some in the middle."""
        queue = self.random.choice((ORDERS, INVOICES))
        positions = sorted(self.alive[queue])
        if not positions:
            return
        first = 0 if self.random.random() < 0.8 else self.random.randrange(len(positions))
        most = len(positions) if self.random.random() < 0.15 else min(60, len(positions))
        chosen = positions[first : first + self.random.randrange(1, most + 1)]
        self.node.queues[queue].remove_range(chosen[0], chosen[-1] + 1)
        for position in chosen:
            del self.alive[queue][position]

    def give_back(self) -> None:
        """Messages are returned to the queue, which says how often they were."""
        queue = self.returns.choice((ORDERS, INVOICES))
        index = self.node.queues[queue]
        for position in list(self.alive[queue])[:3]:
            index.delivery_counts[position] = index.delivery_counts.get(position, 0) + 1
            index.counts_changed([position])

    def checkpoint(self) -> None:
        before = self.node.storage.combiners[0].combined
        self.node.flush()
        self.node.checkpoint()
        self.node.flush()
        self.met["combined"] += self.node.storage.combiners[0].combined > before

    def next_segment(self) -> None:
        queue = self.random.choice((ORDERS, INVOICES))
        self.node.positions[queue] += SEGMENT_ENTRIES - self.node.positions[queue] % SEGMENT_ENTRIES

    def snapshot(self, linker: Linker) -> Snapshot:
        """Taken while things happen."""
        creation = Creation(
            self.path,
            QueueSelector(),
            600,
            None,
            False,
            filesystem=SteppingFileSystem(self),
            linker=linker,
            pause=lambda seconds: self.act(),
        )
        return creation.run()


class SteppingFileSystem(RealFileSystem):
    """What the snapshot reads with."""

    def __init__(self, history: History) -> None:
        self._history = history

    def open(self, path: Path, *, writable: bool = True) -> RealFile:
        assert not writable
        self._history.act()
        try:
            return super().open(path, writable=writable)
        except FileNotFoundError:
            self._history.met[f"{path.suffix} gone before it was opened"] += 1
            raise

    def names(self, directory: Path) -> list[str]:
        self._history.act()
        return super().names(directory)


class SteppingLinker(Linker):
    def __init__(self, history: History, linker: Linker) -> None:
        self._history = history
        self._linker = linker

    def put(self, source: Path, target: Path) -> None:
        self._history.act()
        try:
            self._linker.put(source, target)
        except FileNotFoundError:
            self._history.met["gone before it was linked"] += 1
            raise
