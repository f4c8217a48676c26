"""Connections, channels and consumers over HTTP: shown and closed (sections 2 and 3)."""

from collections.abc import Callable
from typing import Any

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.api import Api, Colleague, eventually, names_of
from warren.compat_tests.factory import Raw
from warren.compat_tests.raw_client import RawClient

AREA = "API: connections, channels, consumers"

CONNECTION: dict[str, type] = {
    "name": str,
    "type": str,
    "node": str,
    "vhost": str,
    "user": str,
    "user_who_performed_action": str,
    "host": str,
    "port": int,
    "peer_host": str,
    "peer_port": int,
    "protocol": str,
    "auth_mechanism": str,
    "channel_max": int,
    "frame_max": int,
    "timeout": int,
    "connected_at": int,
    "client_properties": dict,
    "ssl": bool,
}
LIVE_CONNECTION: dict[str, type] = {
    "state": str,
    "channels": int,
    "recv_oct": int,
    "recv_cnt": int,
    "send_oct": int,
    "send_cnt": int,
    "send_pend": int,
    "recv_oct_details": dict,
    "send_oct_details": dict,
    "reductions": int,
    "garbage_collection": dict,
}
CHANNEL: dict[str, type] = {
    "name": str,
    "number": int,
    "node": str,
    "vhost": str,
    "user": str,
    "user_who_performed_action": str,
    "connection_details": dict,
}
LIVE_CHANNEL: dict[str, type] = {
    "state": str,
    "transactional": bool,
    "confirm": bool,
    "consumer_count": int,
    "messages_unacknowledged": int,
    "messages_unconfirmed": int,
    "messages_uncommitted": int,
    "acks_uncommitted": int,
    "prefetch_count": int,
    "global_prefetch_count": int,
    "reductions": int,
    "garbage_collection": dict,
    "consumer_details": list,
    "publishes": list,
    "deliveries": list,
}


def wrong(row: dict[str, Any], fields: dict[str, type]) -> dict[str, Any]:
    return {name: row.get(name) for name, kind in fields.items() if type(row.get(name)) is not kind}


@pytest.fixture
def mine(api: Api, own_vhost: str, raw: Raw) -> tuple[RawClient, str]:
    """A connection in a vhost of its own, and its name."""
    client = raw(vhost=own_vhost)
    (row,) = eventually(lambda: api.get("vhosts", own_vhost, "connections"))
    return client, row["name"]


def test_fields_of_a_connection(api: Api, own_vhost: str, mine: tuple[RawClient, str]) -> None:
    _, name = mine
    row = api.get("connections", name)
    assert wrong(row, CONNECTION) == {}
    assert (row["type"], row["protocol"], row["ssl"]) == ("network", "AMQP 0-9-1", False)
    assert (row["vhost"], row["auth_mechanism"]) == (own_vhost, "PLAIN")
    # The client's address comes first in the name.
    ends = f"{row['peer_host']}:{row['peer_port']} -> {row['host']}:{row['port']}"
    assert row["name"] == name == ends
    assert row["name"] in names_of(api.get("connections"))


@pytest.mark.slow
def test_live_fields_of_a_connection(api: Api, mine: tuple[RawClient, str]) -> None:
    client, name = mine
    client.channel()
    row = eventually(
        lambda: api.get("connections", name),
        lambda row: row.get("channels") == 1 and "recv_oct_details" in row,
    )
    assert wrong(row, LIVE_CONNECTION) == {}
    assert row["state"] == "running" and row["recv_oct"] > 0


def test_closing_a_connection_with_a_reason(
    api: Api, own_vhost: str, mine: tuple[RawClient, str]
) -> None:
    client, name = mine
    answer = api.ask("DELETE", "connections", name, headers={"X-Reason": "time to go"})
    assert answer.status == 204
    client.expect_close(320, "time to go")
    eventually(lambda: api.get("vhosts", own_vhost, "connections"), lambda rows: rows == [])
    assert api.ask("GET", "connections", name).status == 404


@pytest.mark.slow
def test_closing_a_connection_without_a_reason(api: Api, mine: tuple[RawClient, str]) -> None:
    client, name = mine
    api.delete("connections", name)
    client.expect_close(320, "Closed via management plugin")


def test_closing_a_connection_that_is_not_there(api: Api) -> None:
    assert api.ask("DELETE", "connections", "cf-nothing").status == 404


def test_connections_of_a_user(api: Api, admin: Admin, vhost: str, own_user: str, raw: Raw) -> None:
    clients = [raw(user=own_user, password="secret") for _ in range(2)]
    rows = eventually(
        lambda: api.get("connections", "username", own_user), lambda rows: len(rows) == 2
    )
    assert {(row["user"], row["vhost"]) for row in rows} == {(own_user, vhost)}
    answer = api.ask("DELETE", "connections", "username", own_user)
    assert answer.status == 204
    for client in clients:
        client.expect_close(320, "Closed via management plugin")
    eventually(lambda: api.get("connections", "username", own_user), lambda rows: rows == [])


@pytest.mark.slow
def test_users_see_their_own_connections(
    api: Api,
    admin: Admin,
    own_vhost: str,
    mine: tuple[RawClient, str],
    colleague: Callable[[str], Colleague],
    raw: Raw,
) -> None:
    _, name = mine
    someone, monitor = colleague("management"), colleague("monitoring")
    admin.permit(own_vhost, someone.name)
    raw(vhost=own_vhost, user=someone.name, password="secret")
    eventually(lambda: api.get("vhosts", own_vhost, "connections"), lambda rows: len(rows) == 2)
    assert [row["user"] for row in someone.api.get("connections")] == [someone.name]
    assert someone.api.ask("GET", "connections", name).status == 401
    assert someone.api.ask("DELETE", "connections", name).status == 401
    assert monitor.api.get("connections", name)["name"] == name


# Channels


def test_fields_of_a_channel(api: Api, own_vhost: str, mine: tuple[RawClient, str]) -> None:
    client, connection = mine
    client.channel(7)
    name = f"{connection} (7)"
    (row,) = eventually(lambda: api.get("vhosts", own_vhost, "channels"))
    assert wrong(row, CHANNEL) == {}
    assert (row["name"], row["number"], row["vhost"]) == (name, 7, own_vhost)
    assert row["connection_details"]["name"] == connection
    assert api.get("channels", name)["name"] == name
    assert names_of(api.get("connections", connection, "channels")) == [name]
    assert name in names_of(api.get("channels"))


@pytest.mark.slow
def test_live_fields_of_a_channel(api: Api, own_vhost: str, mine: tuple[RawClient, str]) -> None:
    client, connection = mine
    ch = client.channel()
    name = f"{connection} (1)"
    eventually(lambda: api.get("vhosts", own_vhost, "channels"))
    ch.call("confirm.select")
    ch.call("basic.qos", prefetch_count=5)
    ch.call("basic.qos", prefetch_count=9, **{"global": True})
    ch.declare("q")
    ch.publish(b"1", "q")
    ch.confirms(1)
    ch.consume("q", "tag")
    ch.delivery()
    row = eventually(
        lambda: api.get("channels", name),
        lambda row: row.get("messages_unacknowledged") == 1 and row.get("consumer_count") == 1,
    )
    assert wrong(row, LIVE_CHANNEL) == {}
    assert (row["confirm"], row["transactional"], row["state"]) == (True, False, "running")
    assert (row["prefetch_count"], row["global_prefetch_count"]) == (5, 9)
    assert [one["consumer_tag"] for one in row["consumer_details"]] == ["tag"]
    stats = eventually(
        lambda: api.get("channels", name).get("message_stats", {}),
        lambda stats: stats.get("publish") == 1 and stats.get("deliver") == 1,
    )
    assert stats["confirm"] == 1


@pytest.mark.slow
def test_channels_that_close_are_gone(
    api: Api, own_vhost: str, mine: tuple[RawClient, str]
) -> None:
    client, _ = mine
    ch = client.channel()
    eventually(lambda: api.get("vhosts", own_vhost, "channels"))
    ch.close()
    eventually(lambda: api.get("vhosts", own_vhost, "channels"), lambda rows: rows == [])


# Consumers


def test_fields_of_a_consumer(api: Api, own_vhost: str, mine: tuple[RawClient, str]) -> None:
    client, connection = mine
    ch = client.channel()
    ch.declare("q")
    ch.call("basic.qos", prefetch_count=5)
    ch.consume("q", "tag", arguments={"x-priority": 3})
    # RabbitMQ lists a consumer before it knows the channel; until then the channel's details are an
    # empty list.
    (row,) = eventually(
        lambda: api.get("consumers", own_vhost), lambda rows: rows and rows[0]["channel_details"]
    )
    assert row["queue"] == {"name": "q", "vhost": own_vhost}
    assert row["channel_details"].keys() == {
        "name",
        "number",
        "node",
        "connection_name",
        "peer_host",
        "peer_port",
        "user",
    }
    assert row["channel_details"]["connection_name"] == connection
    shown = {
        "consumer_tag": "tag",
        "ack_required": True,
        "exclusive": False,
        "active": True,
        "activity_status": "up",
        "prefetch_count": 5,
        "arguments": {"x-priority": 3},
    }
    assert {key: row.get(key) for key in shown} == shown
    assert row in api.get("consumers")
    ch.call("basic.cancel", consumer_tag="tag")
    eventually(lambda: api.get("consumers", own_vhost), lambda rows: rows == [])


@pytest.mark.slow
def test_waiting_consumers_of_a_single_active_one(
    api: Api, own_vhost: str, mine: tuple[RawClient, str]
) -> None:
    ch = mine[0].channel()
    ch.declare("q", arguments={"x-single-active-consumer": True})
    ch.consume("q", "first")
    ch.consume("q", "second", no_ack=True)
    rows = eventually(lambda: api.get("consumers", own_vhost), lambda rows: len(rows) == 2)
    status = {row["consumer_tag"]: (row["active"], row["activity_status"]) for row in rows}
    assert status == {"first": (True, "single_active"), "second": (False, "waiting")}
