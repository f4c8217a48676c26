"""Messages on their way between two brokers, and those that both may have when one dies."""

from __future__ import annotations

from warren.mgmt.migrate.window import MovedAck, MovedPublish, MoveWindow


def window(*delivery_tags: int) -> MoveWindow:
    """Published with tags 1, 2, ..."""
    made = MoveWindow()
    for publish_tag, delivery_tag in enumerate(delivery_tags, 1):
        made.published(publish_tag, MovedPublish(delivery_tag, b"", 10))
    return made


def doubtful(found: MoveWindow) -> list[int]:
    return [message.delivery_tag for message in found.doubtful()]


def test_one_acknowledgement_is_for_all_up_to_the_first_that_is_not_confirmed() -> None:
    found = window(1, 2, 3, 4)
    found.confirmed([2, 4])
    assert found.take_acks() == []
    found.confirmed([1])
    assert found.take_acks() == [MovedAck(2, True)]
    found.confirmed([3])
    assert found.take_acks() == [MovedAck(4, True)]
    assert not found.awaits_confirms


def test_after_a_refusal_each_is_acknowledged_by_itself() -> None:
    found = window(1, 2, 3)
    found.refused(2)
    found.confirmed([3])
    assert found.take_acks() == [MovedAck(3, False)]
    found.confirmed([1])
    assert found.take_acks() == [MovedAck(1, False)]
    assert doubtful(found) == [3, 1]


def test_message_is_doubtful_until_the_source_has_read_its_acknowledgement() -> None:
    found = window(1, 2, 3)
    found.confirmed([1])
    found.take_acks()
    asked_at = found.acked
    found.confirmed([2])
    found.take_acks()
    assert doubtful(found) == [1, 2, 3]
    found.gone(asked_at)
    assert doubtful(found) == [2, 3]


def test_source_that_is_killed_may_bring_back_what_was_gone() -> None:
    found = window(1, 2)
    found.confirmed([1])
    found.take_acks()
    found.gone(1)
    assert doubtful(found) == [2]
    killed = found.doubtful(source_forgets=True)
    assert [message.delivery_tag for message in killed] == [1, 2]


def test_refused_message_is_not_doubtful() -> None:
    found = window(1)
    found.refused(1)
    assert doubtful(found) == []


def test_octets_count_until_they_are_answered_for() -> None:
    found = window(1, 2)
    assert found.unconfirmed_octets == 20
    found.confirmed([1])
    found.refused(2)
    assert found.unconfirmed_octets == 0
