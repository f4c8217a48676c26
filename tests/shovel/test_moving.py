"""Shovels between two brokers in this process: what arrives, and what stays."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pika
import pytest
from moving import End, until

from warren import Broker


def value(source: End, destination: End, **more: Any) -> dict[str, Any]:
    """A shovel from queue a of one to queue b of the other; None takes a key away."""
    keys = {
        "src-uri": source.url,
        "src-queue": "a",
        "dest-uri": destination.url,
        "dest-queue": "b",
        "reconnect-delay": 0.05,
        **{key.replace("_", "-"): item for key, item in more.items()},
    }
    return {key: item for key, item in keys.items() if item is not None}


def connections_of_shovels(end: End) -> set[str]:
    """Their names as the broker numbers them."""
    return {
        row["name"]
        for row in end.api.get("/connections")[1]
        if row["client_properties"].get("connection_name", "").startswith("Shovel ")
    }


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_are_moved_in_order_to_queues_that_are_made(
    source: End, destination: End, ack_mode: str
) -> None:
    source.shovel("s", value(source, destination, ack_mode=ack_mode))
    row = source.until_state("s", "running")
    bodies = [str(number) for number in range(60)]
    source.publish("a", *bodies)
    assert destination.bodies("b", 60) == bodies
    until(lambda: source.row("s")["messages_moved"] == 60)
    assert row["src_uri"] == f"amqp://127.0.0.1:{source.broker.port}/%2F"
    assert (row["src_queue"], row["dest_queue"], row["type"]) == ("a", "b", "dynamic")
    for end, queue in ((source, "a"), (destination, "b")):
        assert end.api.get(f"/queues/%2F/{queue}")[1]["durable"]
    source.clear("s")
    source.until_gone("s")
    assert source.is_empty("a")


def test_every_property_and_type_of_header_is_kept(source: End, destination: End) -> None:
    source.declare("a")
    headers = {"int": 1, "long": 1 << 40, "list": [1, "x", {"t": True}], "none": None}
    properties = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "headers": headers,
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "k",
    }
    source.publish("a", "body", **properties)
    source.shovel("s", value(source, destination))
    ((method, moved, body),) = destination.take("b", 1)
    assert body == b"body"
    assert (method.exchange, method.routing_key) == ("", "b")
    assert {name: getattr(moved, name) for name in properties} == properties


def test_message_without_properties_gets_none(source: End, destination: End) -> None:
    source.declare("a")
    source.publish("a", "bare")
    source.shovel("s", value(source, destination))
    ((_, moved, _),) = destination.take("b", 1)
    assert all(item is None for item in vars(moved).values())


def test_large_messages_are_moved(source: End, destination: End) -> None:
    source.declare("a")
    bodies = [letter * 1_000_000 for letter in "abc"]
    source.publish("a", *bodies)
    source.shovel("s", value(source, destination, src_prefetch_count=0))
    assert destination.bodies("b", 3) == bodies


def test_forward_headers_say_where_a_message_came_through(source: End, destination: End) -> None:
    source.declare("a")
    earlier = {"x-shovelled": [{"shovelled-by": "another"}], "own": 1}
    source.publish("a", "x", headers=earlier)
    source.publish("a", "y", headers={"x-shovelled": "no array"})
    marks = {"dest_add_forward_headers": True, "dest_add_timestamp_header": True}
    source.shovel("s", value(source, destination, **marks))
    (_, first, _), (_, second, _) = destination.take("b", 2)
    trace = {
        "shovelled-by": "warren@localhost",
        "shovel-type": "dynamic",
        "shovel-name": "s",
        "shovel-vhost": "/",
        "src-uri": f"amqp://127.0.0.1:{source.broker.port}/%2F",
        "dest-uri": f"amqp://127.0.0.1:{destination.broker.port}/%2F",
        "src-queue": "a",
        "dest-queue": "b",
    }
    assert first.headers["x-shovelled"] == [trace, {"shovelled-by": "another"}]
    assert list(first.headers["x-shovelled"][0]) == list(trace)
    assert first.headers["own"] == 1
    assert first.headers["x-shovelled-timestamp"] > 1_700_000_000
    assert second.headers["x-shovelled"] == [trace]
    assert second.headers["x-invalid-headers"] == {"x-shovelled": ["no array"]}


def test_publish_properties_take_the_place_of_those_of_the_message(
    source: End, destination: End
) -> None:
    source.declare("a")
    source.publish("a", "x", delivery_mode=1, app_id="old", message_id="m")
    properties = {"delivery_mode": 2, "app_id": "new", "priority": 4}
    source.shovel("s", value(source, destination, dest_publish_properties=properties))
    ((_, moved, _),) = destination.take("b", 1)
    assert (moved.delivery_mode, moved.app_id, moved.priority) == (2, "new", 4)
    assert moved.message_id == "m"


# From and to exchanges


def test_messages_of_an_exchange_keep_exchange_and_key(source: End, destination: End) -> None:
    destination.declare("b")
    destination.channel.queue_bind("b", "amq.topic", "#")
    source.shovel(
        "s",
        value(source, destination, src_queue=None, dest_queue=None, src_exchange="amq.topic",
              src_exchange_key="k.#"),
    )  # fmt: skip
    row = source.until_state("s", "running")
    assert (row["src_exchange"], row["src_exchange_key"]) == ("amq.topic", "k.#")
    for key in ("k.1", "other", "k.2"):
        source.channel.basic_publish("amq.topic", key, b"x")
    moved = destination.take("b", 2)
    assert [(one[0].exchange, one[0].routing_key) for one in moved] == [
        ("amq.topic", "k.1"),
        ("amq.topic", "k.2"),
    ]


def test_destination_exchange_and_key_replace_those_of_the_message(
    source: End, destination: End
) -> None:
    source.declare("a")
    destination.declare("b")
    destination.channel.queue_bind("b", "amq.direct", "new")
    source.publish("a", "x")
    source.shovel(
        "s",
        value(source, destination, dest_queue=None, dest_exchange="amq.direct",
              dest_exchange_key="new"),
    )  # fmt: skip
    ((method, _, _),) = destination.take("b", 1)
    assert (method.exchange, method.routing_key) == ("amq.direct", "new")


# What the destination does not take


def test_unroutable_message_stays_until_there_is_a_queue(source: End, destination: End) -> None:
    source.declare("a")
    source.publish("a", "x", "y")
    to = {"dest_queue": None, "dest_exchange": "amq.direct", "dest_exchange_key": "k"}
    source.shovel("s", value(source, destination, **to))
    row = until(lambda: (row := source.row("s")).get("waiting_for") and row)
    assert row["waiting_for"] == "312 NO_ROUTE"
    assert (row["messages_moved"], row["messages_pending"]) == (0, 2)
    destination.declare("b")
    destination.channel.queue_bind("b", "amq.direct", "k")
    assert destination.bodies("b", 2) == ["x", "y"]
    until(lambda: source.row("s")["messages_moved"] == 2)


def test_message_no_queue_takes_stays_in_the_source(source: End, destination: End) -> None:
    source.declare("a")
    source.publish("a", "x")
    to = {"dest_queue": None, "dest_exchange": "amq.direct", "dest_exchange_key": "k"}
    source.shovel("s", value(source, destination, **to))
    until(lambda: source.row("s").get("waiting_for"))
    source.clear("s")
    source.until_gone("s")
    assert source.bodies("a", 1) == ["x"]


def test_to_an_exchange_one_unroutable_message_does_not_hold_the_others(
    source: End, destination: End
) -> None:
    for queue in ("good", "lost"):
        source.declare(queue)
        source.channel.queue_bind(queue, "amq.direct", queue)
    source.declare("a")
    source.channel.queue_bind("a", "amq.fanout", "")
    destination.declare("good")
    destination.channel.queue_bind("good", "amq.fanout", "")
    destination.channel.exchange_declare("by-key", "direct")
    destination.channel.queue_bind("good", "by-key", "good")
    for key, body in (("lost", b"1"), ("good", b"2"), ("good", b"3")):
        source.channel.basic_publish("amq.fanout", key, body)
    source.shovel("s", value(source, destination, dest_queue=None, dest_exchange="by-key"))
    assert destination.bodies("good", 2) == ["2", "3"]
    until(lambda: source.row("s")["messages_moved"] == 2)
    source.clear("s")
    source.until_gone("s")
    assert source.bodies("a", 1) == ["1"]
    destination.channel.exchange_delete("by-key")


def test_full_destination_loses_nothing_and_order_is_kept(source: End, destination: End) -> None:
    source.declare("a")
    destination.declare("b", x_max_length=1, x_overflow="reject-publish")
    bodies = [str(number) for number in range(6)]
    source.publish("a", *bodies)
    source.shovel("s", value(source, destination, src_delete_after="queue-length"))
    assert destination.bodies("b", 6) == bodies
    source.until_gone("s")
    assert source.is_empty("a")


# When it is over


def test_queue_length_moves_what_was_there_and_deletes_the_shovel(
    source: End, destination: End
) -> None:
    source.declare("a")
    bodies = [str(number) for number in range(50)]
    source.publish("a", *bodies)
    source.shovel("s", value(source, destination, src_delete_after="queue-length"))
    source.until_gone("s")
    assert destination.bodies("b", 50) == bodies
    assert source.api.get("/parameters/shovel/%2F/s")[0] == 404


def test_a_number_of_messages_is_moved_and_no_more(source: End, destination: End) -> None:
    source.declare("a")
    source.publish("a", *map(str, range(10)))
    source.shovel("s", value(source, destination, src_delete_after=4))
    source.until_gone("s")
    assert destination.bodies("b", 4) == ["0", "1", "2", "3"]
    assert destination.is_empty("b")
    assert source.bodies("a", 6) == ["4", "5", "6", "7", "8", "9"]


def test_a_number_of_messages_is_counted_over_reconnects(source: End, destination: End) -> None:
    source.declare("a")
    source.publish("a", "0", "1")
    source.shovel("s", value(source, destination, src_delete_after=4))
    until(lambda: source.row("s")["messages_moved"] == 2)
    (former,) = connections_of_shovels(destination)
    destination.api.delete(f"/connections/{quote(former, safe='')}")
    until(lambda: connections_of_shovels(destination) - {former})
    source.until_state("s", "running")
    source.publish("a", *map(str, range(2, 8)))
    source.until_gone("s")
    assert destination.bodies("b", 4) == ["0", "1", "2", "3"]
    assert destination.is_empty("b")
    assert source.bodies("a", 4) == ["4", "5", "6", "7"]


def test_zero_messages_are_moved_at_once(source: End, destination: End) -> None:
    source.declare("a")
    source.publish("a", "x")
    source.shovel("s", value(source, destination, src_delete_after=0))
    source.until_gone("s")
    assert source.bodies("a", 1) == ["x"]


# Failures


def test_of_several_addresses_one_that_answers_is_used(source: End, destination: End) -> None:
    source.declare("a")
    source.publish("a", "x")
    uris = ["amqp://127.0.0.1:1", destination.url]
    source.shovel("s", value(source, destination, dest_uri=uris))
    assert destination.bodies("b", 1) == ["x"]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("amqp://guest:wrong-secret@127.0.0.1:{port}", "ACCESS_REFUSED"),
        ("amqp://127.0.0.1:{port}/nowhere", "vhost nowhere not found"),
        ("amqp://guest:secret@127.0.0.1:1", "127.0.0.1"),
    ],
)
def test_shovel_that_cannot_connect_is_starting_and_says_why(
    source: End, destination: End, uri: str, reason: str
) -> None:
    source.shovel(
        "s", value(source, destination, dest_uri=uri.format(port=destination.broker.port))
    )
    row = until(lambda: (row := source.row("s")).get("reason") and row)
    assert row["state"] == "starting"
    assert (row["src_queue"], row["dest_queue"]) == ("a", "b")
    assert reason in row["reason"]
    assert "secret" not in str(row)


def test_missing_source_exchange_terminates_until_it_is_there(
    source: End, destination: End
) -> None:
    source.shovel("s", value(source, destination, src_queue=None, src_exchange="later"))
    row = source.until_state("s", "terminated")
    assert "no exchange 'later'" in row["reason"]
    source.channel.exchange_declare("later", "fanout")
    assert "reason" not in source.until_state("s", "running")
    source.channel.exchange_delete("later")


def test_publish_to_an_exchange_that_is_not_there_is_told_and_loses_nothing(
    source: End, destination: End
) -> None:
    source.declare("a")
    source.publish("a", "x")
    source.shovel("s", value(source, destination, dest_queue=None, dest_exchange="later"))
    row = source.until_state("s", "terminated")
    assert "no exchange 'later'" in row["reason"]
    destination.declare("b")
    destination.channel.exchange_declare("later", "fanout")
    destination.channel.queue_bind("b", "later", "")
    assert destination.bodies("b", 1) == ["x"]
    destination.channel.exchange_delete("later")


def test_source_queue_that_is_deleted_is_made_again(source: End, destination: End) -> None:
    source.shovel("s", value(source, destination))
    source.until_state("s", "running")
    source.channel.queue_delete("a")
    until(lambda: source.has_queue("a"))
    source.until_state("s", "running")
    source.publish("a", "x")
    assert destination.bodies("b", 1) == ["x"]


def test_without_a_delay_a_failed_shovel_stays_as_it_is(source: End, destination: End) -> None:
    source.shovel(
        "s", value(source, destination, src_queue=None, src_exchange="later", reconnect_delay=0)
    )
    source.until_state("s", "terminated")
    source.channel.exchange_declare("later", "fanout")
    assert source.row("s")["state"] == "terminated"
    assert source.api.delete("/shovels/vhost/%2F/s/restart")[0] == 204
    source.until_state("s", "running")
    source.channel.exchange_delete("later")


def test_destination_that_stops_and_comes_back_gets_everything(source: End, tmp_path: Any) -> None:
    source.declare("a")
    destination = Broker(data_dir=tmp_path).start()
    try:
        port = destination.port
        keys = {
            "src-uri": source.url,
            "src-queue": "a",
            "dest-uri": destination.url,
            "dest-queue": "b",
            "reconnect-delay": 0.05,
        }
        source.shovel("s", keys)
        source.until_state("s", "running")
        source.publish("a", "1", delivery_mode=2)
        until(lambda: source.row("s")["messages_moved"] == 1)
        destination.stop()
        source.publish("a", "2", "3", delivery_mode=2)
        until(lambda: source.row("s").get("reason"))
        destination = Broker(data_dir=tmp_path, port=port).start()
        until(lambda: source.row("s")["messages_moved"] == 3)
        with pika.BlockingConnection(pika.URLParameters(destination.url)) as connection:
            channel = connection.channel()
            bodies = [channel.basic_get("b", auto_ack=True)[2] for _ in range(3)]
        assert bodies == [b"1", b"2", b"3"]
    finally:
        source.clear("s")
        source.until_gone("s")
        destination.stop()
