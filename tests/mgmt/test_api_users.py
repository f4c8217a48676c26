"""/users: made, changed, listed, deleted over HTTP."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Iterator

import pytest
from api_client import EVERYTHING, NOT_FOUND, ApiClient, reason

from warren import Broker
from warren.config import PasswordRule
from warren.core.access.password import hash_password


@pytest.fixture
def api(broker: Broker) -> Iterator[ApiClient]:
    """Users but the first are gone after each test."""
    client = ApiClient(broker)
    yield client
    names = [user["name"] for user in client.get("/users")[1] if user["name"] != "guest"]
    client.post("/users/bulk-delete", {"users": names})


def test_a_new_user_logs_in_with_the_password(broker: Broker, api: ApiClient) -> None:
    user = {"password": "secret", "tags": "management"}
    assert api.put("/users/ann", user) == (201, None)
    assert api.put("/users/ann", user) == (204, None)
    whoami = ApiClient(broker, "ann", "secret").get("/whoami")
    assert whoami == (200, {"name": "ann", "tags": ["management"]})
    status, row = api.get("/users/ann")
    assert status == 200 and row.keys() == {
        "name",
        "password_hash",
        "hashing_algorithm",
        "tags",
        "limits",
    }


def test_a_user_logs_in_with_the_password_that_was_hashed(broker: Broker, api: ApiClient) -> None:
    algorithm = "rabbit_password_hashing_sha512"
    hashed = b64encode(hash_password("secret", b"salt", algorithm)).decode()
    user = {"password_hash": hashed, "hashing_algorithm": algorithm, "tags": ["management"]}
    assert api.put("/users/ann", user) == (201, None)
    assert ApiClient(broker, "ann", "secret").get("/whoami")[0] == 200
    shown = {"name": "ann", "limits": {}, **user}
    assert api.get("/users/ann") == (200, shown)


@pytest.mark.parametrize("body", [{"tags": ""}, {"tags": "", "password": ""}])
def test_without_a_password_nobody_logs_in(
    broker: Broker, api: ApiClient, body: dict[str, str]
) -> None:
    api.put("/users/ann", {"password": "secret", "tags": "management"})
    assert api.put("/users/ann", body) == (204, None)
    assert reason(ApiClient(broker, "ann", "secret").get("/whoami")) == (401, "Login failed")
    assert api.get("/users/ann?columns=password_hash") == (200, {"password_hash": ""})


@pytest.mark.parametrize("rule", [PasswordRule(length_min=6), PasswordRule(pattern="[0-9]$")])
def test_an_empty_password_is_refused_where_passwords_have_a_rule(rule: PasswordRule) -> None:
    """As by RabbitMQ: a user that is there may lose its password, a new one needs one."""
    with Broker(http_port=0, password_rule=rule) as broker:
        api = ApiClient(broker)
        none, empty = {"name": "ann", "tags": ""}, {"name": "ann", "tags": "", "password": ""}
        empty_hash = {"name": "ann", "tags": "", "password_hash": ""}
        for refused in (none, empty):
            assert api.put("/users/ann", refused)[0] == 400
            assert api.post("/definitions", {"users": [refused]})[0] == 400
            assert api.get("/users/ann")[0] == 404
        assert api.put("/users/ann", {"tags": "management", "password": "secret1"})[0] == 201
        assert api.put("/users/ann", empty)[0] == 400
        assert ApiClient(broker, "ann", "secret1").get("/whoami")[0] == 200
        for taken in (none, empty_hash):
            assert api.put("/users/ann", {"tags": "management", "password": "secret1"})[0] == 204
            assert api.put("/users/ann", taken)[0] == 204
            assert ApiClient(broker, "ann", "secret1").get("/whoami")[0] == 401
        assert api.delete("/users/ann")[0] == 204
        assert api.post("/definitions", {"users": [empty_hash]})[0] == 204
        assert api.get("/users/ann")[1]["password_hash"] == ""


def test_an_empty_password_is_imported_as_none(broker: Broker, api: ApiClient) -> None:
    ann = {"name": "ann", "tags": "management", "password": ""}
    assert api.post("/definitions", {"users": [ann]})[0] == 204
    assert ApiClient(broker, "ann", "").get("/whoami")[0] == 401


def test_tags_are_a_list_or_between_commas(api: ApiClient) -> None:
    api.put("/users/ann", {"tags": "a, b ,c"})
    assert api.get("/users/ann?columns=tags") == (200, {"tags": ["a", "b", "c"]})
    api.put("/users/ann", {"tags": ["x"]})
    assert api.get("/users/ann?columns=tags") == (200, {"tags": ["x"]})


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"password": "x"}, "tags_not_present"),
        (None, "tags_not_present"),
        (b"null", "tags_not_present"),
        ({"tags": None}, "tags_not_present"),
        (
            {"password": "x", "password_hash": "", "tags": ""},
            "both_password_and_password_hash_are_provided",
        ),
        ({"password_hash": "x!", "tags": ""}, ["not_base64", "x!"]),
        ({"password": 5, "tags": ""}, "password should be a string"),
        (
            {"tags": "", "limits": {"bogus": 1}},
            'Unrecognised terms [{<<"bogus">>,1}] in user-limits',
        ),
        (b"{", "not_json"),
    ],
)
def test_a_user_that_is_refused_is_not_made(api: ApiClient, body: object, wrong: object) -> None:
    assert reason(api.put("/users/ann", body)) == (400, wrong)
    assert api.get("/users/ann") == NOT_FOUND


def test_an_unknown_hashing_algorithm_is_refused(api: ApiClient) -> None:
    body = {"password_hash": "", "hashing_algorithm": "rot13", "tags": ""}
    assert api.put("/users/ann", body)[0] == 400


def test_limits_come_with_a_user_and_stay(api: ApiClient) -> None:
    api.put("/users/ann", {"tags": "", "limits": {"max-channels": 5}})
    api.put("/users/ann", {"tags": ""})
    assert api.get("/users/ann?columns=limits") == (200, {"limits": {"max-channels": 5}})


def test_users_are_listed_whatever_page_is_asked_for(api: ApiClient) -> None:
    for name in ("ann", "bob"):
        api.put(f"/users/{name}", {"tags": ""})
    names = [{"name": name} for name in ("ann", "bob", "guest")]
    assert api.get("/users?page=1&page_size=1&columns=name") == (200, names)
    reverse = api.get("/users?columns=name&sort=name&sort_reverse=true")
    assert reverse == (200, names[::-1])


def test_users_without_permissions(api: ApiClient) -> None:
    for name in ("ann", "bob"):
        api.put(f"/users/{name}", {"tags": ""})
    api.put("/permissions/%2F/ann", EVERYTHING)
    assert api.get("/users/without-permissions?columns=name") == (200, [{"name": "bob"}])


def test_a_user_is_deleted(broker: Broker, api: ApiClient) -> None:
    api.put("/users/ann", {"password": "ann", "tags": "management"})
    api.put("/permissions/%2F/ann", EVERYTHING)
    assert api.delete("/users/ann") == (204, None)
    assert api.delete("/users/ann") == NOT_FOUND
    assert ApiClient(broker, "ann").get("/whoami")[0] == 401
    assert [row["user"] for row in api.get("/permissions")[1]] == ["guest"]


def test_several_users_are_deleted_or_none(api: ApiClient) -> None:
    for name in ("ann", "bob"):
        api.put(f"/users/{name}", {"tags": ""})
    refused = api.post("/users/bulk-delete", {"users": ["ann", "zoe"]})
    assert reason(refused) == (400, ["no_such_user", "zoe"])
    assert api.get("/users/ann")[0] == 200
    assert api.post("/users/bulk-delete", {"users": ["ann", "bob", "ann"]}) == (204, None)
    assert api.get("/users?columns=name") == (200, [{"name": "guest"}])
    assert reason(api.post("/users/bulk-delete", {})) == (400, "[{key_missing,users}]")
    assert api.post("/users/bulk-delete", {"users": "guest"})[0] == 400


def test_permissions_of_a_user(api: ApiClient) -> None:
    api.put("/users/ann", {"tags": ""})
    assert api.get("/users/ann/permissions") == (200, [])
    api.put("/permissions/%2F/ann", EVERYTHING)
    rows = [{"user": "ann", "vhost": "/", **EVERYTHING}]
    assert api.get("/users/ann/permissions") == (200, rows)
    given = {"exchange": "amq.topic", "write": "^a", "read": ""}
    api.put("/topic-permissions/%2F/ann", given)
    rows = [{"user": "ann", "vhost": "/", **given}]
    assert api.get("/users/ann/topic-permissions") == (200, rows)
    assert api.get("/users/zoe/permissions") == NOT_FOUND
    assert api.get("/users/zoe/topic-permissions") == NOT_FOUND


def test_a_name_with_a_slash(api: ApiClient) -> None:
    assert api.put("/users/a%2Fb", {"tags": ""}) == (201, None)
    assert api.get("/users/a%2Fb?columns=name") == (200, {"name": "a/b"})


def test_changes_are_on_record_and_passwords_are_not(
    api: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warren.audit")
    api.put("/users/ann", {"password": "topsecret", "tags": ""})
    api.put("/users/ann", {"password": "topsecret", "tags": ""})
    api.delete("/users/ann")
    noted = [record.getMessage() for record in caplog.records if record.name == "warren.audit"]
    assert [line.split()[0] for line in noted] == ["user_created", "user_changed", "user_deleted"]
    assert all("user=ann" in line and "topsecret" not in line for line in noted)


def test_a_user_that_was_answered_for_survives(tmp_path: object) -> None:
    with Broker(http_port=0, data_dir=str(tmp_path)) as running:
        ApiClient(running).put("/users/ann", {"password": "ann", "tags": "management"})
    with Broker(http_port=0, data_dir=str(tmp_path)) as running:
        assert ApiClient(running, "ann").get("/whoami")[0] == 200
