"""`check`: what a whole directory and each kind of damage look like; nothing is touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest
from later_format import LATER, as_later
from stored_node import EMPTY, INVOICES, NAMES, ORDERS, StoredNode, fill

from warren.core.ports import Write
from warren.persist.definitions.deleted_queues import note_key
from warren.persist.disk.data_directory import NotADataDirectory
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.check import Finding, Report, check
from warren.persist.inspection.dump import dump
from warren.persist.layout.format import (
    FILE_HEADER_BYTES,
    FOOTER_BYTES,
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    NewerStorage,
    batch_bytes,
    decode_batch_header,
    decode_frame,
    place_of,
)
from warren.persist.log.log_reader import ROOM_BYTES, Scan

FILESYSTEM = RealFileSystem()
LOG = Path("store/log")
COMBINED, FULL, LAST = (
    LOG / "00000001.1.rdq",
    LOG / "00000005.0.rdq",
    LOG / "00000007.0.rdq",
)
SEGMENT = Path("store/queues") / f"{ORDERS:016x}" / "000004000000.0.idx"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The same data directory after a clean stop, and after the end of the process."""
    stopped, killed = tmp_path_factory.mktemp("stopped"), tmp_path_factory.mktemp("killed")
    fill(stopped).stop()
    fill(killed).die()
    yield stopped, killed


@pytest.fixture
def stopped(filled: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled[0], tmp_path / "stopped"))


@pytest.fixture
def killed(filled: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled[1], tmp_path / "killed"))


def checked(path: Path) -> Report:
    return check(FILESYSTEM, path, pause=lambda seconds: None)


def damage(path: Path) -> list[Finding]:
    return checked(path).damage


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def cut(path: Path, octets: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-octets])


def seen(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its contents and the time it was written."""
    return {
        str(file.relative_to(path)): (
            file.read_bytes() if file.is_file() else b"",
            file.stat().st_mtime_ns,
        )
        for file in path.rglob("*")
    }


def messages(report: Report) -> dict[str | None, int]:
    return {totals.name: totals.messages for totals in report.queues}


def batch_end(data: bytes, file_id: int, at: int) -> int:
    header = decode_batch_header(data[at:], place_of(file_id, at))
    assert header is not None
    return at + batch_bytes(header.records_bytes, header.records)


# What is whole


def end_of_batches(path: Path) -> int:
    file = FILESYSTEM.open(path, writable=False)
    scan = Scan(file, int(path.name[:8], 16), FILE_HEADER_BYTES, complete=False)
    for _ in scan.records():
        pass
    assert not scan.torn
    file.close()
    return scan.end


def test_a_stopped_node_is_whole_and_its_messages_are_counted(stopped: Path) -> None:
    report = checked(stopped)
    assert report.damage == []
    assert report.stopped_clean
    assert report.unfinished == 0
    assert messages(report) == {"orders": 180, "invoices": 25, "empty": 0}


def test_a_killed_node_is_whole_and_its_messages_are_counted(killed: Path) -> None:
    report = checked(killed)
    assert report.damage == []
    assert not report.stopped_clean
    assert messages(report) == {"orders": 180, "invoices": 25, "empty": 0}


def test_a_store_that_was_started_again_is_whole(killed: Path) -> None:
    node = StoredNode(killed)
    node.publish(b"after", ORDERS)
    node.flush()
    assert messages(checked(killed))["orders"] == 181
    assert damage(killed) == []
    node.stop()
    assert damage(killed) == []


def test_nothing_is_touched(stopped: Path) -> None:
    flip(stopped / FULL, 200)
    before = seen(stopped)
    checked(stopped)
    list(dump(FILESYSTEM, stopped, ORDERS))
    assert seen(stopped) == before


def test_a_directory_that_cannot_be_written_is_checked(stopped: Path) -> None:
    for path in [stopped, *stopped.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert damage(stopped) == []
    finally:
        for path in [stopped, *stopped.rglob("*")]:
            path.chmod(0o700)


@pytest.mark.parametrize("octets", [1, 7, 40, 300])
def test_a_torn_end_of_a_killed_node_is_no_damage(killed: Path, octets: int) -> None:
    data = (killed / LAST).read_bytes()
    whole = end_of_batches(killed / LAST)
    torn = data[FILE_HEADER_BYTES : FILE_HEADER_BYTES + octets - 1] + b"x"
    for room in (b"", data[whole + octets :]):
        (killed / LAST).write_bytes(data[:whole] + torn + room)
        report = checked(killed)
        assert report.damage == []
        assert report.unfinished == octets


def test_room_behind_a_file_that_was_ended_is_no_damage(killed: Path) -> None:
    """After a power failure it may be back, with the footer or without."""
    data = (killed / FULL).read_bytes()
    for kept in (data, data[:-FOOTER_BYTES]):
        (killed / FULL).write_bytes(kept + bytes(ROOM_BYTES))
        assert damage(killed) == []


def test_more_zeros_than_room_are_damage(killed: Path) -> None:
    data = (killed / FULL).read_bytes()
    for kept in (data, data[:-FOOTER_BYTES]):
        (killed / FULL).write_bytes(kept + bytes(ROOM_BYTES + FOOTER_BYTES + 1))
        assert len(damage(killed)) == 1


def test_a_frame_that_was_not_finished_is_no_damage(killed: Path) -> None:
    node = StoredNode(killed)
    node.publish(b"new", ORDERS)
    node.flush()
    before = (killed / "store/checkpoint").read_bytes()
    whole = (killed / SEGMENT).read_bytes()
    node.checkpoint()
    node.die()
    (killed / "store/checkpoint").write_bytes(before)
    grown = (killed / SEGMENT).read_bytes()
    assert len(grown) > len(whole)
    (killed / SEGMENT).write_bytes(grown[: (len(grown) + len(whole)) // 2])
    assert damage(killed) == []
    assert messages(checked(killed))["orders"] == 181


def test_damage_of_any_octet_of_a_segment_is_found_after_a_clean_stop(stopped: Path) -> None:
    """There is nothing that a crash could have left unfinished."""
    size = (stopped / SEGMENT).stat().st_size
    heads = range(SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES)
    unnoticed = []
    for at in (*heads, *range(len(heads), size, 97), size - 1):
        flip(stopped / SEGMENT, at)
        if not damage(stopped):
            unnoticed.append(at)
        flip(stopped / SEGMENT, at)
    assert unnoticed == []


def test_what_a_deleted_queue_left_is_no_damage(killed: Path) -> None:
    shutil.copytree(killed / SEGMENT.parent, killed / "store/queues/0000000000000fff")
    segment = killed / "store/queues/0000000000000fff" / SEGMENT.name
    segment.unlink()
    assert damage(killed) == []


def test_messages_without_a_definition_are_counted_and_whether_they_were_deleted(
    killed: Path,
) -> None:
    node = StoredNode(killed)
    node.metadata.transact([Write(("queue", "/", "orders"), None)])
    node.die()
    (orders,) = (totals for totals in checked(killed).queues if totals.queue == ORDERS)
    assert (orders.name, orders.messages, orders.deleted) == (None, 180, True)
    with lmdb.open(str(killed / "metadata"), map_size=64 << 20) as environment:
        with environment.begin(write=True) as transaction:
            assert transaction.delete(note_key(ORDERS))
    report = checked(killed)
    assert report.damage == []
    (orders,) = (totals for totals in report.queues if totals.queue == ORDERS)
    assert (orders.name, orders.messages, orders.deleted) == (None, 180, False)


@pytest.fixture
def with_levels(tmp_path: Path) -> Path:
    """Orders is a queue with priorities, of which levels 0 and 3 have messages."""
    node = StoredNode(tmp_path)
    level = ORDERS + 3
    node.queues[level] = node.storage.open(level, durable=True)
    node.positions[level] = node.queues[level].first_position()
    for body in (b"low", b"not so low"):
        node.publish(body, ORDERS)
    node.publish(b"urgent", level)
    node.flush()
    node.stop()
    return tmp_path


def test_levels_of_a_queue_with_priorities_are_the_queue(with_levels: Path) -> None:
    report = checked(with_levels)
    assert report.damage == []
    assert messages(report) == {"empty": 0, "invoices": 0, "orders": 3}
    listed = [(at.level, at.body) for at in dump(FILESYSTEM, with_levels, ORDERS)]
    assert listed == [(3, b"urgent"), (0, b"low"), (0, b"not so low")]


# What is not


def test_damage_in_a_level_of_a_queue_with_priorities_is_found(with_levels: Path) -> None:
    urgent = next(dump(FILESYSTEM, with_levels, ORDERS))
    flip(with_levels / LOG / "00000001.0.rdq", urgent.offset + urgent.length - 1)
    (found,) = damage(with_levels)
    assert (found.queue, found.position) == (ORDERS + 3, urgent.position)


def test_a_flipped_bit_in_a_record_costs_one_message(stopped: Path) -> None:
    entry = next(at for at in dump(FILESYSTEM, stopped, ORDERS) if at.file == 4)
    file = LOG / "00000004.0.rdq"
    flip(stopped / file, entry.offset + 60)
    assert damage(stopped) == [
        Finding(str(file), entry.offset, "checksum of the record", ORDERS, entry.position)
    ]
    damaged = [at for at in dump(FILESYSTEM, stopped, ORDERS) if at.damage]
    assert [at.position for at in damaged] == [entry.position]


def test_a_flipped_bit_in_a_shared_record_costs_every_queue_its_message(stopped: Path) -> None:
    entry = next(at for at in dump(FILESYSTEM, stopped, INVOICES) if at.file == 6)
    flip(stopped / LOG / "00000006.0.rdq", entry.offset + 100)
    assert [(at.queue, at.offset) for at in damage(stopped)] == [
        (ORDERS, entry.offset),
        (INVOICES, entry.offset),
    ]


def test_a_flipped_bit_in_a_combined_record_is_found_where_it_is_now(stopped: Path) -> None:
    second = list(dump(FILESYSTEM, stopped, ORDERS))[1]
    record = FILE_HEADER_BYTES + second.length + -second.length % 8
    flip(stopped / COMBINED, record + 60)
    assert damage(stopped) == [
        Finding(str(COMBINED), record, "checksum of the record", ORDERS, second.position)
    ]


def test_a_flipped_bit_in_the_table_of_a_combined_file(stopped: Path) -> None:
    size = (stopped / COMBINED).stat().st_size
    flip(stopped / COMBINED, size - 30)
    found = damage(stopped)
    assert Finding(str(COMBINED), size, "checksum of the table of a combined file") in found
    assert {at.queue for at in found} == {None, ORDERS}


def test_a_flipped_bit_in_the_header_of_a_file(stopped: Path) -> None:
    flip(stopped / FULL, 20)
    assert damage(stopped) == [Finding(str(FULL), 0, "checksum of the file header")]


def test_a_flipped_bit_in_the_header_of_a_batch(stopped: Path) -> None:
    second = batch_end((stopped / FULL).read_bytes(), 5, FILE_HEADER_BYTES)
    flip(stopped / FULL, second + 9)
    found = damage(stopped)
    assert Finding(str(FULL), second, "no batch where one should start") in found
    assert {at.queue for at in found} == {None}


def test_a_flipped_bit_in_the_lengths_of_a_batch(stopped: Path) -> None:
    end = batch_end((stopped / FULL).read_bytes(), 5, FILE_HEADER_BYTES)
    flip(stopped / FULL, end - 8)
    found = damage(stopped)
    assert [at.reason for at in found] == ["table of lengths"]
    assert FILE_HEADER_BYTES < found[0].offset < end


def test_a_flipped_bit_between_records_is_seen_by_the_whole_file(stopped: Path) -> None:
    data = (stopped / FULL).read_bytes()
    end = batch_end(data, 5, FILE_HEADER_BYTES)
    assert data[end - 4 : end] == bytes(4), "the table of three lengths is padded"
    flip(stopped / FULL, end - 1)
    assert damage(stopped) == [Finding(str(FULL), 0, "checksum of the whole file")]


def test_a_footer_that_is_not_whole_is_none(stopped: Path) -> None:
    """It is not synced, so that is no damage."""
    size = (stopped / FULL).stat().st_size
    flip(stopped / FULL, size - 3)
    assert damage(stopped) == []


@pytest.mark.parametrize("part", ["header", "head of the first frame", "frame", "last frame"])
def test_a_flipped_bit_in_a_segment(stopped: Path, part: str) -> None:
    data = (stopped / SEGMENT).read_bytes()
    first = decode_frame(data, SEGMENT_HEADER_BYTES)
    assert first is not None
    offset, wanted = {
        "header": (12, 0),
        "head of the first frame": (SEGMENT_HEADER_BYTES + 20, SEGMENT_HEADER_BYTES),
        "frame": (SEGMENT_HEADER_BYTES + 100, SEGMENT_HEADER_BYTES),
        "last frame": (len(data) - 5, SEGMENT_HEADER_BYTES),
    }[part]
    flip(stopped / SEGMENT, offset)
    found = [at for at in damage(stopped) if at.file == str(SEGMENT)]
    assert wanted in [at.offset for at in found]


def test_a_frame_between_whole_ones(killed: Path) -> None:
    node = StoredNode(killed)
    node.checkpoint()
    node.publish(b"new", ORDERS)
    node.flush()
    node.checkpoint()
    node.stop()
    data = (killed / SEGMENT).read_bytes()
    first = decode_frame(data, SEGMENT_HEADER_BYTES)
    assert first is not None
    assert decode_frame(data, first[1]) is not None
    flip(killed / SEGMENT, SEGMENT_HEADER_BYTES + 100)
    found = [at for at in damage(killed) if at.file == str(SEGMENT)]
    assert [(at.offset, at.reason) for at in found] == [
        (SEGMENT_HEADER_BYTES, "checksum of a frame")
    ]


@pytest.mark.parametrize("offset", [0, 12, 30, 43])
def test_a_flipped_bit_in_the_checkpoint(stopped: Path, offset: int) -> None:
    flip(stopped / "store/checkpoint", offset)
    found = [at for at in damage(stopped) if at.file == "store/checkpoint"]
    assert [at.offset for at in found] == [0]


def test_a_flipped_bit_in_the_note_of_the_clean_stop(stopped: Path) -> None:
    flip(stopped / "store/clean", 40)
    assert damage(stopped) == [Finding("store/clean", 0, "checksum of the note of a clean stop")]


def test_a_missing_log_file_costs_the_messages_in_it(stopped: Path) -> None:
    (stopped / FULL).unlink()
    found = damage(stopped)
    assert {(at.file, at.queue) for at in found} == {(str(FULL), ORDERS), (str(FULL), INVOICES)}
    assert all(at.messages > 1 for at in found)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_missing_file_of_the_journal(end: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(end)
    (path / LAST).unlink()
    assert (str(LAST), "a file of the journal is missing") in [
        (at.file, at.reason) for at in damage(path)
    ]


def test_a_missing_checkpoint_after_files_went(killed: Path) -> None:
    (killed / "store/checkpoint").unlink()
    (killed / COMBINED).unlink()
    assert "store/checkpoint" in [at.file for at in damage(killed)]


def test_a_truncated_file(stopped: Path) -> None:
    cut(stopped / FULL, 30_000)
    found = damage(stopped)
    size = (stopped / FULL).stat().st_size
    assert {at.file for at in found} == {str(FULL)}
    assert {at.queue for at in found} >= {ORDERS, INVOICES}
    assert max(at.offset for at in found) >= size


@pytest.mark.parametrize("octets", [1, 200, 5000])
def test_a_journal_cut_below_the_checkpoint(killed: Path, octets: int) -> None:
    place = checked(killed).checkpoint
    assert place is not None
    data = (killed / LAST).read_bytes()
    end = (place.place & 0xFFFFFFFE) - octets
    (killed / LAST).write_bytes(data[:end])
    found = damage(killed)
    assert str(LAST) in [at.file for at in found]


def test_a_cut_end_after_a_clean_stop_is_damage(stopped: Path) -> None:
    cut(stopped / LAST, 10)
    assert {at.file for at in damage(stopped)} == {str(LAST)}


def test_files_of_another_node(stopped: Path, killed: Path, filled: tuple[Path, Path]) -> None:
    shutil.copy(filled[1] / FULL, stopped / FULL)
    found = [at for at in damage(stopped) if at.offset == 0]
    assert [at.reason[:20] for at in found] == ["written by node " + found[0].reason[16:20]]


def test_definitions_that_cannot_be_read(stopped: Path) -> None:
    path = stopped / "metadata/data.mdb"
    path.write_bytes(b"\0" * 8192)
    found = damage(stopped)
    assert [at.file for at in found] == ["metadata/data.mdb"]


def test_lost_definitions(stopped: Path) -> None:
    (stopped / "metadata/data.mdb").unlink()
    assert [at.file for at in damage(stopped)] == ["metadata/data.mdb"]


# What is no data directory


def test_what_cannot_be_checked(tmp_path: Path, stopped: Path) -> None:
    with pytest.raises(NotADataDirectory, match="not a directory"):
        checked(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotADataDirectory, match="no node has used it"):
        checked(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
    shutil.rmtree(stopped / "store")
    with pytest.raises(NotADataDirectory, match="no directory store"):
        checked(stopped)


def test_a_later_format_is_refused(stopped: Path) -> None:
    path = stopped / "store/checkpoint"
    data = path.read_bytes()
    path.write_bytes(as_later(data, len(data)))
    with pytest.raises(NewerStorage, match=f"format {LATER}"):
        checked(stopped)


# Beside a node that works


class Turns:
    """Runs a step of the node's work each time the check opens a file."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._inside = False

    def __getattr__(self, name: str) -> object:
        return getattr(FILESYSTEM, name)

    def open(self, path: Path, *, writable: bool = True) -> object:
        self._turn()
        return FILESYSTEM.open(path, writable=writable)

    def names(self, directory: Path) -> list[str]:
        names = FILESYSTEM.names(directory)
        self._turn()
        return names

    def _turn(self) -> None:
        if not self._inside:
            self._inside = True
            self._step()
            self._inside = False


@pytest.mark.parametrize("burst", [1, 7, 40])
def test_a_node_may_work_meanwhile(tmp_path: Path, burst: int) -> None:
    node = fill(tmp_path)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        for number in range(burst):
            node.publish(b"%d" % number * 500, ORDERS)
            node.publish(b"%d" % number * 9000, ORDERS, INVOICES)
        for at in NAMES:
            index = node.queues[at]
            count = node.positions[at] - index.first_position()
            node.remove(at, max(0, count - 4 * burst), max(0, count - burst))
            node.remove(at, 0, max(0, count - 60))
        if steps % 40 == 0:
            node.checkpoint()
        else:
            node.flush()

    for _ in range(5):
        filesystem = Turns(step)
        report = check(filesystem, tmp_path, pause=lambda seconds: step())  # type: ignore[arg-type]
        assert report.damage == []
    assert steps > 50
    assert node.storage.combiners[0].combined > 1
    assert EMPTY in node.queues
    node.stop()
