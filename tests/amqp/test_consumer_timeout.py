"""A message held too long closes its channel (amqp_semantics.md section 5.4)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from manual_clock import ManualClock
from pipe import Broker, Client

from warren.amqp.delivery_timeout import NOTES_MAX, DeliveryTimeout
from warren.core.errors import PreconditionFailed
from warren.core.messages.message import Envelope, Message


@pytest.fixture
def client() -> Client:
    client = Broker(consumer_timeout_s=600.0).connects()
    client.opens_channel(1)
    client.declares("q")
    client.publishes("q", b"held")
    return client


def test_a_message_held_too_long_closes_the_channel_and_goes_back(client: Client) -> None:
    client.consumes("q")
    client.receives_content()
    client.broker.advance(600)
    client.receives_nothing()
    client.broker.advance(120)
    close = client.receives_close(406)
    assert close.reply_text.startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
        "Timeout value used: 600000 ms."
    )
    assert (close.class_id, close.method_id) == (0, 0)
    client.opens_channel(1)
    assert client.counts("q") == (1, 0)


def test_a_message_that_was_got_counts_too(client: Client) -> None:
    client.gets("q")
    client.broker.advance(720)
    client.receives_close(406)


def test_a_consumer_that_acknowledges_in_time_is_left_alone(client: Client) -> None:
    client.consumes("q")
    client.receives_content()
    for tag in range(1, 10):
        client.broker.advance(500)
        client.acks(tag)
        client.publishes("q")
        client.receives_content()
    client.receives_nothing()


def test_a_consumer_with_nothing_to_do_is_left_alone(client: Client) -> None:
    client.consumes("q")
    client.receives_content()
    client.acks(1)
    client.broker.advance(100_000)
    client.receives_nothing()


def test_only_the_oldest_message_counts(client: Client) -> None:
    client.consumes("q")
    client.receives_content()
    client.broker.advance(500)
    client.publishes("q")
    client.receives_content()
    client.acks(1)
    client.broker.advance(300)
    client.receives_nothing()
    client.broker.advance(420)
    client.receives_close(406)


def test_a_message_is_not_young_again_when_it_becomes_the_oldest(client: Client) -> None:
    client.publishes("q")
    client.consumes("q")
    client.receives_content()
    client.receives_content()
    client.broker.advance(590)
    client.acks(1)
    client.broker.advance(80)
    client.receives_close(406)


def test_without_a_timeout_messages_may_be_held_for_ever() -> None:
    client = Broker(consumer_timeout_s=None).connects()
    client.opens_channel(1)
    client.declares("q")
    client.publishes("q")
    client.gets("q")
    client.broker.advance(1e6)
    client.receives_nothing()


def test_a_channel_that_is_closed_leaves_no_timer(client: Client) -> None:
    client.consumes("q")
    client.vanishes()
    assert not client.broker.clock.timers


class Holding:
    """A channel whose client gets messages and acknowledges none."""

    number = 1

    def __init__(self) -> None:
        self.held: dict[int, Message] = {}

    @property
    def last_delivery_tag(self) -> int:
        return len(self.held)

    @property
    def unacked(self) -> Mapping[int, Message]:
        return self.held

    def gets(self) -> int:
        tag = len(self.held) + 1
        self.held[tag] = Message(Envelope("", "q", b"", False, 0, None), b"", tag)
        return tag

    def fails(self, error: PreconditionFailed) -> None:
        raise error


@pytest.mark.parametrize("timeout_s", [1e9, None])
def test_how_long_a_message_is_held_is_known_to_the_minute(timeout_s: float | None) -> None:
    clock, channel = ManualClock(), Holding()
    timeout = DeliveryTimeout(clock, timeout_s)
    first = channel.gets()
    timeout.watch(channel)
    clock.advance(600)
    second = channel.gets()
    clock.advance(600)
    assert 1140 <= timeout.held_for_s(first) <= 1200
    assert 540 <= timeout.held_for_s(second) <= 600


def test_notes_of_messages_that_are_held_for_ever_do_not_pile_up() -> None:
    clock, channel = ManualClock(), Holding()
    timeout = DeliveryTimeout(clock, None)
    first = channel.gets()
    timeout.watch(channel)
    tags = []
    for _ in range(10 * NOTES_MAX):
        clock.advance(60)
        tags.append(channel.gets())
    assert len(timeout._notes) <= NOTES_MAX
    age_s = 600 * NOTES_MAX
    assert age_s - 60 <= timeout.held_for_s(first) <= age_s
    ages = [timeout.held_for_s(tag) for tag in tags]
    assert ages == sorted(ages, reverse=True)
    assert all(age <= age_s - 60 * number for number, age in enumerate(ages, 1))
