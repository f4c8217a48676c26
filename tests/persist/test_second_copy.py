"""The second copy of the definitions, and the repair of a lost or damaged file with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import lmdb
import pytest
from disk import SimulatedDisk
from jobs import Jobs
from manual_clock import ManualClock

from warren.core.definitions.definition_table import CompletedCommit, DefinitionTable
from warren.core.definitions.records import QueueRecord, VirtualHostRecord
from warren.core.ports import Commit, Key, UnreadableText, Write
from warren.persist.definitions.database import DamagedMetadata
from warren.persist.definitions.metadata import LmdbMetadataStore, decode_definition
from warren.persist.definitions.repair import repair
from warren.persist.definitions.second_copy import (
    DELAY_S,
    FILE,
    SLICE_ENTRIES,
    SecondCopy,
    expect_definitions,
    read_copy,
)
from warren.persist.disk.data_directory import DataDirectory, DataDirectoryRefused
from warren.persist.disk.filesystem import RealFileSystem

NODE_ID = b"n" * 16
DIRECTORY = Path("/data")


class Table(DefinitionTable):
    def uncommitted(self) -> Commit | None:
        return None

    def _persist(self, changes: object) -> Commit:
        return CompletedCommit()


class Copied:
    """A table with its copy on a simulated disk; the thread runs when the test says so."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.disk.make_directory(DIRECTORY)
        self.clock = ManualClock()
        self.jobs = Jobs()
        self.table = Table()
        self.pauses = 0
        self.copy = SecondCopy(
            self.table,
            self.disk,
            DIRECTORY,
            NODE_ID,
            run=self.jobs.lane("copy"),
            call_on_loop=self.jobs.call_on_loop,
            call_later=self.clock.call_later,
            pause=self._pause,
            measure=lambda: 0.0,
        )

    def _pause(self, seconds: float) -> None:
        self.pauses += 1

    def declare(self, *names: str, transient: bool = False) -> None:
        for name in names:
            self.table.transact([Write(("vhost", name), VirtualHostRecord(), transient)])

    def wait(self) -> None:
        self.clock.advance(DELAY_S + 0.1)
        self.jobs.run_all()

    def content(self, tmp_path: Path) -> list[Key]:
        """What a reader finds, of the file as it is on the simulated disk."""
        file = self.disk.open(DIRECTORY / FILE, writable=False)
        (tmp_path / FILE).write_bytes(file.read(0, file.size()))
        file.close()
        copy = read_copy(tmp_path, NODE_ID)
        assert copy is not None and copy.damage is None
        return sorted(decode_definition(key, value).key for key, value in copy.entries)


def vhosts(*names: str) -> list[Key]:
    return [("vhost", name) for name in names]


def test_the_copy_has_the_newest_state_some_seconds_after_a_change(tmp_path: Path) -> None:
    copied = Copied()
    copied.declare("a", "b")
    copied.declare("brief", transient=True)
    assert (copied.copy.written, copied.jobs.waiting("copy")) == (0, 0)
    copied.wait()
    assert copied.content(tmp_path) == vhosts("a", "b")
    for number in range(100):
        copied.declare(f"c{number}")
    copied.table.transact([Write(("vhost", "a"), None)])
    copied.wait()
    # One copy for all of them, and none while nothing changes.
    assert copied.copy.written == 2
    assert len(copied.content(tmp_path)) == 101
    copied.clock.advance(60)
    assert not copied.jobs.waiting("copy")


def test_what_changes_while_a_copy_is_written_is_in_the_next(tmp_path: Path) -> None:
    copied = Copied()
    copied.declare("a")
    copied.clock.advance(DELAY_S + 0.1)
    copied.declare("b")
    copied.jobs.run_all()
    assert copied.content(tmp_path) == vhosts("a")
    copied.wait()
    assert copied.content(tmp_path) == vhosts("a", "b")


def test_many_definitions_are_copied_in_slices(tmp_path: Path) -> None:
    copied = Copied()
    copied.declare(*(f"{number:05}" for number in range(10 * SLICE_ENTRIES)))
    copied.wait()
    assert copied.pauses >= 10
    assert len(copied.content(tmp_path)) == 10 * SLICE_ENTRIES


def test_a_stop_writes_what_is_left(tmp_path: Path) -> None:
    copied = Copied()
    copied.declare("a")
    copied.copy.close()
    assert copied.content(tmp_path) == vhosts("a")


def test_a_crash_leaves_one_copy_or_the_other(tmp_path: Path) -> None:
    for step in range(1, 12):
        copied = Copied()
        copied.declare("a")
        copied.wait()
        copied.declare("b")
        copied.disk.crash_after(step)
        try:
            copied.wait()
        except BaseException as end:
            assert type(end).__name__ == "PowerLost"
        copied.disk.heal()
        copied.disk.crash()
        assert copied.content(tmp_path) in (vhosts("a"), vhosts("a", "b"))


def test_a_failing_disk_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copied = Copied()
    copied.declare("a")
    copied.disk.full_after(0)
    for _ in range(3):
        copied.wait()
    assert caplog.text.count("definitions_copy_failed") == 1
    copied.disk.heal()
    copied.wait()
    assert copied.content(tmp_path) == vhosts("a")


def test_while_definitions_cannot_be_read_the_copy_stays_as_it_is() -> None:
    copied = Copied()
    copied.table.unreadable[b"key"] = UnreadableText("key", "damaged")
    copied.declare("a")
    copied.wait()
    copied.copy.close()
    assert copied.copy.written == 0


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_a_damaged_copy_is_noticed_and_gives_what_is_whole(tmp_path: Path, at: int) -> None:
    copied = Copied()
    copied.declare(*"abcd")
    copied.wait()
    copied.content(tmp_path)
    octets = bytearray((tmp_path / FILE).read_bytes())
    at %= len(octets)
    octets[at] ^= 0x20
    (tmp_path / FILE).write_bytes(octets)
    copy = read_copy(tmp_path, NODE_ID)
    # The octets between format and node id mean nothing, but they are in the checksum.
    assert copy is not None and copy.damage is not None
    for cut in (0, 10, len(octets) // 2, len(octets) - 1):
        (tmp_path / FILE).write_bytes(octets[:cut])
        copy = read_copy(tmp_path, NODE_ID)
        assert copy is not None and copy.damage is not None


# Repair


class Stopped:
    """The data directory of a node that had 400 queues and deleted one, with its copy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "metadata" / "data.mdb"
        with self.store() as (store, directory):
            for number in range(400):
                key = ("queue", "/", f"q{number:03}")
                store.transact([Write(key, QueueRecord(False, {}, 0x1000 + 0x100 * number))])
            self.copy(store, directory)
            store.transact([Write(("queue", "/", "q007"), None)])
        self.whole = self.file.read_bytes()

    def store(self) -> OpenStore:
        return OpenStore(self.path)

    def copy(self, store: LmdbMetadataStore, directory: DataDirectory) -> None:
        clock = ManualClock()
        SecondCopy(
            store,
            RealFileSystem(),
            self.path,
            bytes.fromhex(directory.node_id),
            run=lambda job: job(),
            call_on_loop=lambda callback: callback(),
            call_later=clock.call_later,
        ).close()

    def names(self) -> list[str]:
        with self.store() as (store, _):
            assert not store.unreadable
            return [stored.key[2] for stored in store.records(("queue",))]


class OpenStore:
    def __init__(self, path: Path) -> None:
        self._directory = DataDirectory.open(path)
        try:
            self._store = LmdbMetadataStore(
                self._directory,
                call_on_loop=lambda callback: callback(),
                call_later=ManualClock().call_later,
                sync_thread=None,
            )
        except BaseException:
            self._directory.close()
            raise

    def __enter__(self) -> tuple[LmdbMetadataStore, DataDirectory]:
        return self._store, self._directory

    def __exit__(self, *_: object) -> None:
        self._store.close()
        self._directory.close()


ALL = [f"q{number:03}" for number in range(400)]
LEFT = [name for name in ALL if name != "q007"]


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    return Stopped(tmp_path)


def test_what_is_whole_is_left_alone(stopped: Stopped) -> None:
    assert repair(stopped.path) is None
    assert stopped.file.read_bytes() == stopped.whole
    assert len(list(stopped.file.parent.glob("data.mdb*"))) == 1


def test_a_missing_file_is_refused_and_rebuilt_from_the_copy(stopped: Stopped) -> None:
    stopped.file.unlink()
    with DataDirectory.open(stopped.path) as directory:
        with pytest.raises(DamagedMetadata, match="warren store repair"):
            expect_definitions(directory)
    repaired = repair(stopped.path)
    assert repaired is not None and repaired.complete
    assert (repaired.aside, repaired.kept, len(repaired.taken)) == (None, 0, 400)
    # With the file went the note that q007 was deleted.
    assert stopped.names() == ALL
    with DataDirectory.open(stopped.path) as directory:
        expect_definitions(directory)


def damage_page(octets: bytearray, name: bytes) -> None:
    """Damage every leaf with this name in it."""
    place = octets.find(name)
    while place >= 0:
        flags = place // 4096 * 4096 + 10
        octets[flags] = 0x77 if octets[flags] == 2 else octets[flags]
        place = octets.find(name, place + 1)


def cut(octets: bytearray) -> None:
    del octets[len(octets) // 2 :]


def both_metas(octets: bytearray) -> None:
    octets[16] ^= 1
    octets[4096 + 16] ^= 1


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        both_metas,
        lambda octets: damage_page(octets, b"q100\0\1"),
        lambda octets: octets.clear(),
        lambda octets: octets.__setitem__(slice(None), b"no LMDB" * 3000),
    ],
)
def test_a_damaged_file_is_refused_rebuilt_and_put_aside(
    stopped: Stopped, damage: Callable[[bytearray], None]
) -> None:
    octets = bytearray(stopped.whole)
    damage(octets)
    stopped.file.write_bytes(octets)
    if octets:
        with pytest.raises(DamagedMetadata, match="warren store repair"):
            stopped.names()
    repaired = repair(stopped.path)
    assert repaired is not None and repaired.complete and repaired.damage
    assert repaired.kept + len(repaired.taken) in (399, 400)
    names = stopped.names()
    assert names in (ALL, LEFT)
    assert repaired.aside is not None and repaired.aside.read_bytes() == octets
    # Once more is nothing more.
    assert repair(stopped.path) is None


def test_a_queue_that_was_deleted_does_not_come_back_from_the_copy(stopped: Stopped) -> None:
    octets = bytearray(stopped.whole)
    damage_page(octets, b"q100\0\1")
    stopped.file.write_bytes(octets)
    repaired = repair(stopped.path)
    assert repaired is not None and repaired.kept > 100 and "queue///q100" in repaired.taken
    assert stopped.names() == LEFT
    with stopped.store() as (store, _):
        assert store.deleted_queues.noted == {0x1000 + 0x700}


def change_value(stopped: Stopped, name: bytes) -> None:
    """Flip a bit in a definition; LMDB notices nothing."""
    with closing(lmdb.open(str(stopped.file.parent), map_size=1 << 26)) as environment:
        with environment.begin(write=True) as transaction:
            key = b"queue\0\1/\0\1" + name + b"\0\1"
            value = bytearray(transaction.get(key))
            value[-3] ^= 4
            transaction.put(key, bytes(value))


def test_only_the_damaged_definition_is_taken_when_all_others_are_there(stopped: Stopped) -> None:
    with stopped.store() as (store, _):
        store.transact([Write(("queue", "/", "q008"), None)])
    change_value(stopped, b"q100")
    repaired = repair(stopped.path)
    assert repaired is not None
    assert (repaired.taken, repaired.lost, repaired.kept) == (["queue///q100"], [], 397)
    assert stopped.names() == [name for name in LEFT if name != "q008"]


def test_what_neither_has_is_named(stopped: Stopped) -> None:
    change_value(stopped, b"q100")
    (stopped.path / FILE).unlink()
    repaired = repair(stopped.path)
    assert repaired is not None
    assert (repaired.taken, repaired.lost, repaired.kept) == ([], ["queue///q100"], 398)


def test_with_nothing_to_be_read_and_no_copy_nothing_is_made_up(stopped: Stopped) -> None:
    (stopped.path / FILE).unlink()
    stopped.file.unlink()
    with pytest.raises(DataDirectoryRefused, match="nothing can be read"):
        repair(stopped.path)
    assert not stopped.file.exists()


def test_a_node_that_runs_is_not_repaired(stopped: Stopped) -> None:
    with stopped.store():
        with pytest.raises(DataDirectoryRefused, match="in use"):
            repair(stopped.path)


def test_a_copy_of_another_node_is_not_used(stopped: Stopped) -> None:
    octets = bytearray((stopped.path / FILE).read_bytes())
    octets[20] ^= 1
    (stopped.path / FILE).write_bytes(octets)
    stopped.file.unlink()
    with pytest.raises(DataDirectoryRefused, match="nothing can be read"):
        repair(stopped.path)
