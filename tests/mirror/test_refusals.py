"""Which refusals a queue keeps in mind, and for how long."""

from __future__ import annotations

from warren.mirror.messages.origin import origin_name
from warren.mirror.replication.copies.refusals import Refusals


def test_a_refusal_is_kept_until_its_publisher_knows() -> None:
    refusals = Refusals()
    one, other = origin_name("a", 1), origin_name("b", 1)
    refusals.note(one, [3, 5])
    refusals.note(other, [4])
    refusals.heard(one, 4)
    assert (list(refusals.of(one)), list(refusals.of(other))) == ([5], [4])
    refusals.heard(one, 5)
    refusals.heard(one, 9)
    assert [origin for origin, _ in refusals] == [other]


def test_those_of_an_earlier_run_of_a_node_are_asked_for_by_nobody() -> None:
    refusals = Refusals()
    refusals.note(origin_name("a", 1), [1])
    refusals.note(origin_name("b", 1), [2])
    refusals.note(origin_name("a", 2), [3])
    assert list(refusals) == [(origin_name("b", 1), {2}), (origin_name("a", 2), {3})]
