"""The election of a leader among the mirrors of a queue that is carried by a log.

A mirror whose leader has gone asks the other whole copies for their votes. Who votes takes no more
of the old leader's batches, so what it says it has stays true. When enough have voted
(`confirm_rule.votes_needed`), one of them has every confirmed publish: the one with the most leads.
It writes itself into the definition on the condition that epoch and ballot are what
they were, so of several elections at most one counts. The leader before, if it is alive
after all, makes the votes void by another ballot.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from warren.core.records import QueueRecord
from warren.mirror.carriers.batch import Position
from warren.mirror.replication.confirm_rule import votes_needed

ELECTION_PAUSE_S = 0.05
"""How long a mirror waits that has lost its leader: others are about to notice it, too."""

VOTE_S = 1.0
"""How long it waits for votes."""


class Vote(Enum):
    """What a node says that is asked for its vote, but for where its copy ends."""

    NONE = "none"
    """It has no copy that counts, or knows of another leader."""
    LEADER_LIVES = "leader lives"


Answer = Position | Vote


class Result(NamedTuple):
    """`winner` is to lead; None where nobody may, for the reason in `why_not`."""

    winner: str | None
    why_not: str = ""


def can_be_elected(record: QueueRecord, mirrors: int) -> bool:
    """Whether so many votes of mirrors are enough."""
    return mirrors >= votes_needed(record.acks, record.whole_copies)


def decide(record: QueueRecord, answers: Mapping[str, Answer], *, given_up: int = 0) -> Result:
    """What comes of these answers, the asking node's own among them.

    `given_up` whole copies are known to be dead, and the policy allows to go on without.
    """
    if Vote.LEADER_LIVES in answers.values():
        return Result(None, "the leader lives")
    votes = {node: answer for node, answer in answers.items() if isinstance(answer, tuple)}
    needed = votes_needed(record.acks, record.whole_copies)
    if len(votes) + given_up < needed:
        return Result(None, f"{len(votes)} of {needed} votes")
    # The oldest mirror among those that have the most.
    winner = max(votes, key=lambda node: (votes[node], -record.in_sync.index(node)))
    return Result(winner)
