"""Policies, parameters and limits over HTTP: how they are shown, and what is refused (section 2).

Their effects on queues and connections are in test_policies.py and test_limits.py.
"""

from typing import Any

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.api import NOT_FOUND, VHOST_NOT_FOUND, Api, names_of
from warren.compat_tests.names import Names

AREA = "API: policies, parameters, limits"

KINDS = ["policies", "operator-policies"]
BODY: dict[str, Any] = {"pattern": "^a", "definition": {"max-length": 1}}


@pytest.mark.parametrize("kind", KINDS)
def test_policy_is_set_changed_and_cleared(api: Api, own_vhost: str, kind: str) -> None:
    path = (kind, own_vhost, "p")
    assert api.put(*path, body=BODY) == 201
    row = {"vhost": own_vhost, "name": "p", "apply-to": "all", "priority": 0, **BODY}
    assert api.get(*path) == row
    change = {"pattern": "b", "definition": {"expires": 9}, "priority": 7, "apply-to": "queues"}
    assert api.put(*path, body=change) == 204
    row = {"vhost": own_vhost, "name": "p", **change}
    assert api.get(*path) == row
    assert api.get(kind, own_vhost) == [row]
    assert row in api.get(kind)
    api.delete(*path)
    assert api.ask("GET", *path).json == NOT_FOUND
    assert api.ask("DELETE", *path).status == 404


@pytest.mark.parametrize("kind", KINDS)
def test_policy_in_a_vhost_that_is_not_there(api: Api, kind: str) -> None:
    answer = api.ask("PUT", kind, "cf-nothing", "p", body=BODY)
    assert (answer.status, answer.json) == (404, VHOST_NOT_FOUND)


def test_policies_come_in_order_of_priority(api: Api, own_vhost: str) -> None:
    for name, priority in (("a", 9), ("b", -1), ("c", 5)):
        api.put("policies", own_vhost, name, body={**BODY, "priority": priority})
    assert names_of(api.get("policies", own_vhost)) == ["b", "c", "a"]


def test_keys_of_the_address_in_the_body_are_ignored(api: Api, own_vhost: str) -> None:
    body = {**BODY, "name": "other", "vhost": "other", "extra": 1}
    assert api.put("policies", own_vhost, "p", body=body) == 201
    assert names_of(api.get("policies", own_vhost)) == ["p"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"definition": {}}, "no policy provided"),
    ({"definition": {"max-length": "x"}}, '<<"x">> is not a valid maximum length'),
    ({"definition": {"max-length": -1}}, "-1 is not a valid maximum length"),
    (
        {"definition": {"max-length-bytes": "x"}},
        '<<"x">> is not a valid maximum length in bytes',
    ),
    ({"definition": {"message-ttl": -1}}, "-1 is not a valid message TTL"),
    ({"definition": {"expires": 0}}, "0 is not a valid queue expiry"),
    ({"definition": {"foo": 1}}, '[{<<"foo">>,1}] are not recognised policy settings'),
    (
        {"definition": {"max-length": 1, "foo": 2, "bar": 3}},
        '[{<<"bar">>,3},{<<"foo">>,2}] are not recognised policy settings',
    ),
    (
        {"pattern": "("},
        'pattern should be regular expression but is invalid: {"missing )",1}',
    ),
    ({"priority": "x"}, 'priority should be a number, actually was <<"x">>'),
    ({"apply-to": "x"}, "apply-to 'x' unrecognised; should be 'queues', 'exchanges' or 'all'"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("change", "told"), REFUSED, ids=str)
def test_policies_that_are_refused(
    api: Api, own_vhost: str, kind: str, change: dict[str, Any], told: str
) -> None:
    reason = f"Validation failed\n\n{told}\n"
    if kind == "policies":
        reason = reason.replace("<", "&lt;").replace(">", "&gt;")
    answer = api.ask("PUT", kind, own_vhost, "p", body={**BODY, **change})
    assert answer.refusal == (400, reason)
    assert api.get(kind, own_vhost) == []


@pytest.mark.parametrize(
    "definition",
    [{"ha-mode": "all"}, {"overflow": "drop-head"}, {"dead-letter-exchange": "x"}],
    ids=str,
)
def test_settings_that_operators_cannot_make(
    api: Api, own_vhost: str, definition: dict[str, str]
) -> None:
    body = {**BODY, "definition": definition}
    assert api.put("policies", own_vhost, "p", body=body) == 201
    ((key, value),) = definition.items()
    told = (
        f'Validation failed\n\n[{{<<"{key}">>,<<"{value}">>}}] are not recognised policy settings\n'
    )
    answer = api.ask("PUT", "operator-policies", own_vhost, "p", body=body)
    assert answer.refusal == (400, told)


# Parameters


@pytest.mark.parametrize("component", ["cf-nothing", "federation-upstreams"])
def test_component_that_is_not_there(api: Api, own_vhost: str, component: str) -> None:
    assert api.get("parameters", component) == []
    assert api.get("parameters", component, own_vhost) == []
    path = ("parameters", component, own_vhost, "x")
    answer = api.ask("PUT", *path, body={"value": 1})
    assert answer.refusal == (400, f"Validation failed\n\ncomponent {component} not found\n")
    assert api.ask("DELETE", *path).status == 404


def test_limits_are_parameters(api: Api, own_vhost: str) -> None:
    path = ("parameters", "vhost-limits", own_vhost, "limits")
    assert api.put(*path, body={"value": {"max-queues": 5}}) == 201
    row = {
        "component": "vhost-limits",
        "vhost": own_vhost,
        "name": "limits",
        "value": {"max-queues": 5},
    }
    assert api.get(*path) == row
    assert api.get("parameters", "vhost-limits", own_vhost) == [row]
    assert row in api.get("parameters", "vhost-limits")
    assert row in api.get("parameters")
    assert api.get("vhost-limits", own_vhost) == [{"vhost": own_vhost, "value": row["value"]}]
    assert api.put(*path, body={"value": {"max-queues": 6}}) == 204
    api.delete(*path)
    assert api.get("vhost-limits", own_vhost) == []


def test_policies_are_not_set_as_parameters(api: Api, own_vhost: str) -> None:
    path = ("parameters", "policy", own_vhost, "p")
    answer = api.ask("PUT", *path, body={"value": BODY})
    assert answer.status == 400
    assert api.get("policies", own_vhost) == []


def test_parameter_in_a_vhost_that_is_not_there(api: Api) -> None:
    answer = api.ask("PUT", "parameters", "shovel", "cf-nothing", "x", body={"value": 1})
    assert (answer.status, answer.json) == (404, VHOST_NOT_FOUND)


@pytest.mark.parametrize("value", [1, 1.5, "text", True, ["x", 1], {"a": {"b": [1, "x"]}}], ids=str)
def test_global_parameter(api: Api, admin: Admin, names: Names, value: object) -> None:
    name = names.new()
    path = ("global-parameters", name)
    try:
        assert api.put(*path, body={"value": value}) == 201
        assert api.put(*path, body={"value": value}) == 204
        assert api.get(*path) == {"name": name, "value": value}
        assert {"name": name, "value": value} in api.get("global-parameters")
        api.delete(*path)
        assert api.ask("DELETE", *path).status == 404
    finally:
        admin.forget(*path)


def test_cluster_has_an_id(api: Api) -> None:
    row = api.get("global-parameters", "internal_cluster_id")
    assert row["value"].startswith("rabbitmq-cluster-id-")


# Limits


def test_limits_of_a_vhost(api: Api, own_vhost: str) -> None:
    limits = ("vhost-limits", own_vhost)
    assert api.get(*limits) == []
    assert api.ask("PUT", *limits, "max-queues", body={"value": 3}).status == 204
    assert api.ask("PUT", *limits, "max-connections", body={"value": -1}).status == 204
    row = {"vhost": own_vhost, "value": {"max-queues": 3, "max-connections": -1}}
    assert api.get(*limits) == [row]
    assert row in api.get("vhost-limits")
    for name in ("max-queues", "max-queues"):
        assert api.ask("DELETE", *limits, name).status == 204
    assert api.get(*limits) == [{"vhost": own_vhost, "value": {"max-connections": -1}}]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max-queues", "x", 'max-queues should be a number, actually was <<"x">>'),
        ("max-queues", 1.5, "max-queues should be a number, actually was 1.5"),
        ("nope", 1, 'Unrecognised terms [{<<"nope">>,1}] in limits'),
    ],
)
def test_limits_of_a_vhost_that_are_refused(
    api: Api, own_vhost: str, name: str, value: object, told: str
) -> None:
    answer = api.ask("PUT", "vhost-limits", own_vhost, name, body={"value": value})
    assert answer.refusal == (400, f"Validation failed\n\n{told}\n")
    assert api.get("vhost-limits", own_vhost) == []


def test_limit_of_a_vhost_that_is_not_there(api: Api) -> None:
    answer = api.ask("PUT", "vhost-limits", "cf-nothing", "max-queues", body={"value": 1})
    assert (answer.status, answer.json) == (404, VHOST_NOT_FOUND)


def test_limits_of_a_user(api: Api, own_user: str) -> None:
    limits = ("user-limits", own_user)
    assert api.get(*limits) == []
    assert api.ask("PUT", *limits, "max-channels", body={"value": 3}).status == 204
    assert api.ask("PUT", *limits, "max-connections", body={"value": -1}).status == 204
    row = {"user": own_user, "value": {"max-channels": 3, "max-connections": -1}}
    assert api.get(*limits) == [row]
    assert row in api.get("user-limits")
    assert api.get("users", own_user)["limits"] == row["value"]
    assert api.ask("DELETE", *limits, "max-channels").status == 204
    assert api.get(*limits) == [{"user": own_user, "value": {"max-connections": -1}}]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max-channels", "x", 'max-channels should be a number, actually was <<"x">>'),
        ("nope", 1, 'Unrecognised terms [{<<"nope">>,1}] in user-limits'),
    ],
)
def test_limits_of_a_user_that_are_refused(
    api: Api, own_user: str, name: str, value: object, told: str
) -> None:
    answer = api.ask("PUT", "user-limits", own_user, name, body={"value": value})
    assert answer.refusal == (400, told)


def test_limit_of_a_user_who_is_not_there(api: Api) -> None:
    answer = api.ask("PUT", "user-limits", "cf-nothing", "max-channels", body={"value": 1})
    assert answer.refusal == (400, ["no_such_user", "cf-nothing"])


def test_queue_limit_holds_over_http(api: Api, admin: Admin, own_vhost: str) -> None:
    admin.limit_vhost(own_vhost, "max-queues", 1)
    api.put("queues", own_vhost, "one")
    answer = api.ask("PUT", "queues", own_vhost, "two", body={})
    told = f"cannot declare queue 'two': queue limit in vhost '{own_vhost}' (1) is reached"
    assert answer.refusal == (400, told)
