"""The ring in which a queue serves its consumers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.queues.consumers import NO_LIMIT, Blocked, Consumer, ConsumerRing
from warren.core.queues.local_queue import LocalQueue


class Place:
    """A queue, as far as a consumer needs one here."""

    def __init__(self) -> None:
        self.ring = ConsumerRing()


class Someone(Consumer):
    """A consumer that is never handed anything."""

    def __init__(
        self,
        place: Place,
        tag: str = "c",
        priority: int = 0,
        prefetch: int = 0,
        no_ack: bool = False,
    ) -> None:
        super().__init__(place, tag, no_ack, False, priority, prefetch, {})  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return self.tag

    def send(self, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        raise NotImplementedError

    def take(self, message: Message) -> None:
        raise NotImplementedError

    def take_many(self, messages: list[Message]) -> None:
        raise NotImplementedError

    def capacity(self) -> int:
        raise NotImplementedError

    def traced_as(self) -> TracedClient:
        raise NotImplementedError

    def move_to(self, queue: LocalQueue) -> None:
        raise AssertionError("there is no other node")

    def cancelled(self) -> None:
        raise NotImplementedError


REASONS = (Blocked.PREFETCH, Blocked.CHANNEL_LIMIT, Blocked.SOCKET, Blocked.NOT_ACTIVE)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(REASONS), st.booleans()), max_size=60))
def test_the_ring_holds_in_order_who_is_blocked_by_nothing(
    moves: list[tuple[int, int, bool]],
) -> None:
    place = Place()
    consumers = [Someone(place, f"c{n}", priority=n % 3) for n in range(5)]
    order: list[Someone] = []
    reasons: dict[Someone, set[Blocked]] = {consumer: set() for consumer in consumers}
    for consumer in consumers:
        place.ring.add(consumer)
        order.append(consumer)
    for index, reason, block in moves:
        consumer = consumers[index]
        if block:
            consumer.block(reason)
            reasons[consumer].add(reason)
            if consumer in order:
                order.remove(consumer)
        else:
            comes_back = reasons[consumer] == {reason}
            assert consumer.unblock(reason) is comes_back
            reasons[consumer].discard(reason)
            if comes_back:
                order.append(consumer)
        highest = max((c.priority for c in order), default=None)
        assert list(place.ring.top) == [c for c in order if c.priority == highest]


def test_settling_makes_room_for_the_prefetch_only() -> None:
    place = Place()
    consumer = Someone(place, prefetch=2)
    place.ring.add(consumer)
    consumer.unacked = 3
    consumer.block(Blocked.PREFETCH)
    consumer.settled(1)
    assert not place.ring.top
    consumer.block(Blocked.SOCKET)
    consumer.settled(2)
    assert not place.ring.top
    assert consumer.unblock(Blocked.SOCKET)
    assert list(place.ring.top) == [consumer]


def test_no_prefetch_and_no_acknowledgements_mean_no_limit() -> None:
    assert Someone(Place(), prefetch=0).prefetch == NO_LIMIT
    assert Someone(Place(), prefetch=5, no_ack=True).prefetch == NO_LIMIT
    assert Someone(Place(), prefetch=5).prefetch == 5


class Counted(int):
    """A priority that counts how often one was compared with another."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > int(other)


def test_consumers_of_very_many_priorities_come_and_go_without_a_look_at_each() -> None:
    count = 500
    place = Place()
    everyone = [Someone(place, str(n), priority=Counted(n)) for n in range(count)]
    Counted.compared = 0
    for _ in range(2):
        for one in everyone:
            place.ring.add(one)
            assert list(place.ring.top) == [one]
        for one in reversed(everyone):
            assert list(place.ring.top) == [one]
            place.ring.remove(one)
    assert not place.ring.top
    assert Counted.compared < 10 * count
