"""What a member has missed when its left neighbour has changed.

Theory (reference section 1.7). All that a member hears comes through its left neighbour, and each
member's publishes travel the ring from their owner to the right. So a new left neighbour knows at
least what this member knows, of every member but those this one owns: itself and its aliases.
There it is the other way round: what the left neighbour has seen has come back.

The comparison gives the activity that would have brought the difference. Applied to what this
member knows, it is processed, passed on and delivered as any other activity. Comparing again gives
nothing, so a catchup may come twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from warren.mirror.carriers.ports import MemberId
from warren.mirror.gm.errors import Inconsistent
from warren.mirror.gm.member_state import MemberState
from warren.mirror.gm.messages import NONE, Known, MemberNews


def missed(
    mine: Mapping[MemberId, MemberState], left: Iterable[Known], owned: Collection[MemberId]
) -> list[MemberNews]:
    """The activity that the left neighbour's knowledge makes up for.

    Members that only the left neighbour knows of were erased since: they are passed over. Raises
    `Inconsistent` when the left neighbour knows less than it must.
    """
    entries = []
    for known in left:
        state = mine.get(known.member)
        if state is None:
            continue
        entry = _returned(state, known) if known.member in owned else _news(state, known)
        if entry.pubs or entry.acked != NONE:
            entries.append(entry)
    return entries


def _returned(state: MemberState, known: Known) -> MemberNews:
    """Of a member this one owns: what the left neighbour has seen has gone round."""
    if known.last_pub > state.last_pub or known.acked > state.acked:
        raise Inconsistent(f"left knows {known.member} up to {_range(known)}, its owner {state}")
    count = max(0, known.last_pub - state.acked)
    pubs = known.pending[len(known.pending) - count :]
    acked = known.acked if known.acked > state.last_ack else NONE
    return MemberNews(known.member, state.acked + 1, pubs, acked)


def _news(state: MemberState, known: Known) -> MemberNews:
    """Of any other: what the left neighbour has seen and this member has not."""
    if not state.acked <= known.acked <= state.last_pub <= known.last_pub:
        raise Inconsistent(f"left knows {known.member} up to {_range(known)}, I know {state}")
    count = known.last_pub - state.last_pub
    pubs = known.pending[len(known.pending) - count :]
    acked = known.acked if known.acked > state.acked else NONE
    return MemberNews(known.member, state.last_pub + 1, pubs, acked)


def _range(known: Known) -> str:
    return f"{known.last_pub}, acked {known.acked}"
