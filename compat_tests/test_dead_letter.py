"""Dead lettering: reference 9."""

import time
from typing import Any

import pytest

from warren.compat_tests.field_table import Typed
from warren.compat_tests.methods import Method
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Dead lettering"


def dying_into(ch: RawChannel, dead: str, **arguments: object) -> str:
    """A queue whose dead messages go to the queue `dead`."""
    return ch.own_queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead, **arguments)


def reject_head(ch: RawChannel, queue: str) -> None:
    (message,) = [ch.got(queue, no_ack=False)]
    ch.reject(message["delivery_tag"], requeue=False)


def rejected_once(ch: RawChannel, **properties: Any) -> tuple[str, Method]:
    """A queue in which a message was rejected, and that message as it came to another queue."""
    dead = ch.own_queue()
    queue = dying_into(ch, dead)
    ch.publish(b"m", queue, **properties)
    reject_head(ch, queue)
    (message,) = ch.arriving(dead, 1)
    return queue, message


def test_rejected_message_goes_to_the_dead_letter_exchange(ch: RawChannel, names: Names) -> None:
    exchange, dead = names.new(), ch.own_queue()
    ch.declare_exchange(exchange, "fanout")
    ch.bind(dead, exchange)
    queue = ch.own_queue(x_dead_letter_exchange=exchange)
    ch.publish(b"m", queue)
    reject_head(ch, queue)
    (message,) = ch.arriving(dead, 1)
    assert (message.body, message["exchange"], message["routing_key"]) == (b"m", exchange, queue)
    assert message["redelivered"] is False


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [b"low 1", b"high", b"low 2", b"low 0"]),
        ({"x_max_priority": 4}, [b"high", b"low 1", b"low 2", b"low 0"]),
    ],
)
def test_dead_letters_come_in_the_order_of_delivery_tags_by_priority(
    ch: RawChannel, arguments: dict[str, int], expected: list[bytes]
) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, dead, **arguments)
    ch.consume(queue)
    tags = []
    for body, priority in ((b"low 0", 0), (b"low 1", 0), (b"high", 2), (b"low 2", 0)):
        ch.publish(body, queue, priority=priority)
        tags.append(ch.delivery(body)["delivery_tag"])
    ch.reject(tags[0], requeue=True)
    last = ch.delivery(b"low 0")["delivery_tag"]
    ch.nack(last, multiple=True, requeue=False)
    assert [message.body for message in ch.arriving(dead, 4)] == expected


def test_dead_letter_routing_key_replaces_the_original(ch: RawChannel, names: Names) -> None:
    exchange, dead = names.new(), ch.own_queue()
    ch.declare_exchange(exchange, "direct")
    ch.bind(dead, exchange, "grave")
    queue = ch.own_queue(x_dead_letter_exchange=exchange, x_dead_letter_routing_key="grave")
    ch.publish(b"m", queue)
    reject_head(ch, queue)
    assert ch.arriving(dead, 1)[0]["routing_key"] == "grave"


def test_death_is_recorded(ch: RawChannel) -> None:
    before = int(time.time())
    queue, message = rejected_once(ch)
    (death,) = message.headers["x-death"]
    when = death.pop("time")
    assert before - 60 <= when <= time.time() + 60
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
    }
    assert message.headers["x-first-death-reason"] == "rejected"
    assert message.headers["x-first-death-queue"] == queue
    assert message.headers["x-first-death-exchange"] == ""


def test_death_is_recorded_with_the_types_clients_know(ch: RawChannel) -> None:
    _, message = rejected_once(ch, expiration="60000")
    headers = message.typed_headers
    assert headers["x-death"].code == "A"
    (death,) = headers["x-death"].value
    assert death.code == "F"
    assert {key: value.code for key, value in death.value.items()} == {
        "count": "l",
        "reason": "S",
        "queue": "S",
        "time": "T",
        "exchange": "S",
        "routing-keys": "A",
        "original-expiration": "S",
    }
    assert [headers[f"x-first-death-{key}"].code for key in ("reason", "queue", "exchange")] == [
        "S",
        "S",
        "S",
    ]


def test_expiration_is_taken_off_and_remembered(ch: RawChannel) -> None:
    _, message = rejected_once(ch, expiration="60000")
    assert "expiration" not in message.properties
    assert message.headers["x-death"][0]["original-expiration"] == "60000"


def test_properties_and_headers_stay(ch: RawChannel) -> None:
    properties = {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "priority": 4,
        "correlation_id": "c",
        "message_id": "id",
        "timestamp": 5,
        "type": "t",
        "app_id": "a",
    }
    headers = {"short": Typed("s", 5), "void": Typed("V", None), "u": Typed("u", 7)}
    _, message = rejected_once(ch, headers=headers, **properties)
    assert {key: message.properties[key] for key in properties} == properties
    assert {key: message.typed_headers[key] for key in headers} == headers


def test_expired_message_is_dead_lettered(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, dead, x_message_ttl=50)
    ch.publish(b"m", queue)
    (message,) = ch.arriving(dead, 1)
    assert message.headers["x-death"][0]["reason"] == "expired"


def test_message_with_ttl_zero_is_dead_lettered(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, dead, x_message_ttl=0)
    ch.publish(b"m", queue)
    assert ch.arriving(dead, 1)[0].headers["x-first-death-reason"] == "expired"


def test_expired_messages_keep_their_order(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, dead, x_message_ttl=50)
    bodies = [b"%d" % number for number in range(20)]
    for body in bodies:
        ch.publish(body, queue)
    assert [message.body for message in ch.arriving(dead, 20)] == bodies


def test_message_over_the_length_limit_is_dead_lettered(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, dead, x_max_length=1)
    ch.publish(b"old", queue)
    ch.publish(b"new", queue)
    (message,) = ch.arriving(dead, 1)
    assert (message.body, message.headers["x-death"][0]["reason"]) == (b"old", "maxlen")
    assert ch.bodies(queue) == [b"new"]


def test_requeued_message_is_not_dead_lettered(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, dead)
    ch.publish(b"m", queue)
    ch.nack(ch.got(queue, no_ack=False)["delivery_tag"], requeue=True)
    ch.becomes_ready(queue, 1)
    assert ch.ready(dead) == 0


def test_acked_message_is_not_dead_lettered(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, dead)
    ch.publish(b"m", queue)
    ch.ack(ch.got(queue, no_ack=False)["delivery_tag"])
    ch.ping()
    assert (ch.ready(queue), ch.ready(dead)) == (0, 0)


def test_missing_dead_letter_exchange_drops_silently(ch: RawChannel) -> None:
    queue = ch.own_queue(x_dead_letter_exchange="cf-no-such-exchange")
    ch.publish(b"m", queue)
    reject_head(ch, queue)
    ch.expect_silence(queue)
    assert ch.get(queue) is None


def test_dead_letter_exchange_may_be_created_later(ch: RawChannel, names: Names) -> None:
    exchange, dead = names.new(), ch.own_queue()
    queue = ch.own_queue(x_dead_letter_exchange=exchange)
    ch.publish(b"m", queue)
    ch.declare_exchange(exchange, "fanout")
    ch.bind(dead, exchange)
    reject_head(ch, queue)
    ch.arriving(dead, 1)


def test_dead_letter_exchange_may_be_internal(ch: RawChannel, names: Names) -> None:
    exchange, dead = names.new(), ch.own_queue()
    ch.declare_exchange(exchange, "fanout", internal=True)
    ch.bind(dead, exchange)
    queue = ch.own_queue(x_dead_letter_exchange=exchange)
    ch.publish(b"m", queue)
    reject_head(ch, queue)
    ch.arriving(dead, 1)


def test_cc_is_removed_when_there_is_a_dead_letter_routing_key(ch: RawChannel) -> None:
    other = ch.own_queue()
    queue, message = rejected_once(ch, headers={"CC": [other], "a": 1})
    assert "CC" not in message.headers
    assert message.headers["a"] == 1
    assert message.headers["x-death"][0]["routing-keys"] == [queue, other]
    # The copy that CC made is in the queue, and no second one.
    assert ch.bodies(other) == [b"m"]


def test_cc_is_kept_and_used_without_a_dead_letter_routing_key(
    ch: RawChannel, names: Names
) -> None:
    exchange, dead = names.new(), ch.own_queue()
    ch.declare_exchange(exchange, "direct")
    ch.bind(dead, exchange, "copy")
    queue = ch.own_queue(x_dead_letter_exchange=exchange)
    ch.publish(b"m", queue, headers={"CC": ["copy"]})
    reject_head(ch, queue)
    (message,) = ch.arriving(dead, 1)
    assert (message["routing_key"], message.headers["CC"]) == (queue, ["copy"])


def test_bcc_is_not_recorded(ch: RawChannel) -> None:
    queue, message = rejected_once(ch, headers={"BCC": ["nowhere"]})
    assert message.headers["x-death"][0]["routing-keys"] == [queue]


def test_second_death_of_the_same_kind_is_counted(ch: RawChannel) -> None:
    """The message comes back to its queue, and is rejected there again."""
    one = ch.own_queue()
    two = dying_into(ch, one, x_message_ttl=20)
    ch.publish(b"m", two, expiration="10")
    for count in (1, 2, 3):
        (message,) = ch.arriving(one, 1)
        (death,) = message.headers["x-death"]
        assert (death["count"], death["queue"], death["reason"]) == (count, two, "expired")
        assert death["original-expiration"] == "10"
        ch.publish(message.body, two, headers=message.typed_headers)


@pytest.mark.parametrize("code", "bBsuIilLT")
def test_count_of_any_type_of_integer_goes_on(ch: RawChannel, code: str) -> None:
    counted = death_headers({"queue": "q", "count": Typed(code, 5)})
    assert counted_after(ch, counted) == [("q", 6)]


@pytest.mark.parametrize(
    ("counts", "total"),
    [((None,), 1), ((None, None, None), 4), ((4, 7), 5), ((4, None), 5), ((None, 4), 3)],
)
def test_deaths_of_one_kind_are_merged(
    ch: RawChannel, counts: tuple[int | None, ...], total: int
) -> None:
    """The count of the first entry stays. If that has none, several entries count by their number,
    and a single one counts as 0."""
    deaths = [{"queue": "q"} | ({} if n is None else {"count": Typed("l", n)}) for n in counts]
    assert counted_after(ch, death_headers(*deaths)) == [("q", total)]


def test_merging_turns_the_others_round(ch: RawChannel) -> None:
    deaths = [{"queue": queue, "count": Typed("l", 2)} for queue in "abc"]
    assert counted_after(ch, death_headers(*deaths)) == [("q", 1), ("c", 2), ("b", 2), ("a", 2)]


def test_first_death_is_only_noted_without_earlier_deaths(ch: RawChannel) -> None:
    nothing: list[object] = []
    for earlier in (nothing, "none"):
        _, message = rejected_once(ch, headers={"x-death": earlier})
        assert len(message.headers["x-death"]) == 1
        assert "x-first-death-queue" not in message.headers
    queue, message = rejected_once(ch, headers={"x-first-death-queue": "other"})
    assert message.headers["x-first-death-queue"] == queue


def death_headers(*deaths: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"reason": "rejected", "exchange": "", **death} for death in deaths]


def counted_after(ch: RawChannel, deaths: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Reject a message with these deaths in a queue that they call `q`; returns its counts by
    queue."""
    dead = ch.own_queue()
    queue = dying_into(ch, dead)
    own = [{**death, "queue": death["queue"].replace("q", queue)} for death in deaths]
    ch.publish(b"m", queue, headers={"x-death": own})
    reject_head(ch, queue)
    (message,) = ch.arriving(dead, 1)
    return [
        (death["queue"].replace(queue, "q"), death["count"]) for death in message.headers["x-death"]
    ]


def test_newest_death_comes_first(ch: RawChannel) -> None:
    last = ch.own_queue()
    second = dying_into(ch, last, x_message_ttl=20)
    first = dying_into(ch, second)
    ch.publish(b"m", first)
    reject_head(ch, first)
    (message,) = ch.arriving(last, 1)
    deaths = [(death["queue"], death["reason"]) for death in message.headers["x-death"]]
    assert deaths == [(second, "expired"), (first, "rejected")]
    assert message.headers["x-first-death-queue"] == first
    assert message.headers["x-first-death-reason"] == "rejected"


def test_counted_death_moves_to_the_front(ch: RawChannel) -> None:
    last = ch.own_queue()
    one, two = dying_into(ch, last), dying_into(ch, last)
    headers: dict[str, object] = {}
    for queue in (one, two, one):
        ch.publish(b"m", queue, headers=headers)
        reject_head(ch, queue)
        (message,) = ch.arriving(last, 1)
        headers = message.typed_headers
    deaths = [(death["queue"], death["count"]) for death in message.headers["x-death"]]
    assert deaths == [(one, 2), (two, 1)]


def test_different_reasons_in_one_queue_are_different_deaths(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, dead)
    ch.publish(b"m", queue)
    reject_head(ch, queue)
    (message,) = ch.arriving(dead, 1)
    ch.publish(b"m", queue, headers=message.typed_headers, expiration="10")
    (message,) = ch.arriving(dead, 1)
    deaths = [(death["reason"], death["count"]) for death in message.headers["x-death"]]
    assert deaths == [("expired", 1), ("rejected", 1)]


@pytest.mark.parametrize(
    "value", ["text", Typed("s", 5), {"a": 1}], ids=["string", "short", "table"]
)
def test_x_death_that_is_no_array_is_replaced(ch: RawChannel, value: object) -> None:
    queue, message = rejected_once(ch, headers={"x-death": value})
    (death,) = message.headers["x-death"]
    assert (death["queue"], death["count"]) == (queue, 1)


def test_message_does_not_expire_in_circles(ch: RawChannel, names: Names) -> None:
    """A queue that is its own dead letter target drops messages that expire in it."""
    queue = names.new()
    ch.declare(
        queue,
        exclusive=True,
        arguments={
            "x-message-ttl": 20,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue,
        },
    )
    ch.publish(b"m", queue)
    ch.becomes_ready(queue, 0)
    time.sleep(0.1)
    assert ch.ready(queue) == 0


def test_message_may_go_in_circles_when_somebody_rejects_it(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    ch.declare(
        queue,
        exclusive=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue},
    )
    ch.publish(b"m", queue)
    for _ in range(3):
        reject_head(ch, queue)
        ch.becomes_ready(queue, 1)
    assert ch.got(queue, b"m").headers["x-death"][0]["count"] == 3


def test_circle_with_one_reject_in_it_goes_on(ch: RawChannel, names: Names) -> None:
    work, wait = names.new(), names.new()
    ch.declare(
        work,
        exclusive=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait},
    )
    ch.declare(
        wait,
        exclusive=True,
        arguments={
            "x-message-ttl": 20,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": work,
        },
    )
    ch.publish(b"m", work)
    for _ in range(3):
        reject_head(ch, work)
        ch.becomes_ready(work, 1)
    deaths = {death["queue"]: death["count"] for death in ch.got(work).headers["x-death"]}
    assert deaths == {work: 3, wait: 3}


def test_dead_letters_of_a_full_target_push_out_the_old(ch: RawChannel) -> None:
    dead = ch.own_queue(x_max_length=1)
    queue = dying_into(ch, dead)
    for body in (b"1", b"2"):
        ch.publish(body, queue)
        reject_head(ch, queue)
    ch.becomes_ready(queue, 0)
    ch.ping()
    deadline = time.monotonic() + 5
    while (message := ch.arriving(dead, 1)[0]).body != b"2":
        assert time.monotonic() < deadline
    assert message.headers["x-first-death-reason"] == "rejected"


def test_original_expiration_is_the_text_the_publisher_sent(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = ch.own_queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    ch.publish(b"m", queue, expiration="0010")
    (message,) = ch.arriving(dead, 1)
    assert message.properties["headers"]["x-death"][0]["original-expiration"] == "0010"
