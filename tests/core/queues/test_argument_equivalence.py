"""When two declarations of a queue agree, and what is said when they do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.errors import PreconditionFailed
from warren.core.field import INTEGER_KINDS, Field, Table, long, longstr
from warren.core.queues.argument_equivalence import check_equivalent
from warren.core.queues.queue_arguments import CHECKS
from warren.core.queues.queue_type import QueueType

SHORT = Field("s", 5)
TRUE = Field("t", True)


def inequivalence(received: Table, current: Table) -> str:
    with pytest.raises(PreconditionFailed) as refused:
        check_equivalent("q", "v", received, current)
    return refused.value.text


class TestEquivalence:
    def test_the_same_arguments_agree(self) -> None:
        arguments = {"x-max-length": long(5), "x-dead-letter-exchange": longstr("x")}
        check_equivalent("q", "v", arguments, dict(arguments))

    @given(one=st.sampled_from(sorted(INTEGER_KINDS)), other=st.sampled_from(sorted(INTEGER_KINDS)))
    def test_integer_types_are_interchangeable(self, one: str, other: str) -> None:
        check_equivalent(
            "q", "v", {"x-max-length": Field(one, 5)}, {"x-max-length": Field(other, 5)}
        )

    def test_unknown_arguments_do_not_count(self) -> None:
        check_equivalent("q", "v", {"x-foo": long(1)}, {"x-ha-policy": longstr("all")})

    def test_the_classic_type_is_the_one_without_a_name(self) -> None:
        classic = {"x-queue-type": longstr("classic")}
        check_equivalent("q", "v", classic, {})
        check_equivalent("q", "v", {}, classic)
        assert inequivalence({"x-queue-type": longstr("quorum")}, {}) == (
            "inequivalent arg 'x-queue-type' for queue 'q' in vhost 'v': received"
            " the value 'quorum' of type 'longstr' but current is none"
        )

    def test_one_side_alone_is_shown_with_its_type(self) -> None:
        assert inequivalence({"x-max-length": SHORT}, {}) == (
            "inequivalent arg 'x-max-length' for queue 'q' in vhost 'v': received"
            " the value '5' of type 'short' but current is none"
        )
        assert inequivalence({}, {"x-overflow": longstr("drop-head")}) == (
            "inequivalent arg 'x-overflow' for queue 'q' in vhost 'v': received none but"
            " current is the value 'drop-head' of type 'longstr'"
        )

    def test_two_sides_are_shown_as_values(self) -> None:
        assert inequivalence({"x-max-length": long(6)}, {"x-max-length": SHORT}) == (
            "inequivalent arg 'x-max-length' for queue 'q' in vhost 'v':"
            " received '6' but current is '5'"
        )

    def test_equal_values_of_different_types_differ(self) -> None:
        assert "received '1' but current is 'true'" in inequivalence(
            {"x-single-active-consumer": long(1)}, {"x-single-active-consumer": TRUE}
        )

    @given(
        names=st.lists(
            st.sampled_from(sorted({*CHECKS[QueueType.CLASSIC], "x-dead-letter-exchange"})),
            min_size=1,
            unique=True,
        )
    )
    def test_every_known_argument_counts(self, names: list[str]) -> None:
        text = inequivalence({name: longstr("other") for name in names}, {})
        assert text.split("'")[1] in names

    def test_what_counts_depends_on_the_type_there_is(self) -> None:
        quorum = {"x-queue-type": longstr("quorum")}
        check_equivalent("q", "v", {**quorum, "x-max-priority": long(3)}, quorum)
        check_equivalent("q", "v", {"x-max-in-memory-length": long(3)}, {})
        for arguments in ({"x-delivery-limit": long(3)}, {"x-redelivery-delay": Field("A", [])}):
            assert inequivalence(arguments, {})
        assert "'x-delivery-limit'" in inequivalence(
            {**quorum, "x-delivery-limit": long(3)}, quorum
        )
