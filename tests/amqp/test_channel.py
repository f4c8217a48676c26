"""What the methods of a channel do to what it holds: tags, prefetch, consumers, replies."""

from __future__ import annotations

import time

import pytest
from pamqp import commands
from pipe import Broker, Client, Frame

from warren.core.field import Field, long, longstr


@pytest.fixture
def filled(client: Client) -> Client:
    """A queue q with the messages 1 to 5."""
    client.declares("q")
    for body in (b"1", b"2", b"3", b"4", b"5"):
        client.publishes("q", body)
    return client


class TestAcknowledging:
    def test_tags_are_shared_by_consumers_and_gets_and_count_from_1(self, filled: Client) -> None:
        filled.gets("q")
        filled.consumes("q", "a", no_ack=True)
        tags = [delivery.method.delivery_tag for delivery in filled.receives_deliveries()]
        assert tags == [2, 3, 4, 5]

    @pytest.mark.parametrize(
        ("tag", "multiple"), [(0, False), (1, False), (3, False), (3, True), (6, True)]
    )
    def test_a_tag_that_is_not_outstanding_closes_the_channel(
        self, filled: Client, tag: int, multiple: bool
    ) -> None:
        for _ in range(2):
            filled.gets("q")
        filled.acks(1)
        filled.acks(tag, multiple=multiple)
        assert f"unknown delivery tag {tag}" in filled.receives_close(406).reply_text

    def test_tag_0_with_multiple_means_all_and_none_is_fine(self, filled: Client) -> None:
        filled.acks(0, multiple=True)
        filled.consumes("q")
        assert len(filled.receives_deliveries()) == 5
        filled.acks(0, multiple=True)
        filled.receives_nothing()
        assert filled.broker.queue("q").unacked == 0

    def test_multiple_takes_all_up_to_the_tag(self, filled: Client) -> None:
        filled.consumes("q")
        filled.receives_deliveries()
        filled.acks(2)
        filled.acks(4, multiple=True)
        assert list(filled.connection.channels[1].unacked) == [5]

    def test_nacked_messages_go_back_to_their_places(self, filled: Client) -> None:
        for _ in range(3):
            filled.gets("q")
        filled.nacks(2)
        filled.nacks(1)
        got = [filled.gets("q", no_ack=True) for _ in range(4)]
        seen = [(content.body, content.method.redelivered) for content in got if content]
        assert seen == [(b"1", True), (b"2", True), (b"4", False), (b"5", False)]

    def test_recover_puts_everything_back(self, filled: Client) -> None:
        for _ in range(3):
            filled.gets("q")
        filled.sends(commands.Basic.Recover, requeue=True)
        filled.receives(commands.Basic.RecoverOk)
        assert filled.counts("q") == (5, 0)
        filled.acks(1)
        filled.receives_close(406)

    def test_closing_a_channel_that_got_thousands_takes_no_time(self, client: Client) -> None:
        """Each basic.get has a holder of its own; they are told apart in one pass."""
        client.declares("q")
        count = 20_000
        for _ in range(count):
            client.publishes("q")
        for _ in range(count):
            client.sends(commands.Basic.Get, queue="q")
        client.frames()
        started = time.process_time()
        client.sends(commands.Channel.Close)
        assert time.process_time() - started < 2
        client.receives(commands.Channel.CloseOk)
        assert len(client.broker.queue("q")) == count


class TestPrefetch:
    def test_a_consumer_holds_no_more_than_its_prefetch(self, filled: Client) -> None:
        filled.sets_prefetch(2)
        filled.consumes("q")
        assert filled.receives_bodies() == [b"1", b"2"]
        filled.acks(1)
        assert filled.receives_bodies() == [b"3"]
        filled.acks(3, multiple=True)
        assert filled.receives_bodies() == [b"4", b"5"]

    def test_a_new_prefetch_is_for_new_consumers(self, filled: Client) -> None:
        filled.sets_prefetch(1)
        filled.consumes("q", "a")
        filled.receives_content()
        filled.sets_prefetch(3)
        filled.acks(1)
        assert filled.receives_bodies() == [b"2"]

    def test_consumers_share_the_limit_of_the_channel(self, filled: Client) -> None:
        filled.sets_prefetch(3, whole_channel=True)
        filled.consumes("q", "a")
        filled.receives_deliveries()
        filled.consumes("q", "b")
        filled.receives_nothing()
        filled.acks(1)
        assert len(filled.receives_deliveries()) == 1
        filled.sets_prefetch(0, whole_channel=True)
        assert len(filled.receives_deliveries()) == 1

    def test_what_is_requeued_comes_before_what_is_behind_it(self, filled: Client) -> None:
        """RabbitMQ delivers the next one before it now and then."""
        filled.sets_prefetch(1, whole_channel=True)
        filled.consumes("q")
        assert filled.receives_bodies() == [b"1"]
        filled.nacks(1)
        again = filled.receives_content()
        assert (again.body, again.method.redelivered) == (b"1", True)
        filled.acks(2)
        assert filled.receives_bodies() == [b"2"]

    def test_a_prefetch_for_consumers_ends_the_limit_of_the_channel(self, filled: Client) -> None:
        filled.sets_prefetch(1, whole_channel=True)
        filled.consumes("q")
        filled.receives_content()
        filled.sets_prefetch(7)
        assert len(filled.receives_deliveries()) == 4

    def test_a_get_is_not_limited_and_messages_got_do_not_stop_the_broker(
        self, broker: Broker
    ) -> None:
        client, other = broker.connects(), broker.connects()
        for each in (client, other):
            each.opens_channel(1)
            each.declares("q")
        for name in ("q", "q", "got"):
            client.declares(name)
            client.publishes(name)
        other.gets("q")
        other.gets("q")
        client.sets_prefetch(1, whole_channel=True)
        client.consumes("q")
        assert client.gets("got") is not None
        other.nacks(2, multiple=True)
        broker.settle()
        assert len(client.receives_deliveries()) <= 1


class TestConsumers:
    def test_they_take_turns(self, client: Client) -> None:
        client.declares("q")
        for tag in ("a", "b", "c"):
            client.consumes("q", tag, no_ack=True)
        for _ in range(6):
            client.publishes("q")
        tags = [delivery.method.consumer_tag for delivery in client.receives_deliveries()]
        assert tags == ["a", "b", "c"] * 2

    def test_the_highest_priority_with_room_is_served(self, client: Client) -> None:
        client.declares("q")
        client.consumes("q", "low")
        client.sets_prefetch(1)
        client.consumes("q", "high", arguments={"x-priority": long(5)})
        for _ in range(3):
            client.publishes("q")
        tags = [delivery.method.consumer_tag for delivery in client.receives_deliveries()]
        assert tags == ["high", "low", "low"]

    def test_cancelled_consumers_keep_what_they_hold(self, filled: Client) -> None:
        filled.sets_prefetch(2)
        filled.consumes("q")
        filled.receives_deliveries()
        filled.sends(commands.Basic.Cancel, consumer_tag="c")
        assert filled.receives(commands.Basic.CancelOk).consumer_tag == "c"
        filled.acks(1)
        filled.receives_nothing()
        assert filled.broker.queue("q").unacked == 1

    def test_consumers_of_a_deleted_queue_are_told_after_delete_ok(self, client: Client) -> None:
        client.declares("q")
        client.consumes("q")
        client.sends(commands.Queue.Delete, queue="q")
        client.receives(commands.Queue.DeleteOk)
        cancel = client.receives(commands.Basic.Cancel)
        assert (cancel.consumer_tag, cancel.nowait) == ("c", True)
        client.declares("q")
        client.consumes("q")

    def test_a_client_that_does_not_know_of_cancels_is_not_told(self, broker: Broker) -> None:
        client = broker.connects(capabilities=())
        client.opens_channel(1)
        client.declares("q")
        client.consumes("q")
        client.sends(commands.Queue.Delete, queue="q")
        client.receives(commands.Queue.DeleteOk)
        client.receives_nothing()

    def test_a_single_active_consumer_is_followed_by_the_next(self, client: Client) -> None:
        client.declares("q", arguments={"x-single-active-consumer": Field("t", True)})
        client.consumes("q", "first")
        client.consumes("q", "second")
        for _ in range(2):
            client.publishes("q")
        tags = [delivery.method.consumer_tag for delivery in client.receives_deliveries()]
        assert tags == ["first", "first"]
        client.publishes("q", b"held")
        client.receives_content()
        client.sends(commands.Basic.Cancel, consumer_tag="first")
        client.receives(commands.Basic.CancelOk)
        client.publishes("q", b"new")
        assert client.receives_content().method.consumer_tag == "second"

    def test_a_message_that_expired_behind_another_is_not_delivered(self, client: Client) -> None:
        client.declares("q")
        client.publishes("q", b"lasting")
        client.publishes("q", b"brief", expiration="10")
        client.broker.advance(1)
        client.consumes("q")
        assert client.receives_bodies() == [b"lasting"]

    def test_many_messages_are_handed_over_in_slices(self, client: Client) -> None:
        client.declares("q")
        for _ in range(2000):
            client.publishes("q")
        client.sends(commands.Basic.Consume, queue="q", consumer_tag="c", no_ack=True)
        assert 0 < len(client.broker.queue("q")) < 2000
        client.receives(commands.Basic.ConsumeOk)
        assert len(client.receives_deliveries()) == 2000


class TestReplies:
    def test_a_reply_comes_without_a_queue(self, broker: Broker) -> None:
        asker, answerer = broker.connects(), broker.connects()
        for each in (asker, answerer):
            each.opens_channel(1)
        asker.consumes("amq.rabbitmq.reply-to", no_ack=True)
        answerer.declares("q")
        asker.publishes("q", b"?", reply_to="amq.rabbitmq.reply-to")
        asked = answerer.gets("q", no_ack=True)
        assert asked is not None
        at = asked.header.index(b"amq.rabbitmq.reply-to.")
        address = asked.header[at : at + asked.header[at - 1]].decode()
        answerer.publishes(address, b"!")
        reply = asker.receives_content()
        assert (reply.body, reply.method.exchange, reply.method.delivery_tag) == (b"!", "", 1)
        asker.vanishes()
        answerer.sends(commands.Queue.Declare, queue=address, passive=True)
        answerer.receives_close(404)

    def test_without_a_consumer_of_replies_a_request_is_refused(self, client: Client) -> None:
        client.publishes("q", reply_to="amq.rabbitmq.reply-to")
        assert "fast reply consumer does not exist" in client.receives_close(406).reply_text


class TestDeadLetters:
    def test_a_dead_letter_key_longer_than_a_routing_key_is_cut(self, client: Client) -> None:
        client.declares("graves")
        client.sends(commands.Queue.Bind, queue="graves", exchange="amq.fanout")
        client.receives(commands.Queue.BindOk)
        arguments = {
            "x-dead-letter-exchange": longstr("amq.fanout"),
            "x-dead-letter-routing-key": longstr("k" * 300),
            "x-max-length": long(0),
        }
        client.declares("q", arguments=arguments)
        client.consumes("graves", no_ack=True)
        client.publishes("q")
        assert client.receives_content().method.routing_key == "k" * 255


class TestTracing:
    @pytest.fixture
    def traced(self, client: Client) -> Client:
        client.declares("trace")
        client.sends(
            commands.Queue.Bind, queue="trace", exchange="amq.rabbitmq.trace", routing_key="#"
        )
        client.receives(commands.Queue.BindOk)
        client.consumes("trace", no_ack=True)
        client.declares("q")
        client.broker.node.trace("/", True)
        return client

    def test_headers_that_are_no_table_are_traced_as_none(self, traced: Client) -> None:
        traced.sends(commands.Basic.Publish, routing_key="q")
        header = b"\0\x3c\0\0" + (1).to_bytes(8, "big") + b"\x20\0" + b"\0\0\0\3abc"
        traced.sends_octets(Frame(2, 1, header).octets + Frame(3, 1, b"x").octets)
        copy = traced.receives_content()
        assert copy.headers["properties"].value["headers"] == Field("F", {})

    def test_headers_of_any_depth_are_traced(self, traced: Client) -> None:
        table = {"deepest": long(1)}
        for _ in range(127):
            table = {"t": Field("F", table)}
        traced.publishes("q", headers=table)
        assert traced.receives_content().method.routing_key == "publish."

    def test_a_key_longer_than_a_routing_key_is_cut(self, traced: Client) -> None:
        name = "é" * 127
        traced.sends(commands.Exchange.Declare, exchange=name, exchange_type="fanout")
        traced.receives(commands.Exchange.DeclareOk)
        traced.publishes("q", exchange=name)
        key = traced.receives_content().method.routing_key
        assert len(key.encode()) <= 255 and key.startswith("publish.é")
