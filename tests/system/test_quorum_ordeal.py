"""A quorum queue under load whose node is killed again and again: nothing confirmed is lost, and
no message has more returns to its name than it had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import Silence, SocketClosed

COUNT = "x-delivery-count"
ROUNDS = 4
PUBLISHED_AT_ONCE = 50


class Ledger:
    """What the clients did, and what they were told."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.published = 0
        self.confirmed: set[int] = set()
        self.acked: set[int] = set()
        self.returns: Counter[int] = Counter()
        self.first_of_channel = 0

    def publish(self, channel: RawChannel) -> None:
        for _ in range(PUBLISHED_AT_ONCE):
            mode = self.random.choice(({}, {"delivery_mode": 1}, {"delivery_mode": 2}))
            size = self.random.choice((0, 100, 5000))
            channel.publish(b"%d " % self.published + bytes(size), "q", **mode)
            self.published += 1

    def settle(self, channel: RawChannel) -> None:
        """Acknowledge some of what is delivered, and return the rest."""
        while True:
            try:
                message = channel.next_method(0.02)
            except Silence:
                return
            assert message.name == "basic.deliver"
            self.look_at(message.body, message.headers)
            number = number_of(message.body)
            if self.random.random() < 0.5:
                channel.ack(message["delivery_tag"])
                self.acked.add(number)
            else:
                self.returns[number] += 1
                channel.nack(message["delivery_tag"])

    def hear(self, channel: RawChannel) -> None:
        for verdict, seq in channel.confirms(PUBLISHED_AT_ONCE):
            assert verdict == "ack"
            self.confirmed.add(self.first_of_channel + seq - 1)

    def look_at(self, body: bytes, headers: dict[str, Any]) -> None:
        number = number_of(body)
        assert number < self.published
        assert headers.get(COUNT, 0) <= self.returns[number], number

    def audit(self, found: Counter[int]) -> None:
        assert max(found.values(), default=1) == 1
        assert found.keys() <= set(range(self.published))
        missing = self.confirmed - self.acked - found.keys()
        assert not missing, sorted(missing)[:10]


def number_of(body: bytes) -> int:
    return int(body.split(b" ")[0])


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_under_load_it_keeps_what_it_has_confirmed(
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    tmp_path: Path,
    seed: int,
) -> None:
    ledger = Ledger(Random(seed))
    limit = {"x-delivery-limit": 1000} if seed % 2 else {}
    for _ in range(ROUNDS):
        server = start_server(data_dir=tmp_path / "data")
        client = connect(server)
        publisher, consumer = client.channel(), client.channel()
        publisher.declare("q", durable=True, arguments={"x-queue-type": "quorum", **limit})
        publisher.call("confirm.select")
        consumer.call("basic.qos", prefetch_count=20)
        consumer.consume("q")
        ledger.first_of_channel = ledger.published
        steps = ledger.random.randrange(2, 8)
        try:
            for _ in range(steps):
                ledger.publish(publisher)
                ledger.hear(publisher)
                ledger.settle(consumer)
            # The last ones may be anywhere.
            ledger.publish(publisher)
        except SocketClosed:
            pytest.fail("the node ended by itself")
        server.kill()

    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    found: Counter[int] = Counter()
    while (message := channel.get("q")) is not None:
        ledger.look_at(message.body, message.headers)
        found[number_of(message.body)] += 1
    ledger.audit(found)
    assert ledger.returns and ledger.acked
