"""Why queues were given other leaders: the reasons, as definitions tell them and as they are
counted."""

from __future__ import annotations

from enum import StrEnum

_DOWN = " is down"
_NOT_IN_SYNC = " is down; copy was not in sync"
_HANDED_OVER = " has handed it over"
LEADER_BACK = "its leader is back"


class Promotion(StrEnum):
    """`LEADER_BACK`: no mirror had taken the place of a leader that was away."""

    LEADER_DOWN = "leader_down"
    LEADER_DOWN_NOT_IN_SYNC = "leader_down_not_in_sync"
    HANDED_OVER = "handed_over"
    LEADER_BACK = "leader_back"


FAILOVERS = (Promotion.LEADER_DOWN, Promotion.LEADER_DOWN_NOT_IN_SYNC)
"""The promotions that followed the loss of a leader."""


def leader_down(leader: str, *, whole: bool) -> str:
    """Return the text for a leader that is down; `whole`: the next leader had everything."""
    return leader + (_DOWN if whole else _NOT_IN_SYNC)


def handed_over(leader: str) -> str:
    return leader + _HANDED_OVER


def promotion(told: str) -> Promotion:
    """Return the reason in a definition's text, which a function above has made."""
    if told == LEADER_BACK:
        return Promotion.LEADER_BACK
    if told.endswith(_HANDED_OVER):
        return Promotion.HANDED_OVER
    if told.endswith(_NOT_IN_SYNC):
        return Promotion.LEADER_DOWN_NOT_IN_SYNC
    return Promotion.LEADER_DOWN
