"""Queues retain acknowledged messages by policy, to be replayed: over HTTP and from the command
line, with permissions, limits and restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from api_client import ApiClient, reason
from ctl_node import CtlNode
from message_jobs import NUMBERS, begin, bodies, do, fill, over
from scrape_broker import scrape

from warren import Broker
from warren.config import Listener
from warren.core.node import Node

MINUTE = {"max-age": 60}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    listeners = (Listener("127.0.0.1", 0),)
    with Broker(
        http_port=0, data_dir=tmp_path, movable_clock=True, metrics_listeners=listeners
    ) as running:
        yield running


def retain(api: ApiClient, retention: Any = MINUTE, **more: Any) -> Any:
    body = {"pattern": "^q$", "definition": {"retention": retention, **more}, "apply-to": "queues"}
    return api.put("/policies/%2F/keep", body)


def acknowledge(channel: Any, count: int, queue: str = "q") -> None:
    """By a client that gets them one by one."""
    for _ in range(count):
        method, _, _ = channel.basic_get(queue)
        channel.basic_ack(method.delivery_tag)
    # Whoever is answered now has had its acknowledgements carried out.
    channel.queue_declare(queue, passive=True)


def retained(broker: Broker, api: ApiClient, queue: str = "q") -> list[str]:
    """The bodies of what is retained and can be replayed."""
    job = do(broker, api, "replay", queue=queue, to_queue="to", dry_run=True)
    assert job["state"] == "completed", job
    return [sample["payload"] for sample in job["samples"]]


def shown(api: ApiClient) -> Any:
    return api.get("/queues/%2F/q")[1].get("retained")


def settled(broker: Broker) -> None:
    """Return when everything is on disk, and what is too much is gone."""

    def is_settled(node: Node) -> bool:
        retention = node.vhosts["/"].queues["q"].retention
        if retention is None:
            return True
        log = retention.log
        is_idle = not (retention._waiting or retention._going_on or retention._trimming)
        return is_idle and log.committed == log.next_position

    deadline = time.monotonic() + 30
    while not broker.call(is_settled):
        assert time.monotonic() < deadline


def test_what_is_acknowledged_is_replayed(broker: Broker, api: ApiClient, channel: Any) -> None:
    assert retain(api)[0] == 201
    fill(channel)
    fill(channel, "to", [])
    acknowledge(channel, 5)
    settled(broker)
    assert shown(api)["messages"] == 5
    job = do(broker, api, "replay", to_queue="to", filter="headers.n >= 3")
    assert (job["state"], job["done"], job["left"]) == ("completed", 2, [])
    assert bodies(api, "to") == ["3", "4"]
    _, properties, _ = channel.basic_get("to", auto_ack=True)
    mark = properties.headers["x-replayed"]
    assert mark["queue"] == "q"
    assert (properties.headers["n"], properties.delivery_mode) == (3, 2)
    position = mark["position"]
    job = do(broker, api, "replay", to_queue="to", first=position, last=position)
    assert bodies(api, "to") == ["4", "3"]
    assert bodies(api) == NUMBERS[5:]
    assert shown(api)["messages"] == 5


def test_it_is_replayed_into_the_queue_itself(broker: Broker, api: ApiClient, channel: Any) -> None:
    retain(api)
    fill(channel, bodies=NUMBERS[:3])
    acknowledge(channel, 3)
    settled(broker)
    job = do(broker, api, "replay", to_queue="q")
    assert (job["state"], job["done"]) == ("completed", 3)
    assert bodies(api) == NUMBERS[:3]
    acknowledge(channel, 3)
    settled(broker)
    assert shown(api)["messages"] == 6


def test_times_are_those_of_acknowledgements(broker: Broker, api: ApiClient, channel: Any) -> None:
    retain(api, {"max-bytes": 1 << 20})
    fill(channel)
    fill(channel, "to", [])
    acknowledge(channel, 6)
    broker.advance(1000)
    moment = broker.call(lambda node: node.clock.wall_time())
    broker.advance(1000)
    acknowledge(channel, 6)
    settled(broker)
    assert do(broker, api, "replay", to_queue="to", until=moment)["done"] == 6
    assert do(broker, api, "replay", to_queue="to", since=moment)["done"] == 6
    assert bodies(api, "to") == NUMBERS
    assert shown(api)["oldest"] < moment


def test_all_ways_of_acknowledging_count(broker: Broker, api: ApiClient, channel: Any) -> None:
    """With auto-ack: in a `basic.get`, to a consumer that waits, and to one that comes later."""
    retain(api)
    fill(channel, "to", [])
    fill(channel, bodies=NUMBERS[:2])
    channel.basic_get("q", auto_ack=True)
    tag = channel.basic_consume("q", lambda *given: None, auto_ack=True)
    fill(channel, bodies=NUMBERS[2:4])
    channel.basic_cancel(tag)
    fill(channel, bodies=NUMBERS[4:6])
    method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag, requeue=True)
    acknowledge(channel, 1)
    settled(broker)
    assert retained(broker, api) == NUMBERS[:5]


def test_transactions_retain_what_they_acknowledge(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    retain(api)
    fill(channel, "to", [])
    fill(channel, bodies=NUMBERS[:4])
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        transaction = connection.channel()
        transaction.tx_select()
        for _ in range(2):
            method, _, _ = transaction.basic_get("q")
            transaction.basic_ack(method.delivery_tag)
        settled(broker)
        assert retained(broker, api) == []
        transaction.tx_commit()
    settled(broker)
    assert retained(broker, api) == NUMBERS[:2]


def test_only_what_was_acknowledged_is_retained(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    """Not what was purged, rejected, dropped, expired or moved, nor transient messages."""
    arguments = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    retain(api)
    fill(channel, "to", [])
    fill(channel, "dead", [])
    fill(channel, bodies=NUMBERS[:4], **arguments)
    method, _, _ = channel.basic_get("q")
    channel.basic_reject(method.delivery_tag, requeue=False)
    assert do(broker, api, "move", to_queue="to", limit=1)["done"] == 1
    channel.queue_purge("q")
    channel.basic_publish("", "q", b"t", pika.BasicProperties(delivery_mode=1))
    expiring = pika.BasicProperties(delivery_mode=2, expiration="1000")
    channel.basic_publish("", "q", b"e", expiring)
    acknowledge(channel, 1)
    broker.advance(5)
    settled(broker)
    assert bodies(api, "dead") == ["0", "e"]
    assert shown(api)["messages"] == 0


def test_purge_leaves_what_is_retained(broker: Broker, api: ApiClient, channel: Any) -> None:
    retain(api)
    fill(channel, "to", [])
    fill(channel)
    acknowledge(channel, 2)
    settled(broker)
    channel.queue_purge("q")
    assert retained(broker, api) == NUMBERS[:2]


def test_what_is_too_old_goes(broker: Broker, api: ApiClient, channel: Any) -> None:
    retain(api, {"max-age": "1m"})
    fill(channel)
    fill(channel, "to", [])
    acknowledge(channel, 2)
    broker.advance(40)
    acknowledge(channel, 2)
    settled(broker)
    assert retained(broker, api) == NUMBERS[:4]
    broker.advance(21)
    settled(broker)
    assert retained(broker, api) == NUMBERS[2:4]
    broker.advance(41)
    settled(broker)
    assert shown(api) == {"messages": 0, "octets": 0, "oldest": None}


def test_what_is_too_much_goes(broker: Broker, api: ApiClient, channel: Any) -> None:
    retain(api, {"max-bytes": 500})
    fill(channel)
    fill(channel, "to", [])
    acknowledge(channel, 12)
    settled(broker)
    kept = retained(broker, api)
    assert 0 < len(kept) < 6
    assert kept == NUMBERS[-len(kept) :]
    assert shown(api)["octets"] <= 500
    retain(api, {"max-bytes": 1})
    settled(broker)
    assert retained(broker, api) == []


def test_policy_that_is_removed_takes_what_is_retained_with_it(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    retain(api)
    fill(channel)
    fill(channel, "to", [])
    acknowledge(channel, 2)
    settled(broker)
    assert api.delete("/policies/%2F/keep")[0] == 204
    assert shown(api) is None
    status, why = reason(api.post("/queues/%2F/q/replay", {"to_queue": "to"}))
    assert (status, "nothing to replay" in why) == (400, True), why
    acknowledge(channel, 2)
    retain(api)
    acknowledge(channel, 2)
    settled(broker)
    assert retained(broker, api) == NUMBERS[4:6]


def test_queue_that_is_deleted_takes_what_is_retained_with_it(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    retain(api)
    fill(channel)
    acknowledge(channel, 2)
    settled(broker)
    channel.queue_delete("q")
    fill(channel)
    assert shown(api)["messages"] == 0


def test_it_survives_restarts(tmp_path: Path) -> None:
    large = "7" * 5000
    with Broker(http_port=0, data_dir=tmp_path, movable_clock=True) as broker:
        api = ApiClient(broker)
        retain(api, {"max-bytes": 1 << 20})
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            fill(channel, "to", [])
            fill(channel, bodies=NUMBERS[:3])
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "q", large.encode(), properties)
            acknowledge(channel, 2)
    with Broker(http_port=0, data_dir=tmp_path, movable_clock=True) as broker:
        api = ApiClient(broker)
        assert retained(broker, api) == NUMBERS[:2]
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            acknowledge(channel, 2)
            settled(broker)
    with Broker(http_port=0, data_dir=tmp_path, movable_clock=True) as broker:
        api = ApiClient(broker)
        assert retained(broker, api) == [*NUMBERS[:3], large]
        assert bodies(api) == []
        assert do(broker, api, "replay", to_queue="to")["done"] == 4


@pytest.mark.parametrize("kind", [{"x_max_priority": 3}, {"x_message_deduplication_window": 10}])
def test_queues_with_levels_retain(
    broker: Broker, api: ApiClient, channel: Any, kind: dict[str, int]
) -> None:
    retain(api)
    fill(channel, "to", [])
    fill(channel, bodies=NUMBERS[:1], **kind)
    for number, priority in (("1", 3), ("2", 9), ("3", 1)):
        properties = pika.BasicProperties(
            delivery_mode=2, priority=priority, message_id=number, headers={"n": int(number)}
        )
        channel.basic_publish("", "q", number.encode() * 5000, properties)
    acknowledge(channel, 4)
    settled(broker)
    assert sorted(one[0] for one in retained(broker, api)) == NUMBERS[:4]
    assert do(broker, api, "replay", to_queue="to", filter="headers.n = 2")["done"] == 1


def test_quorum_queues_retain_transient_messages_too_and_no_dead_ones(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    """They keep every message on disk. What was returned is retained without its count."""
    retain(api)
    fill(channel, "to", [])
    fill(channel, "dead", [])
    fill(
        channel,
        bodies=NUMBERS[:3],
        x_queue_type="quorum",
        x_delivery_limit=1,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    channel.basic_publish("", "q", b"3", pika.BasicProperties(delivery_mode=1, headers={"n": 3}))
    for _ in range(2):
        method, _, _ = channel.basic_get("q")
        channel.basic_nack(method.delivery_tag, requeue=True)
    acknowledge(channel, 1)
    method, properties, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, properties, _ = channel.basic_get("q")
    assert properties.headers["x-delivery-count"] == 1
    channel.basic_ack(method.delivery_tag)
    channel.basic_get("q", auto_ack=True)
    settled(broker)
    assert bodies(api, "dead") == ["0"]
    assert retained(broker, api) == NUMBERS[1:4]
    assert do(broker, api, "replay", to_queue="to")["done"] == 3
    _, properties, _ = channel.basic_get("to", auto_ack=True)
    assert "x-delivery-count" not in properties.headers
    assert bodies(api) == []


@pytest.mark.parametrize("kind", [{"x_queue_type": "stream"}, {"x_max_priority": 255}])
def test_queues_of_other_kinds_retain_nothing(
    broker: Broker, api: ApiClient, channel: Any, kind: dict[str, Any]
) -> None:
    retain(api)
    fill(channel, **kind)
    settled(broker)
    assert shown(api) is None
    if "x_max_priority" not in kind:
        # A policy that is not for such queues does not apply to them at all.
        assert api.get("/queues/%2F/q")[1]["policy"] is None


@pytest.mark.parametrize(
    "value",
    [
        7,
        "7D",
        [],
        {},
        {"max-age": 0},
        {"max-age": -1},
        {"max-age": "seven"},
        {"max-age": True},
        {"max-age": 1 << 80},
        {"max-bytes": -1},
        {"max-bytes": 0},
        {"max-bytes": 1.5},
        {"max-bytes": None},
        {"max-age": 5, "min-age": 1},
    ],
)
def test_bad_retention_is_refused(api: ApiClient, value: Any) -> None:
    answer = retain(api, value)
    status, why = reason(answer)
    assert (status, "is not a valid retention" in why) == (400, True), why


def test_operators_limit_what_is_retained(broker: Broker, api: ApiClient, channel: Any) -> None:
    limit = {"max-age": "10s", "max-bytes": 1 << 40}
    operator = {"pattern": "^q$", "definition": {"retention": limit}, "apply-to": "queues"}
    assert api.put("/operator-policies/%2F/cap", operator)[0] == 201
    fill(channel)
    assert shown(api) is None
    retain(api, {"max-age": "1h"})
    expected = {"max-age": "10s", "max-bytes": 1 << 30}
    assert api.get("/queues/%2F/q")[1]["effective_policy_definition"] == {"retention": expected}
    acknowledge(channel, 2)
    settled(broker)
    assert shown(api)["messages"] == 2
    broker.advance(10)
    settled(broker)
    assert shown(api)["messages"] == 0


def test_rights_are_those_of_replays(broker: Broker, api: ApiClient, channel: Any) -> None:
    retain(api)
    fill(channel)
    fill(channel, "to", [])
    api.put("/users/reader", {"password": "reader", "tags": "management"})
    reader = ApiClient(broker, "reader", "reader")
    plan = {"to_queue": "to"}
    for read, write, expected in (("^$", ".*", 401), ("q", "^$", 401), ("q", "to", 200)):
        rights = {"configure": "^$", "write": write, "read": read}
        api.put("/permissions/%2F/reader", rights)
        assert reader.post("/queues/%2F/q/replay", plan)[0] == expected


def test_replay_ends_when_the_policy_goes(broker: Broker, api: ApiClient, channel: Any) -> None:
    retain(api)
    fill(channel)
    fill(channel, "to", [])
    acknowledge(channel, 12)
    settled(broker)
    path = begin(api, "replay", to_queue="to", rate=0.01)
    over(broker, api, path, "running")
    api.delete("/policies/%2F/keep")
    api.delete(path)
    job = over(broker, api, path)
    assert job["state"] in ("failed", "stopped")
    assert job["done"] < 12


def test_command_line(ctl_node: CtlNode) -> None:
    ctl_node(
        "set_policy", "keep", "^kept$", '{"retention": {"max-age": "1h"}}', "--apply-to", "queues"
    )
    with ctl_node.connected() as connection:
        channel = connection.channel()
        for queue in ("kept", "again"):
            channel.queue_delete(queue)
            channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for number in range(5):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "kept", b"m%d" % number, properties)
        acknowledge(channel, 4, "kept")
    listed = ctl_node.rows("list_messages", "kept", "--retained", "--newest", "--limit", "2")
    assert [row[1] for row in listed] == ["retained", "retained"]
    done = ctl_node("replay", "kept", "--to-queue", "again", "--wait", "-q")
    assert done.lines == ["replay: 4 messages"]
    listed = ctl_node.rows("list_queues", "name", "messages", "messages_retained")
    assert ["kept", "1", "4"] in listed
    assert ["again", "4"] in ctl_node.rows("list_queues", "name", "messages")
    ctl_node("clear_policy", "keep")


def test_what_goes_straight_to_a_client_is_confirmed_and_counted(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    """`publish_many` and, for a message of two queues, `publish`."""
    retain(api)
    fill(channel, "to", [])
    fill(channel, bodies=[])
    channel.queue_bind("q", "amq.fanout")
    channel.queue_bind("to", "amq.fanout")
    channel.basic_consume("q", lambda *given: None, auto_ack=True)
    channel.basic_publish("amq.fanout", "", b"0", pika.BasicProperties(delivery_mode=2))
    fill(channel, bodies=["1"])
    channel.basic_publish("", "q", b"t", pika.BasicProperties(delivery_mode=1))
    settled(broker)
    assert bodies(api, "to") == ["0"]
    assert retained(broker, api) == ["0", "1"]
    stats = broker.call(lambda node: node.vhosts["/"].queues["q"].stats())
    assert (stats.publish, stats.deliver, stats.deliver_no_ack, stats.ack) == (3, 0, 3, 0)


def test_metrics_count_what_is_retained(broker: Broker, api: ApiClient, channel: Any) -> None:
    retain(api)
    fill(channel)
    acknowledge(channel, 3)
    settled(broker)
    octets = shown(api)["octets"]
    values = scrape(broker)
    assert values["warren_messages_retained"] == 3
    assert values["warren_messages_retained_bytes"] == octets
    assert (
        scrape(broker, "/metrics/per-object")['warren_messages_retained{vhost="/",queue="q"}'] == 3
    )


def test_what_is_retained_is_looked_at(broker: Broker, api: ApiClient, channel: Any) -> None:
    fill(channel, x_max_priority=3)
    status, why = reason(api.get("/queues/%2F/q/messages?retained=true"))
    assert (status, "retains nothing" in why) == (400, True)
    retain(api)
    acknowledge(channel, 5)
    settled(broker)
    query = "retained=true&filter=headers.n%3E2&order=newest&limit=1"
    _, page = api.get(f"/queues/%2F/q/messages?{query}")
    (row,) = page["messages"]
    assert (row["payload"], row["state"]) == ("4", "retained")
    assert row["acknowledged_at"] == pytest.approx(shown(api)["oldest"], abs=60)
    assert "expires_in_ms" not in row
    _, page = api.get(f"/queues/%2F/q/messages?{query}&from={page['next']}")
    assert [row["payload"] for row in page["messages"]] == ["3"]
    fill(channel, "to", [])
    positions = [page["messages"][0]["position"]]
    job = do(broker, api, "replay", to_queue="to", positions=positions, dry_run=True)
    assert [sample["position"] for sample in job["samples"]] == positions
    assert do(broker, api, "replay", to_queue="to", positions=positions)["done"] == 1
    assert bodies(api, "to") == ["3"]
