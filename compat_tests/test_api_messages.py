"""Messages over HTTP: one published, some fetched (section 2)."""

import base64
from typing import Any

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.api import Api, message
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "API: messages"

FETCH = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}


def test_published_message_arrives(api: Api, vhost: str, queue: str, ch: RawChannel) -> None:
    assert api.publish(vhost, queue, "hello ü") is True
    assert ch.got(queue).body == "hello ü".encode()


def test_message_that_finds_no_queue(api: Api, vhost: str) -> None:
    assert api.publish(vhost, "cf-nothing", "x") is False


def test_published_through_an_exchange(
    api: Api, vhost: str, queue: str, names: Names, ch: RawChannel
) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange, "topic")
    ch.bind(queue, exchange, "a.#")
    assert api.publish(vhost, "a.b.c", "x", exchange) is True
    assert api.publish(vhost, "b", "x", exchange) is False
    (row,) = api.got(vhost, queue)
    assert (row["exchange"], row["routing_key"]) == (exchange, "a.b.c")


@pytest.mark.parametrize("octets", [b"", b"\xff\x00\xfe", b"text", bytes(range(256))])
def test_octets_are_published_as_base64(
    api: Api, vhost: str, queue: str, ch: RawChannel, octets: bytes
) -> None:
    payload = base64.b64encode(octets).decode()
    body = message(queue, payload, payload_encoding="base64")
    assert api.post("exchanges", vhost, "amq.default", "publish", body=body) == {"routed": True}
    assert ch.got(queue).body == octets


PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 1700000000,
    "type": "t",
    "app_id": "a",
    "cluster_id": "k",
    "headers": {"i": 1, "s": "x", "b": True, "f": 1.5, "l": [1, "x"], "t": {"u": 2}},
}


def test_properties_go_there_and_back(api: Api, vhost: str, queue: str) -> None:
    body = message(queue, "x", properties=PROPERTIES)
    api.post("exchanges", vhost, "amq.default", "publish", body=body)
    (row,) = api.got(vhost, queue)
    assert row["properties"] == PROPERTIES


def test_no_properties_are_an_empty_list(api: Api, vhost: str, queue: str) -> None:
    api.publish(vhost, queue)
    assert api.got(vhost, queue)[0]["properties"] == []


def test_properties_that_are_not_known_are_ignored(api: Api, vhost: str, queue: str) -> None:
    body = message(queue, properties={"nonsense": 1, "type": "t"})
    assert api.post("exchanges", vhost, "amq.default", "publish", body=body)["routed"]
    assert api.got(vhost, queue)[0]["properties"] == {"type": "t"}


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("delivery_mode", "x", "not_int"),
        ("priority", "5", "not_int"),
        ("timestamp", "now", "not_int"),
        ("content_type", 5, "not_string"),
        ("expiration", 60000, "not_string"),
    ],
)
def test_properties_of_a_wrong_kind(
    api: Api, vhost: str, queue: str, name: str, value: object, wrong: str
) -> None:
    body = message(queue, properties={name: value})
    answer = api.ask("POST", "exchanges", vhost, "amq.default", "publish", body=body)
    assert answer.refusal == (400, [wrong, name])


def test_user_id_of_somebody_else(api: Api, vhost: str, queue: str) -> None:
    body = message(queue, properties={"user_id": "somebody else"})
    answer = api.ask("POST", "exchanges", vhost, "amq.default", "publish", body=body)
    assert answer.status == 400 and "user_id property set to" in answer.json["reason"]


@pytest.mark.parametrize(
    ("missing", "lines"),
    [
        (["properties"], "[{key_missing,properties}]"),
        (["payload", "routing_key"], "[{key_missing,routing_key},{key_missing,payload}]"),
        (
            ["properties", "routing_key", "payload", "payload_encoding"],
            "[{key_missing,routing_key},\n {key_missing,properties},\n {key_missing,payload},\n"
            " {key_missing,payload_encoding}]",
        ),
    ],
    ids=str,
)
def test_publish_needs_four_keys(
    api: Api, vhost: str, queue: str, missing: list[str], lines: str
) -> None:
    body = {key: value for key, value in message(queue).items() if key not in missing}
    answer = api.ask("POST", "exchanges", vhost, "amq.default", "publish", body=body)
    assert answer.refusal == (400, lines)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"payload_encoding": "bad"}, ["unsupported_encoding", "bad"]),
        ({"payload": 5}, "payload_not_string"),
    ],
    ids=str,
)
def test_payload_that_cannot_be_read(
    api: Api, vhost: str, queue: str, changes: dict[str, Any], reason: object
) -> None:
    body = message(queue, **{"payload": "x", **changes})
    answer = api.ask("POST", "exchanges", vhost, "amq.default", "publish", body=body)
    assert answer.refusal == (400, reason)


def test_payload_that_is_no_base64(api: Api, vhost: str, queue: str) -> None:
    body = message(queue, "!!", payload_encoding="base64")
    answer = api.ask("POST", "exchanges", vhost, "amq.default", "publish", body=body)
    assert answer.refusal == (400, ["not_base64", "!!"])


def test_publish_to_an_exchange_that_is_not_there(api: Api, vhost: str) -> None:
    answer = api.ask("POST", "exchanges", vhost, "cf-nothing", "publish", body=message("k"))
    told = f"404 NOT_FOUND - no exchange 'cf-nothing' in vhost '{vhost}'"
    assert answer.refusal == (400, told)


def test_publish_to_a_full_queue(api: Api, vhost: str, names: Names) -> None:
    name = names.new()
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    api.put("queues", vhost, name, body={"arguments": arguments})
    assert api.publish(vhost, name)
    answer = api.ask("POST", "exchanges", vhost, "amq.default", "publish", body=message(name))
    told = "rejected Unable to publish message. Check queue limits."
    assert answer.refusal == (400, told)


# Fetching


def test_fetched_message(api: Api, vhost: str, queue: str) -> None:
    api.publish(vhost, queue, "one")
    api.publish(vhost, queue, "three")
    row = {
        "payload_bytes": 3,
        "redelivered": False,
        "exchange": "",
        "routing_key": queue,
        "message_count": 1,
        "properties": [],
        "payload": "one",
        "payload_encoding": "string",
    }
    assert api.got(vhost, queue, count=1) == [row]


@pytest.mark.parametrize(
    ("ackmode", "left"),
    [
        ("ack_requeue_true", ["a", "b", "c"]),
        ("reject_requeue_true", ["a", "b", "c"]),
        ("ack_requeue_false", ["c"]),
        ("reject_requeue_false", ["c"]),
    ],
)
def test_what_becomes_of_fetched_messages(
    api: Api, vhost: str, queue: str, ch: RawChannel, ackmode: str, left: list[str]
) -> None:
    for payload in ("a", "b", "c"):
        api.publish(vhost, queue, payload)
    rows = api.got(vhost, queue, ackmode, 2)
    assert [(row["payload"], row["message_count"]) for row in rows] == [("a", 2), ("b", 1)]
    messages = ch.arriving(queue, len(left))
    assert [one.body.decode() for one in messages] == left
    came_back = [one["redelivered"] for one in messages]
    assert came_back == [ackmode.endswith("true")] * (len(left) - 1) + [False]


def test_rejected_messages_are_dead_lettered(
    api: Api, vhost: str, queue: str, names: Names, ch: RawChannel
) -> None:
    name = names.new()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    api.put("queues", vhost, name, body={"arguments": arguments})
    for ackmode in ("ack_requeue_false", "reject_requeue_false"):
        api.publish(vhost, name, ackmode)
        api.got(vhost, name, ackmode)
    (dead,) = ch.arriving(queue, 1)
    assert dead.body == b"reject_requeue_false"
    assert dead.headers["x-first-death-reason"] == "rejected"


@pytest.mark.parametrize(
    ("octets", "encoding", "payload", "shown_as"),
    [
        ("text ü".encode(), "auto", "text ü", "string"),
        (b"\xff\xfe", "auto", "//4=", "base64"),
        (b"text", "base64", "dGV4dA==", "base64"),
        (b"", "auto", "", "string"),
        (b"", "base64", "", "base64"),
    ],
)
def test_encodings_of_the_payload(
    api: Api,
    vhost: str,
    queue: str,
    ch: RawChannel,
    octets: bytes,
    encoding: str,
    payload: str,
    shown_as: str,
) -> None:
    ch.publish(octets, queue)
    ch.becomes_ready(queue, 1)
    body = {**FETCH, "encoding": encoding}
    (row,) = api.post("queues", vhost, queue, "get", body=body)
    assert (row["payload"], row["payload_encoding"]) == (payload, shown_as)
    assert row["payload_bytes"] == len(octets)


@pytest.mark.parametrize(
    ("truncate", "payload"), [(0, ""), (3, "abc"), (6, "abcdef"), (9, "abcdef")]
)
def test_truncated_payload(api: Api, vhost: str, queue: str, truncate: int, payload: str) -> None:
    api.publish(vhost, queue, "abcdef")
    body = {**FETCH, "truncate": truncate}
    (row,) = api.post("queues", vhost, queue, "get", body=body)
    assert (row["payload"], row["payload_bytes"]) == (payload, 6)


def test_fetching_more_than_there_is(api: Api, vhost: str, queue: str) -> None:
    assert api.got(vhost, queue) == []
    api.publish(vhost, queue, "only")
    assert [row["payload"] for row in api.got(vhost, queue, count=10)] == ["only"]


def test_fetching_none(api: Api, vhost: str, queue: str) -> None:
    api.publish(vhost, queue)
    assert api.got(vhost, queue, count=0) == []


def test_count_may_be_a_string(api: Api, vhost: str, queue: str) -> None:
    api.publish(vhost, queue, "x")
    body = {**FETCH, "count": "5"}
    assert len(api.post("queues", vhost, queue, "get", body=body)) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "[{key_missing,ackmode},{key_missing,count},{key_missing,encoding}]"),
        ({"ackmode": "ack_requeue_true", "encoding": "auto"}, "[{key_missing,count}]"),
        ({**FETCH, "count": "x"}, ["not_integer", "x"]),
        ({**FETCH, "truncate": "x"}, ["not_integer", "x"]),
        ({**FETCH, "encoding": "bad"}, "Unsupported encoding. Please use auto or base64."),
    ],
    ids=str,
)
def test_fetches_that_make_no_sense(
    api: Api, vhost: str, queue: str, body: dict[str, Any], reason: object
) -> None:
    api.publish(vhost, queue, "x")
    answer = api.ask("POST", "queues", vhost, queue, "get", body=body)
    assert answer.refusal == (400, reason)


def test_fetching_from_a_queue_that_is_not_there(api: Api, vhost: str) -> None:
    answer = api.ask("POST", "queues", vhost, "cf-nothing", "get", body=FETCH)
    told = f"NOT_FOUND - no queue 'cf-nothing' in vhost '{vhost}'"
    assert (answer.status, answer.json) == (404, {"error": "not_found", "reason": told})


def test_topic_permissions_hold(
    api: Api, admin: Admin, vhost: str, own_user: str, queue: str, ch: RawChannel
) -> None:
    ch.bind(queue, "amq.topic", "#")
    admin.put_user(own_user, "secret", "management")
    admin.permit_topic(vhost, own_user, "amq.topic", "^free", "")
    someone = api.asked_by(own_user, "secret")
    assert someone.publish(vhost, "free.all", "x", "amq.topic")
    answer = someone.ask("POST", "exchanges", vhost, "amq.topic", "publish", body=message("shut"))
    assert answer.status in (400, 401)
    assert [row["routing_key"] for row in api.got(vhost, queue)] == ["free.all"]


def test_messages_of_a_locked_queue_are_not_fetched(api: Api, vhost: str, ch: RawChannel) -> None:
    name = ch.own_queue()
    answer = api.ask("POST", "queues", vhost, name, "get", body=FETCH)
    assert answer.status == 400
    text = f"405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}'"
    assert answer.json["reason"].startswith(text)
