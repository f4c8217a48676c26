"""The rules of presence: when a lease is lost, and what happened between two snapshots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warren.mirror.members.presence import LeaseDeadline, Presence, presence_changes


class TestLeaseDeadline:
    def test_it_counts_from_the_sending_not_from_the_answer(self) -> None:
        deadline = LeaseDeadline(9, 100.0)
        assert deadline.renew_at == 103.0
        deadline.answered(sent_at=103.0, ttl_s=9, now=108.0)
        assert deadline.expires_at == 112.0
        assert deadline.held(111.9)
        assert not deadline.held(112.0)

    def test_an_answer_that_comes_too_late_does_not_bring_it_back(self) -> None:
        deadline = LeaseDeadline(9, 100.0)
        deadline.answered(sent_at=108.0, ttl_s=9, now=109.5)
        assert not deadline.held(109.5)

    def test_lost_once_is_lost_even_if_the_clock_is_asked_about_earlier(self) -> None:
        deadline = LeaseDeadline(9, 100.0)
        assert not deadline.held(109.0)
        assert not deadline.held(101.0)

    def test_a_lease_that_etcd_has_ended_is_lost_at_once(self) -> None:
        deadline = LeaseDeadline(9, 100.0)
        deadline.answered(sent_at=101.0, ttl_s=0, now=101.1)
        assert not deadline.held(101.1)

    def test_answers_out_of_order_never_shorten_it(self) -> None:
        deadline = LeaseDeadline(9, 100.0)
        deadline.answered(sent_at=104.0, ttl_s=9, now=104.1)
        deadline.answered(sent_at=103.0, ttl_s=9, now=104.2)
        assert deadline.expires_at == 113.0

    @given(
        st.lists(
            st.tuples(st.floats(0, 8), st.floats(0, 8), st.floats(0, 8)), min_size=1, max_size=20
        )
    )
    def test_the_holder_never_holds_on_for_longer_than_etcd(
        self, keep_alives: list[tuple[float, float, float]]
    ) -> None:
        """etcd starts the time anew when a keep-alive arrives, unless it has run out before."""
        now = 0.0
        deadline = LeaseDeadline(9, now)
        etcd_expires_at = now + 9
        for pause_s, way_there_s, way_back_s in keep_alives:
            now += pause_s
            sent_at = now
            now += way_there_s
            alive = now < etcd_expires_at
            if alive:
                etcd_expires_at = now + 9
            now += way_back_s
            deadline.answered(sent_at, 9 if alive else 0, now)
            assert not deadline.held(now) or now < etcd_expires_at
            assert not deadline.held(now) or deadline.expires_at <= etcd_expires_at


def presence(incarnation: int, node_id: str = "id") -> Presence:
    return Presence(node_id, incarnation, "10.0.0.1", 25672, "1.0", 0.0)


class TestPresenceChanges:
    def test_who_is_new_is_up_and_who_is_gone_is_down(self) -> None:
        changes = presence_changes(
            {"a": presence(1), "b": presence(1)}, {"b": presence(1), "c": presence(1)}
        )
        assert changes == [("a", presence(1), False), ("c", presence(1), True)]

    def test_a_node_that_came_back_between_two_looks_went_down_first(self) -> None:
        changes = presence_changes({"a": presence(1)}, {"a": presence(2)})
        assert changes == [("a", presence(1), False), ("a", presence(2), True)]

    def test_another_node_under_the_same_name_is_another_node(self) -> None:
        changes = presence_changes({"a": presence(1, "x")}, {"a": presence(1, "y")})
        assert [change.up for change in changes] == [False, True]

    def test_nothing_happened_between_equal_looks(self) -> None:
        assert presence_changes({"a": presence(1)}, {"a": presence(1)}) == []
