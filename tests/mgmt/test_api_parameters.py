"""/parameters and /global-parameters over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_client import EVERYTHING, NOT_FOUND, VHOST_NOT_FOUND, ApiClient, reason

from warren import Broker

POLICY = {"pattern": "^a", "definition": {"max-length": 5}, "priority": 1}
LIMITS = {"component": "vhost-limits", "vhost": "v1", "name": "limits", "value": {"max-queues": 5}}


@pytest.fixture
def api(broker: Broker) -> Iterator[ApiClient]:
    """With a virtual host v1, which is gone after each test."""
    client = ApiClient(broker)
    client.put("/vhosts/v1")
    yield client
    client.delete("/vhosts/v1")


def test_a_parameter_is_set_and_cleared(api: ApiClient) -> None:
    path = "/parameters/vhost-limits/v1/limits"
    assert api.put(path, LIMITS) == (201, None)
    assert api.put(path, LIMITS) == (204, None)
    assert api.get(path) == (200, LIMITS)
    for listed in ("", "/vhost-limits", "/vhost-limits/v1"):
        assert api.get(f"/parameters{listed}") == (200, [LIMITS])
    assert api.delete(path) == (204, None)
    assert api.delete(path) == NOT_FOUND
    assert api.get(path) == NOT_FOUND


def test_an_operator_policy_is_a_parameter(api: ApiClient) -> None:
    path = "/parameters/operator_policy/v1/x"
    assert api.put(path, {"value": POLICY}) == (201, None)
    assert api.get("/operator-policies/v1/x?columns=priority") == (200, {"priority": 1})
    assert api.get(path)[1]["value"]["pattern"] == "^a"
    assert api.delete(path) == (204, None)
    assert api.get("/operator-policies") == (200, [])


def test_a_policy_is_only_read_as_a_parameter(api: ApiClient) -> None:
    api.put("/policies/v1/p", POLICY)
    row = {
        "component": "policy",
        "vhost": "v1",
        "name": "p",
        "value": {**POLICY, "apply-to": "all"},
    }
    assert api.get("/parameters/policy") == (200, [row])
    assert api.get("/parameters/policy/v1/p") == (200, row)
    assert api.get("/parameters") == (200, [])
    told = "policies may not be set using this method"
    assert reason(api.put("/parameters/policy/v1/p", {"value": POLICY})) == (400, told)
    assert api.delete("/parameters/policy/v1/p")[0] == 400


def test_an_unknown_component_has_no_parameters(api: ApiClient) -> None:
    assert api.get("/parameters/bogus") == (200, [])
    assert api.get("/parameters/bogus/v1") == (200, [])
    assert api.get("/parameters/bogus/nope") == NOT_FOUND
    assert api.get("/parameters/bogus/v1/x") == NOT_FOUND
    assert api.delete("/parameters/bogus/v1/x") == NOT_FOUND


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("bogus/v1/x", {"value": 1}, "Validation failed\n\ncomponent bogus not found\n"),
        (
            "vhost-limits/v1/limits",
            {"value": {"x": 5}},
            'Validation failed\n\nUnrecognised terms [{&lt;&lt;"x"&gt;&gt;,5}] in limits\n',
        ),
        ("vhost-limits/v1/limits", {}, "[{key_missing,value}]"),
        ("vhost-limits/v1/limits", b"{", "not_json"),
    ],
)
def test_a_parameter_that_is_refused(api: ApiClient, path: str, body: object, told: object) -> None:
    assert reason(api.put(f"/parameters/{path}", body)) == (400, told)
    assert api.get("/parameters") == (200, [])


def test_a_parameter_in_no_vhost(api: ApiClient) -> None:
    assert api.put("/parameters/vhost-limits/nope/limits", {"value": {}}) == VHOST_NOT_FOUND
    assert api.get("/parameters/vhost-limits/nope/limits") == NOT_FOUND


def test_policymakers_see_those_of_their_vhosts(broker: Broker, api: ApiClient) -> None:
    api.put("/users/pol", {"password": "pol", "tags": "policymaker"})
    api.put("/permissions/v1/pol", EVERYTHING)
    path = "/parameters/vhost-limits/%2F/limits"
    api.put(path, {"value": {"max-queues": 1000}})
    maker = ApiClient(broker, "pol")
    assert api.put("/parameters/vhost-limits/v1/limits", LIMITS) == (201, None)
    assert maker.get("/parameters") == (200, [LIMITS])
    assert maker.get("/parameters/vhost-limits") == (200, [LIMITS])
    closed = (401, "User not authorised to access object")
    for answer in (
        maker.get(path),
        maker.get("/parameters/vhost-limits/%2F"),
        maker.put("/parameters/other/%2F/p", LIMITS),
        maker.delete("/parameters/other/%2F/p"),
    ):
        assert reason(answer) == closed
    for answer in (maker.put(path, LIMITS), maker.delete(path)):
        assert reason(answer) == (401, "Not administrator user")
    assert api.get(path)[1]["value"] == {"max-queues": 1000}
    api.delete(path)


def test_global_parameters(api: ApiClient) -> None:
    path = "/global-parameters/g1"
    assert api.get(path) == NOT_FOUND
    assert api.put(path, {"value": {"a": [1, None, True]}}) == (201, None)
    assert api.put(path, {"value": None}) == (204, None)
    assert api.get(path) == (200, {"name": "g1", "value": None})
    assert {"name": "g1", "value": None} in api.get("/global-parameters")[1]
    assert api.delete(path) == (204, None)
    assert api.delete(path) == NOT_FOUND
    assert reason(api.put(path, {})) == (400, "[{key_missing,value}]")
