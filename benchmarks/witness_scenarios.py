"""What a client can ask of a node that costs it much, one function for each.

A function prepares a `Stage` and returns the costly thing: a call that ends when the node has done
it. All octets are made beforehand. The first line of the docstring is what the table says.
"""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from amqp_requests import (
    AUTO_DELETE,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    DURABLE,
    EXCLUSIVE,
    NOWAIT,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    ack,
    bind,
    cancel,
    consume,
    exchange_bind,
    exchange_declare,
    exchange_delete,
    get,
    nack,
    publish,
    purge,
    queue_declare,
    queue_delete,
)
from amqp_socket import AmqpSocket, Refused
from witness_stage import VIRTUAL_HOST, Stage

Work = Callable[[], object]

MANY_QUEUES = 20_000
MANY_BINDINGS = 100_000
CASCADE = 10_000
UNACKED = 300_000
SCATTERED = 100_000
LARGE_BYTES = 100_000_000
SHARED_BODIES = 200_000
SNAPSHOT_MESSAGES = 200_000
SHARED_BYTES = 5000
"""From 4096 octets on a body is stored once, however many queues it is in."""


class Scenario(NamedTuple):
    name: str
    what: str
    http: bool
    prepare: Callable[[Stage], Work]


SCENARIOS: list[Scenario] = []


def scenario(prepare: Callable[[Stage], Work]) -> Callable[[Stage], Work]:
    return _add(prepare, http=False)


def http_scenario(prepare: Callable[[Stage], Work]) -> Callable[[Stage], Work]:
    return _add(prepare, http=True)


def _add(prepare: Callable[[Stage], Work], *, http: bool) -> Callable[[Stage], Work]:
    what = (prepare.__doc__ or "").splitlines()[0].rstrip(".")
    SCENARIOS.append(Scenario(prepare.__name__.replace("_", "-"), what, http, prepare))
    return prepare


@scenario
def nothing(_: Stage) -> Work:
    """Nothing: what the machine itself makes the witness wait."""
    return lambda: None


# Dead letters


@scenario
def dead_letter_chain(stage: Stage) -> Work:
    """60 dead letter queues in a chain with TTL 0, 1,000 messages of one octet."""
    client = stage.client()
    chain = [queue_declare("last")]
    for number in range(60):
        successor = f"chain-{number + 1}" if number < 59 else "last"
        arguments = {"x-message-ttl": 0, **dead_letters_to(successor)}
        chain.append(queue_declare(f"chain-{number}", arguments))
    client.carry_out(b"".join(chain))
    octets = publish("", "chain-0", b"x") * 1000

    def work() -> None:
        client.carry_out(octets)
        stage.wait_for_ready("last", 1000)

    return work


@scenario
def reject_into_dlx(stage: Stage) -> Work:
    """Rejecting 300,000 messages at once into a dead letter exchange."""
    client = stage.client()
    client.carry_out(queue_declare("new") + queue_declare("old", dead_letters_to("new")))
    take(client, "old", UNACKED)

    def work() -> None:
        client.carry_out(nack(UNACKED, requeue=False, multiple=True))
        stage.wait_for_ready("new", UNACKED)

    return work


@scenario
def expiry_at_one_moment(stage: Stage) -> Work:
    """100 messages in each of 1,000 queues expire at the same moment (8 s later)."""
    client = stage.client()
    names = fanout_of(client, 1000)
    # Each lives until the same moment, when the witness is there.
    end = time.monotonic() + 8
    for _ in range(100):
        left_ms = int((end - time.monotonic()) * 1000)
        client.carry_out(publish("fanout", "", b"x", expiration=str(left_ms)))
    return lambda: stage.wait_for_ready(names[-1], 0)


# Publishes that reach many


@scenario
def fanout_1000(stage: Stage) -> Work:
    """3,000 small publishes to a fanout of 1,000 queues."""
    return publishes_to_fanout(stage, 3000, 1000)


@scenario
def fanout_100(stage: Stage) -> Work:
    """2,000 small publishes to a fanout of 100 queues."""
    return publishes_to_fanout(stage, 2000, 100)


@scenario
def fanout_1000_length_limit(stage: Stage) -> Work:
    """3,000 small publishes to a fanout of 1,000 queues of at most one message."""
    return publishes_to_fanout(stage, 3000, 1000, {"x-max-length": 1})


@scenario
def fanout_1000_length_limit_dlx(stage: Stage) -> Work:
    """3,000 to a fanout of 1,000 queues of at most one message and a dead letter exchange."""
    stage.client().carry_out(queue_declare("dead"))
    return publishes_to_fanout(stage, 3000, 1000, {"x-max-length": 1, **dead_letters_to("dead")})


@scenario
def fanout_20000(stage: Stage) -> Work:
    """One publish to a fanout of 20,000 queues."""
    return publishes_to_fanout(stage, 1, MANY_QUEUES)


@scenario
def headers_2000(stage: Stage) -> Work:
    """3,000 publishes to an exchange with 2,000 header bindings."""
    client = stage.client()
    bindings = (
        bind("q", "headers", arguments={"x-match": "all", f"header-{number}": "v", "common": "c"})
        for number in range(2000)
    )
    client.carry_out(exchange_declare("headers", "headers") + queue_declare("q"))
    client.carry_out(b"".join(bindings))
    return request(
        client,
        (
            publish("headers", "", b"x", headers={"common": "c", f"header-{number % 2000}": "v"})
            for number in range(3000)
        ),
    )


@scenario
def to_20000_queues(stage: Stage) -> Work:
    """40,000 publishes, each to another of 20,000 queues than the one before."""
    client = stage.client()
    octets = b"".join([publish("", name, b"x") for name in declare_many(client)])
    return request(client, [octets, octets])


@scenario
def alternate_exchanges(stage: Stage) -> Work:
    """500 publishes that pass 1,500 alternate exchanges each."""
    client = stage.client()
    chain = (
        exchange_declare(f"x-{n}", "direct", {"alternate-exchange": f"x-{n + 1}"})
        for n in range(1500)
    )
    client.carry_out(b"".join(chain))
    return request(client, [b"".join(publish("x-0", f"key-{n}", b"x") for n in range(500))])


@scenario
def connections_lost(stage: Stage) -> Work:
    """300 connections that are lost at once."""
    clients = [stage.client() for _ in range(300)]

    def work() -> None:
        for client in clients:
            client.socket.close()

    return work


@scenario
def many_publishers(stage: Stage) -> Work:
    """50 clients that publish 100 octets as fast as they can, for three seconds."""
    clients = [stage.client() for _ in range(50)]
    for number, client in enumerate(clients):
        client.carry_out(queue_declare(f"q-{number}"))
    octets = {
        client.socket: publish("", f"q-{number}", bytes(100)) * 1000
        for number, client in enumerate(clients)
    }

    def work() -> None:
        end = time.monotonic() + 3
        left = dict.fromkeys(octets, 0)
        for client in clients:
            client.socket.setblocking(False)
        while time.monotonic() < end:
            for ready in select.select([], list(octets), [], 0.1)[1]:
                sent = ready.send(memoryview(octets[ready])[left[ready] :])
                left[ready] = (left[ready] + sent) % len(octets[ready])

    return work


@scenario
def deduplicated(stage: Stage) -> Work:
    """40,000 publishes to a queue with a window of deduplication."""
    client = stage.client()
    client.carry_out(queue_declare("q", {"x-message-deduplication-window": 10_000}))
    ids = (f"id-{number}" for number in range(40_000))
    return request(client, [b"".join([publish("", "q", b"x", message_id=at) for at in ids])])


@scenario
def topic_patterns(stage: Stage) -> Work:
    """20 publishes to a topic exchange with 1,000 patterns that keys fit in very many ways."""
    client = stage.client()
    chance = random.Random(1)
    patterns = (".".join(["#", *chance.choices("a*", k=100)]) for _ in range(1000))
    client.carry_out(exchange_declare("topics", "topic") + queue_declare("q"))
    client.carry_out(b"".join([bind("q", "topics", pattern) for pattern in patterns]))
    keys = (".".join(chance.choices("ab", k=120)) for _ in range(20))
    return request(client, [publish("topics", key, b"x") for key in keys])


@scenario
def dead_letters_to_20000(stage: Stage) -> Work:
    """Two messages rejected into a dead letter exchange with 20,000 queues."""
    client = stage.client()
    names = declare_many(client)
    client.carry_out(exchange_declare("fanout", "fanout"))
    client.carry_out(b"".join([bind(name, "fanout") for name in names]))
    client.carry_out(queue_declare("old", {"x-dead-letter-exchange": "fanout"}))
    take(client, "old", 2)

    def work() -> None:
        client.carry_out(nack(2, requeue=False, multiple=True))
        stage.wait_for_ready(names[-1], 2)

    return work


# Policies


@http_scenario
def pattern_16(stage: Stage) -> Work:
    """A policy with a pattern of 16 optional parts, and a queue it nearly matches."""
    return policy_of_optional_parts(stage, 16)


@http_scenario
def pattern_30(stage: Stage) -> Work:
    """A policy with a pattern of 30 optional parts, and a queue it nearly matches."""
    return policy_of_optional_parts(stage, 30)


@http_scenario
def policy_matches_all(stage: Stage) -> Work:
    """A policy that matches 20,000 queues."""
    declare_many(stage.client())
    return lambda: set_policy(stage, "all", ".*")


@http_scenario
def policy_matches_none(stage: Stage) -> Work:
    """A further policy that matches none of 20,000 queues."""
    declare_many(stage.client())
    set_policy(stage, "all", ".*")
    return lambda: set_policy(stage, "none", "^none$")


# Definitions


@scenario
def delete_bound_queue(stage: Stage) -> Work:
    """Deleting a queue with 100,000 bindings."""
    client = stage.client()
    bind_many(client)
    return request(client, [queue_delete("bound")])


@scenario
def delete_bound_exchange(stage: Stage) -> Work:
    """Deleting an exchange with 100,000 bindings."""
    client = stage.client()
    bind_many(client)
    return request(client, [exchange_delete("direct")])


@scenario
def delete_chain(stage: Stage) -> Work:
    """Deleting a queue with a chain of 10,000 auto-delete exchanges behind it."""
    client = stage.client()
    declared = [queue_declare("q"), passing_exchange("x-0"), bind("q", "x-0")]
    for number in range(1, CASCADE):
        declared.append(passing_exchange(f"x-{number}"))
        declared.append(exchange_bind(f"x-{number - 1}", f"x-{number}"))
    client.carry_out(b"".join(declared))
    return request(client, [queue_delete("q")])


@scenario
def delete_last_bindings(stage: Stage) -> Work:
    """Deleting a queue that 10,000 auto-delete exchanges are bound to."""
    client = stage.client()
    declared = [queue_declare("q")]
    for number in range(CASCADE):
        declared += [passing_exchange(f"x-{number}"), bind("q", f"x-{number}")]
    client.carry_out(b"".join(declared))
    return request(client, [queue_delete("q")])


@http_scenario
def delete_exchanges(stage: Stage) -> Work:
    """Deleting a virtual host with 10,000 exchanges."""
    client = stage.client()
    names = [f"x-{number}" for number in range(CASCADE)]
    client.carry_out(b"".join(exchange_declare(name, "fanout") for name in names))
    client.close()
    return lambda: stage.http("DELETE", f"/api/vhosts/{VIRTUAL_HOST}")


@scenario
def large_arguments(stage: Stage) -> Work:
    """Five bindings with 7,000 arguments each, of 100 KB."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    arguments = {f"k{number:05d}": f"v{number}" for number in range(7000)}
    keys = [str(number) for number in range(5)]
    bindings = [bind("q", "amq.headers", key, arguments, nowait=False) for key in keys]
    return request(client, bindings)


@scenario
def declare_queues(stage: Stage) -> Work:
    """20,000 queues declared without waiting for the answers."""
    names = many_names()
    return request(stage.client(), (queue_declare(name, bits=DURABLE) for name in names))


@scenario
def declare_bindings(stage: Stage) -> Work:
    """20,000 bindings declared without waiting for the answers."""
    client = stage.client()
    client.carry_out(exchange_declare("direct", "direct") + queue_declare("bound"))
    return request(
        client, (bind("bound", "direct", f"key-{n}", nowait=False) for n in range(20_000))
    )


@http_scenario
def delete_virtual_host(stage: Stage) -> Work:
    """Deleting a virtual host with 20,000 queues."""
    client = stage.client()
    declare_many(client)
    client.close()
    return lambda: stage.http("DELETE", f"/api/vhosts/{VIRTUAL_HOST}")


@scenario
def exclusive_queues(stage: Stage) -> Work:
    """A disconnect of the owner of 20,000 exclusive queues."""
    client = stage.client()
    names = declare_many(client, EXCLUSIVE | NOWAIT)

    def work() -> None:
        client.socket.close()
        stage.wait_until_gone((names[0], names[-1]))

    return work


# Transactions and verdicts


@scenario
def commit_publishes(stage: Stage) -> Work:
    """A tx.commit of 200,000 publishes."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    client.call(TX_SELECT, 90, 11)
    client.publish(publish("", "q", b"x"), 200_000)
    return lambda: client.call(TX_COMMIT, 90, 21)


@scenario
def commit_acks(stage: Stage) -> Work:
    """A tx.commit of 100,000 acknowledgements."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    client.call(TX_SELECT, 90, 11)
    client.publish(publish("", "q", b"x"), 100_000)
    client.call(TX_COMMIT, 90, 21)
    receive(client, "q", 100_000)
    client.carry_out(b"".join(ack(tag) for tag in range(1, 100_001)))
    return lambda: client.call(TX_COMMIT, 90, 21)


@scenario
def rollback_publishes(stage: Stage) -> Work:
    """A tx.rollback of 200,000 publishes."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    client.call(TX_SELECT, 90, 11)
    client.publish(publish("", "q", b"x"), 200_000)
    return lambda: client.call(TX_ROLLBACK, 90, 31)


@scenario
def rollback_acks(stage: Stage) -> Work:
    """A tx.rollback of 100,000 acknowledgements."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    client.publish(publish("", "q", b"x"), 100_000)
    client.call(TX_SELECT, 90, 11)
    receive(client, "q", 100_000)
    client.carry_out(b"".join(ack(tag) for tag in range(1, 100_001)))
    return lambda: client.call(TX_ROLLBACK, 90, 31)


@scenario
def disconnect_unacked(stage: Stage) -> Work:
    """A disconnect with 300,000 unacknowledged messages."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    take(client, "q", UNACKED)

    def work() -> None:
        client.socket.close()
        stage.wait_for_ready("q", UNACKED)

    return work


@scenario
def ack_multiple(stage: Stage) -> Work:
    """An acknowledgement of 300,000 messages."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    take(client, "q", UNACKED)
    return request(client, [ack(UNACKED, multiple=True)])


@scenario
def requeue_multiple(stage: Stage) -> Work:
    """A requeue of 300,000 messages."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    take(client, "q", UNACKED)
    return request(client, [nack(UNACKED, requeue=True, multiple=True)])


@scenario
def ack_scattered(stage: Stage) -> Work:
    """100,000 acknowledgements in random order."""
    return scattered(stage, "default", ack)


@scenario
def ack_scattered_paged_out(stage: Stage) -> Work:
    """100,000 acknowledgements in random order, of messages that were paged out."""
    return scattered(stage, "lazy", ack)


@scenario
def requeue_scattered(stage: Stage) -> Work:
    """100,000 requeues in random order."""
    return scattered(stage, "default", lambda tag: nack(tag, requeue=True))


@scenario
def requeue_scattered_paged_out(stage: Stage) -> Work:
    """100,000 requeues in random order, of messages that were paged out."""
    return scattered(stage, "lazy", lambda tag: nack(tag, requeue=True))


# Large bodies


@scenario
def large_body_published(stage: Stage) -> Work:
    """A body of 100 MB published."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    return request(client, [publish("", "q", bytes(LARGE_BYTES))])


@scenario
def large_body_fetched(stage: Stage) -> Work:
    """A body of 100 MB fetched with basic.get."""
    client = stage.client()
    client.carry_out(queue_declare("q") + publish("", "q", bytes(LARGE_BYTES)))
    return request(client, [get("q")])


@scenario
def large_body_consumed(stage: Stage) -> Work:
    """A body of 100 MB delivered to a consumer."""
    client = stage.client()
    client.carry_out(queue_declare("q") + publish("", "q", bytes(LARGE_BYTES)))

    def work() -> None:
        client.socket.sendall(consume("q", no_ack=True))
        client.pass_over_bodies(LARGE_BYTES)

    return work


# Consumers


@scenario
def cancel_one_of_40000(stage: Stage) -> Work:
    """Cancelling one of 40,000 consumers of a queue."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    client.carry_out(b"".join(consume("q", f"c-{number}") for number in range(40_000)))
    return request(client, [cancel("c-20000")])


@scenario
def cancel_all_of_40000(stage: Stage) -> Work:
    """Closing a channel with 40,000 consumers of a queue."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    client.carry_out(b"".join(consume("q", f"c-{number}") for number in range(40_000)))
    return lambda: client.call(CHANNEL_CLOSE, *CHANNEL_CLOSE_OK)


@scenario
def delete_consumed_queue(stage: Stage) -> Work:
    """Deleting a queue with 20,000 consumers of another client."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    client.carry_out(b"".join(consume("q", f"c-{number}") for number in range(MANY_QUEUES)))
    return request(stage.client(), [queue_delete("q")])


@scenario
def consumed_exclusive_queues(stage: Stage) -> Work:
    """A disconnect of the owner of 20,000 exclusive queues, each with a consumer."""
    client = stage.client()
    names = declare_many(client, EXCLUSIVE | NOWAIT)
    client.carry_out(b"".join(consume(name, f"c-{name}") for name in names))

    def work() -> None:
        client.socket.close()
        stage.wait_until_gone((names[0], names[-1]))

    return work


@scenario
def single_active_consumer(stage: Stage) -> Work:
    """Closing a channel with 2,000 consumers of a queue with a single active consumer."""
    client = stage.client()
    client.carry_out(queue_declare("q", {"x-single-active-consumer": True}))
    client.carry_out(b"".join(consume("q", f"c-{number}") for number in range(2000)))
    return lambda: client.call(CHANNEL_CLOSE, *CHANNEL_CLOSE_OK)


@scenario
def drain(stage: Stage) -> Work:
    """A consumer drains 1,000,000 messages, with acknowledgements of 500."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    client.publish(publish("", "q", b"x"), 1_000_000)
    return lambda: client.drain("q", 1_000_000, acked_at_once=500)


# Many messages removed


@scenario
def purge_small(stage: Stage) -> Work:
    """Purging 800,000 small messages."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    client.publish(publish("", "q", b"x"), 800_000)
    return request(client, [purge("q")])


@scenario
def purge_returned(stage: Stage) -> Work:
    """Purging 300,000 messages that came back."""
    client = stage.client()
    client.carry_out(queue_declare("q"))
    take(client, "q", UNACKED)
    client.carry_out(cancel() + nack(UNACKED, requeue=True, multiple=True))
    stage.wait_for_ready("q", UNACKED)
    return request(client, [purge("q")])


@scenario
def purge_shared(stage: Stage) -> Work:
    """Purging 200,000 persistent bodies of 5,000 octets that another queue shares."""
    client = stage.client()
    share_bodies(client)
    return request(client, [purge("fanout-0")])


@scenario
def delete_shared(stage: Stage) -> Work:
    """Deleting a queue of 200,000 persistent bodies of 5,000 octets that another queue shares."""
    client = stage.client()
    share_bodies(client)
    return request(client, [queue_delete("fanout-0")])


# HTTP


@http_scenario
def export_definitions(stage: Stage) -> Work:
    """Exporting definitions with 100,000 bindings."""
    bind_many(stage.client())
    return lambda: stage.http("GET", "/api/definitions")


@http_scenario
def import_definitions(stage: Stage) -> Work:
    """Importing definitions with 20,000 queues and as many bindings, 5 MB."""
    queues: list[dict[str, object]] = [
        {"name": name, "vhost": VIRTUAL_HOST, "durable": True, "auto_delete": False}
        | {"arguments": {"x-max-length": 1000}}
        for name in many_names()
    ]
    bindings: list[dict[str, object]] = [
        {"source": "amq.direct", "vhost": VIRTUAL_HOST, "destination": name}
        | {"destination_type": "queue", "routing_key": f"key-{name}", "arguments": {}}
        for name in many_names()
    ]
    octets = json.dumps({"queues": queues, "bindings": bindings}).encode()
    return lambda: stage.http("POST", "/api/definitions", octets)


@http_scenario
def list_queues(stage: Stage) -> Work:
    """Listing 20,000 queues over HTTP."""
    declare_many(stage.client())
    return lambda: stage.http("GET", "/api/queues")


@http_scenario
def list_bindings(stage: Stage) -> Work:
    """Listing 100,000 bindings over HTTP."""
    bind_many(stage.client())
    return lambda: stage.http("GET", "/api/bindings")


# Snapshots


READ_SNAPSHOT = """
import os, sys
from warren.spark_export.source.source import MessageStoreSource
os.nice(19)
source = MessageStoreSource({"path": sys.argv[1], "vhost": sys.argv[2]})
reader = source.reader(source.schema())
assert sum(len(batch) for part in reader.partitions() for batch in reader.read(part))
"""
"""A task that reads usually runs on another machine: so this one has the lowest priority here."""


@http_scenario
def snapshot_read(stage: Stage) -> Work:
    """Two readers of snapshots of 200,000 messages of 1,000 octets, over HTTP, without Spark."""
    client = stage.client()
    client.carry_out(queue_declare("q", bits=DURABLE))
    client.publish(publish("", "q", bytes(1000), persistent=True), SNAPSHOT_MESSAGES)
    stage.wait_for_ready("q", SNAPSHOT_MESSAGES)
    command = [sys.executable, "-P", "-c", READ_SNAPSHOT]
    command += [f"warren://127.0.0.1:{stage.http_port}", VIRTUAL_HOST]

    def work() -> None:
        readers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
        if any([reader.wait() for reader in readers]):
            raise Refused("a reader failed")

    return work


# What several of them do


def request(client: AmqpSocket, requests: Iterable[bytes]) -> Work:
    octets = b"".join(requests)
    return lambda: client.carry_out(octets)


def dead_letters_to(queue: str) -> dict[str, str | int]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def many_names() -> list[str]:
    return [f"many-{number:05}" for number in range(MANY_QUEUES)]


def declare_many(client: AmqpSocket, bits: int = DURABLE | NOWAIT) -> list[str]:
    names = many_names()
    client.carry_out(b"".join(queue_declare(name, bits=bits) for name in names))
    return names


def passing_exchange(name: str) -> bytes:
    """Declares an exchange that goes with its last binding."""
    return exchange_declare(name, "fanout", bits=DURABLE | AUTO_DELETE | NOWAIT)


def bind_many(client: AmqpSocket) -> None:
    client.carry_out(exchange_declare("direct", "direct") + queue_declare("bound"))
    keys = (f"key-{number}" for number in range(MANY_BINDINGS))
    client.carry_out(b"".join(bind("bound", "direct", key) for key in keys))


def fanout_of(
    client: AmqpSocket, queues: int, arguments: dict[str, str | int] | None = None
) -> list[str]:
    names = [f"fanout-{number}" for number in range(queues)]
    client.carry_out(exchange_declare("fanout", "fanout"))
    client.carry_out(b"".join(queue_declare(n, arguments) + bind(n, "fanout") for n in names))
    return names


def publishes_to_fanout(
    stage: Stage, publishes: int, queues: int, arguments: dict[str, str | int] | None = None
) -> Work:
    client = stage.client()
    fanout_of(client, queues, arguments)
    return request(client, [publish("fanout", "", b"x") * publishes])


def policy_of_optional_parts(stage: Stage, parts: int) -> Work:
    stage.client().carry_out(queue_declare("a" * 2 * parts + "b"))

    def work() -> None:
        # A node may say that it does not take such a pattern.
        with suppress(Refused):
            set_policy(stage, "optional", "^" + "(?:aa|a)?" * parts + "$")

    return work


def set_policy(stage: Stage, name: str, pattern: str) -> None:
    policy = {"pattern": pattern, "definition": {"max-length": 1000}, "apply-to": "queues"}
    stage.http("PUT", f"/api/policies/{VIRTUAL_HOST}/{name}", policy)


def receive(client: AmqpSocket, queue: str, count: int) -> None:
    """Have so many messages of one octet delivered; later ones are not."""
    client.socket.sendall(consume(queue))
    client.pass_over_bodies(count)
    client.carry_out(cancel())


def take(client: AmqpSocket, queue: str, count: int) -> None:
    """Publish so many messages of one octet, and have them delivered and not acknowledged."""
    client.publish(publish("", queue, b"x"), count)
    receive(client, queue, count)


def scattered(stage: Stage, mode: str, verdict: Callable[[int], bytes]) -> Work:
    client = stage.client()
    client.carry_out(queue_declare("q", {"x-queue-mode": mode}))
    take(client, "q", SCATTERED)
    tags = list(range(1, SCATTERED + 1))
    random.Random(1).shuffle(tags)
    return request(client, (verdict(tag) for tag in tags))


def share_bodies(client: AmqpSocket) -> None:
    fanout_of(client, 2)
    unit = publish("fanout", "", bytes(SHARED_BYTES), persistent=True)
    client.publish(unit, SHARED_BODIES)
