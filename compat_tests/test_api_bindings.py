"""Bindings over HTTP, and the keys that name them in addresses (section 2)."""

from typing import Any

import pytest

from warren.compat_tests.api import NOT_FOUND, Api
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "API: bindings"


@pytest.fixture
def exchange(api: Api, vhost: str, names: Names) -> str:
    name = names.new()
    api.put("exchanges", vhost, name, body={"type": "topic"})
    return name


def test_exchange_says_who_declared_it(api: Api, vhost: str, exchange: str) -> None:
    mine = api.get("whoami")["name"]
    assert api.get("exchanges", vhost, exchange)["user_who_performed_action"] == mine
    rows = {row["name"]: row["user_who_performed_action"] for row in api.get("exchanges", vhost)}
    assert (rows[exchange], rows["amq.direct"]) == (mine, "rmq-internal")


def test_a_binding(api: Api, vhost: str, exchange: str, queue: str, ch: RawChannel) -> None:
    path = ("bindings", vhost, "e", exchange, "q", queue)
    answer = api.ask("POST", *path, body={"routing_key": "a.*"})
    assert (answer.status, answer.body) == (201, b"")
    row: dict[str, Any] = {
        "source": exchange,
        "vhost": vhost,
        "destination": queue,
        "destination_type": "queue",
        "routing_key": "a.*",
        "arguments": {},
        "properties_key": "a.%2A",
    }
    assert answer.headers["location"].partition("/")[0] == queue
    shown = api.get(*path)
    row["properties_key"] = shown[0]["properties_key"]
    assert shown == [row]
    assert api.get(*path, row["properties_key"]) == row
    ch.publish(b"hit", "a.b", exchange)
    ch.arriving(queue, 1)
    api.delete(*path, row["properties_key"])
    assert api.get(*path) == []


def test_binding_twice_is_one_binding(api: Api, vhost: str, exchange: str, queue: str) -> None:
    assert api.bind(vhost, exchange, queue, "k") == api.bind(vhost, exchange, queue, "k")
    assert len(api.get("bindings", vhost, "e", exchange, "q", queue)) == 1


@pytest.mark.parametrize("body", [{}, {"routing_key": ""}, {"arguments": {}}], ids=str)
def test_an_empty_key_is_a_tilde(
    api: Api, vhost: str, exchange: str, queue: str, body: dict[str, object]
) -> None:
    path = ("bindings", vhost, "e", exchange, "q", queue)
    answer = api.ask("POST", *path, body=body)
    assert (answer.status, answer.headers["location"]) == (201, f"{queue}/~")
    assert api.get(*path, "~")["properties_key"] == "~"
    api.delete(*path, "~")
    assert api.ask("DELETE", *path, "~").status == 404


def test_arguments_make_another_key(api: Api, vhost: str, exchange: str, queue: str) -> None:
    path = ("bindings", vhost, "e", exchange, "q", queue)
    keys = {
        api.bind(vhost, exchange, queue, "k"),
        api.bind(vhost, exchange, queue, "k", x=1),
        api.bind(vhost, exchange, queue, "k", x="1"),
        api.bind(vhost, exchange, queue, "k", x=1, y=True),
    }
    assert len(keys) == 4
    assert {key.partition("~")[0] for key in keys} == {"k"}
    rows = api.get(*path)
    assert {row["properties_key"] for row in rows} == keys
    for row in rows:
        assert api.get(*path, row["properties_key"]) == row
        api.delete(*path, row["properties_key"])
    assert api.get(*path) == []


def test_arguments_of_an_empty_key(api: Api, vhost: str, exchange: str, queue: str) -> None:
    path = ("bindings", vhost, "e", exchange, "q", queue)
    key = api.bind(vhost, exchange, queue, "", x="y")
    assert key.startswith("~") and len(key) > 1
    row = api.get(*path, key)
    assert (row["routing_key"], row["arguments"]) == ("", {"x": "y"})
    api.delete(*path, key)


def test_arguments_keep_their_kinds(api: Api, vhost: str, exchange: str, queue: str) -> None:
    arguments = {"i": 1, "f": 1.5, "s": "x", "b": False, "l": [1, "x"], "t": {"u": 2}}
    key = api.bind(vhost, exchange, queue, "k", **arguments)
    row = api.get("bindings", vhost, "e", exchange, "q", queue, key)
    assert row["arguments"] == arguments


@pytest.mark.parametrize(
    "routing_key", ["a/b", "a b", "a%20b", "a+b", "a&b=c?d#e", "ü世", "a.*.#", "props", "%"]
)
def test_odd_characters_in_keys(
    api: Api, vhost: str, exchange: str, queue: str, routing_key: str
) -> None:
    path = ("bindings", vhost, "e", exchange, "q", queue)
    key = api.bind(vhost, exchange, queue, routing_key)
    (row,) = api.get(*path)
    assert (row["routing_key"], row["properties_key"]) == (routing_key, key)
    assert api.get(*path, key) == row
    api.delete(*path, key)
    assert api.get(*path) == []


@pytest.mark.parametrize(
    ("routing_key", "key"), [("a/b", "a%2Fb"), ("a b", "a+b"), ("ü", "%C3%BC"), ("a.b-c_d", None)]
)
def test_how_keys_are_quoted(
    api: Api, vhost: str, exchange: str, queue: str, routing_key: str, key: str | None
) -> None:
    assert api.bind(vhost, exchange, queue, routing_key) == (key or routing_key)


def test_queue_is_bound_to_the_default_exchange(
    api: Api, vhost: str, exchange: str, queue: str
) -> None:
    own = {
        "source": "",
        "vhost": vhost,
        "destination": queue,
        "destination_type": "queue",
        "routing_key": queue,
        "arguments": {},
        "properties_key": queue,
    }
    assert api.get("queues", vhost, queue, "bindings") == [own]
    api.bind(vhost, exchange, queue, "k")
    rows = api.get("queues", vhost, queue, "bindings")
    assert [row["source"] for row in rows] == ["", exchange]
    assert own in api.get("bindings") and own in api.get("bindings", vhost)
    assert own in api.get("exchanges", vhost, "amq.default", "bindings", "source")
    assert api.get("bindings", vhost, "e", "amq.default", "q", queue) == [own]


@pytest.mark.parametrize("verb", ["POST", "DELETE"])
def test_default_exchange_cannot_be_bound(api: Api, vhost: str, queue: str, verb: str) -> None:
    path = ["bindings", vhost, "e", "amq.default", "q", queue]
    body = {"routing_key": "x"} if verb == "POST" else None
    if verb == "DELETE":
        path.append(queue)
    assert api.ask(verb, *path, body=body).status in (400, 401)
    assert len(api.get("queues", vhost, queue, "bindings")) == 1


def test_exchange_bound_to_exchange(
    api: Api, vhost: str, exchange: str, queue: str, ch: RawChannel, names: Names
) -> None:
    target = names.new()
    api.put("exchanges", vhost, target, body={"type": "fanout"})
    api.bind(vhost, target, queue)
    path = ("bindings", vhost, "e", exchange, "e", target)
    answer = api.ask("POST", *path, body={"routing_key": "k"})
    assert (answer.status, answer.headers["location"]) == (201, f"{target}/k")
    (row,) = api.get(*path)
    assert (row["destination_type"], row["destination"]) == ("exchange", target)
    assert api.get("exchanges", vhost, exchange, "bindings", "source") == [row]
    assert api.get("exchanges", vhost, target, "bindings", "destination") == [row]
    ch.publish(b"through", "k", exchange)
    ch.arriving(queue, 1)
    api.delete(*path, "k")
    assert api.get("exchanges", vhost, target, "bindings", "destination") == []


def test_bindings_made_over_amqp_are_shown(
    api: Api, vhost: str, exchange: str, queue: str, ch: RawChannel
) -> None:
    ch.bind(queue, exchange, "over.amqp", {"x": 5})
    (row,) = api.get("bindings", vhost, "e", exchange, "q", queue)
    assert (row["routing_key"], row["arguments"]) == ("over.amqp", {"x": 5})
    api.delete("bindings", vhost, "e", exchange, "q", queue, row["properties_key"])
    assert api.get("bindings", vhost, "e", exchange, "q", queue) == []


def test_binding_what_is_not_there(api: Api, vhost: str, exchange: str, queue: str) -> None:
    for path, told in [
        (("cf-nothing", "q", queue), f"no exchange 'cf-nothing' in vhost '{vhost}'"),
        ((exchange, "q", "cf-nothing"), f"no queue 'cf-nothing' in vhost '{vhost}'"),
        ((exchange, "e", "cf-nothing"), f"no exchange 'cf-nothing' in vhost '{vhost}'"),
    ]:
        answer = api.ask("POST", "bindings", vhost, "e", *path, body={})
        assert (answer.status, answer.json) == (404, {"error": "not_found", "reason": told})


@pytest.mark.parametrize("verb", ["GET", "DELETE"])
def test_a_binding_that_is_not_there(
    api: Api, vhost: str, exchange: str, queue: str, verb: str
) -> None:
    api.bind(vhost, exchange, queue, "k")
    for key in ("other", "~", "k~0000"):
        answer = api.ask(verb, "bindings", vhost, "e", exchange, "q", queue, key)
        assert (answer.status, answer.json) == (404, NOT_FOUND)
