"""Publishes to several queues that come together: each queue gets what is for it in one call, and
everything is as if they had come one by one."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from pamqp import commands
from pipe import Broker, Client, publish_frames
from stores import SlowQueues

from warren.amqp.gathered_publishes import WAITING_MAX
from warren.core.field import Field, long, longstr
from warren.core.queues.classic_queue import ClassicQueue

QUEUES = ("a", "b", "c")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each call of `publish_many`: the queue, and how many messages it got."""
    calls: list[tuple[str, int]] = []
    publish_many: Any = ClassicQueue.publish_many

    def noted(queue: ClassicQueue, envelopes: Any, *rest: Any) -> Any:
        calls.append((queue.name, len(envelopes)))
        return publish_many(queue, envelopes, *rest)

    monkeypatch.setattr(ClassicQueue, "publish_many", noted)
    return calls


def declared(broker: Broker, durable: bool = False) -> Client:
    client = broker.connects()
    client.opens_channel(1)
    for queue in QUEUES:
        client.declares(queue, durable=durable)
    return client


def in_turn(count: int, exchange: str = "", key: str = "{}", **properties: Any) -> bytes:
    """So many publishes, to each of the queues in turn."""
    return b"".join(
        publish_frames(
            1, exchange, key.format(QUEUES[number % 3], number), b"%d" % number, **properties
        )
        for number in range(count)
    )


def bodies(client: Client, queue: str) -> list[int]:
    found = []
    while (content := client.gets(queue, no_ack=True)) is not None:
        found.append(int(content.body))
    return found


@pytest.mark.parametrize(
    ("exchange", "key"), [("", "{}"), ("amq.direct", "{}"), ("amq.topic", "to.{}.{}")]
)
def test_each_queue_gets_its_publishes_in_one_call(
    calls: list[tuple[str, int]], exchange: str, key: str
) -> None:
    client = declared(Broker())
    for queue in QUEUES if exchange else ():
        pattern = f"to.{queue}.#" if exchange == "amq.topic" else queue
        client.sends(
            commands.Queue.Bind, queue=queue, exchange=exchange, routing_key=pattern, nowait=True
        )
    client.sends_octets(in_turn(60, exchange, key, message_id="one"))
    assert calls == [("a", 20), ("b", 20), ("c", 20)]
    for place, queue in enumerate(QUEUES):
        assert bodies(client, queue) == list(range(place, 60, 3))


def test_so_does_a_queue_that_is_published_to_on_several_channels(
    calls: list[tuple[str, int]],
) -> None:
    client = declared(Broker())
    for channel in (2, 3):
        client.opens_channel(channel)
        client.selects_confirms(channel)
    client.sends_octets(
        b"".join(publish_frames(2 + i % 2, "", "a", b"%d" % i, message_id="m") for i in range(40))
    )
    assert calls == [("a", 40)]
    acks = [(frame.channel, frame.method) for frame in client.frames()]
    assert [(channel, ack.delivery_tag) for channel, ack in acks] == [(2, 20), (3, 20)]  # type: ignore[union-attr]
    assert bodies(client, "a") == list(range(40))


def test_those_with_and_without_confirms_are_not_handed_over_together(
    calls: list[tuple[str, int]],
) -> None:
    """A mirrored queue tells its mirrors for which publishes nothing is confirmed."""
    client = declared(Broker())
    client.opens_channel(2)
    client.selects_confirms(2)
    client.sends_octets(
        b"".join(publish_frames(1 + i // 10 % 2, "", "a", b"%d" % i) for i in range(40))
    )
    assert calls == [("a", 10)] * 4
    assert client.receives(commands.Basic.Ack).delivery_tag == 20
    assert bodies(client, "a") == list(range(40))


def test_so_do_those_of_a_headers_exchange(calls: list[tuple[str, int]]) -> None:
    client = declared(Broker())
    for queue in QUEUES:
        client.sends(
            commands.Queue.Bind,
            queue=queue,
            exchange="amq.headers",
            arguments={"to": longstr(queue)},
            nowait=True,
        )
    publishes = [
        publish_frames(
            1, "amq.headers", "", b"%d" % number, headers={"to": longstr(QUEUES[number % 3])}
        )
        for number in range(60)
    ]
    client.sends_octets(b"".join(publishes))
    assert calls == [("a", 20), ("b", 20), ("c", 20)]
    assert bodies(client, "b") == list(range(1, 60, 3))


def test_no_more_than_some_wait(calls: list[tuple[str, int]]) -> None:
    client = declared(Broker())
    client.sends_octets(in_turn(3 * WAITING_MAX))
    assert sum(count for _, count in calls) == 3 * WAITING_MAX
    assert max(count for _, count in calls) <= WAITING_MAX // 3 + 1
    assert bodies(client, "c") == list(range(2, 3 * WAITING_MAX, 3))


def test_confirms_of_publishes_that_are_not_in_a_row_go_to_the_right_ones() -> None:
    """The stores of the queues answer one publish after the other, in the order of the queues."""
    stores = SlowQueues()
    client = declared(Broker(new_backing_queue=stores.new), durable=True)
    client.selects_confirms()
    client.sends_octets(in_turn(9, delivery_mode=2))
    assert not client.frames()
    acks = []
    for _ in range(9):
        stores.settle()
        client.sends_octets(b"")
        frames = [frame.method for frame in client.frames()]
        acks.append([(ack.delivery_tag, ack.multiple) for ack in frames])  # type: ignore[union-attr]
    assert acks == [[(number, False)] for number in (1, 4, 7, 2, 5, 8, 3, 6, 9)]


def test_a_queue_that_refuses_has_its_own_publishes_refused() -> None:
    client = declared(Broker())
    client.sends(commands.Queue.Delete, queue="b")
    client.receives(commands.Queue.DeleteOk)
    client.declares(
        "b", arguments={"x-max-length": long(2), "x-overflow": longstr("reject-publish")}
    )
    client.selects_confirms()
    client.sends_octets(in_turn(30))
    nacked = {
        frame.method.delivery_tag
        for frame in client.frames()
        if isinstance(frame.method, commands.Basic.Nack)
    }
    assert nacked == set(range(8, 31, 3))
    assert bodies(client, "b") == [1, 4]


def random_publishes(random: Random, count: int) -> list[bytes]:
    """Publishes of all kinds, numbered by their bodies, on two channels."""
    publishes = []
    for number in range(count):
        properties: dict[str, Any] = {}
        if random.random() < 0.3:
            properties["delivery_mode"] = random.choice((1, 2))
        if random.random() < 0.2:
            properties["expiration"] = random.choice(("0", "60000", "90000"))
        if random.random() < 0.3:
            properties["message_id"] = f"{number}"
        if random.random() < 0.1:
            properties["headers"] = (
                {"CC": Field("A", [longstr("c")])} if random.random() < 0.5 else {}
            )
        exchange, key = random.choice(
            (
                *(("", queue) for queue in QUEUES * 3),
                ("amq.direct", "to a"),
                ("amq.topic", f"b.{number}"),
                ("amq.topic", f"c.{number % 3}"),
                ("amq.fanout", ""),
                ("", "nowhere"),
                ("", "full"),
                ("", "short"),
            )
        )
        publishes.append(
            publish_frames(
                1 if random.random() < 0.8 else 2,
                exchange,
                key,
                b"%d" % number,
                mandatory=random.random() < 0.1,
                **properties,
            )
        )
    return publishes


def contents(client: Client, queue: str) -> list[tuple[bytes, bytes, str]]:
    found = []
    while (content := client.gets(queue, no_ack=True, channel=2)) is not None:
        found.append((content.body, content.header, content.method.routing_key))
    return found


class Outcome:
    """What a client sees of its publishes: messages in queues, confirms, returns."""

    def __init__(self, publishes: list[bytes], transaction: bool, at_once: int) -> None:
        broker = Broker()
        client = declared(broker)
        client.opens_channel(2)
        full = {"x-max-length": long(3), "x-overflow": longstr("reject-publish")}
        client.declares("full", arguments=full)
        client.declares("short", arguments={"x-max-length": long(3)})
        for exchange, queue, key in (
            ("amq.direct", "a", "to a"),
            ("amq.topic", "b", "b.#"),
            ("amq.topic", "c", "*.1"),
            ("amq.topic", "a", "c.*"),
            ("amq.fanout", "a", ""),
            ("amq.fanout", "b", ""),
        ):
            client.sends(
                commands.Queue.Bind, queue=queue, exchange=exchange, routing_key=key, nowait=True
            )
        client.selects_confirms(2)
        if transaction:
            client.sends(commands.Tx.Select)
            client.receives(commands.Tx.SelectOk)
        else:
            client.selects_confirms()
        for at in range(0, len(publishes), at_once):
            client.sends_octets(b"".join(publishes[at : at + at_once]))
        if transaction:
            client.sends(commands.Tx.Commit)
        self.returns: list[tuple[int, str]] = []
        self.refused: Counter[tuple[int, int]] = Counter()
        self.answered = {1: 0, 2: 0}
        for frame in client.frames():
            method = frame.method if frame.kind == 1 else None
            if isinstance(method, commands.Basic.Return):
                self.returns.append((frame.channel, method.routing_key))
            elif isinstance(method, commands.Basic.Nack):
                self.refused[frame.channel, method.delivery_tag] += 1
            elif isinstance(method, commands.Basic.Ack):
                self.answered[frame.channel] = max(
                    self.answered[frame.channel], method.delivery_tag
                )
        self.queues = {queue: contents(client, queue) for queue in (*QUEUES, "full", "short")}


@pytest.mark.parametrize("transaction", [False, True], ids=["confirms", "transaction"])
@pytest.mark.parametrize("seed", range(25))
def test_publishes_that_come_together_are_as_if_they_came_one_by_one(
    seed: int, transaction: bool
) -> None:
    publishes = random_publishes(Random(seed), 150)
    single = Outcome(publishes, transaction, 1)
    several = Outcome(publishes, transaction, 40)
    assert several.queues == single.queues
    assert sum(map(len, single.queues.values())) > 60
    assert several.refused == single.refused
    assert sorted(several.returns) == sorted(single.returns)
    assert several.answered == single.answered
