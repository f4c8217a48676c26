"""The election of a leader among the mirrors of a queue that is carried by a log.

A mirror whose leader has gone asks the other whole copies for their votes. A copy that votes takes
no more of the old leader's batches, so what it says it has stays true. When enough have voted
(`confirm_rule.votes_needed`), one of them has every confirmed publish: the one with the most leads.
It writes itself into the definition on the condition that epoch and ballot are what they were, so
of several elections at most one counts. If the old leader is alive after all, it makes the votes
void by another ballot. So does every change of which copies count, since by the changed definition
the votes may not be enough.

A copy that was on disk when its node was started votes, too; its vote counts only where the others
are not enough. Its last batch is not known. Instead it gives the position behind its last message:
of two such copies, the one whose last message comes later got all that the other one has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.mirror.carriers.batch import Position
from warren.mirror.replication.definition.confirm_rule import ALL, votes_needed

ELECTION_PAUSE_S = 0.05
"""How long a mirror that has lost its leader waits: others are about to notice it, too."""

VOTE_S = 1.0
"""How long a mirror waits for votes."""


class Vote(Enum):
    """The answer of a node that was asked for its vote and does not give it."""

    NONE = "none"
    """The node has no copy that counts, or knows of another leader."""
    LEADER_LIVES = "leader lives"


class CandidateCopy(NamedTuple):
    """A vote: the last batch of the copy, and per level the position behind its last message.

    Of a copy `from_disk` only the epoch of the last batch is known.
    """

    end: Position
    positions: Sequence[int]
    from_disk: bool = False


Answer = CandidateCopy | Vote


class Electorate(IntEnum):
    """The common knowledge of the copies that voted. Nodes send each other these numbers."""

    ENOUGH = 0
    """They have all that was confirmed, and have heard of all that was handed out."""

    LACKING = 1
    """Their votes alone were not enough: copies that were given up may have had more."""

    FROM_DISK = 2
    """They have all that was confirmed. Some were read from disk, which does not say what was
    handed out: the winner may not have heard of that."""


class ElectionResult(NamedTuple):
    """`winner` is to lead; None if no node may lead, for the reason in `why_not`."""

    winner: str | None
    why_not: str = ""
    electorate: Electorate = Electorate.ENOUGH


def votes_wanted(record: QueueRecord) -> int:
    """Return how many votes decide an election. If the leader is forgotten, those of all copies
    that are left do: what they lack is lost."""
    needed = votes_needed(record.acks, record.whole_copies)
    return min(needed, max(1, len(record.in_sync))) if record.leader_is_forgotten else needed


def can_be_elected(record: QueueRecord, mirrors: int) -> bool:
    """Whether the votes of this many mirrors are enough."""
    return mirrors >= votes_needed(record.acks, record.whole_copies)


def with_void_votes(earlier: QueueRecord, changed: QueueRecord) -> QueueRecord:
    """The changed definition, with another ballot where another number of votes may be needed: a
    mirror may have counted votes by the earlier one, and not have written yet that it leads."""
    counted = (earlier.in_sync, earlier.missing, earlier.acks)
    is_counted_so = counted == (changed.in_sync, changed.missing, changed.acks)
    if not changed.carrier or is_counted_so or changed.ballot != earlier.ballot:
        return changed
    return msgspec.structs.replace(changed, ballot=earlier.ballot + 1)


def decide(
    record: QueueRecord, answers: Mapping[str, Answer], *, given_up: int = 0
) -> ElectionResult:
    """The result of an election with these answers, the asking node's own among them.

    `given_up` whole copies are known to be dead, and the policy allows going on without them.
    """
    if Vote.LEADER_LIVES in answers.values():
        return ElectionResult(None, "the leader lives")
    votes = {node: answer for node, answer in answers.items() if isinstance(answer, CandidateCopy)}
    following = {node: vote for node, vote in votes.items() if not vote.from_disk}
    needed = votes_wanted(record)
    if len(votes) + given_up < needed:
        return ElectionResult(None, f"{len(votes)} of {needed} votes")
    electorate = _electorate(record, len(votes), len(following))
    if following and len(following) + given_up >= needed:
        # The oldest mirror among those that have the most.
        winner = max(following, key=lambda node: (following[node].end, -record.in_sync.index(node)))
        return ElectionResult(winner, electorate=electorate)
    fullest = _fullest(record, votes)
    if fullest is None:
        return ElectionResult(None, "copies on disk that cannot be compared")
    return ElectionResult(fullest, electorate=electorate)


def _electorate(record: QueueRecord, votes: int, following: int) -> Electorate:
    """`following`: how many of the votes are of copies that followed the leader until it went."""
    needed = votes_needed(record.acks, record.whole_copies)
    if votes < needed:
        return Electorate.LACKING
    # Where all copies have a message before it is confirmed, all have heard of hand-outs, too.
    if following >= needed or record.acks == ALL:
        return Electorate.ENOUGH
    return Electorate.FROM_DISK


def _fullest(record: QueueRecord, votes: Mapping[str, CandidateCopy]) -> str | None:
    """Return the oldest copy that has all that any other has; None if that cannot be told."""
    latest = max(vote.end[0] for vote in votes.values())
    there = [node for node in record.in_sync if node in votes and votes[node].end[0] == latest]
    if record.acks == ALL:
        # Each copy has everything.
        return there[0]
    for node in there:
        own = votes[node].positions
        if all(_reaches(own, votes[other].positions) for other in there):
            return node
    return None


def _reaches(own: Sequence[int], others: Sequence[int]) -> bool:
    return all(one >= other for one, other in zip(own, others, strict=True))
