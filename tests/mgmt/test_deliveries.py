"""What a node says about deliveries to programs that read its storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broker_channel import open_channel
from pamqp import commands
from pipe import Broker, Client, publish_frames

import warren
from warren.amqp.settling import SETTLED_AT_ONCE
from warren.core.field import Field, long, longstr
from warren.core.queues.local_queue import LocalQueue
from warren.mgmt.api.deliveries import (
    BUCKET_BITS,
    MESSAGES_AT_ONCE,
    RANGES_MAX,
    AskedQueue,
    DeliverySurvey,
    Positions,
)
from warren.mgmt.ctl.control_client import ControlClient, LocalTarget
from warren.mgmt.ctl.errors import RequestRefused
from warren.mgmt.http import slices

CHANNELS = 10
MANY = 200_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.lets_go()


@pytest.fixture
def client(broker: Broker) -> Client:
    client = broker.connects()
    client.opens_channel(1)
    return client


def surveyed(broker: Broker, in_each_turn: Callable[[], None] = lambda: None) -> dict[int, Any]:
    """The unacknowledged positions and the position below which all were delivered, by level."""

    async def watch() -> None:
        while True:
            in_each_turn()
            await asyncio.sleep(0)

    async def survey() -> list[dict[str, Any]]:
        watcher = asyncio.create_task(watch())
        try:
            one = DeliverySurvey(broker.node)
            await one.ask_for(None)
            return await one.rows()
        finally:
            watcher.cancel()

    found: dict[int, Any] = {}
    for row in asyncio.run(survey()):
        assert len(row["unacked"]) <= RANGES_MAX
        _, ranges = found.setdefault(int(row["queue_id"], 16), (row["redelivered_below"], []))
        ranges += row["unacked"]
    return found


def durable(client: Client, name: str, **arguments: Field) -> LocalQueue:
    client.declares(name, durable=True, arguments=arguments)
    return client.broker.queue(name)


def test_each_turn_has_few_of_very_many_messages(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = durable(client, "q")
    for number in range(2, CHANNELS + 2):
        client.opens_channel(number)
        client.sends(commands.Basic.Consume, number, queue="q", consumer_tag="c", nowait=True)
    client.sends_octets(publish_frames(1, "", "q", b"x") * MANY)
    broker.settle()
    assert queue.unacked == MANY
    noted: list[int] = [0]
    note = AskedQueue.note

    def counted(asked: AskedQueue, message: Any) -> None:
        noted[-1] += 1
        note(asked, message)

    monkeypatch.setattr(AskedQueue, "note", counted)
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    first = queue.backing.next_position - MANY
    assert surveyed(broker, lambda: noted.append(0)) == {
        queue.queue_id: (first + MANY, [(first, first + MANY)])
    }
    assert sum(noted) == MANY
    assert max(noted) <= MESSAGES_AT_ONCE


def test_positions_become_ranges_in_whatever_order_they_come() -> None:
    random = Random(18)
    for spread in (3000, 1 << BUCKET_BITS + 2, 1 << 45):
        chosen = {random.randrange(spread) + (1 << 40) for _ in range(2000)}
        positions = Positions()
        for position in random.sample(sorted(chosen), len(chosen)) + sorted(chosen)[:100]:
            positions.add(position)
        ranges = asyncio.run(positions.ranges(slices.Breather()))
        assert {at for start, end in ranges for at in range(start, end)} == chosen
        ends = [bound for one in ranges for bound in one]
        assert ends == sorted(set(ends))


def test_whoever_has_a_message_it_counts(broker: Broker, client: Client) -> None:
    queue = durable(client, "q", **{"x-redelivery-delay": Field("A", [long(60_000)])})
    for number in range(7):
        client.publishes("q", b"%d" % number)
    start = queue.backing.next_position - 7
    for number in (2, 3):
        client.opens_channel(number)
    client.sends(commands.Tx.Select, 3)
    client.receives(commands.Tx.SelectOk)
    # One is with a client, one acknowledged in a transaction, one acknowledged, and one waits.
    for channel in (1, 3, 2, 2):
        assert client.gets("q", channel=channel) is not None
    client.acks(1, channel=3)
    client.acks(1, channel=2)
    client.nacks(2, channel=2)
    broker.settle()
    assert queue.waiting == 1
    # And one is with an operator.
    assert len(queue.in_hand.take(0, [start + 5])) == 1
    unacked = [(start, start + 2), (start + 3, start + 4), (start + 5, start + 6)]
    assert surveyed(broker) == {queue.queue_id: (start + 4, unacked)}


def test_channels_that_end_give_their_messages_back_while_they_are_counted(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = durable(client, "q")
    other = broker.connects()
    other.opens_channel(1)
    for _ in range(3 * SETTLED_AT_ONCE):
        client.publishes("q", b"")
    start = queue.backing.next_position - 3 * SETTLED_AT_ONCE
    other.consumes("q")
    assert queue.unacked == 3 * SETTLED_AT_ONCE
    other.pipe.lose()
    assert broker.node.giving_back and queue.unacked
    below, ranges = surveyed(broker)[queue.queue_id]
    assert below == start + 3 * SETTLED_AT_ONCE
    assert sum(end - start for start, end in ranges) == queue.unacked
    broker.settle()
    assert surveyed(broker) == {queue.queue_id: (below, [])}


def test_queues_without_messages_and_streams_are_left_out(broker: Broker, client: Client) -> None:
    durable(client, "empty")
    durable(client, "stream", **{"x-queue-type": longstr("stream")})
    client.publishes("stream", b"")
    client.declares("transient")
    client.publishes("transient", b"")
    queue = durable(client, "levels", **{"x-max-priority": long(2)})
    client.publishes("levels", b"")
    _, second, third = [queue.queue_id + level for level in range(3)]
    found = surveyed(broker)
    assert found.keys() == {queue.queue_id, second, third}
    assert {len(ranges) for _, ranges in found.values()} == {0}


def test_a_queue_that_goes_meanwhile_is_no_longer_led_here(broker: Broker, client: Client) -> None:
    queue, other = durable(client, "q"), durable(client, "other")
    client.publishes("q", b"")
    client.publishes("other", b"")

    async def survey() -> tuple[set[int], set[str]]:
        one = DeliverySurvey(broker.node)
        await one.ask_for({queue.queue_id, other.queue_id})
        client.sends(commands.Queue.Delete, queue="q", nowait=True)
        broker.settle()
        rows = await one.rows()
        return one.known, {row["queue_id"] for row in rows}

    assert asyncio.run(survey()) == ({other.queue_id}, {f"{other.queue_id:016x}"})


def test_the_answer_says_which_queues_are_not_led_here(tmp_path: Path) -> None:
    running = warren.Broker(data_dir=tmp_path / "data", control_socket=True)
    with running, closing(ControlClient(LocalTarget(tmp_path / "data"), 30)) as client:
        with open_channel(running) as channel:
            channel.queue_declare("q", durable=True)
        queue_id = running.call(lambda node: node.vhosts["/"].queues["q"].queue_id)
        both = {"queue_ids": [f"{queue_id:016x}", "ff00"]}
        answer = client.post("control", "deliveries", body=both)
        assert answer == {"levels": [], "elsewhere": ["000000000000ff00"]}
        assert client.post("control", "deliveries") == {"levels": [], "elsewhere": []}
        for wrong in (5, "text", [5], ["g"], [None]):
            with pytest.raises(RequestRefused, match="hexadecimal"):
                client.post("control", "deliveries", body={"queue_ids": wrong})
