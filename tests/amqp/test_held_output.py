"""What promises that a definition survives a crash is not said before it is on disk."""

from __future__ import annotations

import pytest
from pamqp import commands
from pipe import Broker, Client, method_frame
from stores import HandCommit, SlowMetadataStore

from warren.amqp.frames import HEARTBEAT
from warren.amqp.held_output import HELD_OCTETS_MAX, HeldOutput


@pytest.fixture
def store() -> SlowMetadataStore:
    return SlowMetadataStore()


@pytest.fixture
def client(store: SlowMetadataStore) -> Client:
    client = Broker(metadata=store).connects()
    client.opens_channel(1)
    store.slow = True
    return client


def declares_durably(client: Client, name: str) -> None:
    client.sends(commands.Queue.Declare, queue=name, durable=True)


def test_declare_ok_waits_for_the_commit(client: Client, store: SlowMetadataStore) -> None:
    declares_durably(client, "q")
    client.receives_nothing()
    store.complete()
    assert client.receives(commands.Queue.DeclareOk).queue == "q"


def test_the_declare_ok_of_a_transient_queue_waits_for_nothing(client: Client) -> None:
    client.declares("q")


@pytest.mark.parametrize(
    ("kind", "arguments", "answer"),
    [
        (
            commands.Exchange.Declare,
            {"exchange": "x", "exchange_type": "fanout", "durable": True},
            commands.Exchange.DeclareOk,
        ),
        (commands.Queue.Delete, {"queue": "there"}, commands.Queue.DeleteOk),
        (commands.Queue.Bind, {"queue": "there", "exchange": "amq.fanout"}, commands.Queue.BindOk),
        (
            commands.Exchange.Bind,
            {"source": "amq.fanout", "destination": "amq.topic"},
            commands.Exchange.BindOk,
        ),
    ],
)
def test_every_durable_change_waits_for_its_commit(
    client: Client, store: SlowMetadataStore, kind: type, arguments: dict[str, object], answer: type
) -> None:
    store.slow = False
    client.declares("there", durable=True)
    store.slow = True
    client.sends(kind, **arguments)
    client.receives_nothing()
    store.complete()
    client.receives(answer)


def test_what_is_said_later_stands_behind_it_in_order(
    client: Client, store: SlowMetadataStore
) -> None:
    client.selects_confirms()
    declares_durably(client, "q")
    client.sends(commands.Basic.Consume, queue="q", consumer_tag="c", no_ack=True)
    client.publishes("q", b"hello")
    client.receives_nothing()
    store.complete()
    client.receives(commands.Queue.DeclareOk)
    client.receives(commands.Basic.ConsumeOk)
    assert client.receives_content().body == b"hello"
    assert client.receives(commands.Basic.Ack).delivery_tag == 1


def test_each_of_several_replies_waits_for_its_own_commit(
    client: Client, store: SlowMetadataStore
) -> None:
    for name in ("a", "b", "c"):
        declares_durably(client, name)
        client.broker.settle()
    for name in ("a", "b", "c"):
        client.receives_nothing()
        store.complete()
        assert client.receives(commands.Queue.DeclareOk).queue == name
    client.declares("d")


def test_replies_of_one_turn_come_when_the_last_of_their_commits_is_done(
    client: Client, store: SlowMetadataStore
) -> None:
    client.sends_octets(
        b"".join(method_frame(1, commands.Queue.Declare, queue=name, durable=True) for name in "ab")
    )
    store.complete(2)
    assert client.receives(commands.Queue.DeclareOk).queue == "a"
    assert client.receives(commands.Queue.DeclareOk).queue == "b"
    client.receives_nothing()


def test_another_connection_is_not_held(client: Client, store: SlowMetadataStore) -> None:
    declares_durably(client, "q")
    other = client.broker.accepts()
    store.slow = False
    other = client.broker.connects()
    other.opens_channel(1)
    client.receives_nothing()


def test_a_peer_with_too_much_held_is_read_no_further_until_the_commit(
    client: Client, store: SlowMetadataStore
) -> None:
    client.declares("q")
    client.publishes("q", b"x" * 100_000)
    declares_durably(client, "durable")
    for _ in range(3):
        client.sends(commands.Basic.Get, queue="q", no_ack=False)
        client.sends(commands.Basic.Nack, delivery_tag=0, multiple=True, requeue=True)
        client.broker.settle()
    assert client.connection.held.full
    assert not client.pipe.reading
    client.sends(commands.Channel.Open, 2)
    client.receives_nothing()
    store.complete()
    client.receives(commands.Queue.DeclareOk)
    for _ in range(3):
        assert len(client.receives_content(commands.Basic.GetOk).body) == 100_000
    client.receives(commands.Channel.OpenOk, 2)
    assert client.pipe.reading


def test_a_connection_lost_while_output_is_held_lets_go_of_it(
    client: Client, store: SlowMetadataStore
) -> None:
    declares_durably(client, "q")
    client.broker.settle()
    client.vanishes()
    store.complete()
    client.broker.settle()
    client.receives_nothing()
    assert not client.connection.held.active


def test_a_commit_that_was_done_before_holds_nothing() -> None:
    woken: list[None] = []
    held = HeldOutput(lambda: woken.append(None))
    commit = HandCommit()
    commit.complete()
    written = [b"before"]
    held.hold(commit, written)
    written.append(b"after")
    assert b"".join(held.release(written)) == b"beforeafter"
    assert not held.active and not held.full


def test_what_was_written_before_a_gate_passes() -> None:
    held = HeldOutput(lambda: None)
    first, second = HandCommit(), HandCommit()
    written = [b"1"]
    held.hold(first, written)
    written.append(b"2")
    assert held.release(written) == [b"1"]
    written.append(b"3")
    held.hold(second, written)
    written.append(b"4" * HELD_OCTETS_MAX)
    assert held.release(written) == []
    assert held.full
    first.complete()
    assert held.release([]) == [b"2", b"3"]
    second.complete()
    assert held.release([]) == [b"4" * HELD_OCTETS_MAX]
    assert not held.active and not held.full


def test_consumers_get_no_more_than_may_be_held(client: Client, store: SlowMetadataStore) -> None:
    """One slow commit must not make a queue move into the memory of a connection."""
    publisher = client.broker.connects()
    publisher.opens_channel(1)
    publisher.declares("q")
    client.consumes("q", no_ack=True)
    declares_durably(client, "durable")
    count, size = 40, HELD_OCTETS_MAX // 10
    for _ in range(count):
        publisher.publishes("q", b"x" * size)
        client.broker.settle()
    assert client.connection.held_back
    kept, _ = publisher.counts("q")
    assert kept > count / 2
    client.sends_octets(b"")
    store.complete()
    client.receives(commands.Queue.DeclareOk)
    assert len(client.receives_deliveries()) == count


def test_heartbeats_do_not_wait_for_a_commit(store: SlowMetadataStore) -> None:
    client = Broker(metadata=store).connects(heartbeat_s=10)
    client.opens_channel(1)
    store.slow = True
    declares_durably(client, "q")
    client.broker.advance(5)
    (heartbeat,) = client.frames()
    assert (heartbeat.kind, heartbeat.payload) == (HEARTBEAT, b"")
    store.complete()
    assert client.receives(commands.Queue.DeclareOk).queue == "q"
