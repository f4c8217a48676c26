"""/vhost-limits and /user-limits over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_client import EVERYTHING, NOT_FOUND, VHOST_NOT_FOUND, ApiClient, reason

from warren import Broker


@pytest.fixture
def api(broker: Broker) -> Iterator[ApiClient]:
    """With a user ann and a virtual host v1, which are gone after each test."""
    client = ApiClient(broker)
    client.put("/users/ann", {"password": "ann", "tags": "management"})
    client.put("/vhosts/v1")
    yield client
    client.delete("/users/ann")
    client.delete("/vhosts/v1")


def test_limits_of_a_vhost_are_set_one_by_one(api: ApiClient) -> None:
    assert api.get("/vhost-limits/v1") == (200, [])
    assert api.put("/vhost-limits/v1/max-queues", {"value": 1}) == (204, None)
    assert api.put("/vhost-limits/v1/max-connections", {"value": -1}) == (204, None)
    rows = [{"vhost": "v1", "value": {"max-queues": 1, "max-connections": -1}}]
    assert api.get("/vhost-limits/v1") == (200, rows)
    assert api.get("/vhost-limits") == (200, rows)
    api.put("/queues/v1/q1", {})
    assert api.put("/queues/v1/q2", {})[0] == 400


def test_lifted_limits_leave_an_empty_list(api: ApiClient) -> None:
    api.put("/vhost-limits/v1/max-queues", {"value": 1})
    assert api.delete("/vhost-limits/v1/max-queues") == (204, None)
    assert api.delete("/vhost-limits/v1/max-queues") == (204, None)
    assert api.get("/vhost-limits/v1") == (200, [])
    assert api.get("/vhost-limits") == (200, [{"vhost": "v1", "value": []}])


@pytest.mark.parametrize(
    ("name", "body", "told"),
    [
        (
            "bogus",
            {"value": 5},
            'Validation failed\n\nUnrecognised terms [{<<"bogus">>,5}] in limits\n',
        ),
        (
            "max-queues",
            {"value": "x"},
            'Validation failed\n\nmax-queues should be a number, actually was <<"x">>\n',
        ),
        ("max-queues", {}, "[{key_missing,value}]"),
    ],
)
def test_a_limit_of_a_vhost_that_is_refused(
    api: ApiClient, name: str, body: object, told: str
) -> None:
    assert reason(api.put(f"/vhost-limits/v1/{name}", body)) == (400, told)
    assert api.get("/vhost-limits/v1") == (200, [])


def test_limits_of_no_vhost(api: ApiClient) -> None:
    assert api.get("/vhost-limits/nope") == NOT_FOUND
    assert api.put("/vhost-limits/nope/max-queues", {"value": 1}) == VHOST_NOT_FOUND
    assert api.delete("/vhost-limits/nope/max-queues") == NOT_FOUND


def test_users_see_limits_of_their_vhosts_and_monitors_all(broker: Broker, api: ApiClient) -> None:
    api.put("/users/mon", {"password": "mon", "tags": "monitoring"})
    api.put("/vhost-limits/v1/max-queues", {"value": 1})
    rows = [{"vhost": "v1", "value": {"max-queues": 1}}]
    ann, monitor = ApiClient(broker, "ann"), ApiClient(broker, "mon")
    assert ann.get("/vhost-limits") == (200, [])
    closed = (401, "User not authorised to access virtual host")
    assert reason(ann.get("/vhost-limits/v1")) == closed
    assert monitor.get("/vhost-limits") == (200, rows)
    assert monitor.get("/vhost-limits/v1") == (200, rows)
    api.put("/permissions/v1/ann", EVERYTHING)
    assert ann.get("/vhost-limits") == (200, rows)
    assert ann.get("/vhost-limits/v1") == (200, rows)


def test_limits_of_a_user(broker: Broker, api: ApiClient) -> None:
    assert api.get("/user-limits/ann") == (200, [])
    assert api.put("/user-limits/ann/max-channels", {"value": 5}) == (204, None)
    assert api.put("/user-limits/ann/max-connections", {"value": 0}) == (204, None)
    rows = [{"user": "ann", "value": {"max-channels": 5, "max-connections": 0}}]
    assert api.get("/user-limits/ann") == (200, rows)
    assert ApiClient(broker, "ann").get("/user-limits") == (200, rows)
    assert api.delete("/user-limits/ann/max-connections") == (204, None)
    assert api.get("/user-limits") == (200, [{"user": "ann", "value": {"max-channels": 5}}])
    api.delete("/user-limits/ann/max-channels")
    assert api.get("/user-limits") == (200, [])


def test_limits_of_nobody(api: ApiClient) -> None:
    assert api.get("/user-limits/zoe") == NOT_FOUND
    refused = api.put("/user-limits/zoe/max-channels", {"value": 1})
    assert reason(refused) == (400, ["no_such_user", "zoe"])
    assert api.delete("/user-limits/zoe/max-channels") == NOT_FOUND


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("bogus", 5, 'Unrecognised terms [{<<"bogus">>,5}] in user-limits'),
        ("max-channels", "7", 'max-channels should be a number, actually was <<"7">>'),
    ],
)
def test_a_limit_of_a_user_that_is_refused(
    api: ApiClient, name: str, value: object, told: str
) -> None:
    assert reason(api.put(f"/user-limits/ann/{name}", {"value": value})) == (400, told)
    assert api.get("/user-limits") == (200, [])
