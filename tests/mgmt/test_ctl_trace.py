"""`warren ctl trace`: the life of a message, on a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest
from ctl_node import CtlNode
from pika.adapters.blocking_connection import BlockingChannel


@contextmanager
def rule(node: CtlNode, **value: Any) -> Iterator[None]:
    """What a rule selects is recorded; `one_in` stands for one-in."""
    text = json.dumps({name.replace("_", "-"): one for name, one in value.items()})
    assert node("set_parameter", "trace", "r", text).code == 0
    try:
        yield
    finally:
        assert node("clear_parameter", "trace", "r").code == 0


@pytest.fixture
def channel(ctl_node: CtlNode) -> Iterator[BlockingChannel]:
    with ctl_node.connected("the client") as connection:
        yield connection.channel()


def publish(channel: BlockingChannel, key: str, name: str | None, **given: Any) -> None:
    exchange = given.pop("exchange", "")
    mandatory = given.pop("mandatory", False)
    properties = pika.BasicProperties(message_id=name, **given)
    channel.basic_publish(exchange, key, b"body", properties, mandatory=mandatory)


def life(node: CtlNode, name: str) -> dict[str, Any]:
    done = node("trace", name, "--formatter", "json")
    return {"queues": {}, "records": []} if done.code else dict(done.json)


def events(node: CtlNode, name: str) -> list[str]:
    return [
        " ".join(filter(None, (record["event"], record.get("queue", ""))))
        for record in life(node, name)["records"]
    ]


def got(channel: BlockingChannel, queue: str, auto_ack: bool = False) -> int:
    method, _, _ = channel.basic_get(queue, auto_ack=auto_ack)
    assert method is not None
    return int(method.delivery_tag)


def test_message_is_published_routed_delivered_and_acknowledged(
    ctl_node: CtlNode, channel: BlockingChannel
) -> None:
    with rule(ctl_node):
        for queue in ("one", "other"):
            channel.queue_declare(queue)
            channel.queue_bind(queue, "amq.topic", "a.#")
        publish(channel, "a.b", "m1", exchange="amq.topic", headers={"traceparent": "t"})
        channel.basic_ack(got(channel, "one"))
        got(channel, "other", auto_ack=True)
        channel.basic_qos()
        known = life(ctl_node, "m1")
        published, delivered, acknowledged, consumed = known["records"]
        assert (published["event"], published["user"]) == ("published", "guest")
        assert sorted(published["queues"]) == ["one", "other"]
        assert (published["exchange"], published["routing_key"]) == ("amq.topic", "a.b")
        assert (published["rule"], published["size"], published["channel"]) == ("r", 4, 1)
        assert published["connection"] and published["traceparent"] == "t"
        assert (delivered["event"], delivered["queue"]) == ("delivered", "one")
        assert delivered["connection"] == published["connection"]
        assert (acknowledged["event"], acknowledged["queue"]) == ("acknowledged", "one")
        assert (consumed["event"], consumed["no_ack"]) == ("delivered", True)
        assert known["queues"] == {"one": "acknowledged", "other": "consumed"}
        times = [record["at"] for record in known["records"]]
        assert times == sorted(times)
        assert all(record["node"] == ctl_node.name for record in known["records"])


@pytest.mark.parametrize("closes", [False, True])
def test_message_that_is_rolled_back_is_in_no_queue(
    ctl_node: CtlNode, channel: BlockingChannel, closes: bool
) -> None:
    with rule(ctl_node):
        channel.queue_declare("rolled")
        back, both = f"back {closes}", f"both {closes}"
        publish(channel, "rolled", both)
        channel.tx_select()
        publish(channel, "rolled", back)
        publish(channel, "rolled", both)
        if closes:
            channel.close()
        else:
            channel.tx_rollback()
            publish(channel, "rolled", "kept")
            channel.tx_commit()
            assert life(ctl_node, "kept")["queues"] == {"rolled": "ready"}
        assert events(ctl_node, back) == ["published", "rolled_back"]
        assert life(ctl_node, back)["queues"] == {"rolled": "rolled_back"}
        assert life(ctl_node, both)["queues"] == {"rolled": "ready"}


def test_consumer_that_waits_is_handed_a_message(
    ctl_node: CtlNode, channel: BlockingChannel
) -> None:
    with rule(ctl_node):
        channel.queue_declare("waits")
        tags = []
        channel.basic_consume("waits", lambda ch, m, p, b: tags.append(m.delivery_tag))
        names = [f"w{number}" for number in range(200)]
        for name in names:
            publish(channel, "waits", name)
        while len(tags) < len(names):
            channel.connection.process_data_events(1)
        channel.basic_ack(tags[-1], multiple=True)
        channel.queue_declare("waits", passive=True)
        for name in (names[0], names[99], names[-1]):
            assert events(ctl_node, name) == [
                "published",
                "delivered waits",
                "acknowledged waits",
            ]


def test_message_that_comes_back_and_dies_is_followed_into_its_dead_letter_queue(
    ctl_node: CtlNode, channel: BlockingChannel
) -> None:
    channel.queue_declare("graves")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    channel.queue_declare("dies", arguments=arguments)
    with rule(ctl_node, queue="^dies$"):
        publish(channel, "dies", "m2")
        channel.basic_nack(got(channel, "dies"), requeue=True)
        channel.basic_reject(got(channel, "dies"), requeue=False)
        channel.basic_ack(got(channel, "graves"))
        channel.basic_qos()
        assert events(ctl_node, "m2") == [
            "published",
            "delivered dies",
            "requeued dies",
            "delivered dies",
            "rejected dies",
            "dead_lettered dies",
            "delivered graves",
            "acknowledged graves",
        ]
        assert life(ctl_node, "m2")["queues"] == {
            "dies": "dead_lettered",
            "graves": "acknowledged",
        }
        # Another one in the queue that no rule names is nobody's business.
        publish(channel, "graves", "m3")
        channel.basic_ack(got(channel, "graves"))
        channel.basic_qos()
        assert events(ctl_node, "m3") == []


def test_message_expires_or_is_dropped_or_refused_or_returned(
    ctl_node: CtlNode, channel: BlockingChannel
) -> None:
    channel.queue_declare("short", arguments={"x-max-length": 1})
    channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with rule(ctl_node):
        publish(channel, "short", "m4", expiration="0")
        publish(channel, "short", "m5")
        publish(channel, "short", "m6")
        publish(channel, "full", "m7")
        publish(channel, "nowhere", "m8", mandatory=True)
        publish(channel, "nowhere", "m9")
        channel.queue_purge("short")
        assert events(ctl_node, "m4") == ["published", "expired short"]
        assert events(ctl_node, "m5") == ["published", "dropped short"]
        assert events(ctl_node, "m6") == ["published", "purged short"]
        assert events(ctl_node, "m7") == ["published", "refused full"]
        assert events(ctl_node, "m8") == ["published", "returned"]
        assert events(ctl_node, "m9") == ["published", "unroutable"]
        assert life(ctl_node, "m6")["queues"] == {"short": "purged"}


def test_message_that_an_operator_moves_is_followed(
    ctl_node: CtlNode, channel: BlockingChannel
) -> None:
    channel.queue_declare("from")
    channel.queue_declare("to")
    with rule(ctl_node, queue="^from$"):
        publish(channel, "from", "m10")
        publish(channel, "from", "m11")
        channel.basic_qos()
        move = ("move_messages", "from", "--to-queue", "to", "--limit", "1", "--wait")
        assert ctl_node(*move).code == 0
        assert ctl_node("delete_messages", "from", "--limit", "1", "--wait").code == 0
        channel.basic_ack(got(channel, "to"))
        channel.basic_qos()
        assert events(ctl_node, "m10") == [
            "published", "moved from", "delivered to", "acknowledged to",
        ]  # fmt: skip
        assert events(ctl_node, "m11") == ["published", "deleted from"]


def test_delayed_message_is_sent_on_when_it_is_due(
    ctl_node: CtlNode, channel: BlockingChannel
) -> None:
    arguments = {"x-delayed-type": "direct"}
    channel.exchange_declare("later", "x-delayed-message", arguments=arguments)
    channel.queue_declare("due")
    channel.queue_bind("due", "later", "k")
    with rule(ctl_node):
        publish(channel, "k", "m12", exchange="later", headers={"x-delay": 10})
        for _ in channel.consume("due", auto_ack=True):
            break
        channel.cancel()
        told = [event.split()[0] for event in events(ctl_node, "m12")]
        assert told == ["published", "due", "sent_on", "delivered"]


@pytest.mark.parametrize(
    ("value", "selected"),
    [
        ({"user": "guest"}, True),
        ({"user": "somebody"}, False),
        ({"queue": "^sel"}, True),
        ({"queue": "^other"}, False),
        ({"filter": "headers.tenant = 'a'"}, True),
        ({"filter": "headers.tenant = 'b'"}, False),
        ({"filter": "routing_key like 'sel*'"}, True),
        ({"filter": "routing_key = 'x'"}, False),
        ({"user": "guest", "queue": "selected", "filter": "size = 4"}, True),
        ({"user": "guest", "queue": "selected", "filter": "size = 5"}, False),
    ],
)
def test_rule_selects_by_all_that_it_names(
    ctl_node: CtlNode, channel: BlockingChannel, value: dict[str, str], selected: bool
) -> None:
    channel.queue_declare("selected")
    name = f"selects {sorted(value.items())}"
    with rule(ctl_node, **value):
        publish(channel, "selected", name, headers={"tenant": "a"})
        channel.queue_purge("selected")
        assert bool(events(ctl_node, name)) is selected


def test_rule_selects_one_in_so_many(ctl_node: CtlNode, channel: BlockingChannel) -> None:
    channel.queue_declare("sample")
    with rule(ctl_node, one_in=10):
        names = [f"sample-{number}" for number in range(500)]
        for name in names:
            publish(channel, "sample", name)
        channel.queue_purge("sample")
        status = ctl_node("trace_status", "--formatter", "json").json
        followed = [name for name in status["messages"] if name.startswith("sample-")]
        assert 20 <= len(followed) <= 90
        assert events(ctl_node, followed[0])[0] == "published"


def test_correlation_id_names_a_message_without_an_id_and_others_are_counted(
    ctl_node: CtlNode, channel: BlockingChannel
) -> None:
    channel.queue_declare("named")
    with rule(ctl_node):
        before = ctl_node("trace_status", "--formatter", "json").json["nodes"][ctl_node.name]
        publish(channel, "named", None, correlation_id="c1")
        publish(channel, "named", None, headers={"traceparent": "00-aa-bb-01"})
        publish(channel, "named", None)
        channel.queue_purge("named")
        assert events(ctl_node, "c1") == ["published", "purged named"]
        assert events(ctl_node, "00-aa-bb-01") == ["published", "purged named"]
        after = ctl_node("trace_status", "--formatter", "json").json["nodes"][ctl_node.name]
        assert after["nameless"] == before["nameless"] + 1


def test_nothing_is_recorded_without_a_rule(ctl_node: CtlNode, channel: BlockingChannel) -> None:
    channel.queue_declare("plain")
    publish(channel, "plain", "m13")
    channel.queue_purge("plain")
    done = ctl_node("trace", "m13")
    assert done.code == 69
    assert "nothing is recorded in vhost '/', because it has no rule" in done.err
    with rule(ctl_node):
        done = ctl_node("trace", "m13")
    assert done.code == 69
    assert "nothing is known of message 'm13'" in done.err


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"queue": "("}, "queue should be a regular expression"),
        ({"filter": "nonsense ="}, "filter should be a filter"),
        ({"one-in": 0}, "one-in should be a number from 1 on, actually was 0"),
        ({"user": 1}, "user should be a text, actually was 1"),
        ({"pattern": "x"}, "pattern is not known in a rule"),
    ],
)
def test_rule_that_makes_no_sense_is_refused(
    ctl_node: CtlNode, value: dict[str, Any], problem: str
) -> None:
    done = ctl_node("set_parameter", "trace", "bad", json.dumps(value))
    assert done.code != 0
    assert problem in done.err


def test_rules_are_in_the_definitions(ctl_node: CtlNode) -> None:
    with rule(ctl_node, queue="^a", one_in=5):
        definitions = ctl_node("export_definitions", "-", "--format", "json").out
        assert '"component":"trace"' in definitions.replace(" ", "")


def test_life_reads_as_text(ctl_node: CtlNode, channel: BlockingChannel) -> None:
    channel.queue_declare("text")
    with rule(ctl_node):
        publish(channel, "text", "m14")
        channel.basic_ack(got(channel, "text"))
        channel.basic_qos()
        lines = ctl_node("-s", "trace", "m14").lines
        assert "exchange '', routing key 'text', to text, user guest at " in lines[0]
        assert lines[0].split("\t")[1:3] == [ctl_node.name, "published"]
        assert lines[-1] == "In queue text: acknowledged"


@pytest.mark.parametrize("name", ['a"b', "a/b", "a b", "ü", "a\\b", "a?b#c%d", "{a}", '"id":"x",'])
def test_id_may_be_any_text(ctl_node: CtlNode, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare("ids")
    with rule(ctl_node):
        publish(channel, "ids", name)
        channel.queue_purge("ids")
        assert events(ctl_node, name) == ["published", "purged ids"]


def test_duplicate_is_told_and_changes_nothing(ctl_node: CtlNode, channel: BlockingChannel) -> None:
    channel.queue_declare("once", arguments={"x-message-deduplication-window": 10})
    with rule(ctl_node):
        publish(channel, "once", "m15")
        channel.basic_ack(got(channel, "once"))
        publish(channel, "once", "m15")
        channel.basic_qos()
        assert events(ctl_node, "m15") == [
            "published",
            "delivered once",
            "acknowledged once",
            "published",
            "duplicate once",
        ]
        assert life(ctl_node, "m15")["queues"] == {"once": "acknowledged"}


def test_the_life_of_a_message_without_an_id_is_refused(ctl_node: CtlNode) -> None:
    refused = ctl_node("trace", "")
    assert refused.code == 64 and "message ID cannot be empty string." in refused.err
