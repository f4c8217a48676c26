"""Why queues were given other leaders: the reasons, as definitions tell them and as they are
counted."""

from __future__ import annotations

from enum import StrEnum

from warren.core.definitions.records import forgotten

_DOWN = " is down"
_NOT_IN_SYNC = " is down; copy was not in sync"
_WITHOUT_OTHERS = " is down; other copies, which are gone, may have had more"
_HANDED_OVER = " has handed it over"
LEADER_BACK = "its leader is back"
DAMAGED_LEADER_BACK = "its leader is back, with a damaged disk"


class Promotion(StrEnum):
    """`LEADER_DOWN_NOT_IN_SYNC`: the next leader may lack messages. `LEADER_BACK`: no mirror had
    taken the place of a leader that was away."""

    LEADER_DOWN = "leader_down"
    LEADER_DOWN_NOT_IN_SYNC = "leader_down_not_in_sync"
    HANDED_OVER = "handed_over"
    LEADER_BACK = "leader_back"


FAILOVERS = (Promotion.LEADER_DOWN, Promotion.LEADER_DOWN_NOT_IN_SYNC)
"""The promotions that followed the loss of a leader."""


def leader_down(leader: str, *, in_sync: bool, has_votes: bool = True) -> str:
    """Return the text for a leader that is down. Of a next leader that was `in_sync`, `has_votes`
    says whether enough copies have voted: without, it may lack messages that others had."""
    if not in_sync:
        return leader + _NOT_IN_SYNC
    return leader + (_DOWN if has_votes else _WITHOUT_OTHERS)


def handed_over(leader: str) -> str:
    return leader + _HANDED_OVER


def leader_lacks(told: str) -> bool:
    """Whether the leader with this reason may lack messages of the leader before it."""
    return promotion(told) is Promotion.LEADER_DOWN_NOT_IN_SYNC


def others_may_have_more(told: str) -> bool:
    """Whether former copies of other nodes may have messages that this leader lacks."""
    return leader_lacks(told) or told == DAMAGED_LEADER_BACK


def leader_is_back(told: str) -> bool:
    """Whether the leader with this reason was the one before, too."""
    return promotion(told) is Promotion.LEADER_BACK


def leader_is_lost(told: str) -> bool:
    """Whether the leader before the one with this reason was forgotten, and may have had more."""
    return leader_lacks(told) and forgotten("") in told


def promotion(told: str) -> Promotion:
    """Return the reason in a definition's text, which a function above has made."""
    if told in (LEADER_BACK, DAMAGED_LEADER_BACK):
        return Promotion.LEADER_BACK
    if told.endswith(_HANDED_OVER):
        return Promotion.HANDED_OVER
    if told.endswith((_NOT_IN_SYNC, _WITHOUT_OTHERS)):
        return Promotion.LEADER_DOWN_NOT_IN_SYNC
    return Promotion.LEADER_DOWN
