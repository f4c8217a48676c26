"""What an embedded broker does on command, so that clients can be tested against it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker, NackError, StreamLostError

from warren import Broker, BrokerFaults
from warren.compat_tests.raw_client import RawClient
from warren.compat_tests.raw_connection import SocketClosed

pytest_plugins = ["pytester"]

Connect = Callable[..., RawClient]


def connected(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def test_what_a_queue_holds_can_be_waited_for(warren_broker: Broker, connect: Connect) -> None:
    assert warren_broker.queue("q") is None
    channel = connect(warren_broker).channel()
    channel.declare("q")

    def publish_later() -> None:
        warren_broker.wait_until(queue="q", consumers=1)
        for _ in range(3):
            channel.publish(b"x", "q")

    publishing = threading.Thread(target=publish_later)
    publishing.start()
    consumer = connect(warren_broker).channel()
    consumer.call("basic.qos", prefetch_count=1)
    consumer.consume("q")
    publishing.join()
    warren_broker.wait_until(queue="q", ready=2, unacked=1)
    assert warren_broker.queue("q") == (2, 1, 1)
    with pytest.raises(TimeoutError, match=r"queue 'q' is .*ready=2.* not {'ready': 5}"):
        warren_broker.wait_until(queue="q", ready=5, timeout_s=0.02)
    with pytest.raises(TimeoutError, match="None"):
        warren_broker.wait_until(queue="none", ready=0, timeout_s=0.02)
    with pytest.raises(TimeoutError, match="condition"):
        warren_broker.wait_until(lambda: False, timeout_s=0.02)
    with pytest.raises(ValueError, match="condition or the name"):
        warren_broker.wait_until()


def test_connections_are_closed_or_lost(warren_broker: Broker) -> None:
    closed, lost = connected(warren_broker), connected(warren_broker)
    warren_broker.call(lambda node: None)
    warren_broker.close_connections("gone for lunch")
    with pytest.raises(ConnectionClosedByBroker, match=r"320.*gone for lunch"):
        closed.process_data_events(time_limit=10)
    with pytest.raises(ConnectionClosedByBroker):
        lost.process_data_events(time_limit=10)
    lost = connected(warren_broker)
    warren_broker.lose_connections()
    with pytest.raises(StreamLostError):
        lost.process_data_events(time_limit=10)


def test_confirms_are_held_and_come_afterwards(warren_broker: Broker, connect: Connect) -> None:
    channel = connect(warren_broker).channel()
    channel.declare("q")
    channel.call("confirm.select")
    with warren_broker.holding_confirms():
        for _ in range(3):
            channel.publish(b"x", "q")
        warren_broker.wait_until(queue="q", ready=3)
        channel.ping()
    assert channel.confirms(3) == [("ack", 1), ("ack", 2), ("ack", 3)]


def test_publishes_are_refused_by_chosen_queues(warren_broker: Broker) -> None:
    with connected(warren_broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in ("full", "other"):
            channel.queue_declare(queue)
        with warren_broker.refusing_publishes("^full$"):
            channel.basic_publish("", "other", b"x")
            with pytest.raises(NackError):
                channel.basic_publish("", "full", b"x")
        channel.basic_publish("", "full", b"x")


def test_a_queue_that_refuses_keeps_what_it_has_and_its_policies(warren_broker: Broker) -> None:
    warren_broker.set_policy("short", "^kept$", {"message-ttl": 3_600_000})
    with connected(warren_broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", arguments={"x-max-length": 5, "x-overflow": "drop-head"})
        for body in (b"1", b"2", b"3"):
            channel.basic_publish("", "kept", body)
        with warren_broker.refusing_publishes("^kept$"):
            with pytest.raises(NackError):
                channel.basic_publish("", "kept", b"x")
            channel.queue_declare("kept-not")
            channel.basic_publish("", "kept-not", b"x")
        channel.basic_publish("", "kept", b"4")
        assert [one.body for one in warren_broker.messages("kept")] == [b"1", b"2", b"3", b"4"]
    warren_broker.clear_policy("short")


def test_blocks_are_nested(warren_broker: Broker, connect: Connect) -> None:
    channel = connect(warren_broker).channel()
    channel.call("confirm.select")
    for queue in ("a", "b"):
        channel.declare(queue)
    with warren_broker.refusing_publishes("^a$"), warren_broker.refusing_publishes("^b$"):
        channel.publish(b"x", "a")
        channel.publish(b"x", "b")
        assert sorted(channel.confirms(2)) == [("nack", 1), ("nack", 2)]
    with warren_broker.holding_confirms():
        with warren_broker.holding_confirms():
            channel.publish(b"x", "a")
        warren_broker.wait_until(queue="a", ready=1)
        channel.ping()
        channel.publish(b"x", "b")
        channel.ping()
    assert channel.confirms(2) == [("ack", 3), ("ack", 4)]
    with warren_broker.blocking_publishers():
        with warren_broker.blocking_publishers():
            channel.publish(b"x", "a")
            channel.client.expect("connection.blocked")
        assert warren_broker.queue("a") == (1, 0, 0)
    channel.client.expect("connection.unblocked")


def test_what_goes_wrong_from_the_start_does_so_after_a_restart(tmp_path: Path) -> None:
    faults = BrokerFaults(refuse_publishes="^full$")
    with Broker(faults=faults, data_dir=tmp_path / "data") as broker:
        for _ in range(2):
            with connected(broker) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.queue_declare("full", durable=True)
                with pytest.raises(NackError):
                    channel.basic_publish("", "full", b"x")
            broker.restart()
    with Broker(faults=BrokerFaults(block_publishers=True)) as broker:
        assert broker.call(lambda node: node.alarms.raised)
    with Broker(faults=BrokerFaults(hold_confirms=True)) as broker:
        assert broker.call(lambda node: node.holds_confirms)


def test_one_client_is_lost_by_its_name(warren_broker: Broker) -> None:
    parameters = pika.URLParameters(warren_broker.url)
    parameters.client_properties = {"connection_name": "worker"}
    worker, other = pika.BlockingConnection(parameters), connected(warren_broker)
    warren_broker.lose_connections(name="worker")
    with pytest.raises(StreamLostError):
        worker.process_data_events(time_limit=10)
    other.channel().queue_declare("still-here")
    other.close()


def test_messages_are_looked_at(warren_broker: Broker) -> None:
    with pytest.raises(LookupError, match="no queue 'none'"):
        warren_broker.messages("none")
    with connected(warren_broker) as connection:
        channel = connection.channel()
        channel.queue_declare("p", arguments={"x-max-priority": 3})
        for priority in (0, 2, 1):
            properties = pika.BasicProperties(priority=priority, headers={"n": priority})
            channel.basic_publish("", "p", b"%d" % priority, properties)
        found = warren_broker.messages("p")
        assert [one.body for one in found] == [b"2", b"1", b"0"]
        assert found[0].properties.headers == {"n": 2} and not found[0].redelivered
        assert (found[0].exchange, found[0].routing_key) == ("", "p")
        assert channel.basic_get("p", auto_ack=True)[2] == b"2"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_clock_is_set_forward_by_seconds(seconds: float) -> None:
    with Broker(movable_clock=True) as broker:
        with pytest.raises(ValueError, match="set forward by seconds"):
            broker.advance(seconds)
        connected(broker).close()


def test_publishers_are_blocked(warren_broker: Broker, connect: Connect) -> None:
    channel = connect(warren_broker).channel()
    channel.declare("q")
    with warren_broker.blocking_publishers():
        channel.publish(b"x", "q")
        assert channel.client.expect("connection.blocked")["reason"] == "low on memory"
        assert warren_broker.queue("q") == (0, 0, 0)
    channel.client.expect("connection.unblocked")
    warren_broker.wait_until(queue="q", ready=1)


def test_a_restart_keeps_ports_and_what_is_durable(tmp_path: Path, connect: Connect) -> None:
    with Broker(data_dir=tmp_path / "data", http_port=0) as broker:
        ports = broker.port, broker.http_port
        channel = connect(broker).channel()
        channel.call("confirm.select")
        channel.declare("q", durable=True)
        channel.publish(b"kept", "q", delivery_mode=2)
        channel.confirms(1)
        client = channel.client
        broker.restart()
        assert (broker.port, broker.http_port) == ports
        with pytest.raises(SocketClosed):
            while True:
                client.next_method(0)
        connect(broker).channel().got("q", b"kept")


def test_the_broker_of_a_fixture_keeps_what_is_durable(
    warren_durable_broker: Broker, warren_broker: Broker
) -> None:
    for broker in (warren_durable_broker, warren_broker):
        with connected(broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
        broker.restart()
    assert [one.body for one in warren_durable_broker.messages("q")] == [b"kept"]
    assert warren_broker.queue("q") is None


def test_hours_pass_at_once(warren_movable_broker: Broker, connect: Connect) -> None:
    broker = warren_movable_broker
    channel = connect(broker, heartbeat=60).channel()
    dead = channel.own_queue()
    arguments = {
        "x-message-ttl": 3_600_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    channel.declare("hour", arguments=arguments)
    channel.declare("unused", arguments={"x-expires": 7_200_000})
    channel.publish(b"x", "hour")
    channel.ping()
    broker.advance(3_500)
    assert broker.queue("hour") == (1, 0, 0)
    began = time.monotonic()
    broker.advance(200)
    broker.wait_until(queue=dead, ready=1)
    assert broker.queue("unused") is not None
    broker.advance(4_000)
    broker.wait_until(lambda: broker.queue("unused") is None)
    assert time.monotonic() - began < 60
    # What was published later has a later time.
    channel.publish(b"y", "hour")
    broker.wait_until(queue="hour", ready=1)
    channel.client.close()


def test_a_clock_that_was_not_said_to_be_movable_is_not_moved(warren_broker: Broker) -> None:
    with pytest.raises(RuntimeError, match="movable_clock"):
        warren_broker.advance(1)


def test_the_fixtures_of_a_session_and_of_a_clock(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        seen = []

        def test_one(warren_session_broker, warren_movable_broker):
            seen.append(warren_session_broker)
            warren_movable_broker.advance(1)

        def test_two(warren_session_broker):
            assert seen == [warren_session_broker]
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_the_examples_of_the_documentation_run(pytester: pytest.Pytester) -> None:
    text = (Path(__file__).parents[2] / "docs/testing-with-warren.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 5
    pytester.makepyfile(**{f"test_{number}": code for number, code in enumerate(examples)})
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=5)
