"""Acknowledgements that come together are as if each had come by itself."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pamqp import commands
from pipe import Broker, Client, method_frame

from warren.amqp.ack_stream import ACKS_MAX
from warren.core.queues.classic_queue import ClassicQueue


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages a queue is told of in each call."""
    calls: list[int] = []
    ack: Any = ClassicQueue.ack

    def noted(queue: ClassicQueue, messages: Any) -> None:
        calls.append(len(messages))
        ack(queue, messages)

    monkeypatch.setattr(ClassicQueue, "ack", noted)
    return calls


def consumer(broker: Broker, queues: str = "q", prefetch: int = 0, count: int = 30) -> Client:
    """A client that has got messages from each of the queues."""
    client = broker.connects()
    client.opens_channel(1)
    for queue in queues:
        client.declares(queue)
        for number in range(count):
            client.publishes(queue, b"%d" % number)
    if prefetch:
        client.sets_prefetch(prefetch)
    for queue in queues:
        client.sends(commands.Basic.Consume, queue=queue, consumer_tag=queue, nowait=True)
    broker.settle()
    client.receives_deliveries()
    return client


def ack(tag: int, multiple: bool = False, channel: int = 1) -> bytes:
    return method_frame(channel, commands.Basic.Ack, delivery_tag=tag, multiple=multiple)


def test_a_queue_is_told_of_all_at_once(calls: list[int]) -> None:
    broker = Broker()
    client = consumer(broker)
    client.sends_octets(b"".join(ack(tag) for tag in range(1, 31)))
    assert calls == [30]
    assert broker.queue("q").acked == 30
    assert broker.queue("q").unacked == 0


def test_many_are_settled_in_parts(calls: list[int]) -> None:
    client = consumer(Broker(), count=2 * ACKS_MAX)
    client.sends_octets(b"".join(ack(tag) for tag in range(1, 2 * ACKS_MAX + 1)))
    assert calls == [ACKS_MAX, ACKS_MAX]


def test_the_consumer_gets_as_many_as_it_has_acknowledged() -> None:
    broker = Broker()
    client = consumer(broker, prefetch=10)
    client.sends_octets(b"".join(ack(tag) for tag in (2, 4, 6)) + ack(8)[:-1])
    broker.settle()
    assert [one.method.delivery_tag for one in client.receives_deliveries()] == [11, 12, 13]
    client.sends_octets(ack(8)[-1:])
    broker.settle()
    assert [one.method.delivery_tag for one in client.receives_deliveries()] == [14]


def test_a_tag_that_is_unknown_closes_the_channel_after_those_before_it() -> None:
    broker = Broker()
    client = consumer(broker)
    client.sends_octets(b"".join(ack(tag) for tag in (1, 2, 99, 3)))
    assert client.receives_close(406).reply_text == "PRECONDITION_FAILED - unknown delivery tag 99"
    broker.settle()
    assert broker.queue("q").acked == 2
    assert len(broker.queue("q")) == 28


def test_one_that_is_acknowledged_twice_closes_the_channel() -> None:
    broker = Broker()
    client = consumer(broker)
    client.sends_octets(b"".join(ack(tag) for tag in (1, 2, 1)))
    assert "unknown delivery tag 1" in client.receives_close(406).reply_text
    assert broker.queue("q").acked == 2


def test_in_a_transaction_they_wait_for_the_commit() -> None:
    broker = Broker()
    client = consumer(broker)
    client.sends(commands.Tx.Select)
    client.receives(commands.Tx.SelectOk)
    client.sends_octets(b"".join(ack(tag) for tag in range(1, 11)))
    assert broker.queue("q").acked == 0
    client.sends(commands.Tx.Rollback)
    client.receives(commands.Tx.RollbackOk)
    client.sends_octets(b"".join(ack(tag) for tag in range(1, 6)))
    client.sends(commands.Tx.Commit)
    client.receives(commands.Tx.CommitOk)
    assert broker.queue("q").acked == 5


def state(broker: Broker, client: Client, names: str) -> tuple[object, ...]:
    broker.settle()
    queues = [broker.queue(name) for name in names]
    delivered = [(one.method.delivery_tag, one.body) for one in client.receives_deliveries()]
    return delivered, [(queue.acked, queue.unacked, len(queue)) for queue in queues]


@pytest.mark.parametrize(("queues", "prefetch"), [("ab", 0), ("a", 7)])
@pytest.mark.parametrize("seed", range(10))
def test_together_or_one_by_one_all_comes_out_the_same(
    seed: int, queues: str, prefetch: int
) -> None:
    random = Random(seed)
    together, each = Broker(), Broker()
    clients = [consumer(broker, queues, prefetch, 60) for broker in (together, each)]
    outstanding = list(range(1, len(queues) * (prefetch or 60) + 1))
    while outstanding:
        acks = []
        for _ in range(min(len(outstanding), random.randrange(1, 12))):
            multiple = random.random() < 0.1
            tag = outstanding.pop(random.randrange(len(outstanding)))
            if multiple:
                outstanding = [other for other in outstanding if other > tag]
            acks.append(ack(tag, multiple))
            if not outstanding:
                break
        clients[0].sends_octets(b"".join(acks))
        for one in acks:
            clients[1].sends_octets(one)
        assert state(together, clients[0], queues) == state(each, clients[1], queues)
