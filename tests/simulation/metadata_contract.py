"""The contract of a metadata store, as tests that every kind of store runs.

A test module derives from `MetadataContract` and gives the fixture `opened`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from warren.core.definitions.records import (
    GlobalParameterRecord,
    PermissionRecord,
    VirtualHostRecord,
)
from warren.core.ports import Commit, Conflict, Key, MetadataStore, Precondition, Write


class Opened(NamedTuple):
    """A store, and what lets time pass until all its transactions are decided."""

    store: MetadataStore
    settle: Callable[[], None]

    def transact(self, writes: list[Write], preconditions: Sequence[Precondition] = ()) -> Commit:
        commit = self.store.transact(writes, preconditions)
        self.settle()
        return commit

    def put(self, *names: str) -> None:
        put(self.store, *names)
        self.settle()


def vhost(description: str = "") -> VirtualHostRecord:
    return VirtualHostRecord(description=description)


def put(store: MetadataStore, *names: str) -> None:
    store.transact([Write(("vhost", name), vhost()) for name in names])


def keys(store: MetadataStore, prefix: Key = ()) -> list[Key]:
    return [stored.key for stored in store.records(prefix)]


class MetadataContract:
    def test_a_written_record_can_be_read_with_its_version(self, opened: Opened) -> None:
        store = opened.store
        opened.transact([Write(("vhost", "/"), vhost("first"))])
        first = store.get(("vhost", "/"))
        opened.transact([Write(("vhost", "/"), vhost("second"))])
        stored = store.get(("vhost", "/"))
        assert first is not None and stored is not None and stored.version > first.version > 0
        assert stored[:2] == (("vhost", "/"), vhost("second"))
        assert store.get(("vhost", "other")) is None

    def test_records_come_in_key_order_and_only_under_the_prefix(self, opened: Opened) -> None:
        store = opened.store
        permission = PermissionRecord("", "", "")
        written: list[Key] = [
            ("permission", "bob", "v"),
            ("permission", "bo", "v"),
            ("permission", "bob", ""),
            ("permission", "bob\x00", "v"),
            ("permission", "alice", "w"),
        ]
        opened.transact([Write(key, permission) for key in written])
        opened.put("z", "a", "caf\udce9")
        assert keys(store, ("permission",)) == sorted(written)
        assert keys(store, ("permission", "bob")) == [
            ("permission", "bob", ""),
            ("permission", "bob", "v"),
        ]
        assert keys(store) == sorted([*written, *(("vhost", n) for n in ("a", "caf\udce9", "z"))])
        assert keys(store, ("vhost", "b")) == []
        assert keys(store, ("queue",)) == []

    def test_records_are_those_of_the_moment_of_the_call(self, opened: Opened) -> None:
        store = opened.store
        opened.put("a", "b", "c")
        for stored in store.records(("vhost",)):
            opened.transact([Write(stored.key, None)])
        assert keys(store) == []

    def test_a_precondition_that_fails_leaves_nothing_written(self, opened: Opened) -> None:
        store = opened.store
        opened.put("a")
        stored = store.get(("vhost", "a"))
        assert stored is not None
        with pytest.raises(Conflict, match=f"has version {stored.version}, wanted 0"):
            store.transact(
                [Write(("vhost", "b"), vhost())],
                [Precondition(("vhost", "c"), 0), Precondition(("vhost", "a"), 0)],
            )
        assert keys(store) == [("vhost", "a")]
        opened.transact(
            [Write(("vhost", "b"), vhost())], [Precondition(("vhost", "a"), stored.version)]
        )
        assert keys(store) == [("vhost", "a"), ("vhost", "b")]

    def test_a_key_that_is_deleted_and_made_anew_has_another_definition(
        self, opened: Opened
    ) -> None:
        store = opened.store
        opened.put("a", "a")
        opened.transact([Write(("vhost", "a"), None)])
        assert store.get(("vhost", "a")) is None
        opened.transact([Write(("vhost", "a"), vhost("anew"))])
        stored = store.get(("vhost", "a"))
        assert stored is not None and stored.record == vhost("anew")

    def test_a_commit_says_when_it_is_durable(self, opened: Opened) -> None:
        store = opened.store
        commit = store.transact([Write(("vhost", "a"), vhost())])
        called: list[bool] = []
        commit.then(lambda: called.append(commit.visible and not commit.refused))
        opened.settle()
        assert commit.done and called == [True]
        assert store.uncommitted() is None
        assert store.transact([]).done

    def test_watchers_hear_of_changes_under_their_prefix(self, opened: Opened) -> None:
        store = opened.store
        heard: list[tuple[Key, object | None]] = []
        stop = store.watch(("vhost",), lambda key, record: heard.append((key, record)))
        opened.put("a")
        opened.transact([Write(("global_parameter", "g"), GlobalParameterRecord(1))])
        opened.transact([Write(("vhost", "a"), None), Write(("vhost", "never there"), None)])
        assert heard == [(("vhost", "a"), vhost()), (("vhost", "a"), None)]
        stop()
        opened.put("b")
        assert len(heard) == 2

    def test_watchers_see_the_whole_transaction(self, opened: Opened) -> None:
        store = opened.store
        seen: list[list[Key]] = []
        store.watch(("vhost",), lambda key, record: seen.append(keys(store)))
        opened.put("a", "b")
        assert seen == [[("vhost", "a"), ("vhost", "b")]] * 2

    def test_what_a_watcher_writes_is_told_afterwards(self, opened: Opened) -> None:
        store = opened.store
        order: list[str] = []

        def write_more(key: Key, record: object | None) -> None:
            if key[1] == "a":
                put(store, "c")

        store.watch(("vhost",), write_more)
        store.watch(("vhost",), lambda key, record: order.append(key[1]))
        opened.put("a", "b")
        opened.settle()
        assert order == ["a", "b", "c"]
