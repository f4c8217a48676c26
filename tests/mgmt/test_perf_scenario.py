"""URLs, options and shares of workers make a scenario, or are refused."""

from __future__ import annotations

from typing import Any

import pytest

from warren.core.field import Field, long, longstr
from warren.mgmt.perf.scenario import (
    PerfTarget,
    Scenario,
    ScenarioError,
    parse_pairs,
    parse_sizes,
    parse_url,
)


def scenario(**options: Any) -> Scenario:
    return Scenario(address=PerfTarget(), queue="q", **options)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("amqp://guest:guest@localhost:5672/%2F", PerfTarget()),
        ("amqp://localhost", PerfTarget()),
        ("amqp://localhost/", PerfTarget()),
        ("amqp://ann:s%40fe@broker:1234/shop", PerfTarget("broker", 1234, "ann", "s@fe", "shop")),
        ("amqp://broker/a%2Fb", PerfTarget("broker", vhost="a/b")),
        ("amqps://broker", PerfTarget("broker", 5671, tls=True)),
        ("amqp://[::1]:5673", PerfTarget("::1", 5673)),
    ],
)
def test_a_url_is_an_address_with_rabbitmqs_defaults(url: str, address: PerfTarget) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url", ["http://localhost", "localhost:5672", "amqp://h:port", "amqp://h/a/b"]
)
def test_what_is_no_amqp_url_is_refused(url: str) -> None:
    with pytest.raises(ScenarioError):
        parse_url(url)


@pytest.mark.parametrize("url", ["http://ann:secret@host", "amqp://ann:secret@host:port"])
def test_no_error_text_shows_a_password(url: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_url(url)
    assert "ann" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(parse_url("amqp://ann:secret@host"))


def test_pairs_are_typed_by_their_looks() -> None:
    assert parse_pairs(["x-max-length=10", "x-queue-mode=lazy", "flag=true", "note=a=b"]) == {
        "x-max-length": long(10),
        "x-queue-mode": longstr("lazy"),
        "flag": Field("t", True),
        "note": longstr("a=b"),
    }


@pytest.mark.parametrize("pair", ["x-max-length", "=1", f"n={2**63}"])
def test_what_is_no_pair_is_refused(pair: str) -> None:
    with pytest.raises(ScenarioError):
        parse_pairs([pair])


def test_sizes_are_one_or_several() -> None:
    assert parse_sizes("100") == (100,)
    assert parse_sizes("0,12,5000") == (0, 12, 5000)
    for text in ("", "1,", "1k", "-1"):
        with pytest.raises(ScenarioError):
            parse_sizes(text)


@pytest.mark.parametrize(
    "options",
    [
        {"producers": 0, "consumers": 0},
        {"auto_ack": True, "prefetch": 10},
        {"auto_ack": True, "requeue_every": 10},
        {"requeue_every": 1},
        {"prefetch": 10, "ack_every": 11},
        {"exchange_type": "topic"},
        {"binding_key": "#"},
        {"producers": 0, "consume_after_publishing": True},
        {"consume_after_publishing": True},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        scenario(**options)


@pytest.mark.parametrize(("producers", "queues"), [(1, 1), (1, 5), (2, 5), (5, 2), (4, 4)])
def test_every_producer_has_a_queue_and_every_queue_a_producer(producers: int, queues: int) -> None:
    run = scenario(producers=producers, consumers=producers, queues=queues)
    keys = [run.routing_keys(number) for number in range(producers)]
    assert all(keys)
    assert {key for some in keys for key in some} == set(run.queue_names)
    assert [run.consumer_queues(number) for number in range(producers)] == keys


def test_several_queues_are_numbered_and_one_is_not() -> None:
    assert scenario().queue_names == ["q"]
    assert scenario(queues=3).queue_names == ["q-1", "q-2", "q-3"]


def test_a_routing_key_replaces_the_queue_names_and_binds_unless_told_otherwise() -> None:
    run = scenario(queues=2, exchange="x", routing_key="a.b")
    assert run.routing_keys(0) == ["a.b"]
    assert run.binding_key_of("q-1") == "a.b"
    assert scenario(exchange="x", binding_key="a.*").binding_key_of("q") == "a.*"
    assert scenario(exchange="x").binding_key_of("q") == "q"


def test_the_messages_are_dealt_to_the_connections_without_loss() -> None:
    run = scenario(producers=3, producer_connections=2, messages=100)
    shares = [run.messages_of(connection) for connection in range(6)]
    assert shares == [17, 17, 17, 17, 16, 16]
    assert scenario().messages_of(0) is None
