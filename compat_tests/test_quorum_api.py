"""Quorum queues over HTTP: shown, declared, policies, default types (reference 1, 2 and 7)."""

from typing import Any

import pytest

from warren.compat_tests.admin import Admin, Refused
from warren.compat_tests.api import Api, eventually, names_of
from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names
from warren.compat_tests.quorum import QUORUM, contents, fill, quorum_queue, shown, take
from warren.compat_tests.raw_client import RawChannel

AREA = "Quorum queues: API and policies"

AT_ONCE = {
    "name",
    "vhost",
    "type",
    "durable",
    "auto_delete",
    "exclusive",
    "arguments",
    "members",
    "online",
    "leader",
}
LATER = {
    "state",
    "node",
    "policy",
    "operator_policy",
    "effective_policy_definition",
    "messages",
    "messages_details",
    "messages_ready",
    "messages_ready_details",
    "messages_unacknowledged",
    "messages_unacknowledged_details",
    "messages_persistent",
    "messages_ram",
    "messages_dlx",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_persistent",
    "message_bytes_ram",
    "message_bytes_dlx",
    "consumers",
    "consumer_capacity",
    "consumer_utilisation",
    "memory",
    "reductions",
    "garbage_collection",
    "open_files",
    "single_active_consumer_ctag",
}


def test_row_of_a_new_queue(api: Api, vhost: str, ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    row = api.get("queues", vhost, queue)
    assert row.keys() >= AT_ONCE
    assert (row["type"], row["durable"], row["auto_delete"]) == ("quorum", True, False)
    assert row["exclusive"] is False
    assert row["arguments"] == QUORUM
    assert row["leader"] in row["members"]
    assert row["online"] == row["members"]


@pytest.mark.slow
def test_row_in_full(api: Api, vhost: str, ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_single_active_consumer=True)
    ch.publish(b"abc", queue)
    ch.call("basic.qos", prefetch_count=1)
    ch.consume(queue, "the-tag")
    ch.delivery(b"abc")
    ch.publish(b"de", queue)
    row = eventually(
        lambda: api.get("queues", vhost, queue),
        lambda row: (
            row.get("messages_unacknowledged") == 1
            and row.get("messages_ready") == 1
            and row.get("consumers") == 1
            and row.get("single_active_consumer_ctag") is not None
        ),
    )
    assert row.keys() >= AT_ONCE | LATER
    assert row["single_active_consumer_ctag"] == "the-tag"
    assert "single_active_consumer_tag" not in row
    assert "exclusive_consumer_tag" not in row
    assert "backing_queue_status" not in row
    assert (row["messages"], row["messages_persistent"], row["messages_ram"]) == (2, 2, 0)
    assert (row["message_bytes"], row["message_bytes_ready"]) == (5, 2)
    assert (row["message_bytes_persistent"], row["message_bytes_ram"]) == (5, 0)
    assert row["message_bytes_unacknowledged"] == 3
    assert (row["messages_dlx"], row["message_bytes_dlx"]) == (0, 0)
    assert row["node"] == row["leader"]
    assert list(row["open_files"]) == row["members"]
    assert row["state"] == "running"


@pytest.mark.slow
def test_consumer_is_shown_as_it_asked(api: Api, vhost: str, ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    ch.consume(queue, "mine", exclusive=True)
    row = eventually(
        lambda: [row for row in api.get("consumers", vhost) if row["queue"]["name"] == queue]
    )[0]
    assert (row["prefetch_count"], row["exclusive"], row["ack_required"]) == (0, True, True)


def test_declared_over_http(api: Api, vhost: str, ch: RawChannel, names: Names) -> None:
    queue = names.new()
    body = {"durable": True, "arguments": QUORUM}
    assert api.put("queues", vhost, queue, body=body) == 201
    assert api.put("queues", vhost, queue, body=body) == 204
    ch.declare(queue, durable=True, arguments=QUORUM)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({}, "non-durable"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
    ],
    ids=str,
)
def test_declared_over_http_with_what_it_cannot_have(
    api: Api, vhost: str, names: Names, body: dict[str, Any], fault: str
) -> None:
    queue = names.new()
    answer = api.ask("PUT", "queues", vhost, queue, body={**body, "arguments": QUORUM})
    assert answer.refusal == (
        400,
        f"invalid property '{fault}' for queue '{queue}' in vhost '{vhost}'",
    )


@pytest.mark.parametrize("condition", ["if-unused", "if-empty"])
def test_deleted_over_http_on_a_condition(
    api: Api, vhost: str, ch: RawChannel, names: Names, condition: str
) -> None:
    queue = quorum_queue(ch, names)
    answer = api.ask("DELETE", "queues", vhost, queue, query={condition: "true"})
    told = (
        f"cannot delete queue '{queue}' in vhost '{vhost}'. queue.delete operations with "
        f"{condition} flag set are not supported by quorum queues"
    )
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert answer.json["reason"] == told
    api.delete("queues", vhost, queue)


def test_message_got_over_http(api: Api, vhost: str, ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 1)
    (message,) = api.got(vhost, queue)
    assert message["properties"]["headers"] == {"x-delivery-count": 0}
    assert message["redelivered"] is False


@pytest.mark.parametrize(
    ("ackmode", "left"),
    [("ack_requeue_true", [b"0", b"1", b"2"]), ("reject_requeue_true", [b"2", b"0", b"1"])],
)
def test_where_messages_got_over_http_are_put_back(
    api: Api, vhost: str, ch: RawChannel, names: Names, ackmode: str, left: list[bytes]
) -> None:
    """Messages that were neither acked nor rejected come back when the API closes its channel."""
    queue = quorum_queue(ch, names)
    fill(ch, queue, 3)
    assert len(api.got(vhost, queue, ackmode, 2)) == 2
    assert contents(ch, queue, 3) == left


def test_get_over_http_with_single_active_consumer(
    api: Api, vhost: str, ch: RawChannel, names: Names
) -> None:
    queue = quorum_queue(ch, names, x_single_active_consumer=True)
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    answer = api.ask("POST", "queues", vhost, queue, "get", body=body)
    assert answer.status == 400
    assert answer.json["reason"] == (
        f"405 RESOURCE_LOCKED - cannot obtain access to locked queue '{queue}' in vhost '{vhost}'. "
        "basic.get operations are not supported by quorum queues with single active consumer"
    )


@pytest.mark.parametrize("path", ["replicas", "status"])
def test_endpoints_of_later_versions(
    api: Api, vhost: str, ch: RawChannel, names: Names, path: str
) -> None:
    queue = quorum_queue(ch, names)
    assert api.ask("GET", "queues", "quorum", vhost, queue, path).status in (400, 404, 405)


def test_node_is_critical_for_the_queue_of_one_member(
    api: Api, vhost: str, ch: RawChannel, names: Names
) -> None:
    queue = quorum_queue(ch, names, x_quorum_initial_group_size=1)
    answer = api.ask("GET", "health", "checks", "node-is-quorum-critical")
    if answer.status == 200:
        # A cluster of one node can have no more members, so it is not critical.
        assert answer.json["status"] == "ok"
        return
    assert answer.status == 503
    assert queue in names_of(answer.json["queues"])


def test_definitions_have_the_type_among_the_arguments(api: Api, own_vhost: str) -> None:
    body = {"durable": True, "arguments": {**QUORUM, "x-delivery-limit": 3}}
    api.put("queues", own_vhost, "q", body=body)
    (item,) = api.get("definitions", own_vhost)["queues"]
    assert item == {
        "name": "q",
        "durable": True,
        "auto_delete": False,
        "arguments": {**QUORUM, "x-delivery-limit": 3},
    }
    api.delete("queues", own_vhost, "q")
    answer = api.ask("POST", "definitions", own_vhost, body={"queues": [item]})
    assert answer.status == 204
    assert api.get("queues", own_vhost, "q")["type"] == "quorum"


def test_transient_quorum_queue_in_definitions_is_passed_over(api: Api, own_vhost: str) -> None:
    good = {"name": "good", "durable": True, "auto_delete": False, "arguments": QUORUM}
    queues = [{**good, "name": "bad", "durable": False}, good]
    answer = api.ask("POST", "definitions", own_vhost, body={"queues": queues})
    assert answer.status == 204
    assert names_of(api.get("queues", own_vhost)) == ["good"]


# Policies


@pytest.fixture
def own(raw: Raw, own_vhost: str) -> RawChannel:
    """A channel in a virtual host of the test's own."""
    return raw(vhost=own_vhost).channel()


def declared(own: RawChannel, **arguments: Any) -> str:
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    own.declare("q", durable=True, arguments={**QUORUM, **table})
    return "q"


def keeps(own: RawChannel, count: int) -> None:
    for number in range(10):
        own.publish(b"%d" % number, "q")
    assert contents(own, "q", count)[-1] == b"9"
    assert own.get("q") is None


def test_policy_limits_a_quorum_queue(own: RawChannel, admin: Admin, own_vhost: str) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"max-length": 3, "delivery-limit": 5})
    declared(own)
    keeps(own, 3)


def test_smaller_length_counts(own: RawChannel, admin: Admin, own_vhost: str) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"max-length": 7})
    declared(own, x_max_length=2)
    keeps(own, 2)


@pytest.mark.parametrize(
    "key",
    [
        {"ha-mode": "all"},
        {"queue-mode": "lazy"},
        {"queue-master-locator": "random"},
        {"max-age": "1D"},
        {"initial-cluster-size": 1},
        {"stream-max-segment-size-bytes": 5},
    ],
    ids=str,
)
def test_policy_for_other_types_is_passed_over(
    own: RawChannel, admin: Admin, own_vhost: str, key: dict[str, Any]
) -> None:
    admin.put_policy(own_vhost, "other", "^q$", {**key, "max-length": 1}, priority=9)
    admin.put_policy(own_vhost, "quorum", "^q$", {"max-length": 4}, priority=1)
    declared(own)
    keeps(own, 4)


def test_queue_version_is_no_reason_to_pass_over(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"queue-version": 2, "max-length": 4})
    declared(own)
    keeps(own, 4)


def deliveries(own: RawChannel, queue: str) -> int:
    """How often a message is delivered before it is dead-lettered into `dead`."""
    own.declare("dead")
    fill(own, queue, 1)
    count = 0
    while True:
        own.becomes_ready(queue, 1)
        (tag,) = take(own, queue, 1)
        count += 1
        own.nack(tag)
        while not own.ready(queue):
            if own.ready("dead"):
                return count


@pytest.mark.parametrize(
    ("argument", "policy", "operator", "wanted"),
    [
        (None, 2, None, 3),
        (9, None, 2, 3),
        (1, 5, None, 2),
        (5, 1, None, 2),
        (None, 5, 3, 4),
    ],
)
def test_smallest_delivery_limit_counts(
    own: RawChannel,
    admin: Admin,
    own_vhost: str,
    argument: int | None,
    policy: int | None,
    operator: int | None,
    wanted: int,
) -> None:
    if policy is not None:
        admin.put_policy(own_vhost, "p", "^q$", {"delivery-limit": policy})
    if operator is not None:
        admin.put_policy(
            own_vhost,
            "o",
            "^q$",
            {"delivery-limit": operator},
            apply_to="queues",
            kind="operator-policies",
        )
    dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    declared(own, **dead, **({} if argument is None else {"x_delivery_limit": argument}))
    assert deliveries(own, "q") == wanted


def test_argument_names_the_dead_letter_exchange(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    admin.put_policy(
        own_vhost, "p", "^q$", {"dead-letter-exchange": "", "dead-letter-routing-key": "policy"}
    )
    own.declare("policy")
    own.declare("argument")
    declared(own, x_dead_letter_exchange="", x_dead_letter_routing_key="argument")
    fill(own, "q", 1)
    (tag,) = take(own, "q", 1)
    own.reject(tag, requeue=False)
    own.becomes_ready("argument", 1)
    assert own.ready("policy") == 0


def test_policy_decides_on_overflow(own: RawChannel, admin: Admin, own_vhost: str) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"overflow": "drop-head"})
    declared(own, x_max_length=2, x_overflow="reject-publish")
    keeps(own, 2)


@pytest.mark.parametrize(
    "key", [{"target-group-size": 3}, {"single-active-consumer": True}], ids=str
)
def test_policy_keys_nobody_knows(admin: Admin, own_vhost: str, key: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refusal:
        admin.put_policy(own_vhost, "p", ".*", key)
    assert refusal.value.status == 400
    assert "are not recognised policy settings" in refusal.value.body


def test_operator_policy_has_no_strategy(admin: Admin, own_vhost: str) -> None:
    with pytest.raises(Refused) as refusal:
        admin.put_policy(
            own_vhost,
            "o",
            ".*",
            {"dead-letter-strategy": "at-least-once"},
            kind="operator-policies",
        )
    assert refusal.value.status == 400


@pytest.mark.slow
def test_policies_are_shown(own: RawChannel, admin: Admin, api: Api, own_vhost: str) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"delivery-limit": 7})
    admin.put_policy(own_vhost, "h", "^q$", {"ha-mode": "all"}, priority=5)
    declared(own)
    row = shown(api, own_vhost, "q", "policy", "p")
    assert row["effective_policy_definition"] == {"delivery-limit": 7}


# Default types of virtual hosts


@pytest.fixture
def typed(api: Api, admin: Admin, names: Names, broker: Any) -> Any:
    """A virtual host in which queues are quorum queues unless they say otherwise."""
    name = names.new()
    vhost = {"name": name, "metadata": {"default_queue_type": "quorum"}}
    answer = api.ask("POST", "definitions", body={"vhosts": [vhost]})
    assert answer.status == 204, answer.body
    admin.permit(name, broker.user)
    yield name
    admin.forget("vhosts", name)


def test_default_type_is_shown(api: Api, typed: str, own_vhost: str) -> None:
    assert api.get("vhosts", typed)["default_queue_type"] == "quorum"
    assert api.get("vhosts", own_vhost)["default_queue_type"] == "undefined"


def test_default_type_is_not_put(api: Api, names: Names, admin: Admin) -> None:
    name = names.new()
    api.put("vhosts", name, body={"default_queue_type": "quorum"})
    assert api.get("vhosts", name)["default_queue_type"] == "undefined"
    admin.forget("vhosts", name)


def test_default_type_of_durable_queues(raw: Raw, api: Api, typed: str) -> None:
    ch = raw(vhost=typed).channel()
    ch.declare("q", durable=True)
    ch.declare("q", durable=True)
    ch.declare("q", durable=True, arguments=QUORUM)
    assert api.get("queues", typed, "q")["arguments"] == QUORUM
    ch.declare("transient")
    ch.declare("auto-delete", durable=True, auto_delete=True)
    ch.declare("exclusive", durable=True, exclusive=True)
    for name in ("transient", "auto-delete", "exclusive"):
        assert api.get("queues", typed, name)["type"] == "classic"
        assert api.get("queues", typed, name)["arguments"] == {}


def test_default_type_and_what_it_cannot_have(raw: Raw, typed: str) -> None:
    ch = raw(vhost=typed).channel()
    told = "Cannot declare a server-named queue for type rabbit_quorum_queue"
    ch.refused(406, told, "queue.declare", queue="", durable=True)
    told = (
        f"invalid arg 'x-max-priority' for queue 'q' in vhost '{typed}'"
        " of queue type rabbit_quorum_queue"
    )
    arguments = {"x-max-priority": 3}
    ch.refused(406, told, "queue.declare", queue="q", durable=True, arguments=arguments)


def test_explicit_type_and_the_default(raw: Raw, typed: str) -> None:
    ch = raw(vhost=typed).channel()
    ch.declare("q", durable=True, arguments={"x-queue-type": "classic"})
    told = (
        f"inequivalent arg 'x-queue-type' for queue 'q' in vhost '{typed}': "
        "received 'quorum' but current is 'classic'"
    )
    ch.refused(406, told, "queue.declare", queue="q", durable=True)


def test_default_type_of_queues_declared_over_http(api: Api, typed: str) -> None:
    api.put("queues", typed, "q", body={"durable": True})
    api.put("queues", typed, "q", body={"durable": True})
    assert api.get("queues", typed, "q")["type"] == "quorum"
    api.put("queues", typed, "t", body={})
    assert api.get("queues", typed, "t")["type"] == "classic"


def test_default_type_is_not_exported(api: Api, typed: str) -> None:
    (item,) = [one for one in api.get("definitions")["vhosts"] if one["name"] == typed]
    assert item == {"name": typed}
