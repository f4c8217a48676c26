"""Passwords are guessed no faster over AMQP than over HTTP, and others get in meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pika
import pytest
from api_client import EVERYTHING, ApiClient
from pika.exceptions import AMQPConnectionError

from warren import Broker
from warren.core.access.login_throttle import FORGIVEN_S, OF_NAME_MAX


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http_port=0) as broker:
        yield broker


def gets_in(broker: Broker, user: str, password: str) -> bool:
    parameters = pika.ConnectionParameters(
        broker.host, broker.port, credentials=pika.PlainCredentials(user, password)
    )
    try:
        pika.BlockingConnection(parameters).close()
    except AMQPConnectionError as error:
        assert "403" in str(error) and "PLAIN" in str(error)
        return False
    return True


def test_passwords_are_guessed_no_faster_over_amqp(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    api = ApiClient(broker)
    api.put("/users/ann", {"password": "secret", "tags": "management"})
    api.put("/permissions/%2F/ann", EVERYTHING)
    with caplog.at_level(logging.INFO, "warren.connection"):
        began = time.monotonic()
        for _ in range(OF_NAME_MAX + 20):
            assert not gets_in(broker, "guest", "wrong")
        forgiven = (time.monotonic() - began) / FORGIVEN_S
    lines = [record.getMessage().split()[0] for record in caplog.records]
    assert lines.count("login_refused") <= OF_NAME_MAX + forgiven + 1
    if forgiven < 10:
        assert lines.count("logins_throttled") == 1
        assert not gets_in(broker, "guest", "guest")
    assert gets_in(broker, "ann", "secret")
    status, rows = ApiClient(broker, "ann", "secret").get("/whoami")
    assert (status, rows["name"]) == (200, "ann")
