"""What becomes of each message between two brokers, without brokers."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from warren.client.events import Delivered
from warren.shovel.transfer import HELD_OCTETS_MAX, Ack, AckMode, Transfer


def message(tag: int, body: bytes = b"") -> Delivered:
    return Delivered(1, tag, False, b"", b"q", b"", body)


class Run:
    """A transfer whose messages are published as soon as they may be, tags counting from 1."""

    def __init__(
        self,
        count: int,
        mode: AckMode = AckMode.ON_CONFIRM,
        *,
        in_order: bool = True,
        limit: int | None = None,
    ) -> None:
        self.transfer = Transfer(mode, in_order=in_order, limit=limit)
        self.published: list[int] = []
        self.acks: list[Ack] = []
        for tag in range(1, count + 1):
            self.transfer.deliver(message(tag))
        self.publish()

    def publish(self) -> list[int]:
        """The delivery tags of what was published now."""
        now = []
        while (found := self.transfer.next()) is not None:
            self.published.append(found.delivery_tag)
            now.append(found.delivery_tag)
            self.acks += self.transfer.published(found, len(self.published))
        return now

    def confirm(self, *tags: int) -> list[Ack]:
        return self.transfer.confirmed(tags)


def test_what_is_confirmed_from_the_first_on_is_acked_as_one() -> None:
    run = Run(5)
    assert run.acks == []
    assert run.confirm(1, 2, 3) == [Ack(3, True)]
    assert run.transfer.moved == 3


def test_what_is_confirmed_behind_others_is_acked_alone() -> None:
    run = Run(4)
    assert run.confirm(3) == [Ack(3, False)]
    assert run.confirm(1) == [Ack(1, True)]
    assert run.confirm(2, 4) == [Ack(4, True)]


def test_published_messages_are_acked_at_once_where_that_is_wanted() -> None:
    run = Run(2, AckMode.ON_PUBLISH)
    assert run.acks == [Ack(1, True), Ack(2, True)]
    assert run.transfer.moved == 2


def test_without_acks_nothing_is_acked() -> None:
    run = Run(2, AckMode.NO_ACK)
    assert (run.acks, run.transfer.moved) == ([], 2)


def test_limit_is_never_passed() -> None:
    run = Run(5, limit=3)
    assert run.published == [1, 2, 3]
    run.confirm(1, 2)
    assert (run.publish(), run.transfer.done) == ([], False)
    run.confirm(3)
    assert run.transfer.done


def test_limit_of_zero_is_reached_at_once() -> None:
    run = Run(1, limit=0)
    assert run.published == []
    assert run.transfer.done


def test_refused_message_does_not_count_and_goes_first_after_the_pause() -> None:
    run = Run(3)
    run.transfer.deliver(message(4))
    run.transfer.refused(2)
    assert run.transfer.needs_pause
    assert run.publish() == []
    assert run.confirm(1, 3) == [Ack(1, True), Ack(3, False)]
    run.transfer.pause_is_over()
    assert run.publish() == [2, 4]
    assert run.transfer.moved == 2


def test_refused_messages_wait_for_those_that_are_on_their_way() -> None:
    run = Run(3)
    run.transfer.refused(1)
    run.transfer.pause_is_over()
    assert run.publish() == []
    run.transfer.refused(2)
    run.transfer.refused(3)
    assert run.transfer.needs_pause
    run.transfer.pause_is_over()
    assert run.publish() == [1, 2, 3]


def test_without_an_order_others_pass_a_refused_message() -> None:
    run = Run(2, in_order=False)
    run.transfer.refused(1)
    run.transfer.deliver(message(3))
    assert run.publish() == [3]
    assert run.confirm(2, 3) == [Ack(2, False), Ack(3, False)]
    run.transfer.pause_is_over()
    assert run.publish() == [1]
    assert run.confirm(4) == [Ack(1, True)]


def test_large_messages_stop_the_reading_until_they_are_gone() -> None:
    transfer = Transfer(AckMode.ON_CONFIRM, in_order=True, limit=None)
    transfer.deliver(message(1, bytes(HELD_OCTETS_MAX + 1)))
    assert transfer.holds_much
    found = transfer.next()
    assert found is not None
    transfer.published(found, 1)
    assert transfer.holds_much
    transfer.confirmed([1])
    assert not transfer.holds_much


@given(st.integers(0, 1 << 32), st.booleans(), st.integers(1, 30))
def test_each_message_is_acked_once_and_only_when_it_was_confirmed(
    seed: int, in_order: bool, count: int
) -> None:
    random = Random(seed)
    run = Run(count, in_order=in_order)
    on_their_way = dict(enumerate(run.published, 1))
    confirmed: set[int] = set()
    acked: set[int] = set()
    while run.transfer.moved < count:
        if not on_their_way:
            run.transfer.pause_is_over()
        start = len(run.published)
        for number, tag in enumerate(run.publish(), start + 1):
            on_their_way[number] = tag
        number = random.choice(sorted(on_their_way))
        tag = on_their_way.pop(number)
        if random.random() < 0.3:
            run.transfer.refused(number)
            continue
        confirmed.add(tag)
        for ack in run.confirm(number):
            upto = range(1, ack.delivery_tag) if ack.multiple else ()
            settled = {one for one in upto if one not in acked} | {ack.delivery_tag}
            assert settled <= confirmed
            assert ack.delivery_tag not in acked
            acked |= settled
    assert acked == set(range(1, count + 1))


def test_what_is_refused_is_left_where_that_is_wanted() -> None:
    transfer = Transfer(AckMode.ON_CONFIRM, in_order=False, limit=4, leaves_refused=True)
    for tag in range(1, 6):
        transfer.deliver(message(tag))
    for tag in (1, 2, 3):
        found = transfer.next()
        assert found is not None
        assert transfer.published(found, tag) == []
    transfer.refused(2)
    found = transfer.next()
    assert found is not None
    transfer.leave(found)
    assert transfer.next() is None, "the limit counts what is left"
    assert transfer.confirmed([1]) == [Ack(1, True)]
    # What is left is never acked, nor what stands behind it acked with it.
    assert transfer.confirmed([3]) == [Ack(3, False)]
    assert (transfer.moved, transfer.left, transfer.done) == (2, 2, True)
    assert not transfer.needs_pause and transfer.refused_count == 0
