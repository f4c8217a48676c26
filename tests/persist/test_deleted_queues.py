"""What a node notes of queues that were deleted, in its own definitions and in its replica."""

from __future__ import annotations

from pathlib import Path

import pytest
from definition_stores import Timers, here, open_store

from warren.core.definitions.definition_table import Change
from warren.core.definitions.records import (
    QueueRecord,
)
from warren.core.ports import Stored, Write
from warren.persist.definitions.metadata_replica import LmdbReplica
from warren.persist.disk.data_directory import (
    DataDirectory,
)


class TestDeletedQueues:
    """That a queue was deleted is written down with its deletion."""

    def test_a_deletion_is_noted_until_it_is_forgotten(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        queues = {name: QueueRecord(False, {}, 0x100 * at) for at, name in enumerate("abc", 1)}
        store.transact([Write(("queue", "/", name), record) for name, record in queues.items()])
        store.transact([Write(("queue", "/", name), None) for name in "ab"])
        store.close()
        store = open_store(tmp_path)
        assert store.deleted_queues.noted == {0x100, 0x200}
        assert 0x100 in store.deleted_queues and 0x300 not in store.deleted_queues
        store.deleted_queues.forget({0x100})
        store.deleted_queues.note([0x400])
        store.close()
        store = open_store(tmp_path)
        assert store.deleted_queues.noted == {0x200, 0x400}
        assert [stored.key for stored in store.records(())] == [("queue", "/", "c")]
        store.close()

    def test_a_queue_that_takes_the_name_of_a_deleted_one_is_another(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        key = ("queue", "/", "q")
        for queue_id in (0x100, 0x200):
            store.transact([Write(key, QueueRecord(False, {}, queue_id))])
            store.transact([Write(key, None)])
        store.transact([Write(key, QueueRecord(False, {}, 0x300))])
        store.transact([Write(key, QueueRecord(False, {}, 0x300, mirrors=["other"]))])
        store.close()
        store = open_store(tmp_path)
        assert store.deleted_queues.noted == {0x100, 0x200}
        store.close()

    def test_a_definition_that_comes_back_takes_the_note_away(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        for record in (QueueRecord(False, {}, 0x100), None, QueueRecord(False, {}, 0x100)):
            store.transact([Write(("queue", "/", "q"), record)])
        store.close()
        store = open_store(tmp_path)
        assert store.deleted_queues.noted == set()
        store.close()

    def test_queues_that_do_not_last_leave_no_note(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        for record in (
            QueueRecord(False, {}, 0x100, durable=False),
            QueueRecord(False, {}, 0x200, exclusive=True),
        ):
            store.transact([Write(("queue", "/", "q"), record)])
            store.transact([Write(("queue", "/", "q"), None)])
        store.close()
        store = open_store(tmp_path)
        assert store.deleted_queues.noted == set()
        store.close()


class TestDeletedQueuesOfAMember:
    """What the copy of the cluster's definitions says of storages of this node."""

    def opened(self, path: Path) -> LmdbReplica:
        directory = DataDirectory.open(path)
        timers = Timers()
        replica = LmdbReplica(
            directory,
            "here",
            call_on_loop=here,
            call_later=timers.call_later,
            sync_thread=None,
        )
        close = replica.close

        def close_both() -> None:
            close()
            directory.close()

        replica.close = close_both  # type: ignore[method-assign]
        return replica

    def saved(self, name: str, record: QueueRecord | None, version: int = 1) -> Change:
        key = ("queue", "/", name)
        return Change(key, None if record is None else Stored(key, record, version))

    def filled(self, path: Path) -> LmdbReplica:
        """It led `led`, mirrored `mirrored`, and had nothing of `other`."""
        replica = self.opened(path)
        replica.reset("cluster")
        led = QueueRecord(False, {}, 0x100, leader="here")
        mirrored = QueueRecord(False, {}, 0x200, leader="there", stores={"here": 0x300})
        other = QueueRecord(False, {}, 0x400, leader="there")
        changes = [("led", led), ("mirrored", mirrored), ("other", other)]
        replica.save(5, [self.saved(name, record) for name, record in changes])
        return replica

    @pytest.mark.parametrize("left", [0, 100, 5000, 10_000])
    def test_a_damaged_copy_is_discarded_and_begun_anew(self, tmp_path: Path, left: int) -> None:
        self.filled(tmp_path).close()
        file = tmp_path / "cluster-metadata" / "data.mdb"
        file.write_bytes(file.read_bytes()[:left])
        replica = self.opened(tmp_path)
        assert replica.load() is None
        replica.reset("cluster")
        replica.save(9, [self.saved("led", QueueRecord(False, {}, 0x100, leader="here"))])
        replica.close()
        replica = self.opened(tmp_path)
        loaded = replica.load()
        assert loaded is not None and loaded.revision == 9
        replica.close()

    def test_only_storages_of_this_node_are_noted(self, tmp_path: Path) -> None:
        """What a mirror retains goes by the id of the queue, and not by that of its copy."""
        replica = self.filled(tmp_path)
        replica.deleted_queues.retaining |= {0x200, 0x900}
        replica.save(6, [self.saved(name, None) for name in ("led", "mirrored", "other")])
        replica.close()
        replica = self.opened(tmp_path)
        assert replica.load() is not None
        assert replica.deleted_queues.noted == {0x100, 0x200, 0x300}
        replica.deleted_queues.forget({0x100})
        replica.close()
        replica = self.opened(tmp_path)
        loaded = replica.load()
        assert loaded is not None and loaded.revision == 6
        assert replica.deleted_queues.noted == {0x200, 0x300}
        replica.close()

    def test_copies_that_are_kept_from_earlier_are_noted_when_their_queue_goes(
        self, tmp_path: Path
    ) -> None:
        replica = self.filled(tmp_path)
        copies = {0x200: frozenset({0x300, 0x500}), 0x400: frozenset({0x400, 0x600})}
        replica.deleted_queues.copies_of = lambda queue_id: copies.get(queue_id, frozenset())
        moved = QueueRecord(False, {}, 0x200, leader="there")
        replica.save(6, [self.saved("mirrored", moved), self.saved("other", None)])
        replica.close()
        replica = self.opened(tmp_path)
        assert replica.load() is not None
        # The definition of `mirrored` does not name its copy here any more; the queue is there.
        assert replica.deleted_queues.noted == {0x300, 0x400, 0x600}
        replica.close()

    def test_what_the_cluster_had_and_has_no_more_was_deleted(self, tmp_path: Path) -> None:
        self.filled(tmp_path).close()
        replica = self.opened(tmp_path)
        replica.load()
        assert {0x100, 0x300} <= replica.deleted_queues.former
        # The history in between is gone: everything is read anew.
        replica.reset("cluster")
        replica.save(9, [self.saved("led", QueueRecord(False, {}, 0x100, leader="here"))])
        replica.close()
        replica = self.opened(tmp_path)
        replica.load()
        assert 0x300 in replica.deleted_queues and 0x100 not in replica.deleted_queues.noted
        replica.close()

    def test_another_cluster_says_nothing_about_the_storages_of_this_one(
        self, tmp_path: Path
    ) -> None:
        self.filled(tmp_path).close()
        replica = self.opened(tmp_path)
        replica.load()
        replica.reset("another")
        assert not replica.deleted_queues.former
        replica.save(9, [])
        replica.close()
        replica = self.opened(tmp_path)
        replica.load()
        assert 0x100 not in replica.deleted_queues and 0x300 not in replica.deleted_queues
        replica.close()
