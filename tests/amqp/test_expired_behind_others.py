"""Expired messages behind others that have not: a consumer that takes many at once gets none."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pipe import Broker, Client

from warren.core.field import Field, long, longstr


def filled(arguments: dict[str, Field]) -> tuple[Broker, Client]:
    """A queue `q` with ten messages, the odd ones of which have expired behind the even ones."""
    broker = Broker()
    client = broker.connects()
    client.opens_channel(1)
    client.declares("q", durable=True, arguments=arguments)
    for number in range(10):
        more: dict[str, Any] = {"expiration": "100"} if number % 2 else {}
        client.publishes("q", b"%d" % number, **more)
    broker.advance(1)
    return broker, client


TYPES = pytest.mark.parametrize("kind", ["classic", "quorum"])


@TYPES
def test_a_consumer_gets_those_that_have_not_expired(kind: str) -> None:
    broker, client = filled({"x-queue-type": longstr(kind)})
    client.sets_prefetch(4)
    client.consumes("q")
    assert client.receives_bodies() == [b"0", b"2", b"4", b"6"]
    assert len(broker.queue("q")) == 2
    client.acks(1)
    assert client.receives_bodies() == [b"8"]
    assert len(broker.queue("q")) == 0
    assert broker.queue("q").ways_out.expired == 5


@TYPES
def test_they_are_dead_lettered_in_order(kind: str) -> None:
    dead = {"x-dead-letter-exchange": longstr(""), "x-dead-letter-routing-key": longstr("dead")}
    broker, client = filled({"x-queue-type": longstr(kind), **dead})
    client.declares("dead", durable=True)
    client.consumes("dead", "dead")
    client.consumes("q")
    broker.advance(1)
    bodies = client.receives_bodies()
    assert [body for body in bodies if int(body) % 2 == 0] == [b"0", b"2", b"4", b"6", b"8"]
    assert [body for body in bodies if int(body) % 2] == [b"1", b"3", b"5", b"7", b"9"]


def test_a_message_that_was_returned_before_can_expire() -> None:
    broker = Broker()
    client = broker.connects()
    client.opens_channel(1)
    arguments = {"x-queue-type": longstr("quorum"), "x-delivery-limit": long(5)}
    client.declares("q", durable=True, arguments=arguments)
    client.publishes("q", b"first")
    client.publishes("q", b"late", expiration="100")
    for _ in range(2):
        got = client.gets("q")
        assert got is not None
    for tag in (1, 2):
        client.sends(commands.Basic.Reject, delivery_tag=tag, requeue=True)
    broker.advance(1)
    client.consumes("q")
    assert client.receives_bodies() == [b"first"]
    assert broker.queue("q").ways_out.expired == 1
