"""Virtual hosts, users and their permissions over HTTP (sections 2 and 3)."""

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.api import NOT_FOUND, Api, Colleague, names_of
from warren.compat_tests.broker import Broker
from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names
from warren.compat_tests.raw_connection import reply_text

AREA = "API: vhosts, users, permissions"

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


def test_vhost_is_made_once(api: Api, admin: Admin, names: Names) -> None:
    name = names.new()
    try:
        assert api.put("vhosts", name) == 201
        assert api.put("vhosts", name) == 204
        row = api.get("vhosts", name)
        assert (row["name"], row["description"], row["tags"]) == (name, "", [])
        assert row["tracing"] is False
        assert row["metadata"] == {"description": "", "tags": []}
        assert set(row["cluster_state"].values()) == {"running"}
        assert name in names_of(api.get("vhosts"))
    finally:
        admin.forget("vhosts", name)
    assert api.ask("GET", "vhosts", name).json == NOT_FOUND
    assert api.ask("DELETE", "vhosts", name).status == 404


def test_vhost_without_a_body(api: Api, admin: Admin, names: Names) -> None:
    name = names.new()
    assert api.ask("PUT", "vhosts", name).status == 201
    admin.forget("vhosts", name)


def test_whoever_makes_a_vhost_may_do_everything_in_it(
    api: Api, admin: Admin, names: Names
) -> None:
    name = names.new()
    api.put("vhosts", name)
    user = api.get("whoami")["name"]
    row = {"user": user, "vhost": name, **EVERYTHING}
    try:
        assert api.get("vhosts", name, "permissions") == [row]
        assert api.get("permissions", name, user) == row
    finally:
        admin.forget("vhosts", name)


def test_what_is_said_about_a_vhost(api: Api, own_vhost: str) -> None:
    assert api.put("vhosts", own_vhost, body={"description": "d", "tags": "a, b"}) == 204
    row = api.get("vhosts", own_vhost)
    assert (row["description"], row["tags"]) == ("d", ["a", "b"])
    assert row["metadata"]["description"] == "d"


@pytest.mark.parametrize("value", [True, "true"])
def test_tracing(api: Api, own_vhost: str, value: object) -> None:
    api.put("vhosts", own_vhost, body={"tracing": value})
    assert api.get("vhosts", own_vhost)["tracing"] is True
    api.put("vhosts", own_vhost, body={"tracing": False})
    assert api.get("vhosts", own_vhost)["tracing"] is False


def test_vhost_body_that_cannot_be(api: Api, own_vhost: str) -> None:
    answer = api.ask("PUT", "vhosts", own_vhost, body={"tracing": "x"})
    assert answer.refusal == (400, ["not_boolean", "x"])
    assert api.ask("PUT", "vhosts", own_vhost, body=b"{bad").refusal == (400, "not_json")


def test_vhost_takes_what_is_in_it_along(api: Api, admin: Admin, own_vhost: str) -> None:
    api.put("queues", own_vhost, "q", body={"durable": True})
    admin.put_policy(own_vhost, "p", ".*", {"max-length": 1})
    api.delete("vhosts", own_vhost)
    assert own_vhost not in {row["vhost"] for row in api.get("queues")}
    assert own_vhost not in {row["vhost"] for row in api.get("permissions")}
    assert own_vhost not in {row["vhost"] for row in api.get("policies")}


def test_connections_of_a_deleted_vhost_are_closed(api: Api, own_vhost: str, raw: Raw) -> None:
    """RabbitMQ's text says that the vhost is down, if the connection notices that before the
    deletion."""
    client = raw(vhost=own_vhost)
    api.delete("vhosts", own_vhost)
    close = client.expect("connection.close", 0)
    texts = [reply_text(320, f"vhost '{own_vhost}' is {what}") for what in ("deleted", "down")]
    assert close["reply_code"] == 320 and close["reply_text"] in texts


# Users


@pytest.fixture
def user(admin: Admin, names: Names) -> Any:
    """The name of a user, which is deleted after the test."""
    name = names.new()
    yield name
    admin.forget("users", name)


@pytest.mark.parametrize(
    ("tags", "shown"),
    [("", []), ("management", ["management"]), ("a, b", ["a", "b"]), (["c", "d"], ["c", "d"])],
    ids=str,
)
def test_user_is_made_and_changed(api: Api, user: str, tags: object, shown: list[str]) -> None:
    body = {"password": "secret", "tags": tags}
    assert api.put("users", user, body=body) == 201
    assert api.put("users", user, body=body) == 204
    row = api.get("users", user)
    assert row.keys() == {"name", "password_hash", "hashing_algorithm", "tags", "limits"}
    assert (row["name"], row["tags"], row["limits"]) == (user, shown, {})
    assert row["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    assert row in api.get("users")


def test_hash_of_a_password(api: Api, user: str) -> None:
    api.put("users", user, body={"password": "secret", "tags": ""})
    octets = base64.b64decode(api.get("users", user)["password_hash"])
    salt, digest = octets[:4], octets[4:]
    assert digest == hashlib.sha256(salt + b"secret").digest()


def test_user_with_the_hash_of_a_password(api: Api, user: str) -> None:
    octets = b"salt" + hashlib.sha256(b"saltsecret").digest()
    hashed = base64.b64encode(octets).decode()
    api.put("users", user, body={"password_hash": hashed, "tags": "management"})
    assert api.get("users", user)["password_hash"] == hashed
    assert api.asked_by(user, "secret").get("whoami")["name"] == user
    assert api.asked_by(user, "wrong").ask("GET", "whoami").status == 401


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [("rabbit_password_hashing_sha512", "sha512"), ("rabbit_password_hashing_md5", "md5")],
)
def test_other_ways_to_hash(api: Api, user: str, algorithm: str, digest: str) -> None:
    octets = b"salt" + hashlib.new(digest, b"saltsecret").digest()
    body = {
        "password_hash": base64.b64encode(octets).decode(),
        "hashing_algorithm": algorithm,
        "tags": "management",
    }
    api.put("users", user, body=body)
    assert api.get("users", user)["hashing_algorithm"] == algorithm
    assert api.asked_by(user, "secret").get("whoami")["name"] == user


@pytest.mark.parametrize("body", [{"tags": "management"}, {"tags": "", "password_hash": ""}])
def test_user_without_a_password_cannot_log_in(api: Api, user: str, body: dict[str, str]) -> None:
    assert api.put("users", user, body=body) == 201
    for password in ("", "x"):
        assert api.asked_by(user, password).ask("GET", "whoami").status == 401


@pytest.mark.parametrize("body", [{}, {"password": "x"}, {"password_hash": ""}], ids=str)
def test_user_needs_tags(api: Api, user: str, body: dict[str, str]) -> None:
    assert api.ask("PUT", "users", user, body=body).refusal == (400, "tags_not_present")
    assert api.ask("GET", "users", user).status == 404


def test_password_and_hash_together(api: Api, user: str) -> None:
    body = {"password": "x", "password_hash": "eA==", "tags": ""}
    told = "both_password_and_password_hash_are_provided"
    assert api.ask("PUT", "users", user, body=body).refusal == (400, told)


def test_hash_that_is_no_base64(api: Api, user: str) -> None:
    body = {"password_hash": "!!", "tags": ""}
    assert api.ask("PUT", "users", user, body=body).status == 400


def test_deleted_user(api: Api, admin: Admin, user: str, vhost: str) -> None:
    admin.put_user(user, "x")
    admin.permit(vhost, user)
    api.delete("users", user)
    assert api.ask("DELETE", "users", user).status == 404
    assert user not in {row["user"] for row in api.get("permissions")}


def test_several_users_are_deleted_at_once(api: Api, colleague: Callable[[str], Colleague]) -> None:
    users = [colleague("").name, colleague("").name]
    assert api.ask("POST", "users", "bulk-delete", body={"users": users}).status == 204
    assert not set(users) & set(names_of(api.get("users")))


def test_bulk_delete_of_nobody(api: Api) -> None:
    assert api.ask("POST", "users", "bulk-delete", body={"users": []}).status == 204
    told = (400, "[{key_missing,users}]")
    assert api.ask("POST", "users", "bulk-delete", body={}).refusal == told
    told_of = (400, ["no_such_user", "cf-nothing"])
    answer = api.ask("POST", "users", "bulk-delete", body={"users": ["cf-nothing"]})
    assert answer.refusal == told_of


def test_users_without_permissions(api: Api, admin: Admin, user: str, vhost: str) -> None:
    admin.put_user(user, "x")
    assert user in names_of(api.get("users", "without-permissions"))
    admin.permit(vhost, user)
    assert user not in names_of(api.get("users", "without-permissions"))


# Permissions


def test_permissions_are_set_and_cleared(api: Api, own_vhost: str, own_user: str) -> None:
    path = ("permissions", own_vhost, own_user)
    assert api.put(*path, body={"configure": "^c", "write": "^w", "read": "^r"}) == 201
    assert api.put(*path, body={"configure": "", "write": "", "read": ""}) == 204
    row = {"user": own_user, "vhost": own_vhost, "configure": "", "write": "", "read": ""}
    assert api.get(*path) == row
    assert row in api.get("permissions")
    assert row in api.get("users", own_user, "permissions")
    assert row in api.get("vhosts", own_vhost, "permissions")
    api.delete(*path)
    assert api.ask("GET", *path).json == NOT_FOUND
    assert api.ask("DELETE", *path).status == 404


@pytest.mark.parametrize("key", ["configure", "write", "read"])
def test_pattern_that_is_none(api: Api, own_vhost: str, own_user: str, key: str) -> None:
    path = ("permissions", own_vhost, own_user)
    answer = api.ask("PUT", *path, body={**EVERYTHING, key: "("})
    assert answer.status == 400
    assert answer.json["reason"][0] == "invalid_regexp"
    assert api.ask("GET", *path).status == 404


@pytest.mark.parametrize("kind", ["permissions", "topic-permissions"])
def test_permissions_of_nobody(api: Api, own_vhost: str, own_user: str, kind: str) -> None:
    body = {**EVERYTHING, "exchange": "amq.topic"}
    for path in [(own_vhost, "cf-nothing"), ("cf-nothing", own_user)]:
        answer = api.ask("PUT", kind, *path, body=body)
        assert answer.refusal == (400, "vhost_or_user_not_found")
        assert api.ask("DELETE", kind, *path).status == 404


def test_topic_permissions_are_set_and_cleared(api: Api, own_vhost: str, own_user: str) -> None:
    path = ("topic-permissions", own_vhost, own_user)
    body = {"exchange": "amq.topic", "write": "^w", "read": "^r"}
    assert api.put(*path, body=body) == 201
    assert api.put(*path, body=body) == 204
    api.put(*path, body={**body, "exchange": "other"})
    row = {"user": own_user, "vhost": own_vhost, **body}
    other = {**row, "exchange": "other"}
    for shown in (
        api.get(*path),
        api.get("users", own_user, "topic-permissions"),
        api.get("vhosts", own_vhost, "topic-permissions"),
    ):
        assert sorted(shown, key=lambda one: str(one["exchange"])) == [row, other]
    assert row in api.get("topic-permissions")
    assert row in api.get(*path, "amq.topic")
    api.delete(*path, "amq.topic")
    assert api.get(*path) == [other]
    api.delete(*path)
    assert api.ask("GET", *path).json == NOT_FOUND


@pytest.mark.parametrize("key", ["write", "read"])
def test_topic_pattern_that_is_none(api: Api, own_vhost: str, own_user: str, key: str) -> None:
    body = {"exchange": "amq.topic", "write": "", "read": "", key: "("}
    answer = api.ask("PUT", "topic-permissions", own_vhost, own_user, body=body)
    assert answer.status == 400
    assert answer.json["reason"][0] == "invalid_regexp"


def test_permissions_hold_at_once(
    api: Api, broker: Broker, own_vhost: str, own_user: str, raw: Raw
) -> None:
    body = {"configure": "^mine", "write": "", "read": ""}
    api.put("permissions", own_vhost, own_user, body=body)
    ch = raw(vhost=own_vhost, user=own_user, password="secret").channel()
    ch.declare("mine")
    told = f"access to queue 'other' in vhost '{own_vhost}' refused for user '{own_user}'"
    ch.refused(403, told, "queue.declare", queue="other")
