"""Iceberg tables of a REST catalog, as most catalogs are: each message once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from exporting import CONTENT_HEADER, export, wish
from stored_node import ORDERS, StoredNode, fill

pytest.importorskip("pyiceberg")

from export_process import ExportProcess
from lake_tables import choice_of, configure_catalog, copies, read_table

from warren.spark_export.errors import TableRefused
from warren.spark_export.export.lake_table import ICEBERG
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import create

if TYPE_CHECKING:
    # Half a second of each process that collects tests.
    from rest_catalog import RestCatalog


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoredNode]:
    node = fill(tmp_path / "node", CONTENT_HEADER)
    yield node
    node.die()


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestCatalog]:
    from rest_catalog import rest_catalog

    with rest_catalog(tmp_path) as (url, catalog):
        configure_catalog(monkeypatch, tmp_path, TYPE="rest", URI=url)
        yield catalog


def everything_once(place: Path, count: int) -> bool:
    found = copies(read_table(ICEBERG, place))
    return len(found) == count and set(found.values()) == {1}


def test_increments_are_appended_and_nothing_twice(
    catalog: RestCatalog, node: StoredNode, tmp_path: Path
) -> None:
    place = tmp_path / "table"
    table = choice_of(ICEBERG)
    export(node.directory.path, place, "1", wish(table=table))
    assert everything_once(place, 205)
    node.publish(b"later", ORDERS)
    node.flush()
    assert export(node.directory.path, place, "2", wish(table=table, since="latest")).rows == 1
    export(node.directory.path, place, "2", wish(table=table, since="latest"))
    assert everything_once(place, 206)


@pytest.mark.parametrize("number", ["1", "2"])
def test_a_transaction_whose_answer_was_lost_counts_once(
    catalog: RestCatalog, node: StoredNode, tmp_path: Path, number: str
) -> None:
    """The table is made by the first answer that is lost, or appended to."""
    place = tmp_path / "table"
    wanted = wish(table=choice_of(ICEBERG))
    if number == "2":
        export(node.directory.path, place, "1", wanted)
        wanted = wish(table=choice_of(ICEBERG), since="latest")
        node.publish(b"later", ORDERS)
        node.flush()
    catalog.answers_lost = 1
    with pytest.raises(TableRefused, match=r"Iceberg table shop\.messages"):
        export(node.directory.path, place, number, wanted)
    export(node.directory.path, place, number, wanted)
    assert everything_once(place, 204 + int(number))


@pytest.mark.parametrize("step", ["transaction", "manifest"])
def test_an_export_that_is_killed_and_run_again_is_in_the_table_once(
    catalog: RestCatalog, node: StoredNode, tmp_path: Path, step: str
) -> None:
    place = tmp_path / "table"
    snapshot = create(node.directory.path, QueueSelector()).directory
    what = (ICEBERG, node.directory.path, place, snapshot)
    assert ExportProcess(*what, step).wait() == -signal.SIGKILL
    for _ in range(2):
        assert ExportProcess(*what).wait() == 0
    assert everything_once(place, 205)
    assert catalog.commits


def test_of_two_processes_with_increments_of_one_export_one_is_refused(
    catalog: RestCatalog, node: StoredNode, tmp_path: Path
) -> None:
    place, store = tmp_path / "table", node.directory.path
    export(store, place, "1", wish(table=choice_of(ICEBERG)))
    node.publish(b"later", ORDERS)
    node.flush()
    snapshot = create(store, QueueSelector()).directory
    rivals = [
        ExportProcess(ICEBERG, store, place, snapshot, "meet", export=name, since="1")
        for name in ("2", "3")
    ]
    for rival in rivals:
        rival.wait_until_it_meets()
    for rival in rivals:
        rival.go_on()
    assert sorted([rival.wait() == 0 for rival in rivals]) == [False, True]
    assert everything_once(place, 206)
