"""Metrics: the format, RabbitMQ's names, and values that agree with the broker."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pika
import pytest
from api_client import ApiClient
from broker_channel import open_channel
from scrape_broker import scrape

from warren import Broker
from warren.config import Listener
from warren.mgmt.metrics.exposition import labels, number


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, metrics_listeners=(Listener("127.0.0.1", 0),)) as broker:
        yield broker


def test_totals_are_those_of_the_broker(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("q")
    for _ in range(5):
        channel.basic_publish("", "q", b"12345")
    channel.basic_publish("", "nowhere", b"x")
    channel.basic_get("q")
    channel.basic_get("q", auto_ack=True)
    values = scrape(broker)
    protocol = '{protocol="amqp091"}'
    by_type = '{protocol="amqp091",queue_type="rabbit_classic_queue"}'
    assert values["rabbitmq_queue_messages_ready"] == 3
    assert values["rabbitmq_queue_messages_unacked"] == 1
    assert values["rabbitmq_queue_messages_ready_bytes"] == 15
    assert values["rabbitmq_connections"] == values["rabbitmq_channels"] == 1
    assert values["rabbitmq_queues"] == values["rabbitmq_queues_created_total"] == 1
    assert values[f"rabbitmq_global_messages_received_total{protocol}"] == 6
    assert values[f"rabbitmq_global_messages_routed_total{protocol}"] == 5
    assert values[f"rabbitmq_global_messages_unroutable_dropped_total{protocol}"] == 1
    assert values[f"rabbitmq_global_messages_delivered_get_manual_ack_total{by_type}"] == 1
    assert values[f"rabbitmq_global_messages_delivered_get_auto_ack_total{by_type}"] == 1
    assert values["rabbitmq_process_resident_memory_bytes"] > 1e6
    connection.close()
    after = scrape(broker)
    assert after[f"rabbitmq_global_messages_received_total{protocol}"] == 6, "counters never fall"
    assert after["rabbitmq_connections_closed_total"] == 1


def test_persistent_messages_and_their_octets_are_counted(tmp_path: Path) -> None:
    listeners = (Listener("127.0.0.1", 0),)
    with (
        Broker(metrics_listeners=listeners, data_dir=tmp_path / "data") as broker,
        open_channel(broker) as channel,
    ):
        channel.queue_declare("q", durable=True)
        for mode, body in ((2, b"one"), (1, b"three"), (2, b"fifteen")):
            channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=mode))
        channel.basic_get("q")
        values = scrape(broker)
        assert values["rabbitmq_queue_messages_persistent"] == 2
        assert values["rabbitmq_queue_messages_persistent_bytes"] == 10


def test_duplicates_and_traces_are_counted(broker: Broker) -> None:
    window = {"x-message-deduplication-window": 10}
    ApiClient(broker).put("/parameters/trace/%2F/all", {"value": {"queue": "^once"}})
    with open_channel(broker) as channel:
        channel.queue_declare("once", arguments=window)
        channel.confirm_delivery()
        for message_id in ("a", "b", "a", "a"):
            properties = pika.BasicProperties(message_id=message_id)
            channel.basic_publish("", "once", b"x", properties)
        channel.basic_publish("", "once", b"nameless")
        values = scrape(broker)
        assert values["warren_messages_deduplicated_total"] == 2
        assert values["warren_trace_messages_followed"] == 2
        assert values["warren_trace_messages_nameless_total"] == 1
        each = scrape(broker, "/metrics/per-object")
        assert each['warren_messages_deduplicated_total{vhost="/",queue="once"}'] == 2
        while not values["warren_trace_records_total"] >= 6:
            values = scrape(broker)


def test_messages_of_streams_are_counted_apart(broker: Broker) -> None:
    with open_channel(broker) as channel:
        channel.queue_declare("q")
        channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        for queue in ("q", "kept", "kept"):
            channel.basic_publish("", queue, b"x")
        values = scrape(broker)
        assert values["rabbitmq_queue_messages_ready"] == 3
        assert values["warren_stream_messages"] == 2
        each = scrape(broker, "/metrics/per-object")
        assert each['warren_stream_messages{vhost="/",queue="kept"}'] == 2


def test_shovels_are_counted_by_state_and_with_what_they_moved(broker: Broker) -> None:
    api = ApiClient(broker)
    names = {state: f'warren_shovels{{state="{state}"}}' for state in ("starting", "running")}
    before = scrape(broker)
    assert [before[name] for name in names.values()] == [0, 0]
    shovel = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("a", durable=True)
        for _ in range(3):
            channel.basic_publish("", "a", b"x")
        api.put("/parameters/shovel/%2F/s", {"value": shovel})
        channel.queue_declare("b", durable=True)
        moved = channel.consume("b", inactivity_timeout=30)
        assert [next(moved)[2] for _ in range(3)] == [b"x"] * 3
    values = scrape(broker)
    while not values["warren_shovel_messages_moved_total"] == 3:
        values = scrape(broker)
    assert [values[name] for name in names.values()] == [0, 1]
    api.delete("/shovels/vhost/%2F/s")
    while (values := scrape(broker))[names["running"]]:
        pass
    assert values["warren_shovel_messages_moved_total"] == 3


def test_federation_links_are_counted_with_what_they_got(broker: Broker) -> None:
    api = ApiClient(broker)
    running = 'warren_federation_links{type="queue",state="running"}'
    assert scrape(broker)[running] == 0
    upstream = {"uri": "amqp://", "queue": "fed-up"}
    policy = {"pattern": "^fed-down$", "definition": {"federation-upstream": "u"}}
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for queue in ("fed-up", "fed-down"):
            channel.queue_declare(queue, durable=True)
        channel.basic_publish("", "fed-up", b"x")
        assert api.put("/parameters/federation-upstream/%2F/u", {"value": upstream})[0] == 201
        assert api.put("/policies/%2F/fed", policy)[0] == 201
        got = channel.consume("fed-down", inactivity_timeout=30)
        assert next(got)[2] == b"x"
    while not (values := scrape(broker))["warren_federation_messages_received_total"]:
        pass
    assert values[running] == 1
    api.delete("/policies/%2F/fed")
    while (values := scrape(broker))[running]:
        pass
    assert values["warren_federation_messages_received_total"] == 1


def test_series_the_dashboards_need_are_there(broker: Broker) -> None:
    names = {re.sub(r"\{.*", "", key) for key in scrape(broker)}
    for name in (
        "identity_info build_info queue_messages_ready queue_messages_unacked queues connections"
        " channels consumers channel_consumers connections_opened_total connections_closed_total"
        " channels_opened_total channels_closed_total queues_declared_total queues_created_total"
        " queues_deleted_total process_resident_memory_bytes resident_memory_limit_bytes"
        " disk_space_available_bytes process_open_fds process_max_fds process_open_tcp_sockets"
        " process_max_tcp_sockets erlang_uptime_seconds global_messages_received_total"
        " global_messages_received_confirm_total global_messages_routed_total"
        " global_messages_confirmed_total global_messages_acknowledged_total"
        " global_messages_redelivered_total global_messages_unroutable_returned_total"
        " global_messages_unroutable_dropped_total global_messages_get_empty_total"
        " global_messages_delivered_consume_auto_ack_total"
        " global_messages_delivered_consume_manual_ack_total"
        " global_messages_delivered_get_auto_ack_total"
        " global_messages_delivered_get_manual_ack_total"
    ).split():
        assert f"rabbitmq_{name}" in names, name


def test_every_object_has_its_series(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    odd = 'a "quoted"\\ name\nwith lines'
    channel.queue_declare("plain")
    broker.call(
        lambda node: node.vhosts["/"].declare_queue(
            odd, durable=True, exclusive_owner=None, auto_delete=False, arguments={}
        )
    )
    channel.basic_publish("", "plain", b"x")
    channel.queue_declare("plain", passive=True)
    values = scrape(broker, "/metrics/per-object")
    assert values['rabbitmq_queue_messages_ready{vhost="/",queue="plain"}'] == 1
    shown = labels({"vhost": "/", "queue": odd})
    assert values[f"rabbitmq_queue_messages_ready{shown}"] == 0
    assert "rabbitmq_queue_messages_ready" not in values
    connection.close()


def test_detailed_has_the_families_asked_for_and_no_others(broker: Broker) -> None:
    broker.add_vhost("other")
    client = ApiClient(broker)
    for vhost in ("%2F", "other"):
        assert client.put(f"/queues/{vhost}/q", {})[0] == 201
    path = "/metrics/detailed?vhost=other&family=queue_coarse_metrics&family=vhost_status"
    values = scrape(broker, path)
    assert values['rabbitmq_detailed_queue_messages{vhost="other",queue="q"}'] == 0
    assert not any('vhost="/",queue' in key for key in values)
    assert values['rabbitmq_cluster_vhost_status{vhost="/"}'] == 1
    assert not any("queue_consumers" in key or "connection" in key for key in values)


@pytest.mark.parametrize(
    ("families", "metric"),
    [
        (("queue_metrics", "queue_consumer_count"), "queue_consumers"),
        (("queue_consumer_count", "queue_metrics"), "queue_messages_ram"),
        (("channel_exchange_metrics", "channel_queue_exchange_metrics"), "channel_get_total"),
    ],
)
def test_families_that_overlap_have_each_metric_once(
    broker: Broker, families: tuple[str, str], metric: str
) -> None:
    wanted = "&".join(f"family={family}" for family in families)
    token = b64encode(b"guest:guest").decode()
    request = Request(f"{broker.http_url}/metrics/detailed?{wanted}")
    request.add_header("Authorization", f"Basic {token}")
    with urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    heads = [line for line in lines if line.startswith("# TYPE ")]
    assert sum(f"rabbitmq_detailed_{metric} " in head for head in heads) == 1
    assert len(heads) == len(set(heads))


def test_on_the_management_port_they_are_for_monitors(broker: Broker) -> None:
    broker.add_user("simple", "simple", ("management",))
    broker.add_user("watcher", "watcher", ("monitoring",))
    for user, wanted in ((None, 401), ("simple:simple", 401), ("watcher:watcher", 200)):
        request = Request(f"{broker.http_url}/metrics")
        if user is not None:
            request.add_header("Authorization", f"Basic {b64encode(user.encode()).decode()}")
        try:
            with urlopen(request) as answer:
                status = answer.status
        except HTTPError as error:
            status = error.code
        assert status == wanted, user


def test_waiting_is_measured_while_somebody_scrapes(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("slow")
    scrape(broker, "/metrics/per-object")
    name = 'rabbitmq_queue_time_in_queue_seconds_count{vhost="/",queue="slow"}'
    for _ in range(200):
        channel.basic_publish("", "slow", b"x")
        connection.sleep(0.05)
        channel.basic_publish("", "slow", b"x")
        connection.sleep(0.3)
        for _ in range(2):
            method, _, _ = channel.basic_get("slow")
            channel.basic_ack(method.delivery_tag)
        connection.sleep(0.15)
        values = scrape(broker, "/metrics/per-object")
        if values.get(name, 0) >= 1:
            break
    assert values[name] >= 1
    assert values[name.replace("_count", "_sum")] > 0.05 * values[name]
    connection.close()


@pytest.mark.parametrize(
    ("value", "shown"),
    [(3, "3"), (True, "1"), (0.5, "0.5"), (float("nan"), "NaN"), (float("inf"), "+Inf")],
)
def test_numbers(value: float, shown: str) -> None:
    assert number(value) == shown


def test_uptime_does_not_go_by_the_clock_on_the_wall(broker: Broker) -> None:
    def set_wall(ahead_s: float) -> None:
        broker.call(lambda node: setattr(node.clock, "wall_time", lambda: time.time() + ahead_s))

    set_wall(-1e6)
    try:
        uptime_s = scrape(broker)["rabbitmq_erlang_uptime_seconds"]
        answer = ApiClient(broker).get("/nodes")
    finally:
        set_wall(0.0)
    assert 0 <= uptime_s < 1e5
    assert 0 <= answer[1][0]["uptime"] < 1e8
