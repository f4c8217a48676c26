"""Definitions over HTTP: exported and imported, whole and of a vhost (section 4)."""

import json
import uuid
from typing import Any

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.api import Api, expected, names_of
from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names

AREA = "API: definitions"

WHOLE = {
    "rabbit_version",
    "rabbitmq_version",
    "product_name",
    "product_version",
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "queues",
    "exchanges",
    "bindings",
}
OF_A_VHOST = {"rabbit_version", "parameters", "policies", "queues", "exchanges", "bindings"}


@pytest.fixture
def furnished(api: Api, admin: Admin, own_vhost: str, own_user: str) -> str:
    """A vhost with one of everything."""
    api.put("queues", own_vhost, "q", body={"durable": True, "arguments": {"x-max-length": 5}})
    api.put("exchanges", own_vhost, "x", body={"type": "topic", "durable": True})
    api.bind(own_vhost, "x", "q", "a.#", k=1)
    admin.put_policy(own_vhost, "p", "^q", {"max-length": 3}, 2, "queues")
    admin.put_policy(own_vhost, "o", "^q", {"max-length": 4}, kind="operator-policies")
    admin.limit_vhost(own_vhost, "max-queues", 9)
    admin.permit(own_vhost, own_user, "^c", "^w", "^r")
    admin.permit_topic(own_vhost, own_user, "amq.topic", "^w", "^r")
    return own_vhost


def load(api: Api, definitions: dict[str, Any], *vhost: str) -> None:
    expected(api.ask("POST", "definitions", *vhost, body=definitions), 204, ("definitions",))


def of(rows: list[dict[str, Any]], vhost: str) -> list[dict[str, Any]]:
    return [row for row in rows if row.get("vhost") == vhost]


@pytest.mark.parametrize("path", ["definitions", "all-configuration"])
def test_whole_export(api: Api, furnished: str, own_user: str, path: str) -> None:
    whole = api.get(path)
    assert whole.keys() == WHOLE
    here = {"vhost": furnished}
    user = {"user": own_user, **here}
    assert {"name": furnished} in [{"name": row["name"]} for row in whole["vhosts"]]
    assert of(whole["queues"], furnished) == [
        {
            "name": "q",
            **here,
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-max-length": 5},
        }
    ]
    assert of(whole["exchanges"], furnished) == [
        {
            "name": "x",
            **here,
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        }
    ]
    assert of(whole["bindings"], furnished) == [
        {
            "source": "x",
            **here,
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "a.#",
            "arguments": {"k": 1},
        }
    ]
    assert of(whole["policies"], furnished) == [
        {
            **here,
            "name": "p",
            "pattern": "^q",
            "apply-to": "queues",
            "definition": {"max-length": 3},
            "priority": 2,
        }
    ]
    permission = {**user, "configure": "^c", "write": "^w", "read": "^r"}
    assert permission in whole["permissions"]
    topic = {**user, "exchange": "amq.topic", "write": "^w", "read": "^r"}
    assert topic in whole["topic_permissions"]
    components = {row["component"] for row in of(whole["parameters"], furnished)}
    assert components == {"operator_policy", "vhost-limits"}
    (row,) = [row for row in whole["users"] if row["name"] == own_user]
    assert row.keys() == {"name", "password_hash", "hashing_algorithm", "tags", "limits"}
    assert "internal_cluster_id" in names_of(whole["global_parameters"])


def test_export_of_a_vhost(api: Api, furnished: str) -> None:
    part = api.get("definitions", furnished)
    assert part.keys() == OF_A_VHOST
    assert names_of(part["queues"]) == ["q"]
    assert names_of(part["exchanges"]) == ["x"]
    assert [row["routing_key"] for row in part["bindings"]] == ["a.#"]
    assert names_of(part["policies"]) == ["p"]
    assert "vhost" not in part["queues"][0] and "vhost" not in part["exchanges"][0]
    assert "vhost" not in part["bindings"][0]


def test_what_is_left_out(api: Api, own_vhost: str, raw: Raw) -> None:
    ch = raw(vhost=own_vhost).channel()
    ch.own_queue()
    ch.declare("kept")
    ch.bind("kept", "amq.direct", "k")
    part = api.get("definitions", own_vhost)
    assert names_of(part["queues"]) == ["kept"]
    assert part["exchanges"] == []
    assert [row["source"] for row in part["bindings"]] == ["amq.direct"]


def test_download(api: Api) -> None:
    answer = api.ask("GET", "definitions", query={"download": "mine.json"})
    assert answer.status == 200
    disposition = answer.headers["content-disposition"]
    assert disposition.startswith("attachment") and "mine.json" in disposition


def test_vhost_is_restored(api: Api, furnished: str) -> None:
    before = api.get("definitions", furnished)
    api.delete("queues", furnished, "q")
    api.delete("exchanges", furnished, "x")
    api.delete("policies", furnished, "p")
    load(api, before, furnished)
    after = api.get("definitions", furnished)
    assert {key: after[key] for key in OF_A_VHOST} == before


def test_vhost_is_copied(api: Api, admin: Admin, furnished: str, names: Names) -> None:
    other = names.new()
    admin.put_vhost(other)
    try:
        part = api.get("definitions", furnished)
        load(api, {key: part[key] for key in ("queues", "exchanges", "bindings")}, other)
        copied = api.get("definitions", other)
        for key in ("queues", "exchanges", "bindings"):
            assert copied[key] == part[key]
    finally:
        admin.forget("vhosts", other)


def test_whole_import(api: Api, admin: Admin, names: Names) -> None:
    vhost, user, parameter = names.new(), names.new(), names.new()
    here = {"vhost": vhost}
    definitions = {
        "rabbitmq_version": "3.10.8",
        "users": [{"name": user, "password": "secret", "tags": "management"}],
        "vhosts": [{"name": vhost}],
        "permissions": [{"user": user, **here, "configure": "", "write": "", "read": ".*"}],
        "topic_permissions": [
            {"user": user, **here, "exchange": "amq.topic", "write": "", "read": ""}
        ],
        "global_parameters": [{"name": parameter, "value": {"x": 1}}],
        "parameters": [
            {
                "component": "vhost-limits",
                **here,
                "name": "limits",
                "value": {"max-queues": 4},
            }
        ],
        "policies": [
            {
                **here,
                "name": "p",
                "pattern": ".*",
                "definition": {"max-length": 3},
                "apply-to": "all",
                "priority": 0,
            }
        ],
        "queues": [{"name": "q", **here, "durable": True, "auto_delete": False, "arguments": {}}],
        "exchanges": [
            {
                "name": "x",
                **here,
                "type": "fanout",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
        ],
        "bindings": [
            {
                "source": "x",
                **here,
                "destination": "q",
                "destination_type": "queue",
                "routing_key": "",
                "arguments": {},
            }
        ],
    }
    try:
        for _ in range(2):
            load(api, definitions)
        someone = api.asked_by(user, "secret")
        assert someone.get("vhosts", columns="name") == [{"name": vhost}]
        assert names_of(someone.get("queues", vhost)) == ["q"]
        assert names_of(api.get("policies", vhost)) == ["p"]
        assert api.get("vhost-limits", vhost)[0]["value"] == {"max-queues": 4}
        assert api.get("global-parameters", parameter)["value"] == {"x": 1}
        assert len(api.get("topic-permissions", vhost, user)) == 1
        assert api.publish(vhost, "", "x", "x")
    finally:
        admin.forget("vhosts", vhost)
        admin.forget("users", user)
        admin.forget("global-parameters", parameter)


def test_what_exists_stays_and_what_may_change_changes(api: Api, own_vhost: str) -> None:
    api.put("queues", own_vhost, "q", body={"durable": True})
    api.put("policies", own_vhost, "p", body={"pattern": "a", "definition": {"expires": 5}})
    queue = {"name": "q", "durable": False, "auto_delete": False, "arguments": {}}
    policy = {
        "vhost": own_vhost,
        "name": "p",
        "pattern": "b",
        "definition": {"expires": 6},
        "priority": 0,
        "apply-to": "all",
    }
    load(api, {"queues": [queue], "policies": [policy]}, own_vhost)
    assert api.get("queues", own_vhost, "q")["durable"] is True
    assert api.get("policies", own_vhost, "p")["pattern"] == "b"


def test_uploaded_file(api: Api, own_vhost: str) -> None:
    boundary = uuid.uuid4().hex
    queue = {"name": "q", "durable": True, "auto_delete": False, "arguments": {}}
    body = (
        f"--{boundary}\r\n"
        'Content-Disposition: form-data; name="file"; filename="d.json"\r\n'
        "Content-Type: application/json\r\n\r\n"
        f"{json.dumps({'queues': [queue]})}\r\n--{boundary}--\r\n"
    )
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    answer = api.ask("POST", "definitions", own_vhost, body=body.encode(), headers=headers)
    assert answer.status == 204
    assert names_of(api.get("queues", own_vhost)) == ["q"]


def test_binding_of_what_is_not_there_is_ignored(api: Api, own_vhost: str) -> None:
    binding = {
        "source": "nothing",
        "destination": "nothing",
        "destination_type": "queue",
        "routing_key": "",
        "arguments": {},
    }
    load(api, {"bindings": [binding]}, own_vhost)
    assert api.get("bindings", own_vhost) == []


def test_no_definitions(api: Api, own_vhost: str) -> None:
    load(api, {})
    load(api, {}, own_vhost)
    answer = api.ask("POST", "definitions", body=b"{bad")
    assert (answer.status, answer.json["error"]) == (400, "bad_request")


def test_queue_that_cannot_be(api: Api, own_vhost: str) -> None:
    queue = {
        "name": "q",
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-max-length": "x"},
    }
    answer = api.ask("POST", "definitions", own_vhost, body={"queues": [queue]})
    assert answer.status == 400
    told = f"precondition_failed: invalid arg 'x-max-length' for queue 'q' in vhost '{own_vhost}'"
    assert answer.json["reason"].startswith(told)


def test_queue_in_a_vhost_that_is_not_there(api: Api) -> None:
    queue = {
        "name": "q",
        "vhost": "cf-nothing",
        "durable": True,
        "auto_delete": False,
        "arguments": {},
    }
    answer = api.ask("POST", "definitions", body={"queues": [queue]})
    assert answer.refusal == (400, ["no_such_vhost", "cf-nothing"])


@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_definitions_of_a_vhost_that_is_not_there(api: Api, verb: str) -> None:
    body: object = {} if verb == "POST" else None
    assert api.ask(verb, "definitions", "cf-nothing", body=body).status in (400, 404)


def test_policy_that_cannot_be(api: Api, own_vhost: str) -> None:
    policy = {
        "vhost": own_vhost,
        "name": "p",
        "pattern": "(",
        "definition": {"max-length": 1},
        "priority": 0,
        "apply-to": "all",
    }
    answer = api.ask("POST", "definitions", body={"policies": [policy]})
    assert answer.status == 400
    assert api.get("policies", own_vhost) == []


def test_queue_limit_holds(api: Api, admin: Admin, own_vhost: str) -> None:
    admin.limit_vhost(own_vhost, "max-queues", 1)
    queues: list[dict[str, Any]] = [
        {"name": name, "durable": True, "auto_delete": False, "arguments": {}}
        for name in ("one", "two")
    ]
    answer = api.ask("POST", "definitions", own_vhost, body={"queues": queues})
    assert answer.status == 400
