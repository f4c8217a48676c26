"""Figures of several nodes, added up; and what is asked of a node that stops."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from warren.core.errors import NotFound
from warren.core.scheduling.waiting import Waiting
from warren.mgmt.passed_requests import PassedRequests
from warren.mgmt.peers import Question, added
from warren.mgmt.waiting import through


def details(rate: float, *samples: tuple[int, float]) -> dict[str, Any]:
    return {"rate": rate, "samples": [{"timestamp": at, "sample": value} for at, value in samples]}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (1, 2, 3),
        (1, 0.5, 1.5),
        (None, 4, 4),
        (4, None, 4),
        (None, None, None),
        (True, True, True),
        ("a", "b", "a"),
        ({}, {"ack": 1}, {"ack": 1}),
        ({"ack": 1, "get": 2}, {"ack": 3}, {"ack": 4, "get": 2}),
        (
            {"ack_details": {"rate": 0.5}},
            {"ack_details": {"rate": 1}},
            {"ack_details": {"rate": 1.5}},
        ),
        # Clocks of nodes differ: the time is that of the node that was asked.
        (details(1, (20, 5), (10, 3)), details(2, (21, 1), (11, 1)), details(3, (20, 6), (10, 4))),
        # One of them has begun later: before that, there were the other's alone.
        (details(1, (20, 5), (10, 3)), details(2, (21, 1)), details(3, (20, 6), (10, 3))),
        (details(2, (21, 1)), details(1, (20, 5), (10, 3)), details(3, (21, 6), (10, 3))),
    ],
)
def test_numbers_are_added_place_by_place(one: Any, other: Any, both: Any) -> None:
    assert added(one, other) == both


def test_what_a_node_was_asked_ends_when_it_stops() -> None:
    served: dict[str, Any] = {}
    begun = asyncio.Event()

    async def handler(request: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    endpoint = SimpleNamespace(
        path="/x",
        methods={"GET": handler},
        right_for=lambda method: SimpleNamespace(check=lambda caller: None),
    )
    calls = SimpleNamespace(serve=served.__setitem__)
    question = Question("GET", "/x", {}, {}, {}, None, "guest", [], False, "")

    def asked() -> Waiting[Any]:
        return cast("Waiting[Any]", served["management"]("b", msgspec.to_builtins(question)))

    async def main() -> None:
        passed = PassedRequests(
            cast("Any", SimpleNamespace(node=None)), cast("Any", calls), cast("Any", [endpoint])
        )
        waiting = asyncio.create_task(through(asked()))
        await begun.wait()
        await passed.stop()
        for question in (waiting, through(asked())):
            with pytest.raises(NotFound, match="the node is stopping"):
                await question

    asyncio.run(main())
