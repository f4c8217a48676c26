"""/policies and /operator-policies over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_client import EVERYTHING, NOT_FOUND, VHOST_NOT_FOUND, ApiClient, reason

from warren import Broker

POLICY = {"pattern": "^a", "definition": {"max-length": 5}}
GET_ONE = {"ackmode": "ack_requeue_true", "encoding": "auto", "count": 1}
BOTH = pytest.mark.parametrize("kind", ["policies", "operator-policies"])


@pytest.fixture
def api(broker: Broker) -> Iterator[ApiClient]:
    """With a virtual host v1, which is gone after each test."""
    client = ApiClient(broker)
    client.put("/vhosts/v1")
    yield client
    client.delete("/vhosts/v1")


@BOTH
def test_a_policy_is_set_changed_and_cleared(api: ApiClient, kind: str) -> None:
    path = f"/{kind}/v1/p1"
    shown = {"vhost": "v1", "name": "p1", "apply-to": "all", "priority": 0, **POLICY}
    assert api.put(path, {**POLICY, "vhost": "x", "name": "x"}) == (201, None)
    assert api.get(path) == (200, shown)
    assert api.put(path, {**POLICY, "apply-to": "queues", "priority": 1.5}) == (204, None)
    assert api.get(path) == (200, {**shown, "apply-to": "queues", "priority": 1.5})
    assert api.delete(path) == (204, None)
    assert api.delete(path) == NOT_FOUND
    assert api.get(path) == NOT_FOUND


def test_both_kinds_apply_to_a_queue(api: ApiClient) -> None:
    api.put("/queues/v1/a", {})
    api.put("/policies/v1/p", {"pattern": "^a", "definition": {"max-length": 9}})
    api.put("/operator-policies/v1/o", POLICY)
    row = api.get("/queues/v1/a")[1]
    assert (row["policy"], row["operator_policy"]) == ("p", "o")
    assert row["effective_policy_definition"] == {"max-length": 5}


@BOTH
def test_they_are_listed_by_vhost_and_priority(broker: Broker, api: ApiClient, kind: str) -> None:
    api.put("/vhosts/v0")
    for vhost, name, priority in (("v1", "b", 0), ("v1", "a", 7), ("v1", "c", -1), ("v0", "z", 9)):
        api.put(f"/{kind}/{vhost}/{name}", {**POLICY, "priority": priority})
    names = [row["name"] for row in api.get(f"/{kind}?page=1&page_size=1")[1]]
    assert names == ["z", "c", "b", "a"]
    assert api.get(f"/{kind}/v1?columns=name")[1] == [{"name": name} for name in "cba"]
    api.delete("/vhosts/v0")


@BOTH
def test_users_see_those_of_their_vhosts(broker: Broker, api: ApiClient, kind: str) -> None:
    api.put("/users/ann", {"password": "ann", "tags": "monitoring"})
    api.put("/vhosts/v2")
    api.put("/permissions/v1/ann", EVERYTHING)
    for vhost in ("v1", "v2"):
        api.put(f"/{kind}/{vhost}/p-{vhost}", POLICY)
    ann = ApiClient(broker, "ann")
    assert ann.get(f"/{kind}?columns=name") == (200, [{"name": "p-v1"}])
    assert ann.get(f"/{kind}/v1?columns=name") == (200, [{"name": "p-v1"}])
    closed = (401, "User not authorised to access virtual host")
    assert reason(ann.get(f"/{kind}/v2")) == closed
    assert reason(ann.get(f"/{kind}", X_Vhost="v2")) == closed
    assert api.get(f"/{kind}?columns=name", X_Vhost="v2") == (200, [{"name": "p-v2"}])
    api.delete("/vhosts/v2")


def test_a_policymaker_makes_them_in_own_vhosts_only(broker: Broker, api: ApiClient) -> None:
    api.put("/users/pol", {"password": "pol", "tags": "policymaker"})
    api.put("/permissions/v1/pol", EVERYTHING)
    maker = ApiClient(broker, "pol")
    assert maker.put("/policies/v1/p", POLICY) == (201, None)
    closed = (401, "User not authorised to access object")
    assert reason(maker.put("/policies/%2F/p", POLICY)) == closed
    assert reason(maker.get("/policies/%2F/p")) == closed
    refused = (401, "Not administrator user")
    assert reason(maker.put("/operator-policies/v1/p", POLICY)) == refused


@BOTH
def test_a_vhost_that_is_not_there(api: ApiClient, kind: str) -> None:
    assert api.put(f"/{kind}/nope/p", POLICY) == VHOST_NOT_FOUND
    assert api.get(f"/{kind}/nope") == NOT_FOUND
    assert api.get(f"/{kind}/nope/p") == NOT_FOUND
    assert api.delete(f"/{kind}/nope/p") == NOT_FOUND


REFUSED = [
    ({**POLICY, "priority": "3"}, 'priority should be a number, actually was <<"3">>'),
    ({**POLICY, "definition": {"foo": 1}}, '[{<<"foo">>,1}] are not recognised policy settings'),
    ({**POLICY, "definition": {}}, "no policy provided"),
    (
        {**POLICY, "pattern": "("},
        'pattern should be regular expression but is invalid: {"missing )",1}',
    ),
    (
        {**POLICY, "apply-to": "x"},
        "apply-to 'x' unrecognised; should be 'queues', 'exchanges' or 'all'",
    ),
]


@BOTH
@pytest.mark.parametrize(("body", "wrong"), REFUSED)
def test_a_policy_that_is_refused(api: ApiClient, kind: str, body: object, wrong: str) -> None:
    told = f"Validation failed\n\n{wrong}\n"
    if kind == "policies":
        told = told.replace("<", "&lt;").replace(">", "&gt;")
    assert reason(api.put(f"/{kind}/v1/p", body)) == (400, told)
    assert api.get(f"/{kind}/v1/p") == NOT_FOUND


@BOTH
def test_keys_that_are_missing(api: ApiClient, kind: str) -> None:
    told = "[{key_missing,pattern},{key_missing,definition}]"
    assert reason(api.put(f"/{kind}/v1/p")) == (400, told)
    assert reason(api.put(f"/{kind}/v1/p", {"pattern": ""})) == (400, "[{key_missing,definition}]")
    assert reason(api.put(f"/{kind}/v1/p", b"{")) == (400, "not_json")


@BOTH
def test_a_pattern_that_would_take_for_ever_holds_nobody_up(api: ApiClient, kind: str) -> None:
    for number in range(50):
        assert api.put(f"/queues/v1/{'a' * 60}{number}", {})[0] == 201
    for pattern in ("^" + "(?:aa|a)?" * 30 + "!$", "(?:a|a)" * 60 + "[!]"):
        assert api.put(f"/{kind}/v1/slow", {**POLICY, "pattern": pattern})[0] in (201, 204)
        assert api.put("/permissions/v1/guest", {**EVERYTHING, "read": pattern})[0] in (201, 204)
        name = "a" * 60 + "0"
        assert api.get(f"/queues/v1/{name}")[1]["policy"] is None
        assert api.post(f"/queues/v1/{name}/get", GET_ONE)[0] == 401
    assert api.put(f"/{kind}/v1/good", {**POLICY, "pattern": "^(?:aa|a)?a+1$"}) == (201, None)


@BOTH
def test_a_pattern_that_is_too_long_is_refused(api: ApiClient, kind: str) -> None:
    status, wrong = reason(api.put(f"/{kind}/v1/p", {**POLICY, "pattern": "(?:aa|a)?" * 100_000}))
    assert (status, wrong) == (
        400,
        "Validation failed\n\npattern should be regular expression but is invalid: "
        '{"regular expression is too large: longer than 4096 characters",0}\n',
    )
    status, wrong = reason(api.put("/permissions/v1/guest", {**EVERYTHING, "read": "x" * 5000}))
    assert (status, wrong[2]) == (
        400,
        '{"regular expression is too large: longer than 4096 characters",0}',
    )
