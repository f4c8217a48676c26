"""Messages and files that are damaged, missing or going while they are decoded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from decoded import options_of, read
from handmade_snapshot import (
    FIRST_POSITION,
    QUEUE_ID,
    Sent,
    log_directory,
    log_path,
    record_of,
    sent,
    snapshot_directory,
    write_snapshot,
)
from later_format import LATER, as_later

from warren.core.field import Field
from warren.persist.layout import format as persist_format
from warren.persist.log.log_writer import file_name
from warren.spark_export.errors import DataLost, RecordDamaged, SnapshotGone, StoreRefused
from warren.spark_export.snapshot import layout, pinned_log
from warren.spark_export.snapshot.layout import HEAD_BYTES
from warren.spark_export.snapshot.unit import Unit


def spoil(unit: Unit, body: bytes, file_id: int = 1, generation: int = 0) -> int:
    """Change an octet of that body; returns where."""
    path = log_path(unit, file_id, generation)
    data = bytearray(path.read_bytes())
    at = data.index(body)
    data[at] ^= 1
    path.write_bytes(data)
    return at


def damaged_unit(tmp_path: Path, **kind: Any) -> Unit:
    bodies = [b"message %d" % at for at in range(6)]
    unit = write_snapshot(tmp_path / "s", [[sent(body) for body in bodies]], **kind)
    spoil(unit, b"message 2", generation=3 if kind.get("combined") else 0)
    return unit


KINDS = [{"sealed": True}, {"sealed": False}, {"combined": True}]


def told_damaged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of damaged messages."""
    told = [record.getMessage().partition(" ") for record in caplog.records]
    return [what for event, _, what in told if event == "messages_damaged"]


@pytest.mark.parametrize("kind", KINDS)
def test_permissive_gives_a_row_with_the_octets(
    tmp_path: Path, kind: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    unit = damaged_unit(tmp_path, **kind)
    rows = read(unit)
    assert [row["seq"] - FIRST_POSITION for row in rows] == list(range(6))
    known = {name: value for name, value in rows[2].items() if value is not None}
    assert known.keys() == {"seq", "vhost", "queue", "_corrupt_record"}
    assert known["_corrupt_record"] == record_of(sent(b"message 2"), FIRST_POSITION + 2).replace(
        b"message 2", b"lessage 2"
    )
    assert [row["_corrupt_record"] is None for row in rows].count(True) == 5
    assert told_damaged(caplog) == ["vhost='/' queue='orders' damaged=1 lost=0"]


@pytest.mark.parametrize("kind", KINDS)
def test_dropmalformed_drops_and_counts(
    tmp_path: Path, kind: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    unit = damaged_unit(tmp_path, **kind)
    rows = read(unit, options_of(mode="DROPMALFORMED"))
    assert [row["body"][-1:] for row in rows] == [b"0", b"1", b"3", b"4", b"5"]
    assert told_damaged(caplog) == ["vhost='/' queue='orders' damaged=1 lost=0"]


@pytest.mark.parametrize("kind", KINDS)
def test_failfast_says_where(tmp_path: Path, kind: dict[str, bool]) -> None:
    unit = damaged_unit(tmp_path, **kind)
    name = file_name(1, 3 if kind.get("combined") else 0)
    data = (log_directory(unit) / name).read_bytes()
    where = data.index(b"lessage 2") - HEAD_BYTES - 14
    with pytest.raises(RecordDamaged, match=f"{name} at octet {where}: checksum of the record"):
        read(unit, options_of(mode="FAILFAST"))


def test_a_table_of_headers_that_is_none_costs_the_headers_only(tmp_path: Path) -> None:
    good = sent(b"good", {"a": Field("t", True)})
    bad = Sent(b"bad", sent(b"bad").header[:12] + b"\x20\x00" + b"\0\0\0\x02" + b"\x09x", "x")
    unit = write_snapshot(tmp_path / "s", [[good, bad, good]])
    rows = read(unit)
    assert [row["body"] for row in rows] == [b"good", b"bad", b"good"]
    assert rows[1]["headers"] is None and rows[1]["exchange"] == "x"
    assert rows[1]["_corrupt_record"] == record_of(bad, FIRST_POSITION + 1)
    assert [row["body"] for row in read(unit, options_of(mode="DROPMALFORMED"))] == [b"good"] * 2
    with pytest.raises(RecordDamaged, match="headers that are no table"):
        read(unit, options_of(mode="FAILFAST"))


def test_a_sealed_file_is_verified_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [[sent(b"message %d" % at) for at in range(100)]]
    unit = write_snapshot(tmp_path / "s", files)
    sums: list[int] = []
    records: list[int] = []

    def whole(data: Any) -> int:
        sums.append(len(data))
        return persist_format.crc32(data)

    def part(data: Any, value: int = 0) -> int:
        records.append(len(data))
        return persist_format.crc32(data, value)

    monkeypatch.setattr(pinned_log, "crc32", whole)
    monkeypatch.setattr(layout, "crc32", part)
    size = log_path(unit).stat().st_size
    for _ in range(2):
        assert len(read(unit)) == 100
        assert sums == [size - 24] and records == []


def test_few_records_of_a_file_are_verified_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [[Sent(b"message %d" % at, sent(b"").header, gap=20_000) for at in range(10)]]
    unit = write_snapshot(tmp_path / "s", files)
    reads: list[int] = []
    read_into = pinned_log.LogFile.read_into

    def counted(file: pinned_log.LogFile, data: Any, offset: int) -> None:
        reads.append(len(data))
        read_into(file, data, offset)

    monkeypatch.setattr(pinned_log.LogFile, "read_into", counted)
    assert len(read(unit, columns=["seq", "body"])) == 10
    assert len(reads) == 10 and max(reads) < 200
    spoil(unit, b"message 7")
    with pytest.raises(RecordDamaged, match="checksum"):
        read(unit, options_of(mode="FAILFAST"))


def test_a_missing_log_file_is_data_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(b"1")], [sent(b"2"), sent(b"3")], [sent(b"4")]])
    log_path(unit, 2).unlink()
    with pytest.raises(DataLost, match="00000002 is gone"):
        read(unit)
    rows = read(unit, options_of(failOnDataLoss="false"))
    assert [row["body"] for row in rows] == [b"1", b"4"]
    assert told_damaged(caplog) == ["vhost='/' queue='orders' damaged=0 lost=2"]


def test_a_snapshot_that_goes_while_it_is_read_is_no_missing_log_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(b"1")], [sent(b"2")]])
    entries = Unit.entries

    def entries_and_no_more(unit: Unit) -> Any:
        found = entries(unit)
        # As the node does when the lease has run out.
        (tmp_path / "s").rename(tmp_path / "s.new")
        return found

    monkeypatch.setattr(Unit, "entries", entries_and_no_more)
    with pytest.raises(SnapshotGone):
        read(unit, options_of(failOnDataLoss="false"))
    (tmp_path / "s.new").rename(tmp_path / "s")
    monkeypatch.undo()
    try_open = pinned_log.PinnedLog._try_open

    def gone_meanwhile(log: pinned_log.PinnedLog, file_id: int) -> Any:
        if file_id == 2 and (tmp_path / "s").exists():
            (tmp_path / "s").rename(tmp_path / "s.new")
        return try_open(log, file_id)

    monkeypatch.setattr(pinned_log.PinnedLog, "_try_open", gone_meanwhile)
    with pytest.raises(SnapshotGone):
        read(unit, options_of(failOnDataLoss="false"))


def test_a_damaged_table_of_a_combined_file_costs_its_records(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(b"1"), sent(b"2")]], combined=True)
    path = log_path(unit, 1, 3)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    rows = read(unit)
    assert [(row["body"], row["_corrupt_record"]) for row in rows] == [(None, None)] * 2
    with pytest.raises(RecordDamaged, match=r"end of a combined|checksum of the table"):
        read(unit, options_of(mode="FAILFAST"))


def test_a_damaged_file_header_keeps_the_records(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(b"1"), sent(b"2")]])
    path = log_path(unit)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    rows = read(unit, options_of(includeMetadata="true"))
    assert [(row["body"], row["store_uuid"]) for row in rows] == [(b"1", None), (b"2", None)]


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(b"1")]])
    path = log_path(unit)
    path.write_bytes(as_later(path.read_bytes(), persist_format.FILE_HEADER_BYTES))
    with pytest.raises(StoreRefused, match=f"format {LATER}"):
        read(unit)


def gone_wholly(unit: Unit) -> None:
    (snapshot_directory(unit) / "queues" / f"{QUEUE_ID:016x}.npy").unlink()


def gone_log(unit: Unit) -> None:
    for path in log_directory(unit).iterdir():
        path.unlink()
    log_directory(unit).rmdir()


@pytest.mark.parametrize("go", [gone_wholly, gone_log])
def test_a_snapshot_that_is_gone(tmp_path: Path, go: Callable[[Unit], None]) -> None:
    unit = write_snapshot(tmp_path / "s", [[sent(b"1")]])
    go(unit)
    with pytest.raises(SnapshotGone):
        read(unit)
