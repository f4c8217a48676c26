"""The messages that a member has missed when its left neighbour has changed.

Theory (reference section 1.7). Everything a member hears comes through its left neighbour, and the
publishes of each member travel round the ring to the right. This member *owns* its own publishes
and those of its aliases. Of all other publishes a new left neighbour knows at least as much as this
member. Of the owned ones, those that the left neighbour has seen have gone round.

The comparison gives the activity that would have brought the difference. This member processes,
passes on and delivers it like any other activity. Comparing again gives nothing, so a catchup may
come twice.
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
    """The activity that this member lacks, from comparing its knowledge with the left neighbour's.

    A member that only the left neighbour knows was erased since, and is passed over. Raises
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
    """The news of an owned member: the publishes that the left neighbour has seen went round."""
    if known.last_pub > state.last_pub or known.acked > state.acked:
        raise Inconsistent(f"left knows {known.member} up to {_range(known)}, its owner {state}")
    count = max(0, known.last_pub - state.acked)
    pubs = known.pending[len(known.pending) - count :]
    acked = known.acked if known.acked > state.last_ack else NONE
    return MemberNews(known.member, state.acked + 1, pubs, acked)


def _news(state: MemberState, known: Known) -> MemberNews:
    """The news of any other member: what the left neighbour has seen and this member has not."""
    if not state.acked <= known.acked <= state.last_pub <= known.last_pub:
        raise Inconsistent(f"left knows {known.member} up to {_range(known)}, I know {state}")
    count = known.last_pub - state.last_pub
    pubs = known.pending[len(known.pending) - count :]
    acked = known.acked if known.acked > state.acked else NONE
    return MemberNews(known.member, state.last_pub + 1, pubs, acked)


def _range(known: Known) -> str:
    return f"{known.last_pub}, acked {known.acked}"
