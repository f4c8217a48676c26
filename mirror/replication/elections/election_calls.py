"""How the copies of a queue hold an election (`election.py`) from node to node.

A copy asks the others for their votes, counts those that have come in time, and tells the winner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from warren.core.errors import NotFound
from warren.core.ports import Clock
from warren.core.scheduling.waiting import run
from warren.mirror.messages.calls import Calls
from warren.mirror.replication.elections.election import (
    VOTE_S,
    Answer,
    CandidateCopy,
    Electorate,
    Vote,
)


class Candidate(Protocol):
    """A copy of this node. Epoch and ballot of the queue's definition identify an election."""

    def vote(self, epoch: int, ballot: int) -> Answer: ...

    def win(self, epoch: int, ballot: int, electorate: Electorate) -> None: ...


class ElectionCalls:
    """The questions and answers of this node's copies; `candidates` are these, by queue id."""

    def __init__(self, calls: Calls, clock: Clock, candidates: Mapping[int, Candidate]) -> None:
        self._calls = calls
        self._clock = clock
        self._candidates = candidates
        calls.serve("mirror.vote", self._asked_to_vote)
        calls.serve("mirror.win", self._has_won)

    def ask_for_votes(
        self,
        queue_id: int,
        nodes: Collection[str],
        election: tuple[int, int],
        then: Callable[[dict[str, Answer]], None],
    ) -> None:
        """Ask the nodes for their votes; `then` is called with the answers that came in time."""
        answers: dict[str, Answer] = {}
        left = len(nodes)
        is_over = False

        def count() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                then(answers)

        async def ask(node: str) -> Answer:
            answer = await self._calls.ask(node, "mirror.vote", queue_id, *election)
            if isinstance(answer, str):
                return Vote(answer)
            (epoch, batch), positions, from_disk = answer
            return CandidateCopy((epoch, batch), positions, from_disk)

        def finish(node: str, result: Callable[[], Answer]) -> None:
            nonlocal left
            left -= 1
            # A node that cannot be reached has not voted.
            with suppress(NotFound):
                answers[node] = result()
            if not left:
                count()

        if not nodes:
            count()
            return
        self._clock.call_later(VOTE_S, count)
        for node in nodes:
            run(ask(node), partial(finish, node))

    def tell_winner(
        self, node: str, queue_id: int, election: tuple[int, int], electorate: Electorate
    ) -> None:
        """Tell the node that has won to lead."""

        def finish(result: Callable[[], None]) -> None:
            # If the winner has gone, too, another election is called at the next tick.
            with suppress(NotFound):
                result()

        async def tell() -> None:
            await self._calls.ask(node, "mirror.win", queue_id, *election, electorate.value)

        run(tell(), finish)

    async def _asked_to_vote(
        self, _node: str, queue_id: int, epoch: int, ballot: int
    ) -> CandidateCopy | str:
        copy = self._candidates.get(queue_id)
        answer = Vote.NONE if copy is None else copy.vote(epoch, ballot)
        return answer.value if isinstance(answer, Vote) else answer

    async def _has_won(
        self, _node: str, queue_id: int, epoch: int, ballot: int, electorate: int
    ) -> None:
        copy = self._candidates.get(queue_id)
        if copy is not None:
            copy.win(epoch, ballot, Electorate(electorate))
