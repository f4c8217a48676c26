"""The lives of messages that are published, delivered and acknowledged many at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipe import Broker, Client, publish_frames

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.properties import encode_properties, identity, property_bytes
from warren.core.field import longstr
from warren.core.tracing.trace_store import Life
from warren.core.tracing.tracer import BURST

COUNT = 700
"""More than are gathered, and fewer than are followed at once."""


def record(broker: Broker, **rule: Any) -> None:
    broker.node.parameters.set("trace", "/", "r", rule)


def lives(broker: Broker, count: int) -> dict[str, list[str]]:
    """The events of messages m0, m1, ..., those of one life in order."""
    broker.node.tracer.hand_over()
    found: dict[str, list[str]] = defaultdict(list)

    def take(life: Life) -> None:
        for one in life.records:
            found[one.id].append(one.event.value)

    for number in range(count):
        broker.node.tracer.store.find("/", f"m{number}", take)
    return found


def burst(client: Client, count: int, first: int = 0) -> None:
    """Publishes that arrive together."""
    octets = [
        publish_frames(1, "", "q", b"x", correlation_id=f"m{number}")
        for number in range(first, first + count)
    ]
    client.sends_octets(b"".join(octets))
    client.broker.settle()


@pytest.mark.parametrize("rule", [{}, {"filter": "size = 1"}])
@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("prefetch", [0, 50])
def test_every_message_of_a_burst_has_its_whole_life(
    broker: Broker, client: Client, rule: dict[str, Any], no_ack: bool, prefetch: int
) -> None:
    record(broker, **rule)
    client.declares("q")
    consumer = broker.connects()
    consumer.opens_channel(1)
    if prefetch:
        consumer.sets_prefetch(prefetch)
    consumer.consumes("q", no_ack=no_ack)
    burst(client, COUNT)
    acked = 0
    while not no_ack and acked < COUNT:
        acked = min(acked + (prefetch or COUNT), COUNT)
        consumer.acks(acked, multiple=True)
        broker.settle()
    wanted = ["published", "delivered"] + ["acknowledged"] * (not no_ack)
    found = lives(broker, COUNT)
    assert len(found) == COUNT
    assert all(events == wanted for events in found.values())


def test_backlog_is_followed_too(broker: Broker, client: Client) -> None:
    record(broker)
    client.declares("q")
    burst(client, COUNT)
    consumer = broker.connects()
    consumer.opens_channel(1)
    consumer.consumes("q")
    broker.settle()
    found = lives(broker, COUNT)
    assert all(events == ["published", "delivered"] for events in found.values())


def test_share_of_a_burst_is_the_same_however_it_comes(broker: Broker, client: Client) -> None:
    record(broker, **{"one-in": 10})
    client.declares("q")
    burst(client, COUNT)
    together = set(broker.node.tracer.followed("/", COUNT))
    one_by_one = Broker()
    record(one_by_one, **{"one-in": 10})
    other = one_by_one.connects()
    other.opens_channel(1)
    other.declares("q")
    for number in range(COUNT):
        burst(other, 1, number)
    assert together == set(one_by_one.node.tracer.followed("/", COUNT))
    assert COUNT / 20 < len(together) < COUNT / 5


def test_more_than_may_be_followed_are_passed_over_whole(broker: Broker, client: Client) -> None:
    record(broker)
    client.declares("q")
    sent = int(BURST) + 500
    burst(client, sent)
    assert broker.node.tracer.counts.followed == BURST
    assert broker.node.tracer.counts.passed_over == 500
    assert list(lives(broker, sent).values()) == [["published"]] * int(BURST)
    broker.advance(1)
    burst(client, 100, sent)
    assert broker.node.tracer.counts.followed == BURST + 100


def test_key_that_is_not_utf_8_is_recorded_as_text(broker: Broker, client: Client) -> None:
    record(broker)
    key = b"\xff".decode("utf-8", "surrogateescape")
    client.sends_octets(publish_frames(1, "amq.fanout", key, b"x", correlation_id="m0"))
    broker.settle()
    broker.node.tracer.hand_over()
    found: list[Life] = []
    broker.node.tracer.store.find("/", "m0", found.append)
    assert {one.routing_key for one in found[0].records} == {"Not UTF-8, base64 is: /w=="}


def test_publish_that_no_rule_selects_is_not_looked_at(broker: Broker, client: Client) -> None:
    """Messages without a name are counted where somebody looks."""
    record(broker, queue="^other$")
    client.declares("q")
    client.sends_octets(publish_frames(1, "", "q", b"x") * 100)
    broker.settle()
    assert broker.node.tracer.counts.nameless == 0
    record(broker)
    client.sends_octets(publish_frames(1, "", "q", b"x") * 100)
    broker.settle()
    assert broker.node.tracer.counts.nameless == 100


def test_burst_with_a_costly_filter_takes_many_turns(broker: Broker, client: Client) -> None:
    record(broker, filter="json.a = 1")
    client.declares("q")
    body = b'{"a": [' + b"1," * 60_000 + b"1]}"
    octets = publish_frames(1, "", "q", body, correlation_id="m0") * 20
    client.sends_octets(octets)
    assert len(broker.queue("q")) < 10
    broker.settle()
    assert len(broker.queue("q")) == 20


NAMES = st.one_of(st.none(), st.text(max_size=20))


@given(
    NAMES,
    NAMES,
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": st.just("text/plain"),
            "content_encoding": st.just("utf-8"),
            "delivery_mode": st.just(2),
            "priority": st.just(3),
            "reply_to": st.just("q"),
            "expiration": st.just("100"),
            "timestamp": st.just(7),
        },
    ),
    st.booleans(),
)
def test_name_is_found_among_all_properties(
    message_id: str | None, correlation_id: str | None, others: dict[str, Any], headers: bool
) -> None:
    ids = {"message_id": message_id, "correlation_id": correlation_id}
    values = others | {name: value for name, value in ids.items() if value is not None}
    table = {"traceparent": longstr("t")} if headers else None
    header = encode_properties(4, values, table)
    found = property_bytes(header, "message_id") or property_bytes(header, "correlation_id")
    assert identity(header) == (found or None)
    name = AmqpContentCodec().message_name(header)
    assert name == (found.decode() if found else "t" if headers else None)
    for cut in range(14, len(header)):
        # Whatever a client sends, nothing is raised.
        identity(header[:cut])
