"""Federated exchanges: bindings go up, and messages come down."""

from __future__ import annotations

import socket
from typing import Any

import pika
import pytest
from federating import Side, quoted
from moving import until

from warren import Broker
from warren.core.resources.alarms import Resource

HELPER = "federation: x -> two"


def federate(up: Side, down: Side, kind: str = "topic", **keys: Any) -> None:
    """Exchange x of `down` gets messages from x of `up`; q is bound with a.#."""
    down.exchange("x", kind)
    down.queue_bound("q", "x", "a.#")
    down.upstream("u", up.url, **keys)
    down.policy("^x$")
    down.until_links()


def test_exchange_queue_and_helper_are_made_upstream_and_messages_arrive(
    up: Side, down: Side
) -> None:
    federate(up, down, max_hops=2, expires=3_600_000, message_ttl=60_000)
    (row,) = down.links()
    assert (row["exchange"], row["upstream_exchange"]) == ("x", "x")
    assert (row["upstream"], row["type"], row["vhost"]) == ("u", "exchange", "/")
    assert "guest" not in row["uri"]
    assert up.api.get("/exchanges/%2F/x")[1]["type"] == "topic"
    queue = up.api.get(f"/queues/%2F/{quoted(HELPER)}")[1]
    assert queue["durable"]
    assert queue["arguments"] == {
        "x-expires": 3_600_000,
        "x-message-ttl": 60_000,
        "x-internal-purpose": "federation",
    }
    (helper,) = up.helpers()
    assert (helper["name"], helper["type"]) == (f"{HELPER} A", "x-federation-upstream")
    assert (helper["durable"], helper["internal"], helper["auto_delete"]) == (True, True, True)
    assert helper["arguments"] == {
        "x-max-hops": 2,
        "x-downstream-name": "two",
        "x-downstream-vhost": "/",
        "x-internal-purpose": "federation",
    }
    up.publish_to("x", "a.b", "hello", properties=pika.BasicProperties(user_id="guest"))
    up.publish_to("x", "b.b", "not wanted")
    ((method, properties, body),) = down.take("q", 1)
    assert (method.exchange, method.routing_key, body) == ("x", "a.b", b"hello")
    assert properties.user_id is None
    (entry,) = properties.headers["x-received-from"]
    uri = up.url.replace("guest:guest@", "")
    assert entry == {
        "uri": uri,
        "exchange": "x",
        "redelivered": False,
        "cluster-name": "one",
        "vhost": "/",
    }
    until(lambda: down.links()[0]["messages_received"] == 1)


def test_bindings_are_carried_as_they_come_and_go(up: Side, down: Side) -> None:
    federate(up, down)
    ((key, arguments),) = up.until_carried("x", "a.#")
    assert key == "a.#"
    assert arguments == {
        "x-bound-from": [
            {"cluster-name": "two", "vhost": "/", "exchange": "/:x A", "hops": 1},
        ]
    }
    # The same key and arguments, for another queue and for an exchange: one binding upstream.
    down.queue_bound("q2", "x", "a.#", "b")
    down.exchange("y", "fanout")
    down.channel.exchange_bind("y", "x", "a.#")
    up.until_carried("x", "a.#", "b")
    down.channel.queue_bind("q", "x", "a.#", {"k": "v"})
    up.until_carried("x", "a.#", "a.#", "b")
    down.channel.queue_unbind("q", "x", "a.#")
    down.channel.queue_unbind("q", "x", "a.#", {"k": "v"})
    down.channel.queue_delete("q2")
    up.until_carried("x", "a.#")
    down.channel.exchange_unbind("y", "x", "a.#")
    up.until_carried("x")


def test_types_of_arguments_are_carried(up: Side, down: Side) -> None:
    federate(up, down, "headers")
    down.channel.queue_bind("q", "x", "", {"n": 7, "t": "text", "x-match": "all"})
    up.until_carried("x", "", "a.#")
    up.publish_to("x", "", "no", properties=pika.BasicProperties(headers={"n": 8}))
    headers = pika.BasicProperties(headers={"n": 7, "t": "text"})
    up.publish_to("x", "", "yes", properties=headers)
    # The binding with a.# has no condition, so that it takes everything.
    assert down.bodies("q", 2) == ["no", "yes"]


def test_another_exchange_upstream(up: Side, down: Side) -> None:
    down.exchange("x")
    down.queue_bound("q", "x", "k")
    down.upstream("u", up.url, exchange="other")
    down.policy("^x$")
    down.until_links()
    up.publish_to("other", "k", "m")
    assert down.bodies("q", 1) == ["m"]
    assert "federation: other -> two:x" in up.queues()


def test_user_id_is_kept_where_the_upstream_is_trusted(up: Side, down: Side) -> None:
    federate(up, down, trust_user_id=True)
    up.broker.add_user("ann", "ann", ())
    up.publish_to("x", "a", "m", properties=pika.BasicProperties(user_id="guest"))
    ((_, properties, _),) = down.take("q", 1)
    assert properties.user_id == "guest"


def test_restart_makes_another_helper_and_loses_nothing(up: Side, down: Side) -> None:
    federate(up, down)
    (row,) = down.links()
    for name in (f"{HELPER} B", f"{HELPER} A"):
        path = f"/federation-links/vhost/%2F/{row['id']}/{quoted(row['node'])}/restart"
        assert down.api.delete(path)[0] == 204
        until(lambda: [helper["name"] for helper in up.helpers()] == [name])  # noqa: B023
        (again,) = down.until_links()
        assert again["id"] == row["id"]
        up.publish_to("x", "a", name)
        assert down.bodies("q", 1) == [name]
    assert down.api.delete("/federation-links/vhost/%2F/00000000/none/restart")[0] == 404


def test_end_of_the_federation_takes_queue_and_helper_away(up: Side, down: Side) -> None:
    federate(up, down)
    down.no_policy()
    until(lambda: not up.helpers() and HELPER not in up.queues())
    assert down.links() == []


def test_backlog_stays_when_the_federation_ends(up: Side, down: Side) -> None:
    # Nothing can be published downstream, so that messages stay upstream.
    down.broker.add_user("writeless", "writeless", ("administrator",))
    down.broker.set_permissions("writeless", "/", configure=".*", write="^$", read=".*")
    federate(up, down)
    down.api = type(down.api)(down.broker, "writeless")
    down.upstream("u", up.url)
    down.until_links()
    up.publish_to("x", "a.b", "kept")
    until(lambda: any("access to exchange 'x'" in row.get("error", "") for row in down.links()))
    down.no_policy()
    until(lambda: not up.helpers() and not down.links())
    assert up.bodies(HELPER, 1) == ["kept"]


def test_never_cleaned_up(up: Side, down: Side) -> None:
    federate(up, down, resource_cleanup_mode="never")
    down.no_policy()
    until(lambda: not down.links())
    assert [helper["name"] for helper in up.helpers()] == [f"{HELPER} A"]
    up.publish_to("x", "a", "waits")
    down.policy("^x$")
    down.until_links()
    assert down.bodies("q", 1) == ["waits"]


def test_deleted_helper_queue_or_connection_is_made_anew(up: Side, down: Side) -> None:
    federate(up, down)
    up.api.delete(f"/queues/%2F/{quoted(HELPER)}")
    until(lambda: HELPER in up.queues() and up.helpers())
    down.until_links()
    up.publish_to("x", "a", "m")
    assert down.bodies("q", 1) == ["m"]


@pytest.mark.parametrize("exchange", ["x", f"{HELPER} A"])
def test_deleted_exchange_upstream_is_made_anew(
    up: Side, down: Side, monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    monkeypatch.setattr("warren.federation.exchange_session.CHECK_S", 0.02)
    federate(up, down)
    up.channel.exchange_delete(exchange)
    up.until_carried("x", "a.#")
    down.until_links()
    up.publish_to("x", "a", "m")
    assert down.bodies("q", 1) == ["m"]


def test_two_brokers_that_federate_each_other_get_every_message_once(up: Side, down: Side) -> None:
    for here, there in ((up, down), (down, up)):
        here.exchange("x", "fanout")
        here.queue_bound("q", "x", "")
        here.upstream("u", there.url, max_hops=3)
        here.policy("^x$")
    for side in (up, down):
        side.until_links()
        side.until_carried("x", "")
    up.publish_to("x", "", "from up")
    down.publish_to("x", "", "from down")
    assert sorted(up.bodies("q", 2)) == ["from down", "from up"]
    assert sorted(down.bodies("q", 2)) == ["from down", "from up"]
    assert up.is_empty("q") and down.is_empty("q")


def ring(sides: list[Side], hops: int) -> None:
    """Each gets messages from the one before it."""
    for side in sides:
        side.exchange("x", "fanout")
        side.queue_bound("q", "x", "")
    for number, side in enumerate(sides):
        side.upstream("u", sides[number - 1].url, max_hops=hops)
        side.policy("^x$")
    for side in sides:
        side.until_links()


def test_ring_of_three_with_two_hops_reaches_all_once(sides: list[Side]) -> None:
    ring(sides, 2)
    for side in sides:
        # Its own, and that of the broker behind, which comes through.
        until(lambda: len(side.carried("x")) == 2)  # noqa: B023
    sides[0].publish_to("x", "", "m")
    for side in sides:
        assert side.bodies("q", 1) == ["m"]
    sides[0].publish_to("x", "", "last")
    for side in sides:
        assert side.bodies("q", 1) == ["last"]
        assert side.is_empty("q")


def test_ring_of_three_with_one_hop_reaches_the_next(sides: list[Side]) -> None:
    ring(sides, 1)
    for side in sides:
        until(lambda: len(side.carried("x")) == 1)  # noqa: B023
    sides[0].publish_to("x", "", "m")
    assert sides[0].bodies("q", 1) == ["m"]
    assert sides[1].bodies("q", 1) == ["m"]
    # What the third gets later, it gets from the second: so the first message did not get there.
    sides[1].publish_to("x", "", "n")
    assert sides[2].bodies("q", 1) == ["n"]
    assert sides[2].is_empty("q")


def test_upstream_that_does_not_know_helpers_gets_a_plain_one(
    up: Side, down: Side, monkeypatch: Any
) -> None:
    monkeypatch.setattr("warren.federation.exchange_session.HELPER_TYPE", "x-unheard-of")
    monkeypatch.setattr("warren.federation.link.HELPER_TYPE", "x-unheard-of")
    federate(up, down)
    assert [helper["type"] for helper in up.helpers()] == ["fanout"]
    been_here = [{"cluster-name": "two", "vhost": "/"}]
    properties = pika.BasicProperties(headers={"x-received-from": been_here})
    up.publish_to("x", "a", "was there", properties=properties)
    up.publish_to("x", "a", "new")
    assert down.bodies("q", 1) == ["new"]
    assert down.is_empty("q")


def test_helper_that_was_left_half_made_misses_nothing(up: Side, down: Side) -> None:
    federate(up, down, resource_cleanup_mode="never")
    down.no_policy()
    until(lambda: not down.links())
    # A session that ended between its two helpers has left both, and the queue with a message.
    arguments = up.helpers()[0]["arguments"]
    up.channel.exchange_declare(
        f"{HELPER} B", "x-federation-upstream", durable=True, internal=True, auto_delete=True,
        arguments=arguments,
    )  # fmt: skip
    up.channel.exchange_bind(f"{HELPER} B", "x", "stale.#")
    up.channel.queue_bind(HELPER, f"{HELPER} B", "")
    up.publish_to("x", "a", "waits")
    down.policy("^x$")
    down.until_links()
    until(lambda: [helper["name"] for helper in up.helpers()] == [f"{HELPER} B"])
    up.until_carried("x", "a.#")
    up.publish_to("x", "a", "comes")
    assert down.bodies("q", 2) == ["waits", "comes"]


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_every_way_to_acknowledge_empties_the_queue_upstream(
    up: Side, down: Side, mode: str
) -> None:
    federate(up, down, ack_mode=mode)
    up.publish_to("x", "a", *map(str, range(100)))
    assert down.bodies("q", 100) == list(map(str, range(100)))
    until(lambda: up.api.get(f"/queues/%2F/{quoted(HELPER)}")[1].get("messages") == 0)
    # Nothing comes back with the end of the link.
    down.no_policy()
    until(lambda: HELPER not in up.queues())


def test_queue_upstream_is_of_the_type_that_is_asked_for(up: Side, down: Side) -> None:
    federate(up, down, queue_type="quorum")
    assert up.api.get(f"/queues/%2F/{quoted(HELPER)}")[1]["type"] == "quorum"
    up.publish_to("x", "a", "m")
    assert down.bodies("q", 1) == ["m"]


def test_first_broker_of_a_list_that_answers_is_used(up: Side, down: Side) -> None:
    down.exchange("x")
    down.upstream("u", ["amqp://127.0.0.1:1", up.url])
    down.policy("^x$")
    (row,) = down.until_links()
    assert row["uri"] == up.url.replace("guest:guest@", "")


def test_messages_wait_upstream_while_an_alarm_blocks_publishers_here(up: Side, down: Side) -> None:
    federate(up, down)
    down.broker.call(lambda node: node.alarms.report(Resource.DISK, True))
    try:
        up.publish_to("x", "a", "m")
        until(lambda: down.links()[0].get("waiting_for"))
        assert down.links()[0]["messages_pending"] == 1
        assert down.is_empty("q")
    finally:
        down.broker.call(lambda node: node.alarms.report(Resource.DISK, False))
    assert down.bodies("q", 1) == ["m"]


def test_what_cannot_be_taken_away_is_logged(down: Side, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(http_port=0) as broker:
        down.exchange("x")
        down.upstream("u", broker.url)
        down.policy("^x$")
        down.until_links()
    down.no_policy()
    until(lambda: "federation_left_behind" in caplog.text)
    until(lambda: not down.links())


def test_upstream_that_says_nothing_is_not_waited_for(
    down: Side, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.federation.link.CLEAN_UP_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        down.exchange("x")
        down.upstream("u", f"amqp://127.0.0.1:{silent.getsockname()[1]}")
        down.policy("^x$")
        until(lambda: [row["status"] for row in down.links()] == ["starting"])
        down.no_policy()
        until(lambda: "not done in 0.05 s" in caplog.text)
