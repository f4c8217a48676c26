"""What a segment of a queue index notes of entries that are gone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from stored_node import ORDERS, StoredNode

from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.store_view import StoreView
from warren.persist.layout.segment import Segment

MESSAGES = 200


def test_removed_positions_are_in_as_few_ranges_as_possible() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        segment, gone = Segment(1, 0), set[int]()
        for _ in range(60):
            start = rng.randrange(50)
            if rng.random() < 0.4:
                segment.came_late(start)
                gone.discard(start)
            else:
                end = start + rng.randint(1, 8)
                segment.note_removed(start, end)
                gone.update(range(start, end))
            assert {at for one in segment.removed for at in range(*one)} == gone, seed
            starts = {at for at in gone if at - 1 not in gone}
            assert [one[0] for one in segment.removed] == sorted(starts), seed


def test_recovery_of_messages_that_came_and_went_one_by_one_keeps_one_range(
    tmp_path: Path,
) -> None:
    """Otherwise each further message costs a look at all those before it: minutes for a queue
    whose messages are consumed at once."""
    node = StoredNode(tmp_path)
    for number in range(MESSAGES):
        node.publish(b"short-lived", ORDERS)
        node.flush()
        node.remove(ORDERS, number, number + 1)
        node.flush()
    node.die()
    node_id = bytes.fromhex((tmp_path / "identity.json").read_text().split('"')[-2])
    view = StoreView(
        RealFileSystem(),
        tmp_path / "store",
        node_id,
        lambda path, harm: pytest.fail(f"{path}: {harm}"),
        totals=False,
    )
    (segment,) = view.index.queues[ORDERS].values()
    assert len(segment.removed) == 1
    start, end = segment.removed[0]
    assert end - start == MESSAGES
