"""Priority queues: reference 10."""

import time
from typing import Any

from warren.compat_tests.raw_client import RawChannel

AREA = "Priority queues"


def fill(ch: RawChannel, queue: str, *messages: tuple[bytes, int | None]) -> None:
    for body, priority in messages:
        properties: dict[str, Any] = {} if priority is None else {"priority": priority}
        ch.publish(body, queue, **properties)
    ch.ping()


def test_higher_priority_comes_first_and_equals_stay_in_order(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_priority=5)
    fill(ch, queue, (b"a1", 1), (b"b1", 3), (b"c1", 5), (b"a2", 1), (b"b2", 3), (b"c2", 5))
    assert ch.bodies(queue) == [b"c1", b"c2", b"b1", b"b2", b"a1", b"a2"]


def test_priority_above_the_maximum_is_the_maximum(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_priority=3)
    fill(ch, queue, (b"3", 3), (b"255", 255), (b"4", 4), (b"2", 2))
    assert ch.bodies(queue) == [b"3", b"255", b"4", b"2"]


def test_priority_in_the_properties_is_left_as_it_was(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_priority=3)
    fill(ch, queue, (b"m", 200))
    assert ch.got(queue).properties == {"priority": 200}


def test_no_priority_is_the_lowest(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_priority=3)
    fill(ch, queue, (b"none", None), (b"one", 1), (b"zero", 0))
    assert ch.bodies(queue) == [b"one", b"none", b"zero"]


def test_maximum_of_zero_is_one_level(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_priority=0)
    fill(ch, queue, (b"1", 0), (b"2", 9), (b"3", 5))
    assert ch.bodies(queue) == [b"1", b"2", b"3"]


def test_ordinary_queue_ignores_priority(ch: RawChannel) -> None:
    queue = ch.own_queue()
    fill(ch, queue, (b"1", 0), (b"2", 9))
    assert ch.bodies(queue) == [b"1", b"2"]


def test_consumers_get_the_highest_first(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_priority=9)
    fill(ch, queue, (b"low", 1), (b"high", 9), (b"middle", 5))
    ch.consume(queue)
    assert [ch.delivery().body for _ in range(3)] == [b"high", b"middle", b"low"]


def test_requeued_message_keeps_its_place_in_its_level(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_priority=5)
    fill(ch, queue, (b"a1", 1), (b"a2", 1), (b"b1", 3), (b"b2", 3))
    tags = [ch.got(queue, no_ack=False)["delivery_tag"] for _ in range(3)]
    for tag in reversed(tags):
        ch.nack(tag)
    ch.becomes_ready(queue, 4)
    assert ch.bodies(queue) == [b"b1", b"b2", b"a1", b"a2"]


def test_counts_and_purge_are_of_all_levels(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_priority=5)
    fill(ch, queue, (b"1", 1), (b"3", 3), (b"5", 5))
    assert ch.ready(queue) == 3
    assert ch.call("queue.purge", queue=queue)["message_count"] == 3
    assert ch.ready(queue) == 0


def test_length_limit_is_of_all_levels_and_drops_the_highest_first(ch: RawChannel) -> None:
    """The next message to be fetched is dropped first, though its priority is the highest."""
    queue = ch.own_queue(x_max_priority=5, x_max_length=2)
    fill(ch, queue, (b"low", 1), (b"high 1", 5), (b"high 2", 5))
    assert ch.bodies(queue) == [b"high 2", b"low"]


def test_expired_heads_of_the_highest_levels_are_dropped(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_priority=5)
    for priority in (1, 3, 5):
        ch.publish(b"dies", queue, priority=priority, expiration="50")
    ch.publish(b"keeps", queue, priority=1)
    ch.ping()
    time.sleep(0.1)
    ch.becomes_ready(queue, 1)
    assert ch.bodies(queue) == [b"keeps"]


def test_expired_message_below_a_living_one_is_never_delivered(ch: RawChannel) -> None:
    """RabbitMQ looks at the next level only if no level above has a living head; until then the
    expired message counts. A broker that drops it at once is right, too."""
    queue = ch.own_queue(x_max_priority=5)
    ch.publish(b"keeps", queue, priority=5)
    ch.publish(b"dies", queue, priority=1, expiration="50")
    ch.ping()
    time.sleep(0.1)
    assert ch.ready(queue) in (1, 2)
    assert ch.bodies(queue) == [b"keeps"]
