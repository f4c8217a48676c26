"""An in-memory stand-in for etcd: several nodes' metadata stores over one shared history.

What a transaction is, and when its commit is done, is the code that also runs over etcd
(`mirror/definitions/shared_definitions.py`); this module decides batches and carries them. Nothing
happens by itself: every message between a node and the history is handed to `schedule` together
with the name of the line it is on, and arrives when the step is called. Steps may be called late,
in any order between lines, or never; on one line messages arrive in the order they were sent.  A
node has three lines: `<node>/requests` to the history, `<node>/answers` back, and `<node>/history`
with the revisions. Answers and revisions overtake each other freely, as those of etcd do on two
connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from warren.core.definitions.definition_table import Change
from warren.core.definitions.record_format import encode_path
from warren.core.ports import Key
from warren.mirror.definitions.codec import decode_definition
from warren.mirror.definitions.shared_definitions import SharedDefinitions, WritePiece

Step: TypeAlias = Callable[[], None]
Schedule: TypeAlias = Callable[[str, Step], None]


class Line:
    """A connection in one direction: first in, first out, whichever step is called first."""

    def __init__(self, name: str, schedule: Schedule) -> None:
        self._name = name
        self._schedule = schedule
        self._underway: deque[Step] = deque()
        self._broken = False

    def send(self, deliver: Step) -> None:
        if not self._broken:
            self._underway.append(deliver)
            self._schedule(self._name, self._arrive)

    def break_off(self) -> None:
        """What is under way never arrives, nor does anything sent later."""
        self._broken = True
        self._underway.clear()

    def _arrive(self) -> None:
        if self._underway:
            self._underway.popleft()()


class SharedHistory:
    """What etcd would hold. `revisions[n]` are the changes of revision n + 1."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.revisions: list[list[Change]] = []
        self._definitions: dict[Key, Change] = {}
        # In key order, as long as nothing has changed.
        self._sorted: list[Change] | None = None
        self._stores: dict[str, SimulatedMetadataStore] = {}

    @property
    def revision(self) -> int:
        return len(self.revisions)

    def definitions(self) -> list[Change]:
        """The newest state, in key order. Not to be changed."""
        if self._sorted is None:
            self._sorted = [self._definitions[key] for key in sorted(self._definitions)]
        return self._sorted

    def open(self, node: str) -> SimulatedMetadataStore:
        """The store of a node that starts, holding all there is.

        What an earlier store of that node has under way can no longer be decided.
        """
        earlier = self._stores.pop(node, None)
        if earlier is not None:
            earlier.break_off()
        store = SimulatedMetadataStore(self, node, self._schedule)
        self._stores[node] = store
        return store

    def close(self, node: str, store: SimulatedMetadataStore) -> None:
        """The node is gone. A request that it sent may still arrive and be decided."""
        if self._stores.get(node) is store:
            store.hear_nothing_more()

    def decide(self, batch: Sequence[WritePiece]) -> list[bool]:
        """Take, at a new revision, those whose preconditions held before it."""
        taken = [
            all(self._version(key) == version for key, version in piece.preconditions)
            for piece in batch
        ]
        changes: list[Change] = []
        for piece, is_taken in zip(batch, taken, strict=True):
            if is_taken:
                changes += self._take(piece)
        self.revisions.append(changes)
        for store in self._stores.values():
            store.hear(self.revision, changes)
        return taken

    def _take(self, piece: WritePiece) -> list[Change]:
        self._sorted = None
        changes = []
        for key, value in piece.writes:
            if value is not None:
                change = decode_definition(encode_path(key), value, self.revision + 1)
                self._definitions[key] = change
                changes.append(change)
            elif self._definitions.pop(key, None) is not None:
                changes.append(Change(key, None))
        return changes

    def _version(self, key: Key) -> int:
        change = self._definitions.get(key)
        return change.stored.version if change is not None and change.stored is not None else 0


class SimulatedMetadataStore(SharedDefinitions):
    """One node's `core.ports.MetadataStore`. Made by `SharedHistory.open`."""

    def __init__(self, history: SharedHistory, node: str, schedule: Schedule) -> None:
        super().__init__()
        self._history = history
        self._node = node
        self._requests = Line(f"{node}/requests", schedule)
        self._answers = Line(f"{node}/answers", schedule)
        self._revisions = Line(f"{node}/history", schedule)
        self._carrying = False
        definitions = history.definitions()
        self._load([change.stored for change in definitions if change.stored is not None])
        self._revision = history.revision

    def close(self) -> None:
        """As if the node died: nothing arrives any more, its commits stay as they are."""
        self._history.close(self._node, self)

    def hear(self, revision: int, changes: Sequence[Change]) -> None:
        self._revisions.send(lambda: self.advance(revision, changes))

    def hear_nothing_more(self) -> None:
        self._answers.break_off()
        self._revisions.break_off()

    def break_off(self) -> None:
        """Nothing this store has sent or will send arrives."""
        self._requests.break_off()
        self.hear_nothing_more()

    def _wake(self) -> None:
        if not self._carrying:
            self._carry()

    def _carry(self) -> None:
        batch = self.next_batch()
        self._carrying = bool(batch)
        if batch:
            self._requests.send(lambda: self._decide(batch))

    def _decide(self, batch: Sequence[WritePiece]) -> None:
        taken = self._history.decide(batch)
        revision = self._history.revision
        self._answers.send(lambda: self._answered(taken, revision))

    def _answered(self, taken: Sequence[bool], revision: int) -> None:
        self.batch_decided(taken, revision)
        self._carry()
