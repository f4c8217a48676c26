"""Several processes that append to one table at the same moment: no message is in it twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exporting import CONTENT_HEADER, export, rows_of, wish
from stored_node import ORDERS, StoredNode, fill

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from export_process import ExportProcess
from lake_tables import choice_of, configure_catalog, copies, read_table

from warren.spark_export.decode.schema import arrow_schema, columns
from warren.spark_export.errors import BatchRefused, ExportRunning
from warren.spark_export.export.export import begin, finish, tasks
from warren.spark_export.export.export_plan import PLAN_FILE, ExportPlan
from warren.spark_export.export.lake_table import (
    DELTA,
    ICEBERG,
    Claim,
    LakeTable,
    TableBatch,
    TableFile,
)
from warren.spark_export.export.lake_tables import open_table
from warren.spark_export.export.manifest import (
    ExportedFile,
    Manifest,
    list_manifests,
    staging_folder,
    verify,
)
from warren.spark_export.export.parquet import export_unit
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import create

SCHEMA = arrow_schema(columns(parse_options({})))

both = pytest.mark.parametrize("kind", [DELTA, ICEBERG])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoredNode]:
    node = fill(tmp_path / "node", CONTENT_HEADER)
    yield node
    node.die()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    configure_catalog(monkeypatch, tmp_path)
    return tmp_path / "table"


@pytest.fixture
def files(node: StoredNode, place: Path) -> list[TableFile]:
    """Files beside those of the tables, which know nothing of them."""
    manifest = export(node.directory.path, place, "plain", wish())
    return [TableFile.of(file) for file in manifest.files]


def table_as_it_was(kind: str, place: Path) -> LakeTable:
    """The table, which at its first look does not see what has been appended since."""
    table: Any = open_table(choice_of(kind), place)
    real, was = table._find, [table._find()]
    table._find = lambda: was.pop() if was else real()
    found: LakeTable = table
    return found


@both
def test_a_batch_that_two_append_at_the_same_instant_is_in_the_table_once(
    kind: str, place: Path, files: list[TableFile]
) -> None:
    first = open_table(choice_of(kind), place)
    first.append(TableBatch("another", 0), files[:1], SCHEMA)
    second = table_as_it_was(kind, place)
    for table in (first, second):
        table.append(TableBatch("job", 3), files[1:], SCHEMA)
    assert first.has(TableBatch("job", 3)) and not first.has(TableBatch("job", 4))
    found = copies(read_table(kind, place))
    assert len(found) == 205 and set(found.values()) == {1}


@both
def test_of_two_that_claim_the_same_at_the_same_instant_one_is_refused(
    kind: str, place: Path, files: list[TableFile]
) -> None:
    def batch(job: str) -> TableBatch:
        return TableBatch(
            job, 0, (Claim(f"{job}/own", "own"), Claim("one for both", "you are late"))
        )

    first = open_table(choice_of(kind), place)
    first.append(TableBatch("another", 0), files[:1], SCHEMA)
    second = table_as_it_was(kind, place)
    # Without any message it is noted, too.
    first.append(batch("first"), [], SCHEMA)
    with pytest.raises(BatchRefused, match="you are late"):
        second.append(batch("second"), files[1:], SCHEMA)
    with pytest.raises(BatchRefused, match="you are late"):
        second.has(batch("second"))
    assert first.has(batch("first"))
    assert len(copies(read_table(kind, place))) == files[0].rows


@both
def test_batches_that_do_not_exclude_each_other_are_all_appended(
    kind: str, place: Path, files: list[TableFile]
) -> None:
    tables = [open_table(choice_of(kind), place)]
    tables[0].append(TableBatch("another", 0), files[:1], SCHEMA)
    tables += [table_as_it_was(kind, place) for _ in range(3)]
    for number, table in enumerate(tables):
        mine = files[1 + number :: len(tables)]
        table.append(TableBatch(f"job {number}", 0, (Claim(f"claim {number}", ""),)), mine, SCHEMA)
    found = copies(read_table(kind, place))
    assert len(found) == 205 and set(found.values()) == {1}


@both
def test_of_two_processes_with_increments_of_one_export_one_is_refused(
    kind: str, node: StoredNode, place: Path
) -> None:
    store = node.directory.path
    export(store, place, "1", wish(table=choice_of(kind)))
    node.publish(b"later", ORDERS)
    node.flush()
    snapshot = create(store, QueueSelector()).directory
    rivals = [
        ExportProcess(kind, store, place, snapshot, "meet", export=name, since="1")
        for name in ("2", "3")
    ]
    # Each has found that it is the only one, and has written its files.
    for rival in rivals:
        rival.wait_until_it_meets()
    for rival in rivals:
        rival.go_on()
    assert sorted([rival.wait() == 0 for rival in rivals]) == [False, True]
    found = copies(read_table(kind, place))
    assert len(found) == 206 and set(found.values()) == {1}
    node.publish(b"latest", ORDERS)
    node.flush()
    assert export(store, place, "4", wish(table=choice_of(kind), since="latest")).rows == 1
    found = copies(read_table(kind, place))
    assert len(found) == 207 and set(found.values()) == {1}


class Rival:
    """A process that writes an export under a name that another one has, too: at a URL it may."""

    def __init__(self, store: Path, place: Path, **fields: Any) -> None:
        self._place = place
        (place / staging_folder("full") / PLAN_FILE).unlink(missing_ok=True)
        plan = begin(store, place, "full", wish(**fields))
        assert isinstance(plan, ExportPlan)
        self._plan = plan
        self._files: list[ExportedFile] = []

    def write(self) -> None:
        self._files = [
            file for task in tasks(self._place, self._plan) for file in export_unit(task)
        ]

    def finish(self) -> Manifest:
        return finish(self._place, self._plan, self._files, {})


def two_of_one_name(node: StoredNode, place: Path, **fields: Any) -> list[Rival]:
    """Both have written their files; between their snapshots messages came and went."""
    rivals = [Rival(node.directory.path, place, **fields)]
    # As many rows as before, of other messages.
    node.remove(ORDERS, 0, 1)
    node.publish(b"%06d" % 0 * 100, ORDERS)
    node.flush()
    rivals.append(Rival(node.directory.path, place, **fields))
    for rival in rivals:
        rival.write()
    return rivals


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_exports_of_one_name_the_first_one_counts(
    node: StoredNode, place: Path, winner: int
) -> None:
    rivals = two_of_one_name(node, place)
    manifest = rivals[winner].finish()
    assert list(verify(place, manifest)) == []
    assert (
        len({row["seq"] for row in rows_of(place, [manifest]) if row["queue"] == "orders"}) == 180
    )
    with pytest.raises(ExportRunning, match="another process wrote export full"):
        rivals[1 - winner].finish()
    assert list_manifests(place) == [manifest]
    rest = export(node.directory.path, place, "rest", wish(since="latest"))
    assert rest.rows == 1 - winner


@pytest.mark.parametrize("winner", [0, 1])
@both
def test_of_two_exports_of_one_name_one_is_in_the_table(
    kind: str, node: StoredNode, place: Path, winner: int
) -> None:
    rivals = two_of_one_name(node, place, table=choice_of(kind))
    manifest = rivals[winner].finish()
    with pytest.raises(BatchRefused, match="another process wrote it"):
        rivals[1 - winner].finish()
    assert list_manifests(place) == [manifest]
    rest = export(node.directory.path, place, "rest", wish(table=choice_of(kind), since="latest"))
    assert rest.rows == 1 - winner
    found = copies(read_table(kind, place))
    assert len(found) == 206 - winner and set(found.values()) == {1}
