"""`warren migrate` between two brokers in this process, and with brokers that are killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme
from click.testing import CliRunner
from migrating import (
    bodies,
    channel_at,
    declare,
    declare_delayed,
    drain,
    management,
    move,
    numbered,
    publish,
    run,
    sides,
)

from warren import Broker
from warren.config import Listener, SslOptions
from warren.mgmt.migrate.command import migrate
from warren.mgmt.migrate.run import (
    MoveOptions,
    list_queues,
)
from warren.mgmt.migrate.side import AmqpAddress, side


def test_a_broker_is_not_moved_to_itself(brokers: tuple[Broker, Broker]) -> None:
    address = management(brokers[0])
    other_name = address.replace("127.0.0.1", "localhost")
    refused = CliRunner().invoke(migrate, [address, other_name, "--messages-only"])
    assert refused.exit_code == 1
    assert refused.stderr == "Error: the source and the target are the same broker\n"


def test_another_broker_may_have_the_id_of_the_source(brokers: tuple[Broker, Broker]) -> None:
    # It is in what a user exports at one and imports at the other.
    source, target = brokers
    value = source.call(lambda node: node.global_parameters.get("internal_cluster_id"))
    before = target.call(lambda node: node.global_parameters.get("internal_cluster_id"))
    target.call(lambda node: node.global_parameters.set("internal_cluster_id", value))
    done = CliRunner().invoke(migrate, [management(source), management(target), "--dry-run"])
    target.call(lambda node: node.global_parameters.set("internal_cluster_id", before))
    assert "same broker" not in done.stderr


def test_a_stream_is_declared_with_its_bindings(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, queue="s", arguments={"x-queue-type": "stream"})
    with channel_at(source.url) as channel:
        channel.queue_bind("s", "amq.topic", "a.b")
    CliRunner().invoke(migrate, [management(source), management(target)])
    with channel_at(target.url) as channel:
        channel.basic_publish("amq.topic", "a.b", b"to the stream")
        found = channel.queue_declare("s", passive=True)
    assert found.method.message_count == 1
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="inequivalent arg"):
        declare(target, queue="s")


def test_definitions_and_messages_are_moved_and_a_second_run_finds_nothing_to_do(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    with channel_at(source.url) as channel:
        channel.exchange_declare("e", "topic", durable=True)
        channel.queue_declare("q", durable=True, arguments={"x-max-priority": 3})
        channel.queue_bind("q", "e", "a.#")
    publish(source.url, "q", *numbered(1200))
    result = run(management(source), management(target))
    assert result.exit_code == 0, result.output
    assert "queues: 1 taken, 0 there already" in result.output
    assert "/ q: 1,200 moved; source 1,200 -> 0, target 0 -> 1,200" in result.output
    again = run(management(source), management(target), "--json")
    assert again.exit_code == 0
    report = json.loads(again.output)
    assert report["complete"] is True
    assert {one["fate"] for one in report["definitions"]} == {"same", "left"}
    assert report["queues"][0]["moved"] == 0
    with channel_at(target.url) as channel:
        channel.exchange_declare("e", passive=True)
        channel.queue_declare("q", durable=True, arguments={"x-max-priority": 3})
    assert bodies(target.url, "q") == [b"%d" % n for n in range(1200)]


def test_message_keeps_its_properties_and_whether_it_is_persistent(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    declare(source, target, queue="q")
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"a": 1, "b": [True, {"c": "d"}], "n": None},
        delivery_mode=1,
        priority=4,
        correlation_id="c",
        reply_to="r",
        expiration="600000",
        message_id="m",
        timestamp=1234,
        type="t",
        app_id="app",
        user_id="guest",
    )
    publish(source.url, "q", (b"", properties), (b"x" * 300_000, pika.BasicProperties()))
    results = move(*sides(source, target))
    assert results["q"].all_moved
    (first, kept), (second, none) = drain(target.url, "q")
    assert (first, kept) == (b"", properties)
    assert (second, none) == (b"x" * 300_000, pika.BasicProperties())


def test_message_with_copies_to_other_queues_is_not_copied_again(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    for queue in ("q", "copies"):
        declare(source, target, queue=queue)
    with_copy = pika.BasicProperties(headers={"CC": ["copies"]})
    publish(source.url, "q", (b"1", pika.BasicProperties()), (b"2", with_copy))
    assert all(result.all_moved for result in move(*sides(source, target)).values())
    first, second = drain(target.url, "q")
    assert (first[0], second) == (b"1", (b"2", with_copy))
    assert bodies(target.url, "copies") == [b"2"]
    exchanges = target.call(lambda node: [*node.vhosts["/"].exchanges])
    assert not [name for name in exchanges if name.startswith("warren-migrate")]


def test_exclusive_and_auto_delete_queues_are_left_and_named(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    with channel_at(source.url) as channel:
        channel.queue_declare("mine", exclusive=True)
        channel.queue_declare("passing", auto_delete=True)
        channel.basic_publish("", "passing", b"stays")
        result = run(management(source), management(target))
        assert result.exit_code == 1
        assert "/ mine: 0 moved" in result.output
        assert "left: exclusive: it belongs to a connection" in result.output
        assert "left: auto-delete: it would end with the last consumer" in result.output
        assert channel.basic_get("passing", auto_ack=True)[2] == b"stays"
        assert run(management(source), management(target)).exit_code == 0


def test_messages_that_clients_hold_are_told(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(3))
    with channel_at(source.url) as channel:
        held, _, _ = channel.basic_get("q")
        assert held is not None

        (listed,) = list_queues(sides(source, target)[0], MoveOptions())
        assert (listed.ready, listed.unacked) == (2, 1)
        result = run(management(source), management(target), "--dry-run", "--messages-only")
        assert result.exit_code == 1
        assert "1 messages that clients have not acknowledged" in result.output


def test_queue_that_the_target_lacks_keeps_its_messages(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, queue="q")
    publish(source.url, "q", *numbered(2))
    result = move(*sides(source, target))["q"]
    assert result.reason == "the target: NOT_FOUND - no queue 'q' in vhost '/'"
    assert not result.all_moved
    assert bodies(source.url, "q") == [b"0", b"1"]


def test_message_that_the_target_refuses_stays_at_the_source(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    declare(source, queue="q")
    limits = {"x-max-length": 3, "x-overflow": "reject-publish"}
    declare(target, queue="q", arguments=limits)
    publish(source.url, "q", *numbered(5))
    result = move(*sides(source, target))["q"]
    assert result.reason.startswith("the target refused a message: ")
    assert (result.moved, result.source_after, result.target_after) == (3, 2, 3)
    assert result.doubtful == 0
    assert bodies(source.url, "q") == [b"3", b"4"]


def test_message_of_another_user_needs_an_impersonator(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    source.add_user("ann", "ann")
    source.set_permissions("ann")
    for broker in pair:
        declare(broker, queue="q")
    publish(source.url_for(user="ann", password="ann"), "q",
            *numbered(1), *numbered(2, user_id="ann"))  # fmt: skip
    result = move(*sides(source, target))["q"]
    assert "names its publisher, 'ann'" in result.reason
    assert (result.moved, result.source_after) == (1, 2)
    target.add_user("mover", "m", ("administrator", "impersonator"))
    target.set_permissions("mover")
    as_mover = side("target", target.http_url.replace("//", "//mover:m@"))
    assert move(sides(*pair)[0], as_mover)["q"].all_moved
    assert bodies(target.url, "q") == [b"0", b"0", b"1"]
    target.delete_user("mover")
    source.delete_user("ann")


def test_queue_of_a_single_active_consumer_is_given_up_after_a_silence(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    arguments = {"x-single-active-consumer": True}
    declare(source, target, queue="q", arguments=arguments)
    with channel_at(source.url) as channel:
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("q", lambda *_: None)
        publish(source.url, "q", *numbered(3))
        channel.connection.process_data_events(0)
        result = move(*sides(source, target), silence_s=0.01, statistics_s=0)["q"]
        assert "another consumer may be its single active one" in result.reason


def test_patterns_and_virtual_hosts_choose_and_a_dry_run_changes_nothing(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    for queue in ("a1", "b1"):
        declare(source, queue=queue)
        publish(source.url, queue, *numbered(2))
    result = run(management(source), management(target), "--dry-run", "--queue", "a*")
    assert result.exit_code == 0
    assert "queues: 2 to be taken" in result.output
    assert "messages: 2 in 1 queues to be moved" in result.output
    assert target.call(lambda node: [*node.vhosts["/"].queues]) == []
    result = run(management(source), management(target), "--vhost", "/", "--queue", "a*")
    assert "users" not in result.output
    assert bodies(target.url, "a1") == [b"0", b"1"]
    assert bodies(source.url, "b1") == [b"0", b"1"]
    for part in ("--definitions-only", "--messages-only"):
        unknown = run(management(source), management(target), "--vhost", "x", part)
        assert unknown.exit_code == 1
        assert "the source has no virtual host 'x'" in unknown.output
    for more in ((), ("--dry-run",), ("--follow",)):
        unknown = run(management(source), management(target), "--queue", "c*", *more)
        assert unknown.exit_code == 1
        assert "the source has no queue whose name matches 'c*'" in unknown.output


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max-length": 2}, "keeps 2 messages of it at most (max-length), and would drop the"),
        ({"max-length-bytes": 2}, "keeps 2 octets of it at most (max-length-bytes), and would"),
    ],
)
def test_what_the_target_would_drop_stays_at_the_source(
    pair: tuple[Broker, Broker], limit: dict[str, int], words: str
) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(3))
    target.set_policy("short", "^q$", limit)
    result = move(*sides(source, target))["q"]
    assert (result.moved, result.source_after, result.all_moved) == (0, 3, False)
    assert words in result.reason
    # The source drops by the same rule.
    source.set_policy("short", "^q$", limit)
    assert move(*sides(source, target))["q"].moved == 2


def test_queue_that_is_there_with_other_arguments_is_named(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, queue="q", arguments={"x-max-length": 5})
    declare(target, queue="q")
    result = run(management(source), management(target), "--definitions-only")
    assert result.exit_code == 1
    assert "refused: queues '/' 'q': the target has it already, with another arguments" in (
        result.output
    )


def test_refused_definition_does_not_hinder_the_others(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    source.add_vhost("full")
    target.add_vhost("full")
    limits = {"component": "vhost-limits", "name": "limits", "value": {"max-queues": 0}}
    sides(source, target)[1].post("definitions", body={"parameters": [{"vhost": "full", **limits}]})
    with channel_at(source.url_for(vhost="full")) as channel:
        channel.queue_declare("q", durable=True)
    declare(source, queue="other")
    result = run(management(source), management(target), "--definitions-only")
    assert "refused: queues 'full' 'q': Adding 1 queue(s)" in result.output
    assert result.exit_code == 1
    assert "other" in target.call(lambda node: node.vhosts["/"].queues)


def test_delayed_messages_are_left_and_named_while_any_wait(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, queue="q")
    declare_delayed(source, "q")
    addresses = (management(source), management(target))
    for options in (["--dry-run"], []):
        result = run(*addresses, *options)
        assert result.exit_code == 0, result.output
        assert "amq.delayed" not in result.output
    declare_delayed(source, "q", 3_600_000, 3_600_000)
    planned = run(*addresses, "--dry-run")
    assert planned.exit_code == 1
    assert "messages: 0 in 1 queues to be moved" in planned.output
    assert "'amq.delayed.dly': 2 messages, delayed messages of exchange 'dly'" in planned.output
    result = run(*addresses)
    assert result.exit_code == 1
    assert "/ amq.delayed.dly: 0 moved; source 2 -> 2; left: delayed messages" in result.output


def test_https_finds_the_listener_with_tls_and_trusts_only_the_given_authority(
    tmp_path: Path, pair: tuple[Broker, Broker]
) -> None:
    _, target = pair
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls = SslOptions(certfile=tmp_path / "cert.pem", keyfile=tmp_path / "key.pem")
    anywhere = (Listener("localhost", 0),)
    options: dict[str, Any] = {"tls_listeners": anywhere, "http_tls_listeners": anywhere}
    with Broker(ssl=tls, http_ssl=tls, http_port=0, **options) as source:
        declare(source, target, queue="q")
        publish(source.url, "q", *numbered(3))
        management_server = source._running.management
        assert management_server is not None
        url = f"https://guest:guest@localhost:{management_server.https_ports[0]}"
        here = side("source", url, ca_file=str(tmp_path / "ca.pem"))
        assert here.find_amqp() == AmqpAddress("amqps", "localhost", source.tls_port)
        assert move(here, sides(*pair)[1])["q"].all_moved
        assert "certificate" in run(url, management(target), "--dry-run").stderr
        assert run(url, management(target), "--insecure").exit_code == 0


def test_virtual_host_without_permission_is_named_and_the_others_are_moved(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    source.add_user("limited", "l", ("administrator",))
    source.set_permissions("limited")
    source.add_vhost("a closed one")
    closed = source.url_for(vhost="a closed one")
    with channel_at(closed) as channel:
        for queue in ("one", "two"):
            channel.queue_declare(queue, durable=True)
    declare(source, target, queue="q")
    for url, queue in ((closed, "one"), (closed, "two"), (source.url, "q")):
        publish(url, queue, *numbered(1))
    limited = side("source", source.http_url.replace("//", "//limited:l@"))
    results = move(limited, sides(*pair)[1])
    for queue in ("one", "two"):
        assert "access to vhost 'a closed one' refused" in results[queue].reason
        assert (results[queue].source_before, results[queue].source_after) == (1, 1)
        assert not results[queue].all_moved
    assert results["q"].all_moved
    source.delete_user("limited")
