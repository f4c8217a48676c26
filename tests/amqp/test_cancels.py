"""basic.cancel from the broker: when a queue goes, and to whom (amqp_semantics.md section 4.1)."""

from __future__ import annotations

from pamqp import commands
from pipe import Client, method_frame


def test_the_one_who_deletes_gets_the_reply_first(client: Client) -> None:
    client.declares("q")
    client.consumes("q")
    client.sends(commands.Queue.Delete, queue="q")
    client.receives(commands.Queue.DeleteOk)
    assert client.receives(commands.Basic.Cancel).consumer_tag == "c"


def test_a_cancel_does_not_hit_the_next_consumer_of_the_tag(client: Client) -> None:
    client.declares("q")
    client.consumes("q")
    client.sends_octets(
        method_frame(1, commands.Queue.Delete, queue="q")
        + method_frame(1, commands.Queue.Declare, queue="q")
        + method_frame(1, commands.Basic.Consume, queue="q", consumer_tag="c")
    )
    for kind in (
        commands.Queue.DeleteOk,
        commands.Basic.Cancel,
        commands.Queue.DeclareOk,
        commands.Basic.ConsumeOk,
    ):
        client.receives(kind)
    client.receives_nothing()


def test_closes_that_cross_are_both_answered(client: Client) -> None:
    """The client closes before it reads our close, and then answers ours."""
    client.sends(commands.Queue.Declare, queue="missing", passive=True)
    client.sends(commands.Channel.Close, reply_code=200, reply_text="bye", class_id=0, method_id=0)
    client.receives(commands.Channel.Close)
    client.receives(commands.Channel.CloseOk)
    client.sends(commands.Channel.CloseOk)
    client.opens_channel(1)
    client.sends(commands.Channel.CloseOk, 9)
    client.receives_connection_close(504)
