"""Questions of nodes to each other, and what becomes of them when links break."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster

from warren.core.scheduling.waiting import Event, run
from warren.mirror.messages.calls import NodeDown


class SlowAnswers:
    """Served by a node: answers the questions in the order in which it is let."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.waiting: list[Event] = []
        cluster[node].calls.serve("slow", self._asked)

    async def _asked(self, node: str, answer: str) -> str:
        event = Event()
        self.waiting.append(event)
        await event
        return answer


def ask(cluster: Cluster, answer: str) -> list[Any]:
    """Node a asks b; what it hears is in the list then."""
    heard: list[Any] = []

    def finish(result: Any) -> None:
        try:
            heard.append(result())
        except NodeDown:
            heard.append(NodeDown)

    async def question() -> Any:
        return await cluster["a"].calls.ask("b", "slow", answer)

    run(question(), finish)
    cluster.settle()
    return heard


@pytest.mark.parametrize("fault", ["the link breaks", "the node that asks dies"])
def test_an_answer_that_comes_after_the_link_was_lost_is_not_taken_for_another(fault: str) -> None:
    cluster = Cluster("a", "b")
    b = SlowAnswers(cluster, "b")
    before = cluster["a"].calls._asked
    first = ask(cluster, "of the former life")
    if fault == "the link breaks":
        cluster.cut("a", "b")
        cluster.connect("a", "b")
        assert first == [NodeDown]
    else:
        cluster.kill("a")
        cluster.comes_back("a")
        # The next question has the number of the one before.
        cluster["a"].calls._asked = before
    second = ask(cluster, "of this life")
    for event in b.waiting:
        event.happen()
        cluster.settle()
    assert second == ["of this life"]
