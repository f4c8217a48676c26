"""A client finds the dead letters of messages that it has rejected, as soon as it asks."""

from __future__ import annotations

import pytest
from pamqp import commands
from pipe import Broker, Client, method_frame

from warren.core.field import longstr

DEAD_TO = {"x-dead-letter-exchange": longstr(""), "x-dead-letter-routing-key": longstr("graves")}


@pytest.fixture
def client() -> Client:
    """It has got four messages of a queue whose dead letters go to the queue `graves`."""
    client = Broker().connects()
    client.opens_channel(1)
    client.declares("graves")
    client.declares("q", arguments=DEAD_TO)
    for number in range(4):
        client.publishes("q", b"%d" % number)
    for _ in range(4):
        client.gets("q")
    return client


def verdict(tag: int) -> bytes:
    if tag % 2:
        return method_frame(1, commands.Basic.Reject, delivery_tag=tag, requeue=False)
    return method_frame(1, commands.Basic.Nack, delivery_tag=tag, multiple=False, requeue=False)


def test_a_get_right_behind_the_rejections_finds_them(client: Client) -> None:
    get = method_frame(1, commands.Basic.Get, queue="graves", no_ack=True)
    client.sends_octets(b"".join(verdict(tag) for tag in range(1, 5)) + 5 * get)
    got = [client.receives_content(commands.Basic.GetOk).body for _ in range(4)]
    assert got == [b"0", b"1", b"2", b"3"]
    client.receives(commands.Basic.GetEmpty)


def test_so_does_a_declaration_that_asks_how_many_there_are(client: Client) -> None:
    ask = method_frame(1, commands.Queue.Declare, queue="graves", passive=True)
    client.sends_octets(verdict(1) + ask + verdict(2) + verdict(3) + ask)
    counts = [client.receives(commands.Queue.DeclareOk).message_count for _ in range(2)]
    assert counts == [1, 3]
