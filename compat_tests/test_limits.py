"""Limits of users and vhosts: reference 1.6, 2, 12 and sections 3 and 4 on parameters. Needs an
administrator."""

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawClient

AREA = "Limits"


def knocks(raw: Raw, vhost: str, user: str | None = None) -> RawClient:
    """A client that has asked for a vhost and waits for the answer."""
    client = raw.connected()
    client.start()
    client.send_start_ok(user=user, password=None if user is None else "secret")
    client.tune()
    client.send_method(0, "connection.open", virtual_host=vhost)
    return client


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_vhost_takes_so_many_connections(
    raw: Raw, admin: Admin, own_vhost: str, limit: int
) -> None:
    admin.limit_vhost(own_vhost, "max-connections", limit)
    for _ in range(limit):
        knocks(raw, own_vhost).expect("connection.open-ok")
    client = knocks(raw, own_vhost)
    client.expect_close(
        530,
        f"access to vhost '{own_vhost}' refused for user '{client.broker.user}': "
        f"connection limit ({limit}) is reached",
        offender=(10, 40),
    )


def test_closed_connections_do_not_count(raw: Raw, admin: Admin, own_vhost: str) -> None:
    admin.limit_vhost(own_vhost, "max-connections", 1)
    for _ in range(3):
        raw(vhost=own_vhost).close()


@pytest.mark.parametrize("name", ["max-connections", "max-queues"])
def test_negative_limit_of_a_vhost_is_none(
    raw: Raw, admin: Admin, own_vhost: str, name: str
) -> None:
    admin.limit_vhost(own_vhost, name, -1)
    raw(vhost=own_vhost).channel().own_queue()


def test_vhost_takes_so_many_queues(raw: Raw, admin: Admin, own_vhost: str) -> None:
    admin.limit_vhost(own_vhost, "max-queues", 2)
    ch = raw(vhost=own_vhost).channel()
    for queue in ("one", "two"):
        ch.declare(queue)
    ch.refused(
        406,
        f"cannot declare queue 'three': queue limit in vhost '{own_vhost}' (2) is reached",
        "queue.declare",
        queue="three",
    )
    ch.declare("one")
    ch.call("queue.delete", queue="one")
    ch.declare("three")


def test_limit_of_zero_queues_lets_none_in(raw: Raw, admin: Admin, own_vhost: str) -> None:
    admin.limit_vhost(own_vhost, "max-queues", 0)
    raw(vhost=own_vhost).channel().refused(
        406,
        f"cannot declare queue 'q': queue limit in vhost '{own_vhost}' (0) is reached",
        "queue.declare",
        queue="q",
        exclusive=True,
    )


@pytest.mark.parametrize("limit", [0, 1])
def test_user_gets_so_many_connections(
    raw: Raw, admin: Admin, own_user: str, vhost: str, limit: int
) -> None:
    admin.limit_user(own_user, "max-connections", limit)
    for _ in range(limit):
        knocks(raw, vhost, own_user).expect("connection.open-ok")
    knocks(raw, vhost, own_user).expect_close(
        530,
        f"connection refused for user '{own_user}': user connection limit ({limit}) is reached",
        offender=(10, 40),
    )


def test_user_gets_so_many_channels(raw: Raw, admin: Admin, own_user: str) -> None:
    admin.limit_user(own_user, "max-channels", 2)
    client = raw(user=own_user, password="secret")
    client.channel()
    client.channel()
    client.send_method(9, "channel.open")
    client.expect_close(
        530,
        f"number of channels opened for user '{own_user}' has reached the maximum allowed "
        "user limit of (2)",
        offender=(0, 0),
    )


def test_channel_limit_counts_all_connections_of_the_user(
    raw: Raw, admin: Admin, own_user: str
) -> None:
    admin.limit_user(own_user, "max-channels", 1)
    raw(user=own_user, password="secret").channel()
    other = raw(user=own_user, password="secret")
    other.send_method(1, "channel.open")
    assert other.expect("connection.close")["reply_code"] == 530


def test_negative_limit_of_a_user_is_none(raw: Raw, admin: Admin, own_user: str) -> None:
    for name in ("max-channels", "max-connections"):
        admin.limit_user(own_user, name, -1)
    raw(user=own_user, password="secret").channel()


def test_missing_vhost_is_reported_before_missing_permissions(
    raw: Raw, own_user: str, names: Names
) -> None:
    missing = names.new()
    knocks(raw, missing, own_user).expect_close(530, f"vhost {missing} not found")


def test_vhost_limit_is_reported_before_missing_permissions(
    raw: Raw, admin: Admin, own_user: str, own_vhost: str
) -> None:
    admin.limit_vhost(own_vhost, "max-connections", 0)
    knocks(raw, own_vhost, own_user).expect_close(
        530,
        f"access to vhost '{own_vhost}' refused for user '{own_user}': "
        "connection limit (0) is reached",
    )
