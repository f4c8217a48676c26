"""/permissions and /topic-permissions over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_client import EVERYTHING, NOT_FOUND, ApiClient, reason

from warren import Broker

TOPIC = {"exchange": "amq.topic", "write": "^a", "read": ".*"}


@pytest.fixture
def api(broker: Broker) -> Iterator[ApiClient]:
    """With a user ann and a virtual host v1, which are gone after each test."""
    client = ApiClient(broker)
    client.put("/users/ann", {"password": "ann", "tags": "management"})
    client.put("/vhosts/v1")
    yield client
    client.delete("/users/ann")
    client.delete("/vhosts/v1")


def test_permissions_are_given_changed_and_taken(broker: Broker, api: ApiClient) -> None:
    ann = ApiClient(broker, "ann")
    assert ann.get("/queues/v1")[0] == 401
    assert api.put("/permissions/v1/ann", EVERYTHING) == (201, None)
    assert ann.get("/queues/v1") == (200, [])
    changed = {"configure": "", "write": "^a", "read": ".*"}
    assert api.put("/permissions/v1/ann", changed) == (204, None)
    assert api.get("/permissions/v1/ann") == (200, {"user": "ann", "vhost": "v1", **changed})
    assert reason(ann.put("/queues/v1/q", {})) == (401, "Access refused.")
    assert api.delete("/permissions/v1/ann") == (204, None)
    assert api.delete("/permissions/v1/ann") == NOT_FOUND
    assert api.get("/permissions/v1/ann") == NOT_FOUND
    assert ann.get("/queues/v1")[0] == 401


def test_all_permissions_by_vhost_and_user(api: ApiClient) -> None:
    api.put("/permissions/v1/ann", EVERYTHING)
    rows = [
        {"user": "guest", "vhost": "/"},
        {"user": "ann", "vhost": "v1"},
        {"user": "guest", "vhost": "v1"},
    ]
    assert api.get("/permissions?columns=user,vhost&page=1&page_size=1") == (200, rows)


@pytest.mark.parametrize("path", ["/permissions/v1/zoe", "/permissions/nope/ann"])
def test_permissions_of_whom_or_where_there_is_nobody(api: ApiClient, path: str) -> None:
    assert reason(api.put(path, EVERYTHING)) == (400, "vhost_or_user_not_found")
    assert api.get(path) == NOT_FOUND
    assert api.delete(path) == NOT_FOUND


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"configure": "a"}, "[{key_missing,write},{key_missing,read}]"),
        ({**EVERYTHING, "read": 5}, "read should be a string"),
        ({**EVERYTHING, "read": "("}, ["invalid_regexp", "(", '{"missing )",1}']),
        (b"{", "not_json"),
    ],
)
def test_permissions_that_are_refused(api: ApiClient, body: object, wrong: object) -> None:
    assert reason(api.put("/permissions/v1/ann", body)) == (400, wrong)
    assert api.get("/permissions/v1/ann") == NOT_FOUND


def test_topic_permissions_are_given_and_taken_by_exchange(api: ApiClient) -> None:
    path = "/topic-permissions/v1/ann"
    assert api.get(path) == NOT_FOUND
    assert api.put(path, TOPIC) == (201, None)
    other = {"exchange": "e2", "write": "", "read": ""}
    assert api.put(path, other) == (204, None)
    first, second = ({"user": "ann", "vhost": "v1", **given} for given in (TOPIC, other))
    assert api.get(path) == (200, [first, second])
    assert api.get("/topic-permissions") == (200, [first, second])
    assert api.get(f"{path}/e2") == (200, [second])
    assert api.delete(f"{path}/e2") == (204, None)
    assert api.get(path) == (200, [first])
    assert api.delete(path) == (204, None)
    assert api.delete(path) == NOT_FOUND
    assert api.delete(f"{path}/e2") == NOT_FOUND


def test_the_default_exchange_has_a_name_in_paths(api: ApiClient) -> None:
    path = "/topic-permissions/v1/ann"
    api.put(path, {"exchange": "", "write": "a", "read": ""})
    assert len(api.get(f"{path}/amq.default")[1]) == 1
    api.delete(f"{path}/amq.default")
    assert api.get(path) == NOT_FOUND


@pytest.mark.parametrize(
    ("path", "body", "wrong"),
    [
        ("v1/zoe", TOPIC, "vhost_or_user_not_found"),
        ("nope/ann", TOPIC, "vhost_or_user_not_found"),
        ("v1/ann", {"exchange": "a"}, "[{key_missing,write},{key_missing,read}]"),
        ("v1/ann", {**TOPIC, "exchange": 5}, "exchange should be a string"),
        ("v1/ann", {**TOPIC, "write": "("}, ["invalid_regexp", "(", '{"missing )",1}']),
    ],
)
def test_topic_permissions_that_are_refused(
    api: ApiClient, path: str, body: object, wrong: object
) -> None:
    assert reason(api.put(f"/topic-permissions/{path}", body)) == (400, wrong)
    assert api.get("/topic-permissions") == (200, [])
