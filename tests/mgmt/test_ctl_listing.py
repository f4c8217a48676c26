"""`warren ctl`: lists of queues, exchanges, connections and the like."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from ctl_node import CtlNode

from warren.mgmt.ctl import listing

ARGUMENTS = {"x-max-length": 10, "x-queue-mode": "lazy"}


@pytest.fixture(scope="module")
def busy(ctl_node: CtlNode) -> Iterator[pika.BlockingConnection]:
    """A connection that uses a bit of everything."""
    with ctl_node.connected("busy") as connection:
        channel = connection.channel()
        channel.queue_declare("durable", durable=True, arguments=ARGUMENTS)
        channel.queue_declare("mine", exclusive=True)
        channel.exchange_declare("e", "topic", arguments={"alternate-exchange": "x"})
        channel.queue_bind("durable", "e", "a.#", arguments={"k": 1})
        channel.confirm_delivery()
        for _ in range(5):
            persistent = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "durable", b"x" * 100, persistent)
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("durable", _keep, consumer_tag="tag", arguments={"x-priority": 3})
        channel.basic_consume("mine", _keep, auto_ack=True, exclusive=True, consumer_tag="sole")
        yield connection


def _keep(*_delivery: object) -> None:
    """Acknowledges nothing."""


pytestmark = pytest.mark.usefixtures("busy")


def test_queues_are_listed_with_their_messages(ctl_node: CtlNode) -> None:
    listed = ctl_node("list_queues")
    assert listed.lines == [
        "Timeout: 60.0 seconds ...",
        "Listing queues for vhost / ...",
        "name\tmessages",
        "durable\t5",
        "mine\t0",
    ]


def test_columns_of_queues_come_in_the_order_asked_for(ctl_node: CtlNode) -> None:
    columns = ["messages_unacknowledged", "name", "arguments", "durable", "message_bytes", "policy"]
    rows = ctl_node.rows("list_queues", *columns)
    arguments = '[{"x-max-length",10},{"x-queue-mode","lazy"}]'
    assert rows[0] == ["2", "durable", arguments, "true", "500", ""]


def test_json_of_queues_is_typed(ctl_node: CtlNode) -> None:
    rows = ctl_node("list_queues", "name", "durable", "messages_ready", "--formatter", "json").json
    assert rows[0] == {"name": "durable", "durable": True, "messages_ready": 3}


def test_csv_of_queues_has_no_banner(ctl_node: CtlNode) -> None:
    listed = ctl_node("list_queues", "name", "messages", "--formatter", "csv")
    assert listed.out == '"name","messages"\n"durable","5"\n"mine","0"\n'


def test_exclusive_queue_shows_whose_it_is(ctl_node: CtlNode) -> None:
    ((pid,),) = ctl_node.rows("list_connections", "pid")
    ((channel,),) = ctl_node.rows("list_channels", "pid")
    columns = ("name", "owner_pid", "exclusive_consumer_pid", "exclusive_consumer_tag")
    rows = ctl_node.rows("list_queues", *columns)
    assert rows == [["durable", "", "", ""], ["mine", pid, channel, "sole"]]


def test_pid_of_a_queue_names_its_node_and_is_its_own(ctl_node: CtlNode) -> None:
    pids = [row[0] for row in ctl_node.rows("list_queues", "pid")]
    assert len(set(pids)) == 2
    assert all(pid.startswith(f"<{ctl_node.name}.") for pid in pids)


def test_every_column_of_every_list_can_be_asked_for(ctl_node: CtlNode) -> None:
    for command, columns in (
        ("list_queues", listing.QUEUES),
        ("list_exchanges", listing.EXCHANGES),
        ("list_bindings", listing.BINDINGS),
        ("list_connections", listing.CONNECTIONS),
        ("list_channels", listing.CHANNELS),
        ("list_consumers", listing.CONSUMERS),
    ):
        rows = ctl_node.rows(command, *columns)
        assert rows and all(len(row) == len(columns) for row in rows), command


def test_unknown_column_is_wrong_usage(ctl_node: CtlNode) -> None:
    wrong = ctl_node("list_queues", "name", "foo", "bar")
    assert wrong.code == 64
    assert wrong.err.startswith(
        "Error (argument validation): Info key(s) foo,bar are not supported\nArguments given:\n"
    )
    assert "Usage: warren ctl list_queues [COLUMNS]" in wrong.err


def test_columns_may_be_given_with_commas(ctl_node: CtlNode) -> None:
    assert ctl_node.rows("list_queues", "name,messages")[0] == ["durable", "5"]


def test_lists_of_a_virtual_host_that_is_not_there_are_empty(ctl_node: CtlNode) -> None:
    for command in ("list_queues", "list_exchanges", "list_bindings", "list_consumers"):
        listed = ctl_node("-s", command, "-p", "nowhere")
        assert (listed.code, listed.out) == (0, "")


def test_offline_queues_are_none_on_one_node(ctl_node: CtlNode) -> None:
    assert ctl_node.rows("list_queues", "--offline") == []
    assert len(ctl_node.rows("list_queues", "--online")) == 2
    assert ctl_node.rows("list_unresponsive_queues") == []


def test_exchanges_are_listed(ctl_node: CtlNode) -> None:
    rows = ctl_node.rows("list_exchanges")
    assert ["", "direct"] in rows and ["amq.topic", "topic"] in rows and ["e", "topic"] in rows
    arguments = dict(ctl_node.rows("list_exchanges", "name", "arguments"))
    assert arguments["e"] == '[{"alternate-exchange","x"}]'


def test_bindings_are_listed_with_their_arguments(ctl_node: CtlNode) -> None:
    listed = ctl_node("list_bindings")
    assert listed.lines[:2] == [
        "Listing bindings for vhost /...",
        "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments",
    ]
    assert listed.lines[2] == "\texchange\tdurable\tqueue\tdurable\t[]"
    assert listed.lines[4] == 'e\texchange\tdurable\tqueue\ta.#\t[{"k",1}]'


def test_connections_are_listed(ctl_node: CtlNode) -> None:
    ((user, host, port, state),) = ctl_node.rows("list_connections")
    assert (user, host, state) == ("guest", "127.0.0.1", "running")
    ((name, protocol, properties),) = ctl_node.rows(
        "list_connections", "name", "protocol", "client_properties"
    )
    assert (name.partition(" -> ")[0], protocol) == (f"127.0.0.1:{port}", "{0,9,1}")
    assert '{"connection_name","busy"}' in properties


def test_channels_are_listed(ctl_node: CtlNode) -> None:
    ((_, user, consumers, unacked),) = ctl_node.rows("list_channels")
    assert (user, consumers, unacked) == ("guest", "2", "2")
    ((connection, number, confirm, prefetch),) = ctl_node.rows(
        "list_channels", "connection", "number", "confirm", "prefetch_count"
    )
    assert (number, confirm, prefetch) == ("1", "true", "2")
    assert [[connection]] == ctl_node.rows("list_connections", "pid")


def test_consumers_are_listed_with_their_channel(ctl_node: CtlNode) -> None:
    ((channel,),) = ctl_node.rows("list_channels", "pid")
    rows = ctl_node.rows("list_consumers")
    assert rows[0] == ["durable", channel, "tag", "true", "2", "true", '[{"x-priority",3}]']
    assert rows[1][:4] == ["mine", channel, "sole", "false"]
