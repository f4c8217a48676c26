"""What makes snapshots for a node, asked without one, on a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exporting import CONTENT_HEADER
from stored_node import fill

from warren.spark_export.snapshot.node_service import HOLD_S, NodeService
from warren.spark_export.snapshot.snapshot import list_snapshots


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    node = fill(tmp_path / "node", CONTENT_HEADER)
    yield node.directory.path
    node.die()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def take(service: NodeService, holder: str, user: str = "u", administrator: bool = False) -> Any:
    return service.answer(
        {
            "do": "take_cursor",
            "name": "archive",
            "holder": holder,
            "octets_max": None,
            "user": user,
            "administrator": administrator,
        }
    ).get("error")


def create(service: NodeService, **more: Any) -> dict[str, Any]:
    question = {
        "do": "create",
        "vhost": None,
        "names": None,
        "pattern": None,
        "queues": [("/", "orders", 0x100, True), ("/", "elsewhere", 0x200, False)],
        "vhosts": ["/"],
        "lease_s": 60,
        "needs_state": False,
        "retained": False,
        "missing_ok": False,
        "cursor": None,
        "holder": "",
        "user": "u",
        "token": "t",
    }
    return service.answer({**question, **more})


def test_a_stream_that_is_silent_loses_its_cursor(store: Path) -> None:
    clock = Clock()
    service = NodeService(store, clock)
    assert take(service, "a") is None
    clock.now = HOLD_S - 1
    assert take(service, "b") == "CursorInUse"
    assert take(service, "a") is None
    clock.now += HOLD_S + 1
    assert take(service, "b") is None
    assert take(service, "a") == "CursorInUse"
    assert create(service, cursor="archive", holder="a")["error"] == "CursorInUse"


def test_a_cursor_belongs_to_its_user(store: Path) -> None:
    service = NodeService(store, Clock())
    assert take(service, "a", "u") is None
    service.answer({"do": "leave_cursor", "name": "archive", "holder": "a"})
    assert take(service, "b", "other") == "CursorInUse"
    assert take(service, "b", "other", administrator=True) is None


def test_queues_of_other_nodes_are_told_and_not_read(store: Path) -> None:
    answer = create(NodeService(store, Clock()))["answer"]
    assert (answer["here"], answer["elsewhere"]) == ([("/", "orders")], [("/", "elsewhere")])
    (snapshot,) = list_snapshots(store)
    assert [queue.name for queue in snapshot.queues] == ["orders"]


def test_a_mistake_leaves_nothing(store: Path) -> None:
    answer = create(NodeService(store, Clock()), names=["orderz"])
    assert answer["error"] == "QueueUnknown" and "near names: 'orders'" in answer["text"]
    assert list_snapshots(store) == []
