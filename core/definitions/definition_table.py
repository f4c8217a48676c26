"""The definitions of a node in memory: every metadata store answers its reads from this table.

Answerable for versions, preconditions, the order of keys and the telling of watchers; not for
durability, which a store adds by saying in `_persist` what becomes of the changes of a
transaction.

Theory: a transaction is first worked out (which key gets which version), then handed to
`_persist`, then applied, then told to the watchers. `_persist` may refuse by raising, and then
nothing has happened. A watcher is called once the whole transaction is visible; what it writes
itself is told after everything it has not been told yet, so all watchers see one order of events.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from warren.core.definitions.records import RECORD_TYPES
from warren.core.ports import Commit, Conflict, Key, Precondition, Stored, UnreadableText, Write

Watcher: TypeAlias = Callable[[Key, object | None], None]


class Change(NamedTuple):
    """What one write of a transaction does to its key; `stored` is None when it deletes it."""

    key: Key
    stored: Stored | None
    transient: bool = False


class CompletedCommit:
    """The commit of a change that needs no disk, or that has reached it already."""

    __slots__ = ()

    @property
    def done(self) -> bool:
        return True

    @property
    def visible(self) -> bool:
        return True

    @property
    def refused(self) -> bool:
        return False

    def then(self, callback: Callable[[], None]) -> None:
        callback()


class DefinitionTable:
    """Implements `MetadataStore` but for `uncommitted`, `close` and `_persist`."""

    def __init__(self) -> None:
        self.unreadable: dict[bytes, UnreadableText] = {}
        """Definitions that cannot be used, by their keys where they are kept."""
        self._stored: dict[Key, Stored] = {}
        self._keys_of_kind: dict[str, list[Key]] = {}
        self._transient: set[Key] = set()
        self._watchers: dict[Key, dict[object, Watcher]] = {}
        self._untold: deque[Change] = deque()
        self._telling = False

    def get(self, key: Key) -> Stored | None:
        return self._stored.get(key)

    def records(self, prefix: Key) -> Iterator[Stored]:
        """All definitions under the prefix in key order, as they were when this was called."""
        kinds = prefix[:1] or sorted(self._keys_of_kind)
        found: list[Stored] = []
        for kind in kinds:
            keys = self._keys_of_kind.get(kind, [])
            found += [self._stored[key] for key in _under(prefix, keys)]
        return iter(found)

    def keys(self, prefix: Key) -> list[Key]:
        return _under(prefix, self._keys_of_kind.get(prefix[0], []))

    def snapshot(self) -> tuple[list[Stored], frozenset[Key]]:
        """All definitions as they are now, and which keys do not last; quick, however many."""
        return list(self._stored.values()), frozenset(self._transient)

    def transact(
        self, writes: Sequence[Write], preconditions: Sequence[Precondition] = ()
    ) -> Commit:
        self._check(preconditions)
        changes = self._changes(writes)
        durable = [change for change in changes if not change.transient]
        if durable:
            commit = self._persist(durable)
        else:
            commit = CompletedCommit() if changes else self.uncommitted() or CompletedCommit()
        for change in changes:
            self._apply(change)
        self._tell(changes)
        return commit

    def watch(self, prefix: Key, callback: Watcher) -> Callable[[], None]:
        token = object()
        self._watchers.setdefault(prefix, {})[token] = callback

        def stop() -> None:
            watchers = self._watchers.get(prefix, {})
            if watchers.pop(token, None) is not None and not watchers:
                del self._watchers[prefix]

        return stop

    def uncommitted(self) -> Commit | None:
        raise NotImplementedError

    def _persist(self, changes: Sequence[Change]) -> Commit:
        """Take the lasting changes of a transaction to where they survive; raise to refuse them."""
        raise NotImplementedError

    def _load(self, stored: Iterable[Stored]) -> None:
        """Fill an empty table with stored definitions; watchers are not told."""
        assert not self._stored
        for item in stored:
            self._stored[item.key] = item
            self._keys_of_kind.setdefault(item.key[0], []).append(item.key)
        for keys in self._keys_of_kind.values():
            keys.sort()

    def _check(self, preconditions: Sequence[Precondition]) -> None:
        for key, version in preconditions:
            current = self._stored.get(key)
            current_version = current.version if current is not None else 0
            if current_version != version:
                raise Conflict(f"{key} has version {current_version}, wanted {version}")

    def _changes(self, writes: Sequence[Write]) -> list[Change]:
        """The writes in order, with versions; deleting a missing definition changes nothing."""
        changes: list[Change] = []
        within: dict[Key, Change] = {}
        for key, record, transient in writes:
            assert record is None or type(record) is RECORD_TYPES[key[0]], (key, record)
            before = within.get(key) or Change(key, self._stored.get(key), key in self._transient)
            current = before.stored
            if current is None and record is None:
                continue
            version = current.version + 1 if current is not None else 1
            stored = None if record is None else Stored(key, record, version)
            if current is not None:
                transient = before.transient
            within[key] = change = Change(key, stored, transient)
            changes.append(change)
        return changes

    def _apply(self, change: Change) -> None:
        key, stored, transient = change
        keys = self._keys_of_kind.setdefault(key[0], [])
        if stored is None:
            del self._stored[key]
            del keys[bisect_left(keys, key)]
            self._transient.discard(key)
            return
        if key not in self._stored:
            insort(keys, key)
            if transient:
                self._transient.add(key)
        self._stored[key] = stored

    def _tell(self, changes: Sequence[Change]) -> None:
        self._untold.extend(changes)
        if self._telling:
            return
        self._telling = True
        try:
            while self._untold:
                self._tell_watchers_of(self._untold.popleft())
        finally:
            self._telling = False

    def _tell_watchers_of(self, change: Change) -> None:
        key, stored, _ = change
        record = stored.record if stored is not None else None
        for length in range(len(key) + 1):
            watchers = self._watchers.get(key[:length])
            if watchers is None:
                continue
            for token, callback in list(watchers.items()):
                # A watcher that was called before may have stopped this one.
                if token in watchers:
                    callback(key, record)


def _under(prefix: Key, keys: list[Key]) -> list[Key]:
    """The slice of sorted keys that start with the prefix."""
    length = len(prefix)
    start = bisect_left(keys, prefix)
    end = bisect_right(keys, prefix, lo=start, key=lambda key: key[:length])
    return keys[start:end]
