"""Queues and exchanges over HTTP: declared, shown, purged, deleted (sections 2 and 3)."""

from typing import Any

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.api import VHOST_NOT_FOUND, Api, eventually, names_of
from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "API: queues and exchanges"


def test_queue_is_declared_once(api: Api, vhost: str, names: Names, ch: RawChannel) -> None:
    name = names.new()
    body = {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 3}}
    assert api.put("queues", vhost, name, body=body) == 201
    assert api.put("queues", vhost, name, body=body) == 204
    ch.declare(name, durable=True, arguments={"x-max-length": 3})


def test_queue_without_a_body_is_transient(api: Api, vhost: str, names: Names) -> None:
    name = names.new()
    api.put("queues", vhost, name)
    row = api.get("queues", vhost, name)
    assert (row["durable"], row["auto_delete"], row["exclusive"]) == (False, False, False)
    assert (row["name"], row["vhost"], row["type"]) == (name, vhost, "classic")
    assert row["arguments"] == {}
    assert "@" in row["node"]


@pytest.mark.parametrize(
    ("body", "arg", "received", "current"),
    [
        ({"durable": False}, "durable", "'false'", "'true'"),
        ({"durable": True, "auto_delete": True}, "auto_delete", "'true'", "'false'"),
    ],
    ids=str,
)
def test_queue_declared_otherwise(
    api: Api, vhost: str, names: Names, body: Any, arg: str, received: str, current: str
) -> None:
    name = names.new()
    api.put("queues", vhost, name, body={"durable": True})
    told = (
        f"inequivalent arg '{arg}' for queue '{name}' in vhost '{vhost}': "
        f"received {received} but current is {current}"
    )
    assert api.ask("PUT", "queues", vhost, name, body=body).refusal == (400, told)


def test_queue_declared_with_other_arguments(api: Api, vhost: str, names: Names) -> None:
    name = names.new()
    api.put("queues", vhost, name)
    told = (
        f"inequivalent arg 'x-max-length' for queue '{name}' in vhost '{vhost}': "
        "received the value '1' of type 'long' but current is none"
    )
    body = {"arguments": {"x-max-length": 1}}
    answer = api.ask("PUT", "queues", vhost, name, body=body)
    assert answer.status == 400
    assert answer.json["reason"].startswith(told.partition("received")[0])


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": "x"},
        {"x-max-length": -1},
        {"x-message-ttl": 1.5},
        {"x-expires": 0},
        {"x-dead-letter-routing-key": "x"},
        {"x-overflow": "spill"},
        {"x-queue-type": "nope"},
        {"x-max-priority": 256},
    ],
    ids=str,
)
def test_queue_with_bad_arguments(
    api: Api, vhost: str, names: Names, arguments: dict[str, Any]
) -> None:
    name = names.new()
    answer = api.ask("PUT", "queues", vhost, name, body={"arguments": arguments})
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert api.ask("GET", "queues", vhost, name).status == 404


def test_bad_argument_is_told_as_over_amqp(api: Api, vhost: str, names: Names) -> None:
    name = names.new()
    answer = api.ask("PUT", "queues", vhost, name, body={"arguments": {"x-max-length": -1}})
    told = f"invalid arg 'x-max-length' for queue '{name}' in vhost '{vhost}': "
    assert answer.status == 400 and answer.json["reason"].startswith(told)


def test_arguments_keep_their_kinds(api: Api, vhost: str, names: Names) -> None:
    name = names.new()
    arguments = {"x-max-length": 5, "s": "text", "b": True, "f": 1.5, "t": {"u": [1, "v"]}}
    api.put("queues", vhost, name, body={"arguments": arguments})
    assert api.get("queues", vhost, name)["arguments"] == arguments


@pytest.mark.parametrize(("kind", "length"), [("queues", 256), ("queues", 300)])
def test_name_that_is_too_long(api: Api, vhost: str, kind: str, length: int) -> None:
    told = f"queue should be less than 255 bytes, actually was {length}\n"
    assert api.ask("PUT", kind, vhost, "n" * length, body={}).refusal == (400, told)


@pytest.mark.parametrize(("kind", "one"), [("queues", "queue"), ("exchanges", "exchange")])
def test_reserved_name(api: Api, vhost: str, kind: str, one: str) -> None:
    told = f"{one} name 'amq.cf' contains reserved prefix 'amq.*'"
    answer = api.ask("PUT", kind, vhost, "amq.cf", body={})
    assert answer.status in (400, 401)
    assert answer.json["reason"] in (told, "Access refused.")


@pytest.mark.parametrize("kind", ["queues", "exchanges"])
def test_declared_in_a_vhost_that_is_not_there(api: Api, kind: str) -> None:
    answer = api.ask("PUT", kind, "cf-nothing", "x", body={})
    assert (answer.status, answer.json) == (404, VHOST_NOT_FOUND)


@pytest.mark.parametrize("kind", ["queues", "exchanges"])
def test_deleted_once(api: Api, vhost: str, names: Names, kind: str) -> None:
    name = names.new()
    api.put(kind, vhost, name)
    api.delete(kind, vhost, name)
    assert api.ask("DELETE", kind, vhost, name).status == 404


def test_queue_with_messages_is_not_deleted_if_empty(api: Api, vhost: str, names: Names) -> None:
    name = names.new()
    api.put("queues", vhost, name)
    api.publish(vhost, name)
    answer = api.ask("DELETE", "queues", vhost, name, query={"if-empty": "true"})
    assert answer.refusal == (400, f"queue '{name}' in vhost '{vhost}' not empty")
    api.delete("queues", vhost, name, "contents")
    api.delete("queues", vhost, name, query={"if-empty": "true"})


def test_queue_with_consumers_is_not_deleted_if_unused(
    api: Api, vhost: str, queue: str, ch: RawChannel
) -> None:
    tag = ch.consume(queue)
    answer = api.ask("DELETE", "queues", vhost, queue, query={"if-unused": "true"})
    assert answer.refusal == (400, f"queue '{queue}' in vhost '{vhost}' in use")
    ch.call("basic.cancel", consumer_tag=tag)
    api.delete("queues", vhost, queue, query={"if-unused": "true"})


def test_exclusive_queue_of_another_is_locked(api: Api, vhost: str, ch: RawChannel) -> None:
    name = ch.own_queue()
    for path in [(), ("contents",)]:
        answer = api.ask("DELETE", "queues", vhost, name, *path)
        assert answer.status == 400
        assert f"cannot obtain exclusive access to locked queue '{name}'" in answer.json["reason"]


def test_purge(api: Api, vhost: str, queue: str, ch: RawChannel) -> None:
    ch.publish(b"1", queue)
    ch.publish(b"2", queue)
    ch.becomes_ready(queue, 2)
    api.delete("queues", vhost, queue, "contents")
    assert ch.ready(queue) == 0


def test_unknown_action(api: Api, vhost: str, queue: str) -> None:
    path = ("queues", vhost, queue, "actions")
    assert api.ask("POST", *path, body={"action": "cf"}).refusal == (400, ["unknown", "cf"])


def test_queue_that_was_just_declared_is_listed(api: Api, own_vhost: str, raw: Raw) -> None:
    ch = raw(vhost=own_vhost).channel()
    ch.declare("q", durable=True)
    own = ch.own_queue()
    rows = {row["name"]: row for row in api.get("queues", own_vhost)}
    assert rows.keys() == {"q", own}
    assert (rows["q"]["durable"], rows["q"]["exclusive"]) == (True, False)
    assert (rows[own]["durable"], rows[own]["exclusive"]) == (False, True)
    ch.call("queue.delete", queue="q")
    assert names_of(api.get("queues", own_vhost)) == [own]


def test_cheap_list_of_queues(api: Api, own_vhost: str) -> None:
    api.put("queues", own_vhost, "q")
    query = {"disable_stats": "true"}
    cheap = {"name", "vhost", "type", "durable", "auto_delete", "exclusive", "arguments", "node"}
    assert api.get("queues", own_vhost, **query)[0].keys() >= cheap
    assert "message_stats" not in api.get("queues", own_vhost, **query)[0]
    row = api.get("queues", own_vhost, **query, enable_queue_totals="true")[0]
    assert row.keys() >= cheap


QUEUE_FIELDS: dict[str, type | tuple[type, ...]] = {
    "state": str,
    "consumers": int,
    "consumer_capacity": (int, float),
    "consumer_utilisation": (int, float),
    "messages": int,
    "messages_ready": int,
    "messages_unacknowledged": int,
    "messages_details": dict,
    "messages_ready_details": dict,
    "messages_unacknowledged_details": dict,
    "messages_ram": int,
    "messages_ready_ram": int,
    "messages_unacknowledged_ram": int,
    "messages_persistent": int,
    "messages_paged_out": int,
    "message_bytes": int,
    "message_bytes_ready": int,
    "message_bytes_unacknowledged": int,
    "message_bytes_ram": int,
    "message_bytes_persistent": int,
    "message_bytes_paged_out": int,
    "memory": int,
    "reductions": int,
    "reductions_details": dict,
    "garbage_collection": dict,
    "backing_queue_status": dict,
    "effective_policy_definition": dict,
    "consumer_details": list,
    "incoming": list,
    "deliveries": list,
}
MAY_BE_NULL = [
    "policy",
    "operator_policy",
    "exclusive_consumer_tag",
    "single_active_consumer_tag",
    "head_message_timestamp",
    "recoverable_slaves",
]


@pytest.mark.slow
def test_fields_of_a_queue(api: Api, vhost: str, queue: str, ch: RawChannel) -> None:
    for body in (b"one", b"three"):
        ch.publish(body, queue, delivery_mode=2)
    ch.got(queue, no_ack=False)
    row = eventually(
        lambda: api.get("queues", vhost, queue),
        lambda row: row.get("messages_unacknowledged") == 1 and row.get("message_bytes") == 8,
    )
    wrong = [name for name, kind in QUEUE_FIELDS.items() if not isinstance(row.get(name), kind)]
    assert wrong == []
    assert [name for name in MAY_BE_NULL if name not in row] == []
    assert (row["messages"], row["state"], row["consumers"]) == (2, "running", 0)
    assert (row["message_bytes_ready"], row["message_bytes"]) == (5, 8)
    assert (row["message_bytes_ram"], row["message_bytes_paged_out"]) == (8, 0)
    assert row["backing_queue_status"]["len"] == 1
    assert row["backing_queue_status"]["mode"] == "default"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}, {"x-queue-mode": "lazy"}])
def test_persistent_messages_and_their_octets_are_counted_apart(
    api: Api, own_vhost: str, raw: Raw, arguments: dict[str, object]
) -> None:
    if not api.get("nodes")[0]["db_dir"]:
        pytest.skip("the node has no disk, so no message is persistent")
    ch = raw(vhost=own_vhost).channel()
    ch.declare("q", durable=True, arguments=arguments)
    for body, delivery_mode in ((b"one", 2), (b"three", 1), (b"fifteen", 2)):
        ch.publish(body, "q", delivery_mode=delivery_mode)
    ch.got("q", no_ack=False)
    row = eventually(
        lambda: api.get("queues", own_vhost, "q"),
        lambda row: row.get("messages_unacknowledged") == 1 and row.get("message_bytes") == 15,
    )
    assert (row["messages_persistent"], row["message_bytes_persistent"]) == (2, 10)


@pytest.mark.slow
def test_policy_of_a_queue_is_shown(api: Api, admin: Admin, own_vhost: str) -> None:
    admin.put_policy(own_vhost, "p", "^q", {"max-length": 5})
    admin.put_policy(own_vhost, "o", "^q", {"max-length": 3}, kind="operator-policies")
    api.put("queues", own_vhost, "q")
    row = eventually(lambda: api.get("queues", own_vhost, "q"), lambda row: row.get("policy"))
    assert (row["policy"], row["operator_policy"]) == ("p", "o")
    assert row["effective_policy_definition"] == {"max-length": 3}


@pytest.mark.slow
def test_consumers_of_a_queue_are_shown(api: Api, vhost: str, queue: str, ch: RawChannel) -> None:
    ch.consume(queue, "mine", exclusive=True)
    row = eventually(
        lambda: api.get("queues", vhost, queue),
        # RabbitMQ's statistics show each of these at another time.
        lambda row: (
            row.get("consumers") == 1
            and row.get("exclusive_consumer_tag")
            and row.get("consumer_details")
        ),
    )
    assert row["exclusive_consumer_tag"] == "mine"
    assert [one["consumer_tag"] for one in row["consumer_details"]] == ["mine"]
    assert row["consumer_capacity"] in (0, 1) or 0 < row["consumer_capacity"] < 1


@pytest.mark.slow
def test_owner_of_an_exclusive_queue_is_shown(api: Api, vhost: str, ch: RawChannel) -> None:
    name = ch.own_queue()
    row = eventually(
        lambda: api.get("queues", vhost, name), lambda row: row.get("owner_pid_details")
    )
    assert row["owner_pid_details"].keys() == {"name", "peer_host", "peer_port"}


@pytest.mark.slow
def test_what_happened_to_a_queue(api: Api, vhost: str, queue: str, ch: RawChannel) -> None:
    for _ in range(4):
        ch.publish(b"x", queue)
    ch.got(queue)
    ch.ack(ch.got(queue, no_ack=False)["delivery_tag"])
    ch.consume(queue)
    ch.delivery()
    stats = eventually(
        lambda: api.get("queues", vhost, queue).get("message_stats", {}),
        lambda stats: stats.get("deliver_get") == 4 and stats.get("publish") == 4,
    )
    wanted = {"publish": 4, "get": 1, "get_no_ack": 1, "deliver": 2, "deliver_get": 4, "ack": 1}
    assert {name: stats.get(name) for name in wanted} == wanted
    assert all("rate" in stats[f"{name}_details"] for name in wanted)


# Exchanges


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_exchange_is_declared_once(api: Api, vhost: str, names: Names, kind: str) -> None:
    name = names.new()
    body = {"type": kind, "durable": True, "internal": "true", "arguments": {"x": "y"}}
    assert api.put("exchanges", vhost, name, body=body) == 201
    assert api.put("exchanges", vhost, name, body=body) == 204
    row = api.get("exchanges", vhost, name)
    assert row["user_who_performed_action"] == api.get("whoami")["name"]
    shown = {
        "name": name,
        "vhost": vhost,
        "type": kind,
        "durable": True,
        "auto_delete": False,
        "internal": True,
        "arguments": {"x": "y"},
        "incoming": [],
        "outgoing": [],
    }
    assert {key: row.get(key) for key in shown} == shown


def test_exchange_without_a_body_is_direct_and_transient(
    api: Api, vhost: str, names: Names
) -> None:
    name = names.new()
    api.put("exchanges", vhost, name)
    row = api.get("exchanges", vhost, name)
    assert (row["type"], row["durable"], row["internal"]) == ("direct", False, False)


def test_exchange_declared_otherwise(api: Api, vhost: str, names: Names) -> None:
    name = names.new()
    api.put("exchanges", vhost, name)
    told = (
        f"inequivalent arg 'type' for exchange '{name}' in vhost '{vhost}': "
        "received 'fanout' but current is 'direct'"
    )
    answer = api.ask("PUT", "exchanges", vhost, name, body={"type": "fanout"})
    assert answer.refusal == (400, told)


def test_exchange_of_a_type_that_is_not_there(api: Api, vhost: str, names: Names) -> None:
    """RabbitMQ says `invalid` instead of `unknown` for words that are Erlang atoms to it."""
    kind = names.new()
    answer = api.ask("PUT", "exchanges", vhost, names.new(), body={"type": kind})
    assert answer.refusal == (400, f"unknown exchange type '{kind}'")


def test_exchanges_a_vhost_begins_with(api: Api, own_vhost: str) -> None:
    rows = api.get("exchanges", own_vhost)
    assert {row["name"]: (row["type"], row["internal"]) for row in rows} == {
        "": ("direct", False),
        "amq.direct": ("direct", False),
        "amq.fanout": ("fanout", False),
        "amq.headers": ("headers", False),
        "amq.match": ("headers", False),
        "amq.rabbitmq.trace": ("topic", True),
        "amq.topic": ("topic", False),
    }
    assert all(row["durable"] and not row["auto_delete"] for row in rows)


def test_default_exchange_has_a_name_in_addresses(api: Api, vhost: str) -> None:
    assert api.get("exchanges", vhost, "amq.default")["name"] == ""


@pytest.mark.parametrize("verb", ["PUT", "DELETE"])
def test_default_exchange_cannot_be_changed(api: Api, vhost: str, verb: str) -> None:
    body = {"durable": True} if verb == "PUT" else None
    answer = api.ask(verb, "exchanges", vhost, "amq.default", body=body)
    assert answer.refusal == (401, "Access refused.")


def test_exchange_in_use_is_not_deleted_if_unused(
    api: Api, vhost: str, names: Names, queue: str
) -> None:
    name = names.new()
    api.put("exchanges", vhost, name)
    key = api.bind(vhost, name, queue)
    answer = api.ask("DELETE", "exchanges", vhost, name, query={"if-unused": "true"})
    assert answer.refusal == (400, f"exchange '{name}' in vhost '{vhost}' in use")
    api.delete("bindings", vhost, "e", name, "q", queue, key)
    api.delete("exchanges", vhost, name, query={"if-unused": "true"})


@pytest.mark.slow
def test_policy_of_an_exchange_is_shown(api: Api, admin: Admin, own_vhost: str) -> None:
    api.put("exchanges", own_vhost, "x")
    assert "policy" not in api.get("exchanges", own_vhost, "x")
    admin.put_policy(own_vhost, "p", "^x", {"alternate-exchange": "amq.fanout"})
    row = eventually(lambda: api.get("exchanges", own_vhost, "x"), lambda row: row.get("policy"))
    assert row["policy"] == "p"


@pytest.mark.slow
def test_what_happened_to_an_exchange(
    api: Api, vhost: str, names: Names, queue: str, ch: RawChannel
) -> None:
    name = names.new()
    ch.declare_exchange(name, "fanout")
    ch.bind(queue, name)
    for _ in range(3):
        ch.publish(b"x", "", name)
    stats = eventually(
        lambda: api.get("exchanges", vhost, name).get("message_stats", {}),
        lambda stats: stats.get("publish_in") == 3 and stats.get("publish_out") == 3,
    )
    assert {"publish_in_details", "publish_out_details"} <= stats.keys()
