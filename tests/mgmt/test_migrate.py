"""`warren migrate` between two brokers in this process, and with brokers that are killed."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pika
import pytest
import trustme
import uvloop
from click.testing import CliRunner, Result
from pika.adapters.blocking_connection import BlockingChannel
from server_process import ServerProcess

from warren import Broker
from warren.client.connection import Connection
from warren.config import Listener, SslOptions
from warren.mgmt.migrate import queue_move
from warren.mgmt.migrate.command import migrate
from warren.mgmt.migrate.run import (
    Audience,
    MigrationProgress,
    Options,
    QueueResult,
    list_queues,
    move_messages,
)
from warren.mgmt.migrate.side import CONNECTION_NAME, AmqpAddress, Side, side
from warren.mgmt.pace import BURST_S

Message = tuple[bytes, pika.BasicProperties]


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with Broker(http_port=0) as source, Broker(http_port=0) as target:
        yield source, target


@pytest.fixture
def pair(brokers: tuple[Broker, Broker]) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers without queues."""
    yield brokers
    for broker in brokers:
        for vhost in broker.call(lambda node: [*node.vhosts]):
            broker.delete_vhost(vhost)
        broker.add_vhost("/")


def management(broker: Broker) -> str:
    return broker.http_url.replace("//", "//guest:guest@")


@contextmanager
def channel_at(url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def declare(*brokers: Broker, queue: str, **options: Any) -> None:
    for broker in brokers:
        with channel_at(broker.url) as channel:
            channel.queue_declare(queue, durable=True, **options)


def publish(url: str, queue: str, *messages: Message) -> None:
    with channel_at(url) as channel:
        channel.tx_select()
        for body, properties in messages:
            channel.basic_publish("", queue, body, properties)
        channel.tx_commit()


def numbered(count: int, **properties: Any) -> list[Message]:
    return [
        (b"%d" % n, pika.BasicProperties(message_id=f"id-{n}", delivery_mode=2, **properties))
        for n in range(count)
    ]


def drain(url: str, queue: str) -> list[Message]:
    taken = []
    with channel_at(url) as channel:
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return taken
            taken.append((body, properties))


def bodies(url: str, queue: str) -> list[bytes]:
    return [body for body, _ in drain(url, queue)]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(migrate, arguments)


def move(source: Side, target: Side, **options: Any) -> dict[str, QueueResult]:
    audience = options.pop("audience", None)
    stop_when = options.pop("stop_when", None)

    async def work() -> list[QueueResult]:
        stop = asyncio.Event()
        if stop_when is not None:
            stop_when(stop)
        async with asyncio.timeout(60):
            return await move_messages(source, target, Options(**options), stop, audience)

    return {result.name: result for result in uvloop.run(work())}


def sides(source: Broker, target: Broker) -> tuple[Side, Side]:
    return side("source", management(source)), side("target", management(target))


class AfterMessages(Audience):
    """Does something once when so many messages were moved."""

    def __init__(self, count: int, do: Callable[[], None]) -> None:
        self._count = count
        self._do: Callable[[], None] | None = do
        self.done = False

    def progress(self, progress: MigrationProgress) -> None:
        if progress.moved >= self._count and not self.done:
            self.done = True
            assert self._do is not None
            self._do()


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


def test_a_stream_is_declared_and_keeps_what_it_has(pair: tuple[Broker, Broker]) -> None:
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

        (listed,) = list_queues(sides(source, target)[0], Options())
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


def test_following_takes_what_arrives_and_tells_of_silence(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(2))

    here, there = sides(source, target)

    class Following(Audience):
        quiets = 0
        connections: ClassVar[list[list[str]]] = []

        def quiet(self, delayed: int) -> None:
            self.quiets += 1
            self.connections.append(
                sorted(
                    one["name"]
                    for one in here.get("connections")
                    if one["client_properties"].get("connection_name") == CONNECTION_NAME
                )
            )
            if self.quiets == 1:
                publish(source.url, "q", (b"late", pika.BasicProperties()))
            else:
                self.stop.set()

        def let(self, stop: asyncio.Event) -> None:
            self.stop = stop

    audience = Following()
    with channel_at(source.url) as channel:
        # Its messages do not keep the others from being quiet.
        channel.queue_declare("mine", exclusive=True)
        channel.basic_publish("", "mine", b"stays")
        channel.queue_declare("mine", passive=True)
        results = move(
            here, there, follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let
        )
    assert results["q"].all_moved
    assert results["q"].moved == 3
    assert not results["mine"].all_moved
    first, second = audience.connections
    assert first == second
    assert len(first) == 1
    assert bodies(target.url, "q") == [b"0", b"1", b"late"]


def test_queue_that_is_deleted_meanwhile_leaves_nothing_behind(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    declare(source, queue="only here")
    declare(source, target, queue="q")
    for queue in ("only here", "q"):
        publish(source.url, queue, *numbered(1))

    class Deleting(Audience):
        def progress(self, progress: MigrationProgress) -> None:
            with channel_at(source.url) as channel:
                channel.queue_delete("only here")

        def quiet(self, delayed: int) -> None:
            self.stop.set()

        def let(self, stop: asyncio.Event) -> None:
            self.stop = stop

    audience = Deleting()
    results = move(
        *sides(source, target), follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let
    )
    assert results["only here"].all_moved
    assert results["q"].moved == 1


def declare_delayed(broker: Broker, queue: str, *delays_ms: int) -> None:
    """An exchange `dly` that sends one message to the queue after each of these times."""
    with channel_at(broker.url) as channel:
        channel.exchange_declare(
            "dly", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        channel.queue_bind(queue, "dly")
        channel.confirm_delivery()
        for delay in delays_ms:
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay})
            channel.basic_publish("dly", "k", b"later", properties)


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


def test_following_moves_delayed_messages_when_they_are_due_and_says_how_many_wait(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    declare(source, target, queue="q")
    declare_delayed(source, "q", 3_600_000)

    class Following(Audience):
        def __init__(self) -> None:
            self.told: list[int] = []

        def quiet(self, delayed: int) -> None:
            self.told.append(delayed)
            if delayed == 0:
                self.stop.set()
                return
            here = sides(*pair)[0]
            path = ("exchanges", "/", "dly", "delayed")
            (row,) = here.get(*path)["items"]
            here.post(*path, row["id"], "send", body={})

        def let(self, stop: asyncio.Event) -> None:
            self.stop = stop

    audience = Following()
    results = move(
        *sides(*pair), follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let
    )
    assert audience.told == [1, 0]
    assert results["q"].moved == 1
    assert all(result.all_moved for result in results.values())
    assert bodies(target.url, "q") == [b"later"]


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


def test_rate_is_kept(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(300))
    began = time.monotonic()
    assert move(*sides(source, target), rate=1000.0)["q"].moved == 300
    assert time.monotonic() - began >= 300 / 1000 - BURST_S


def test_stop_leaves_the_rest_in_order(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(2000))
    stops: list[asyncio.Event] = []
    audience = AfterMessages(1, lambda: stops[0].set())
    result = move(*sides(source, target), audience=audience, stop_when=stops.append)["q"]
    assert result.reason == "stopped"
    assert result.doubtful == 0
    there, here = bodies(target.url, "q"), bodies(source.url, "q")
    assert 0 < len(there) < 2000
    assert there + here == [b"%d" % n for n in range(2000)]


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


def test_more_than_there_is_room_for_is_left_in_the_socket(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(200))
    pauses = []
    pause = Connection.pause_reading

    def noted(connection: Connection) -> None:
        pauses.append(connection)
        pause(connection)

    monkeypatch.setattr(Connection, "pause_reading", noted)
    monkeypatch.setattr(queue_move, "OCTETS_MAX", 10)
    assert move(*sides(source, target))["q"].all_moved
    assert pauses
    assert bodies(target.url, "q") == [b"%d" % n for n in range(200)]


def test_broker_that_is_gone_is_told(pair: tuple[Broker, Broker]) -> None:
    source, _ = pair
    declare(source, queue="q")
    nowhere = "http://guest:secret@127.0.0.1:1"
    result = run(management(source), nowhere)
    assert result.exit_code == 1
    assert "unable to reach the node" in result.output
    report = json.loads(run(management(source), nowhere, "--json").stdout)
    assert report["complete"] is False
    assert "unable to reach the node" in report["error"]
    no_amqp = run(management(source), management(pair[1]), "--target-amqp", "amqp://127.0.0.1:1")
    assert no_amqp.exit_code == 1
    assert "/ q: 0 moved" in no_amqp.output
    assert "left: the target: [Errno 111]" in no_amqp.output
    assert "secret" not in result.output
    assert run("ftp://x", nowhere).exit_code == 2


def test_killed_source_is_told_and_nothing_is_lost(
    tmp_path: Path, pair: tuple[Broker, Broker]
) -> None:
    _, target = pair
    declare(target, queue="q")
    source = start(tmp_path)
    with channel_at(source.url) as channel:
        channel.queue_declare("q", durable=True)
    publish(source.url, "q", *numbered(700))
    there = side("target", management(target))
    audience = AfterMessages(100, source.kill)
    result = move(side("source", http_url(source)), there, audience=audience)["q"]
    assert audience.done
    assert result.reason.startswith("the source: ")
    assert result.source_after is None
    again = start(tmp_path, source)
    assert move(side("source", http_url(again)), there)["q"].all_moved
    again.kill()
    ids = [str(properties.message_id) for _, properties in drain(target.url, "q")]
    assert set(ids) == {f"id-{n}" for n in range(700)}
    assert {one for one in ids if ids.count(one) > 1} <= set(result.doubtful_ids)


def test_killed_target_may_double_only_what_was_told(
    tmp_path: Path, pair: tuple[Broker, Broker]
) -> None:
    source, _ = pair
    declare(source, queue="q")
    target = start(tmp_path)
    with channel_at(target.url) as channel:
        channel.queue_declare("q", durable=True)
    publish(source.url, "q", *numbered(700))
    here = side("source", management(source))
    audience = AfterMessages(100, target.kill)
    result = move(here, side("target", http_url(target)), audience=audience)["q"]
    assert audience.done
    assert result.reason.startswith("the target: ")
    assert 100 <= result.moved < 700
    assert result.source_after == 700 - result.moved
    assert len(result.doubtful_ids) == result.doubtful
    again = start(tmp_path, target)
    second = move(here, side("target", http_url(again)))["q"]
    assert second.all_moved
    arrived = drain(again.url, "q")
    again.kill()
    ids = [properties.message_id for _, properties in arrived]
    assert set(ids) == {f"id-{n}" for n in range(700)}
    doubled = {one for one in ids if ids.count(one) > 1}
    assert doubled <= set(result.doubtful_ids)


def test_following_goes_on_when_the_target_is_back(
    tmp_path: Path, pair: tuple[Broker, Broker]
) -> None:
    source, _ = pair
    declare(source, queue="q")
    target = start(tmp_path)
    with channel_at(target.url) as channel:
        channel.queue_declare("q", durable=True)
    publish(source.url, "q", *numbered(5))

    class Following(Audience):
        troubles: ClassVar[list[str]] = []
        targets: ClassVar[list[ServerProcess]] = [target]

        def quiet(self, delayed: int) -> None:
            if len(self.targets) == 1 and not self.troubles:
                target.kill()
                publish(source.url, "q", (b"late", pika.BasicProperties(delivery_mode=2)))
            else:
                self.stop.set()

        def trouble(self, text: str) -> None:
            if not self.troubles:
                self.targets.append(start(tmp_path, target))
            self.troubles.append(text)

        def let(self, stop: asyncio.Event) -> None:
            self.stop = stop

    audience = Following()
    there = side("target", http_url(target))
    here = side("source", management(source))
    result = move(here, there, follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let)[
        "q"
    ]
    assert audience.troubles[0].startswith("the target: ")
    assert (result.moved, result.source_after, result.doubtful) == (6, 0, 0)
    again = audience.targets[-1]
    assert bodies(again.url, "q") == [*(b"%d" % n for n in range(5)), b"late"]
    again.kill()


def start(directory: Path, before: ServerProcess | None = None) -> ServerProcess:
    """A node that can be killed; `before` is one whose ports and data it takes over."""
    amqp = 0 if before is None else before.port
    arguments = ["--data-dir", str(directory / "data"), "--amqp", f"127.0.0.1:{amqp}"]
    return ServerProcess([*arguments, "--http", "127.0.0.1:0"], directory)


def http_url(server: ServerProcess) -> str:
    found = re.search(r"http (\d+)", server.ready_line)
    assert found is not None
    return f"http://guest:guest@127.0.0.1:{found[1]}"


def test_stop_while_the_target_takes_nothing_leaves_the_rest_at_the_source(
    pair: tuple[Broker, Broker],
) -> None:
    """Whether the last ones were taken cannot be known, and is told."""
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(3_000))
    stops: list[asyncio.Event] = []
    with ExitStack() as alarm:

        def block_and_stop() -> None:
            alarm.enter_context(target.blocking_publishers())
            stops[0].set()

        audience = AfterMessages(1, block_and_stop)
        options = {"audience": audience, "stop_when": stops.append, "silence_s": 0.5}
        result = move(*sides(source, target), **options)["q"]
    there, here = bodies(target.url, "q"), bodies(source.url, "q")
    assert 0 < result.moved < 3_000
    assert [int(body) for body in here] == list(range(result.moved, 3_000))
    assert there[: result.moved] == [b"%d" % number for number in range(result.moved)]
    assert len(there) - result.moved <= result.doubtful
