"""When a publish is confirmed, and how many copies an election needs. Pure functions.

The definition of a queue names the mirrors that are *whole*. With its leader they are n copies, of
which k must have a publish before it is confirmed. An election that hears of n - k + 1 of them
hears of every confirmed publish (`votes_needed`), so whatever changes n or k has to keep that true:

- While a mirror is being added to the definition, a publish must have enough copies both without
  the mirror and with it, because an election may see either.
- While a mirror is being removed from the definition, its reports do not count any more, but it is
  still one of the n. It stays one, as a copy that is *missing*, until k of the rest have all that
  was confirmed (`can_shrink`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

ALL = 0
"""As a number of acknowledgements: every whole copy has to have a publish."""


class MirrorProgress(Protocol):
    """A mirror as its leader knows it: the mirror has everything up to the batch `has_batch`."""

    has_batch: int
    in_sync: bool
    is_named: bool
    is_leaving: bool


def copies_needed(acks: int, copies: int) -> int:
    """Return how many of `copies` whole copies must have a publish; the leader's is one of them."""
    return copies if acks == ALL else min(acks, copies)


def votes_needed(acks: int, copies: int) -> int:
    """Return how many copies an election must hear of.

    Where the leader confirms alone, no number of copies is sure to have everything: one is enough.
    """
    return 1 if acks == 1 else copies - copies_needed(acks, copies) + 1


def stricter(one: int, other: int) -> int:
    """Return the number of acknowledgements that asks for more copies."""
    return ALL if ALL in (one, other) else max(one, other)


def confirmed_upto(
    acks: int, mirrors: Collection[MirrorProgress], missing: int, last: int, least: int = 1
) -> int:
    """Return the batch up to which everything is confirmed; `last` is the leader's last one.

    At least `least` copies must have a batch, even if fewer are whole.
    """
    named = [mirror for mirror in mirrors if mirror.is_named]
    upto = _reached(acks, named, missing, last, least)
    if any([mirror.in_sync and not mirror.is_named for mirror in mirrors]):
        whole = [mirror for mirror in mirrors if mirror.in_sync or mirror.is_named]
        upto = min(upto, _reached(acks, whole, missing, last, least))
    return upto


def _reached(
    acks: int, whole: Sequence[MirrorProgress], missing: int, last: int, least: int
) -> int:
    others = max(copies_needed(acks, 1 + len(whole) + missing), least) - 1
    if not others:
        return last
    reached = sorted([mirror.has_batch for mirror in whole if not mirror.is_leaving], reverse=True)
    return reached[others - 1] if len(reached) >= others else 0


def can_shrink(acks: int, mirrors: Collection[MirrorProgress], copies: int, confirmed: int) -> bool:
    """Whether an election among `copies` copies would hear of all batches up to `confirmed`."""
    if acks == ALL:
        return True
    have_all = [
        mirror.has_batch >= confirmed
        for mirror in mirrors
        if mirror.is_named and not mirror.is_leaving
    ]
    return sum(have_all) >= copies_needed(acks, copies) - 1
