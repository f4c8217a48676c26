"""Federated queues: messages come from upstream while consumers here wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pika
import pytest
from federating import Side, quoted
from moving import until
from pika.adapters.blocking_connection import BlockingChannel


def federate(up: Side, down: Side, **keys: Any) -> None:
    down.declare("q")
    down.upstream("u", up.url, **keys)
    down.policy("^q$")
    down.until_links()


@contextmanager
def consumer(
    side: Side, queue: str = "q", *, prefetch: int = 0, priority: int = 0
) -> Iterator[tuple[BlockingChannel, list[Any]]]:
    """A channel that consumes, and what it has got: methods, properties and bodies."""
    got: list[Any] = []
    with pika.BlockingConnection(pika.URLParameters(side.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(
            queue,
            lambda _channel, *message: got.append(message),
            arguments={"x-priority": priority} if priority else None,
        )
        yield channel, got


def until_got(channel: BlockingChannel, got: list[Any], count: int) -> list[str]:
    def look() -> bool:
        channel.connection.process_data_events(0.01)
        return len(got) >= count

    until(look)
    return [body.decode() for _, _, body in got]


def ready(side: Side, queue: str = "q") -> int:
    messages: int = side.channel.queue_declare(queue, passive=True).method.message_count
    return messages


def consumers(side: Side, queue: str = "q") -> int:
    consuming: int = side.channel.queue_declare(queue, passive=True).method.consumer_count
    return consuming


def test_queue_is_made_upstream_and_messages_come_when_somebody_waits(up: Side, down: Side) -> None:
    down.declare("q", x_max_length=100)
    down.upstream("u", up.url, consumer_tag="here")
    down.policy("^q$")
    (row,) = down.until_links()
    assert (row["queue"], row["upstream_queue"], row["consumer_tag"]) == ("q", "q", "here")
    assert row["type"] == "queue"
    assert up.api.get("/queues/%2F/q")[1]["arguments"] == {"x-max-length": 100}
    up.publish("q", "a", "b")
    # Whoever fetches is nobody who waits.
    assert down.is_empty("q")
    assert ready(up) == 2
    with consumer(down) as (channel, got):
        assert until_got(channel, got, 2) == ["a", "b"]
        (row,) = up.api.get("/queues/%2F/q")[1]["consumer_details"]
        assert (row["consumer_tag"], row["arguments"]) == ("here", {"x-priority": -1})
    until(lambda: consumers(up) == 0)
    assert "q" in up.queues()


def test_message_says_where_it_was(up: Side, down: Side) -> None:
    federate(up, down)
    up.exchange("x", "direct")
    up.channel.queue_bind("q", "x", "k")
    headers = {"CC": ["other"], "mine": 1}
    up.channel.basic_publish("x", "k", b"m", pika.BasicProperties(headers=headers))
    with consumer(down) as (channel, got):
        until_got(channel, got, 1)
    ((method, properties, _),) = got
    assert (method.exchange, method.routing_key) == ("", "q")
    uri = up.url.replace("guest:guest@", "")
    assert properties.headers == {
        "mine": 1,
        "x-original-exchange": "x",
        "x-original-routing-key": "k",
        "x-original-cc": ["other"],
        "x-received-from": [{"uri": uri, "queue": "q", "redelivered": False, "visit-count": 1}],
    }


def test_nothing_comes_while_the_queue_here_has_messages(up: Side, down: Side) -> None:
    federate(up, down, prefetch_count=10)
    up.publish("q", *(f"up {number}" for number in range(30)))
    down.publish("q", "here")
    with consumer(down, prefetch=1) as (channel, got):
        assert until_got(channel, got, 1) == ["here"]
        channel.basic_ack(got[0][0].delivery_tag)
        assert until_got(channel, got, 2) == ["here", "up 0"]
        # It has one and takes no more: the link asks for no more than ten at a time.
        until(lambda: consumers(up) == 0)
        assert ready(up) >= 10
        for number in range(1, 31):
            channel.basic_ack(got[number][0].delivery_tag)
            if number < 30:
                until_got(channel, got, number + 2)
    assert [body.decode() for _, _, body in got[1:]] == [f"up {number}" for number in range(30)]


def test_consumers_upstream_come_first(up: Side, down: Side) -> None:
    federate(up, down)
    with consumer(up) as (above, got_above), consumer(down) as (below, got_below):
        until(lambda: consumers(up) == 2)
        up.publish("q", "a", "b", "c")
        assert until_got(above, got_above, 3) == ["a", "b", "c"]
        below.connection.process_data_events(0)
        assert got_below == []


def test_consumer_of_low_priority_gets_nothing_from_upstream(up: Side, down: Side) -> None:
    federate(up, down)
    up.publish("q", "a")
    with consumer(down, priority=-1) as (low, got_low):
        down.publish("q", "here")
        assert until_got(low, got_low, 1) == ["here"]
        low.basic_ack(got_low[0][0].delivery_tag)
        with consumer(down) as (channel, got):
            assert until_got(channel, got, 1) == ["a"]
        assert len(got_low) == 1


def test_messages_go_to_the_one_of_two_where_somebody_waits(up: Side, down: Side) -> None:
    for here, there in ((up, down), (down, up)):
        here.declare("q")
        here.upstream("u", there.url)
        here.policy("^q$")
    up.until_links()
    down.until_links()
    up.publish("q", "a", "b")
    with consumer(down) as (channel, got):
        until_got(channel, got, 2)
        for method, _, _ in got:
            channel.basic_ack(method.delivery_tag)
        # They stay where they were taken.
        up.publish("q", "c")
        assert until_got(channel, got, 3) == ["a", "b", "c"]
        channel.basic_reject(got[2][0].delivery_tag, requeue=True)
        assert until_got(channel, got, 4)[3] == "c"


def test_message_that_comes_back_counts_its_visits(up: Side, down: Side) -> None:
    for here, there in ((up, down), (down, up)):
        here.declare("q")
        here.upstream("u", there.url)
        here.policy("^q$")
    up.until_links()
    down.until_links()
    up.publish("q", "m")
    for side in (down, up, down):
        with consumer(side) as (channel, got):
            until_got(channel, got, 1)
        # The consumer ended without an ack, so that the message is in the queue again. It stays
        # there when the link has seen that nobody waits any more.
        until(lambda: consumers(up) == consumers(down) == 0)
    (entry, other) = got[0][1].headers["x-received-from"]
    assert (entry["queue"], entry["visit-count"]) == ("q", 2)
    assert entry["uri"] == up.url.replace("guest:guest@", "")
    assert other["visit-count"] == 1
    assert got[0][1].headers["x-original-exchange"] == ""


@pytest.mark.parametrize("mode", ["on-publish", "no-ack"])
def test_other_ways_to_acknowledge(up: Side, down: Side, mode: str) -> None:
    federate(up, down, ack_mode=mode)
    up.publish("q", *map(str, range(100)))
    with consumer(down) as (channel, got):
        assert until_got(channel, got, 100) == list(map(str, range(100)))
    until(lambda: consumers(up) == 0)
    assert ready(up) == 0


def test_quorum_queue(up: Side, down: Side) -> None:
    down.declare("q", x_queue_type="quorum")
    down.upstream("u", up.url)
    down.policy("^q$")
    down.until_links()
    assert up.api.get("/queues/%2F/q")[1]["type"] == "quorum"
    up.publish("q", "a")
    with consumer(down) as (channel, got):
        assert until_got(channel, got, 1) == ["a"]


def test_exclusive_queues_and_internal_ones_are_not_federated(up: Side, down: Side) -> None:
    down.declare("q")
    down.channel.queue_declare("mine", exclusive=True)
    down.channel.queue_declare("helper", arguments={"x-internal-purpose": "federation"})
    down.channel.exchange_declare("inside", internal=True)
    down.upstream("u", up.url)
    down.policy("^(q|mine|helper|inside|amq.direct|amq.rabbitmq.trace|)$")
    rows = down.until_links(2)
    assert {row.get("queue") or row["exchange"] for row in rows} == {"q", "amq.direct"}
    assert "mine" not in up.queues()


def test_refused_messages_stay_upstream_and_are_tried_again(up: Side, down: Side) -> None:
    down.declare("q", x_max_length=0, x_overflow="reject-publish")
    down.upstream("u", up.url, queue="source")
    up.declare("source")
    down.policy("^q$")
    down.until_links()
    up.publish("source", "a", "b")
    with consumer(down):
        until(lambda: "nacked" in down.links()[0].get("waiting_for", ""))
    (row,) = down.links()
    assert (row["messages_received"], row["messages_pending"]) == (0, 2)
    assert up.api.get("/queues/%2F/source")[1]["messages"] == 2


def test_queue_upstream_that_is_deleted_is_made_anew(up: Side, down: Side) -> None:
    federate(up, down)
    up.channel.queue_delete("q")
    # It is missed when somebody waits for its messages, and while they are waited for.
    with consumer(down) as (channel, got):
        until(lambda: "q" in up.queues() and consumers(up) == 1)
        up.publish("q", "a")
        assert until_got(channel, got, 1) == ["a"]
        up.channel.queue_delete("q")
        until(lambda: "q" in up.queues() and consumers(up) == 1)
        up.publish("q", "b")
        assert until_got(channel, got, 2) == ["a", "b"]


def test_restart_of_a_link_loses_nothing(up: Side, down: Side) -> None:
    federate(up, down, prefetch_count=10)
    up.publish("q", *(str(number) for number in range(50)))
    (row,) = down.links()
    restart = f"/federation-links/vhost/%2F/{row['id']}/{quoted(row['node'])}/restart"
    seen: set[bytes] = set()
    with consumer(down, prefetch=1) as (channel, got):
        # What was on its way at a restart may come twice.
        for number in count():
            until_got(channel, got, number + 1)
            method, _, body = got[number]
            seen.add(body)
            if len(seen) == 50:
                break
            if number % 10 == 0:
                down.api.delete(restart)
            channel.basic_ack(method.delivery_tag)
