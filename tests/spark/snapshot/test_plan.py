"""Which queues are meant, and how what is read of them is cut into units."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pinned_messages import units_of
from stored_node import INVOICES, ORDERS, fill

from warren.spark_export.errors import OptionRefused, QueueUnknown
from warren.spark_export.snapshot.filters import Interval
from warren.spark_export.snapshot.plan import (
    UNIT_COST_BYTES,
    QueueSelector,
    group_units,
    select_queues,
)
from warren.spark_export.snapshot.snapshot import Snapshot, create
from warren.spark_export.snapshot.unit import LocalFiles, Unit

QUEUES = [("/", "orders"), ("/", "0123"), ("eu", "orders"), ("eu", "orders.late")]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    directory = tmp_path_factory.mktemp("node")
    fill(directory).stop()
    with create(directory, QueueSelector()) as made:
        yield made


def test_all_queues_of_all_virtual_hosts_are_meant_unless_said_otherwise() -> None:
    assert QueueSelector().select(QUEUES) == sorted(QUEUES)
    assert QueueSelector("eu").select(QUEUES) == [("eu", "orders"), ("eu", "orders.late")]


def test_names_are_looked_up_in_the_virtual_host_or_in_all_of_them() -> None:
    assert QueueSelector(None, ("orders",)).select(QUEUES) == [("/", "orders"), ("eu", "orders")]
    assert QueueSelector("/", ("orders", "0123")).select(QUEUES) == [
        ("/", "0123"),
        ("/", "orders"),
    ]


def test_a_pattern_has_to_match_the_whole_name() -> None:
    assert QueueSelector(pattern="orders").select(QUEUES) == [("/", "orders"), ("eu", "orders")]
    assert QueueSelector("eu", pattern="orders.*").select(QUEUES) == QUEUES[2:]
    assert QueueSelector(pattern="order").select(QUEUES) == []


def test_the_queue_of_delayed_messages_is_chosen_by_its_name_only() -> None:
    queues = [*QUEUES, ("eu", "amq.delayed.later")]
    assert QueueSelector().select(queues) == sorted(QUEUES)
    assert QueueSelector("eu", pattern=".*").select(queues) == QUEUES[2:]
    assert QueueSelector(names=("amq.delayed.later",)).select(queues) == queues[-1:]


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (QueueSelector("/", ("orderz",)), "no durable queue 'orderz' in virtual host '/'; near"),
        (QueueSelector("/", ("orders.late",)), "there is one in virtual host 'eu'"),
        (QueueSelector(None, ("x",)), "no durable queue 'x'; there are 3 durable queues"),
        (QueueSelector("us"), "there is no virtual host 'us'"),
    ],
)
def test_a_name_that_does_not_exist_is_refused(selector: QueueSelector, text: str) -> None:
    with pytest.raises(QueueUnknown) as refusal:
        selector.select(QUEUES)
    assert text in str(refusal.value)


def test_a_virtual_host_without_queues_is_no_mistake() -> None:
    assert QueueSelector("us").select(QUEUES, ["us"]) == []


def test_what_is_missing_may_be_allowed() -> None:
    assert QueueSelector("us", missing_ok=True).select(QUEUES) == []
    both = QueueSelector("/", ("orders", "gone"), missing_ok=True)
    assert both.select(QUEUES) == [("/", "orders")]


def test_a_pattern_that_takes_for_ever_is_refused_soon() -> None:
    """A node does this for its users, one after the other."""
    names = [("/", "a" * 60 + "!"), *QUEUES]
    with pytest.raises(OptionRefused, match="takes too long"):
        QueueSelector(pattern="((a|aa|aaa)(a|aa|aaa))+[b!]{2}").select(names)
    with pytest.raises(OptionRefused, match="too large"):
        QueueSelector(pattern="a" * 5000).select(names)
    assert QueueSelector(pattern="(?i)ORDERS|a").select(QUEUES) == QueueSelector(
        pattern="orders"
    ).select(QUEUES)


def test_a_pattern_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(OptionRefused, match="pattern"):
        QueueSelector(pattern="(").select(QUEUES)
    with pytest.raises(OptionRefused, match="exclude"):
        QueueSelector(None, ("a",), "b")


def rows_of(snapshot: Snapshot, queue_id: int) -> int:
    return next(queue.rows for queue in snapshot.queues if queue.queue_id == queue_id)


@pytest.mark.parametrize("max_bytes", [1, 1000, 50_000, 1 << 30])
def test_units_have_every_row_once_and_are_about_as_large_as_asked(
    snapshot: Snapshot, max_bytes: int
) -> None:
    units = units_of(snapshot, max_bytes)
    for queue_id in (ORDERS, INVOICES):
        ends = [(unit.first, unit.end) for unit in units if unit.queue_id == queue_id]
        assert ends[0][0] == 0 and ends[-1][1] == rows_of(snapshot, queue_id)
        assert all(one[1] == after[0] for one, after in pairwise(ends))
    assert sum(unit.octets for unit in units) == snapshot.octets
    for unit in units:
        assert unit.rows >= 1
        assert unit.octets <= max_bytes or unit.rows == 1
        assert unit.octets == int(unit.entries()["length"].sum())


def test_so_many_units_are_made_at_least(snapshot: Snapshot) -> None:
    assert len(units_of(snapshot)) == 2
    assert 7 <= len(units_of(snapshot, min_units=7)) <= 10


def test_ranges_are_half_open_and_may_lie_anywhere(snapshot: Snapshot) -> None:
    orders = next(queue for queue in snapshot.queues if queue.queue_id == ORDERS)
    assert orders.first_position is not None and orders.last_position is not None

    def positions(span: Interval) -> list[int]:
        units = units_of(snapshot, span=span)
        return [
            at for unit in units if unit.queue_id == ORDERS for at in unit.entries()["position"]
        ]

    everything = positions(Interval())
    assert len(everything) == orders.rows
    assert positions(Interval(everything[3], everything[5])) == everything[3:5]
    assert positions(Interval(everything[3] + 1)) == everything[4:]
    assert positions(Interval(end=everything[1])) == everything[:1]
    assert positions(Interval(0, orders.first_position)) == []
    assert positions(Interval(orders.last_position + 1, (1 << 63) - 1)) == []
    assert positions(Interval(everything[5], everything[3])) == []


def test_a_virtual_host_without_queues_is_known_to_who_took_the_snapshot_for_it(
    snapshot: Snapshot,
) -> None:
    assert select_queues(snapshot, QueueSelector("us"), taken_for_it=True) == []
    with pytest.raises(QueueUnknown, match="no virtual host 'us'"):
        select_queues(snapshot, QueueSelector("us"), taken_for_it=False)


def test_a_snapshot_without_messages_has_no_units(tmp_path: Path) -> None:
    fill(tmp_path).stop()
    with create(tmp_path, QueueSelector(names=("empty",))) as empty:
        assert [queue.name for queue in empty.queues] == ["empty"]
        assert units_of(empty, 1, min_units=3) == []


def unit(queue_id: int, octets: int) -> Unit:
    return Unit(LocalFiles(Path("snapshot")), "/", f"q{queue_id}", queue_id, 0, 1, octets)


def test_small_queues_share_groups_and_large_units_have_their_own() -> None:
    small = [unit(at, 1000) for at in range(5000)]
    groups = group_units(small, max_bytes=128 << 20, min_groups=1)
    assert [one for group in groups for one in group] == small
    assert len(groups) == 40
    large = [unit(at, 127 << 20) for at in range(3)]
    assert [len(group) for group in group_units(large, max_bytes=128 << 20, min_groups=1)] == [
        1,
        1,
        1,
    ]
    assert group_units([], max_bytes=128 << 20, min_groups=4) == []


@pytest.mark.parametrize("wanted", [1, 2, 7, 40])
def test_there_are_as_many_groups_as_wanted(wanted: int) -> None:
    units = [unit(at, 5_000_000 + at) for at in range(40)]
    groups = group_units(units, max_bytes=1 << 40, min_groups=wanted)
    assert wanted <= len(groups) <= wanted + 1 + wanted // 7


def test_a_group_is_never_larger_than_what_was_asked_for_but_for_one_unit() -> None:
    units = [unit(at, 1 << (at % 28)) for at in range(300)]
    for group in group_units(units, max_bytes=16 << 20, min_groups=1):
        octets = sum(one.octets + UNIT_COST_BYTES for one in group)
        assert octets <= 16 << 20 or len(group) == 1
