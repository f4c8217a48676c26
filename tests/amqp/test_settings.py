"""What a node is configured to offer reaches its peers."""

from __future__ import annotations

import pytest
from pipe import Broker

from warren.amqp.sasl import Challenge, Credentials, Dialogue, SyntaxFault, offered


def test_consumers_have_the_prefetch_that_is_configured() -> None:
    client = Broker(default_prefetch=2).connects()
    client.opens_channel(1)
    client.declares("q")
    for body in (b"1", b"2", b"3"):
        client.publishes("q", body)
    client.consumes("q")
    assert client.receives_bodies() == [b"1", b"2"]


def test_the_demonstration_mechanism_asks_for_the_password() -> None:
    exchange = Dialogue("RABBIT-CR-DEMO")
    assert isinstance(exchange.respond(b"guest", None), Challenge)
    assert exchange.respond(b"My password is secret", None) == Credentials("guest", "secret")


def test_another_answer_to_the_challenge_is_no_answer() -> None:
    exchange = Dialogue("RABBIT-CR-DEMO")
    exchange.respond(b"guest", None)
    with pytest.raises(SyntaxFault):
        exchange.respond(b"secret", None)


def test_certificates_are_asked_for_on_tls_alone() -> None:
    mechanisms = ("PLAIN", "EXTERNAL")
    assert offered(mechanisms, tls=False) == ("PLAIN",)
    assert offered(mechanisms, tls=True) == mechanisms
