"""Messages that come back to a classic queue: counts, the limit, and how long they wait."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pipe import Broker, Client

from warren.core.backing.memory_queue import MemoryQueue
from warren.core.field import Field, Table, long, longstr
from warren.core.queues.classic_queue import EXPIRY_SLICE, ClassicQueue
from warren.core.queues.queue_arguments import QueueSettings

DEAD: Table = {
    "x-dead-letter-exchange": longstr(""),
    "x-dead-letter-routing-key": longstr("dead"),
}


def limit(times: int) -> Table:
    return {"x-delivery-limit": long(times)}


def delays(*ms: int) -> Table:
    return {"x-redelivery-delay": Field("A", [long(one) for one in ms])}


def declared(client: Client, **arguments: Field) -> None:
    client.declares("q", arguments={name.replace("_", "-"): one for name, one in arguments.items()})


def counts_of(queue: ClassicQueue) -> dict[int, int]:
    assert isinstance(queue.backing, MemoryQueue)
    return queue.backing.delivery_counts


def returned(client: Client) -> int | None:
    """Get the message and give it back; answers its count as the client is shown it."""
    content = client.gets("q")
    assert content is not None
    client.nacks(content.method.delivery_tag)
    return shown(content.headers)


def shown(headers: Table) -> int | None:
    field = headers.get("x-delivery-count")
    return None if field is None else field.value


def test_a_message_is_delivered_once_more_than_the_limit_and_is_dead_then(
    broker: Broker, client: Client
) -> None:
    client.declares("dead")
    client.declares("q", arguments={**limit(2), **DEAD})
    client.publishes("q", b"m")
    assert [returned(client) for _ in range(3)] == [0, 1, 2]
    assert client.counts("q") == (0, 0)
    letter = client.gets("dead")
    assert letter is not None
    death = letter.headers["x-death"].value[0].value
    assert (death["reason"], death["queue"]) == (longstr("delivery_limit"), longstr("q"))
    assert letter.headers["x-first-death-reason"] == longstr("delivery_limit")
    assert shown(letter.headers) is None
    assert counts_of(broker.queue("q")) == {}


def test_without_a_dead_letter_exchange_it_is_dropped(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=limit(0))
    client.publishes("q", b"m")
    returned(client)
    assert client.counts("q") == (0, 0)
    assert broker.queue("q").ways_out.rejected == 1
    assert counts_of(broker.queue("q")) == {}


def test_consumers_are_shown_the_count_from_the_second_delivery_on(
    broker: Broker, client: Client
) -> None:
    client.declares("q", arguments=limit(5))
    client.consumes("q")
    client.publishes("q", b"m")
    for number in range(3):
        content = client.receives_content()
        assert shown(content.headers) == (number or None)
        assert content.method.redelivered == bool(number)
        client.nacks(content.method.delivery_tag)
    client.acks(client.receives_content().method.delivery_tag)
    broker.settle()
    assert counts_of(broker.queue("q")) == {}


def test_consumers_that_acknowledge_nothing_are_shown_it_too(client: Client) -> None:
    client.declares("q", arguments=limit(5))
    client.publishes("q", b"m")
    returned(client)
    client.consumes("q", no_ack=True)
    assert shown(client.receives_content().headers) == 1


def test_what_a_channel_leaves_behind_counts_as_returned(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=limit(1))
    client.publishes("q", b"m")
    for number in range(2):
        client.opens_channel(2)
        content = client.gets("q", 2)
        assert content is not None and shown(content.headers) == number
        client.sends(commands.Channel.Close, 2, reply_code=200, reply_text="", class_id=0,
                     method_id=0)  # fmt: skip
        client.receives(commands.Channel.CloseOk)
    assert client.counts("q") == (0, 0)


def test_each_return_waits_as_long_as_the_list_says(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=delays(100, 0, 2000))
    client.publishes("q", b"m")
    for wait_s in (0.1, 0, 2, 2):
        returned(client)
        if wait_s:
            assert client.gets("q") is None
            broker.advance(wait_s - 0.001)
            assert client.gets("q") is None
            broker.advance(0.001)
    assert returned(client) == 4


def test_what_waits_is_neither_ready_nor_unacknowledged_and_counts_as_there(
    broker: Broker, client: Client
) -> None:
    client.declares("q", arguments=delays(1000))
    client.publishes("q", b"12345")
    returned(client)
    broker.settle()
    queue = broker.queue("q")
    assert (len(queue), queue.unacked, queue.waiting) == (0, 0, 1)
    assert (queue.set_aside, queue.stock().messages) == ((1, 5), 1)
    client.sends(commands.Queue.Purge, queue="q")
    assert client.receives(commands.Queue.PurgeOk).message_count == 0
    broker.advance(1)
    assert (len(queue), queue.waiting, queue.set_aside) == (1, 0, (0, 0))


def test_messages_come_back_to_their_places(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=delays(1000))
    for body in (b"1", b"2", b"3"):
        client.publishes("q", body)
    returned(client)
    assert returned(client) == 0
    broker.advance(1)
    found = [client.gets("q") for _ in range(3)]
    assert [content.body for content in found if content] == [b"1", b"2", b"3"]


def test_a_consumer_gets_what_has_waited(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=delays(1000))
    client.consumes("q")
    client.publishes("q", b"m")
    client.nacks(client.receives_content().method.delivery_tag)
    client.receives_nothing()
    broker.advance(1)
    assert shown(client.receives_content().headers) == 1


def test_limit_and_delay_go_together(broker: Broker, client: Client) -> None:
    client.declares("q", arguments={**limit(1), **delays(1000)})
    client.publishes("q", b"m")
    returned(client)
    broker.advance(1)
    returned(client)
    broker.settle()
    assert (len(broker.queue("q")), broker.queue("q").waiting) == (0, 0)


def test_what_expires_while_it_waits_is_dead_when_it_has_waited(
    broker: Broker, client: Client
) -> None:
    client.declares("dead")
    client.declares("q", arguments={**delays(1000), **DEAD})
    client.publishes("q", b"m", expiration="500")
    returned(client)
    broker.advance(1)
    letter = client.gets("dead")
    assert letter is not None
    assert letter.headers["x-first-death-reason"] == longstr("expired")


def test_queues_with_priorities_count_for_each_message(broker: Broker, client: Client) -> None:
    client.declares("q", arguments={**limit(1), "x-max-priority": long(3)})
    client.publishes("q", b"low", priority=0)
    client.publishes("q", b"high", priority=3)
    assert [returned(client) for _ in range(2)] == [0, 1]
    # The message of high priority is dead; both had the same position in their levels.
    content = client.gets("q")
    assert content is not None
    assert (content.body, shown(content.headers)) == (b"low", 0)


def test_policies_turn_it_on_and_off(broker: Broker, client: Client) -> None:
    client.declares("q")
    client.publishes("q", b"m")
    assert returned(client) is None
    definition = {"delivery-limit": 5, "redelivery-delay": [1000]}
    broker.node.policies.set("/", "p", "^q$", definition, 0, "queues")
    broker.settle()
    assert returned(client) == 0
    broker.settle()
    assert broker.queue("q").waiting == 1
    broker.node.policies.clear("/", "p")
    broker.settle()
    # Nothing is to wait any more.
    assert client.counts("q") == (1, 0)
    assert returned(client) is None


def test_many_that_wait_are_ready_again_in_slices_when_no_policy_lets_them_wait(
    broker: Broker, client: Client
) -> None:
    count = 2 * EXPIRY_SLICE + 1
    client.declares("q")
    for _ in range(count):
        client.publishes("q", b"m")
    client.consumes("q")
    broker.settle()
    tag = client.receives_deliveries()[-1].method.delivery_tag
    client.sends(commands.Basic.Cancel, consumer_tag="c")
    client.receives(commands.Basic.CancelOk)
    broker.node.policies.set("/", "p", "^q$", {"redelivery-delay": [1000]}, 0, "queues")
    client.nacks(tag, multiple=True)
    broker.settle()
    queue = broker.queue("q")
    assert queue.waiting == count
    queue.apply_settings(QueueSettings())
    assert queue.waiting == count - EXPIRY_SLICE
    broker.advance(0.001)
    assert queue.waiting == 0
    assert client.counts("q") == (count, 0)
    assert returned(client) is None


def test_the_lower_of_argument_and_policy_limits(broker: Broker, client: Client) -> None:
    broker.node.policies.set("/", "p", "^q$", {"delivery-limit": 1}, 0, "queues")
    client.declares("q", arguments=limit(5))
    client.publishes("q", b"m")
    returned(client)
    returned(client)
    assert client.counts("q") == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (limit(-1), "x-delivery-limit"),
        ({"x-delivery-limit": longstr("few")}, "x-delivery-limit"),
        ({"x-redelivery-delay": long(5)}, "x-redelivery-delay"),
        (delays(), "a list of 1 to 100 times is wanted"),
        (delays(*[1] * 101), "a list of 1 to 100 times is wanted"),
        (delays(5, -1), "x-redelivery-delay"),
        (delays(1 << 40), "value_too_big"),
        ({**delays(5), "x-queue-type": longstr("quorum")}, "of queue type rabbit_quorum_queue"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    client: Client, arguments: Table, text: str
) -> None:
    client.sends(commands.Queue.Declare, queue="q", durable=True, arguments=arguments)
    assert text in client.receives_close(406).reply_text


def test_deleting_the_queue_ends_all_waits(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=delays(1000))
    client.publishes("q", b"m")
    returned(client)
    client.sends(commands.Queue.Delete, queue="q")
    client.receives(commands.Queue.DeleteOk)
    broker.advance(2)
    client.declares("q")
    assert client.counts("q") == (0, 0)


def test_a_queue_in_which_messages_wait_is_not_empty(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=delays(1000))
    client.publishes("q", b"m")
    returned(client)
    client.sends(commands.Queue.Delete, queue="q", if_empty=True)
    assert "not empty" in client.receives_close(406).reply_text
    broker.advance(1)
    client.opens_channel(1)
    assert client.gets("q") is not None
    client.sends(commands.Queue.Delete, queue="q", if_empty=True)
    client.receives(commands.Queue.DeleteOk)


def test_many_that_waited_as_long_are_ready_in_slices(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=delays(1000))
    for _ in range(3000):
        client.publishes("q", b"m")
    client.sends(commands.Basic.Get, queue="q")
    last: Any = client.receives_content(commands.Basic.GetOk)
    for _ in range(2999):
        last = client.gets("q")
    client.nacks(last.method.delivery_tag, multiple=True)
    broker.settle()
    assert broker.queue("q").waiting == 3000
    broker.advance(1)
    assert (len(broker.queue("q")), broker.queue("q").waiting) == (3000, 0)


def test_a_queue_with_neither_keeps_no_book(broker: Broker, client: Client) -> None:
    client.declares("q")
    client.publishes("q", b"m")
    assert returned(client) is None
    queue = broker.queue("q")
    assert queue.redelivery is None and not queue._rules
    assert counts_of(queue) == {}
