"""Queues that take each message id once: what is dropped, what is confirmed, what stays."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pamqp import commands
from pipe import Broker, Client
from stores import SlowQueues

from warren.core.backing.windowed_queue import WindowedQueue
from warren.core.field import Table, long, longstr
from warren.core.messages.message_stats import MessageStats
from warren.core.queues.deduplicating_queue import DeduplicatingQueue


def window(size: int, **more: Any) -> Table:
    return {"x-message-deduplication-window": long(size), **more}


def queue_of(broker: Broker, name: str = "q") -> DeduplicatingQueue:
    queue = broker.queue(name)
    assert isinstance(queue, DeduplicatingQueue)
    return queue


def bodies(client: Client, queue: str = "q") -> list[bytes]:
    found = []
    while (content := client.gets(queue, no_ack=True)) is not None:
        found.append(content.body)
    return found


def test_an_id_is_taken_once(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=window(10))
    for number, message_id in enumerate(["a", "b", "a", "c", "b", None, None]):
        client.publishes("q", b"%d" % number, message_id=message_id)
    assert bodies(client) == [b"0", b"1", b"3", b"5", b"6"]
    queue = queue_of(broker)
    assert (queue.duplicates, queue.ids, queue.published) == (2, 3, 7)


def test_an_id_stays_when_its_message_is_gone(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=window(10))
    for message_id in "abc":
        client.publishes("q", b"1", message_id=message_id)
    content = client.gets("q")
    assert content is not None
    client.acks(content.method.delivery_tag)
    client.sends(commands.Queue.Purge, queue="q")
    client.receives(commands.Queue.PurgeOk)
    for message_id in "abcd":
        client.publishes("q", message_id.encode(), message_id=message_id)
    assert bodies(client) == [b"d"]


def test_the_oldest_id_goes_when_the_window_is_full(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=window(3))
    for message_id in "abcabcdabcd":
        client.publishes("q", message_id.encode(), message_id=message_id)
    # Behind d the window has b, c and d; then a, which drives out b, and so on.
    assert bodies(client) == [b"a", b"b", b"c", b"d", b"a", b"b", b"c", b"d"]
    queue = queue_of(broker)
    assert queue.ids == 3
    assert queue.backing.levels[1].length == 3  # type: ignore[attr-defined]


def test_a_consumer_gets_each_id_once(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=window(10))
    for no_ack in (False, True):
        client.consumes("q", str(no_ack), no_ack=no_ack)
        for _ in range(2):
            client.publishes("q", b"x", message_id=f"to-{no_ack}")
        assert len(client.receives_deliveries()) == 1
        client.sends(commands.Basic.Cancel, consumer_tag=str(no_ack))
        client.receives(commands.Basic.CancelOk)
    assert queue_of(broker).stats() == MessageStats(publish=4, deliver=1, deliver_no_ack=1)


def test_a_duplicate_is_confirmed(client: Client) -> None:
    client.declares("q", arguments=window(10))
    client.selects_confirms()
    for tag in (1, 2):
        client.publishes("q", message_id="a")
        assert client.receives(commands.Basic.Ack).delivery_tag == tag
    assert client.counts("q")[0] == 1


@pytest.fixture
def slow() -> SlowQueues:
    return SlowQueues()


def slow_client(slow: SlowQueues) -> tuple[Broker, Client]:
    broker = Broker(new_backing_queue=slow.new)
    client = broker.connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.declares("q", durable=True, arguments=window(10))
    return broker, client


def test_a_duplicate_is_confirmed_when_the_first_message_and_its_id_are_safe(
    slow: SlowQueues,
) -> None:
    broker, client = slow_client(slow)
    for _ in range(2):
        client.publishes("q", message_id="a", delivery_mode=2)
    for _ in range(2):
        broker.settle()
        client.receives_nothing()
        slow.settle()
    broker.settle()
    acked = client.receives(commands.Basic.Ack)
    assert (acked.delivery_tag, acked.multiple) == (2, True)
    client.publishes("q", message_id="a", delivery_mode=2)
    broker.settle()
    assert client.receives(commands.Basic.Ack).delivery_tag == 3
    assert not slow.unsafe


def test_the_id_of_a_message_that_was_refused_is_forgotten(slow: SlowQueues) -> None:
    broker, client = slow_client(slow)
    for _ in range(2):
        client.publishes("q", message_id="a", delivery_mode=2)
    confirms, number = slow.unsafe.popleft()
    confirms.refuse(number)
    broker.settle()
    assert [client.receives(commands.Basic.Nack).delivery_tag for _ in range(2)] == [1, 2]
    confirms, number = slow.unsafe.popleft()
    confirms.settle(number)
    assert queue_of(broker).ids == 0
    client.publishes("q", message_id="a", delivery_mode=2)
    assert len(slow.unsafe) == 2


def test_what_a_full_queue_refuses_may_come_again(broker: Broker, client: Client) -> None:
    overflow = {"x-max-length": long(1), "x-overflow": longstr("reject-publish")}
    client.declares("q", arguments=window(10, **overflow))
    client.selects_confirms()
    client.publishes("q", b"a", message_id="a")
    client.receives(commands.Basic.Ack)
    client.publishes("q", b"b", message_id="b")
    client.receives(commands.Basic.Nack)
    # The first one is there, whether there is room or not.
    client.publishes("q", b"a", message_id="a")
    client.receives(commands.Basic.Ack)
    assert bodies(client) == [b"a"]
    client.publishes("q", b"b", message_id="b")
    client.receives(commands.Basic.Ack)
    assert bodies(client) == [b"b"]


def test_a_dead_letter_comes_back_to_its_queue(broker: Broker, client: Client) -> None:
    """A message that waits in another queue for its next attempt."""
    back = {"x-dead-letter-exchange": longstr(""), "x-dead-letter-routing-key": longstr("q")}
    client.declares("wait", arguments={**back, "x-message-ttl": long(1000)})
    away = {**back, "x-dead-letter-routing-key": longstr("wait")}
    client.declares("q", arguments=window(10, **away))
    client.publishes("q", b"m", message_id="a")
    for _ in range(3):
        content = client.gets("q")
        assert content is not None and content.body == b"m"
        client.nacks(content.method.delivery_tag, requeue=False)
        client.publishes("q", b"again", message_id="a")
        assert client.gets("q") is None
        broker.advance(2)
    assert client.counts("q")[0] == 1


def test_transactions_and_requeues_know_ids(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=window(10))
    client.sends(commands.Tx.Select)
    client.receives(commands.Tx.SelectOk)
    for message_id in "aab":
        client.publishes("q", message_id.encode(), message_id=message_id)
    client.sends(commands.Tx.Commit)
    client.receives(commands.Tx.CommitOk)
    content = client.gets("q")
    assert content is not None
    client.nacks(content.method.delivery_tag)
    client.sends(commands.Tx.Commit)
    client.receives(commands.Tx.CommitOk)
    assert bodies(client) == [b"a", b"b"]


def test_what_an_operator_moves_away_may_come_back(broker: Broker, client: Client) -> None:
    client.declares("q", arguments=window(10))
    for message_id in "ab":
        client.publishes("q", message_id.encode(), message_id=message_id)
    queue = queue_of(broker)
    assert len(queue.levels) == 1
    taken = queue.in_hand.take(0, [0, 1])
    queue.in_hand.settle(taken[:1])
    queue.in_hand.put_back(taken[1:])
    assert queue.ids == 1
    for message_id in "ab":
        client.publishes("q", message_id.encode(), message_id=message_id)
    assert bodies(client) == [b"b", b"a"]


def test_a_queue_that_is_deleted_takes_its_ids_along(broker: Broker, client: Client) -> None:
    for _ in range(2):
        client.declares("q", arguments=window(10))
        client.publishes("q", message_id="a")
        client.sends(commands.Queue.Delete, queue="q")
        assert client.receives(commands.Queue.DeleteOk).message_count == 1


@pytest.mark.parametrize(
    "arguments",
    [
        window(0),
        window(-1),
        window(100_001),
        {"x-message-deduplication-window": longstr("10")},
        window(10, **{"x-max-priority": long(3)}),
        window(10, **{"x-queue-type": longstr("quorum")}),
    ],
)
def test_what_is_no_window_is_refused(client: Client, arguments: Table) -> None:
    client.sends(commands.Queue.Declare, queue="q", durable=True, arguments=arguments)
    assert "x-message-deduplication-window" in client.receives_close(406).reply_text


class Deduplication(RuleBasedStateMachine):
    """Against a list of messages and a list of ids."""

    SIZE = 4

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.client = self.broker.connects()
        self.client.opens_channel(1)
        self.client.selects_confirms()
        self.client.declares("q", arguments=window(self.SIZE))
        self.ids: deque[str] = deque(maxlen=self.SIZE)
        self.messages: deque[bytes] = deque()
        self.published = self.duplicates = 0

    @rule(message_id=st.sampled_from("abcdefgh"))
    def publish(self, message_id: str) -> None:
        self.published += 1
        body = b"%d" % self.published
        self.client.publishes("q", body, message_id=message_id)
        assert self.client.receives(commands.Basic.Ack).delivery_tag == self.published
        if message_id in self.ids:
            self.duplicates += 1
        else:
            self.ids.append(message_id)
            self.messages.append(body)

    @precondition(lambda self: self.messages)
    @rule(acked=st.booleans())
    def get(self, acked: bool) -> None:
        content = self.client.gets("q")
        assert content is not None and content.body == self.messages[0]
        if acked:
            self.client.acks(content.method.delivery_tag)
            self.messages.popleft()
        else:
            self.client.nacks(content.method.delivery_tag)

    @rule()
    def purge(self) -> None:
        self.client.sends(commands.Queue.Purge, queue="q")
        assert self.client.receives(commands.Queue.PurgeOk).message_count == len(self.messages)
        self.messages.clear()

    @invariant()
    def counts_are_right(self) -> None:
        queue = queue_of(self.broker)
        backing = queue.backing
        assert isinstance(backing, WindowedQueue)
        assert (len(queue), queue.duplicates) == (len(self.messages), self.duplicates)
        assert queue.ids == backing.levels[1].length == len(self.ids)
        assert all(message_id.encode() in backing for message_id in self.ids)


TestDeduplication = Deduplication.TestCase
TestDeduplication.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
