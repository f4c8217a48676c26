"""A method that waits for long holds up its own channel only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from pamqp import commands
from pipe import Broker, Client, method_frame, publish_frames
from stores import SlowMetadataStore

from warren.amqp.waiting_methods import KEPT_MAX, OTHERS_WAIT_S
from warren.core.definitions.definition_table import Change
from warren.core.ports import Commit


class DistantStore(SlowMetadataStore):
    """As in a cluster, nothing is visible before it is done."""

    def uncommitted(self) -> Commit | None:
        return None

    def _persist(self, changes: Sequence[Change]) -> Commit:
        commit = super()._persist(changes)
        if self.slow:
            self.pending[-1].visible = False
        return commit


@pytest.fixture
def store() -> DistantStore:
    return DistantStore()


@pytest.fixture
def client(store: DistantStore) -> Iterator[Client]:
    """Channel 1 waits for the declaration of `new`; the other channels have waited for it."""
    client = Broker(metadata=store).connects()
    for number in (1, 2):
        client.opens_channel(number)
    client.declares("q", channel=2)
    store.slow = True
    client.sends(commands.Queue.Declare, 1, queue="new", durable=True)
    client.broker.advance(OTHERS_WAIT_S)
    client.receives_nothing()
    yield client
    client.vanishes()


def test_at_first_the_other_channels_wait(client: Client, store: DistantStore) -> None:
    client.sends(commands.Queue.Declare, 2, queue="other", durable=True)
    client.sends(commands.Channel.Open, 3)
    client.broker.advance(OTHERS_WAIT_S / 2)
    client.receives_nothing()
    client.broker.advance(OTHERS_WAIT_S)
    client.receives(commands.Channel.OpenOk, 3)
    store.complete(2)
    assert client.receives(commands.Queue.DeclareOk, 1).queue == "new"
    assert client.receives(commands.Queue.DeclareOk, 2).queue == "other"


def test_other_channels_open_publish_consume_and_close(client: Client, store: DistantStore) -> None:
    client.opens_channel(3)
    client.selects_confirms(3)
    client.publishes("q", b"one", channel=3)
    assert client.receives(commands.Basic.Ack, 3).delivery_tag == 1
    client.consumes("q", channel=2)
    assert client.receives_content().body == b"one"
    client.acks(1, channel=2)
    client.sends(commands.Channel.Close, 2, reply_code=200, reply_text="", class_id=0, method_id=0)
    client.receives(commands.Channel.CloseOk, 2)
    assert client.counts("q", channel=3) == (0, 0)
    store.complete()
    client.receives(commands.Queue.DeclareOk, 1)


def test_what_was_sent_behind_it_is_served_in_order(client: Client, store: DistantStore) -> None:
    for body in (b"one", b"two" * 3000, b"three"):
        # A publish of channel 2 is served before, though it is between them.
        client.sends_octets(
            publish_frames(1, "", "new", body) + publish_frames(2, "", "q", b"other")
        )
    client.sends(commands.Basic.Consume, 1, queue="new", consumer_tag="c")
    assert client.counts("q", channel=2) == (3, 0)
    store.complete()
    client.receives(commands.Queue.DeclareOk, 1)
    client.receives(commands.Basic.ConsumeOk, 1)
    assert client.receives_bodies() == [b"one", b"two" * 3000, b"three"]


def test_of_two_that_wait_each_goes_on_by_itself(client: Client, store: DistantStore) -> None:
    client.sends(commands.Queue.Declare, 2, queue="other", durable=True)
    client.broker.advance(OTHERS_WAIT_S)
    for number, queue in ((1, "new"), (2, "other")):
        client.publishes(queue, b"x", channel=number)
        client.sends(commands.Basic.Get, number, queue=queue)
    client.receives_nothing()
    first, second = store.pending
    second.complete()
    assert client.receives(commands.Queue.DeclareOk, 2).queue == "other"
    assert client.receives_content(commands.Basic.GetOk).body == b"x"
    client.receives_nothing()
    first.complete()
    assert client.receives(commands.Queue.DeclareOk, 1).queue == "new"
    assert client.receives_content(commands.Basic.GetOk).body == b"x"


def test_it_may_wait_again_for_something_else(client: Client, store: DistantStore) -> None:
    client.sends(commands.Queue.Declare, 1, queue="next", durable=True)
    store.complete()
    assert client.receives(commands.Queue.DeclareOk, 1).queue == "new"
    client.broker.advance(OTHERS_WAIT_S)
    client.opens_channel(3)
    store.complete()
    assert client.receives(commands.Queue.DeclareOk, 1).queue == "next"


def test_the_end_of_the_connection_comes_behind_it(client: Client, store: DistantStore) -> None:
    client.publishes("new", b"kept")
    client.sends(
        commands.Connection.Close, 0, reply_code=200, reply_text="", class_id=0, method_id=0
    )
    client.receives_nothing()
    store.complete()
    client.receives(commands.Queue.DeclareOk, 1)
    client.receives(commands.Connection.CloseOk)
    other = client.broker.connects()
    other.opens_channel(1)
    assert other.counts("new") == (1, 0)


def test_nothing_is_read_while_much_is_kept(client: Client, store: DistantStore) -> None:
    client.sends_octets(publish_frames(1, "", "new", b"x" * KEPT_MAX))
    client.publishes("q", b"x", channel=2)
    assert not client.pipe.reading
    store.complete()
    client.receives(commands.Queue.DeclareOk, 1)
    assert client.pipe.reading
    assert client.counts("q", channel=2) == (1, 0)
    assert client.counts("new", channel=2) == (1, 0)


def test_an_error_in_the_end_closes_its_channel(client: Client, store: DistantStore) -> None:
    client.sends(commands.Queue.Declare, 1, queue="nowhere", passive=True)
    client.publishes("q", b"dropped")
    client.sends_octets(method_frame(1, commands.Basic.Get, queue="q"))
    store.complete()
    client.receives(commands.Queue.DeclareOk, 1)
    client.receives_close(404)
    client.opens_channel(1)
    assert client.counts("q") == (0, 0)


def test_a_client_that_vanishes_meanwhile_leaves_nothing(
    client: Client, store: DistantStore
) -> None:
    client.publishes("q", b"x")
    client.vanishes()
    store.complete()
    client.broker.settle()
    assert client.connection.channels == {} and client.connection.served == {}
    other = client.broker.connects()
    other.opens_channel(1)
    assert other.counts("q") == (0, 0)
