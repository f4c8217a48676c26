"""Rules for every request to the management API: section 1 of its reference."""

import base64
import gzip
import json
from collections.abc import Callable

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.api import CLOSED_OBJECT, CLOSED_VHOST, NOT_FOUND, Api, Colleague
from warren.compat_tests.names import Names

AREA = "API: rules"

CHALLENGE = 'Basic realm="RabbitMQ Management"'
NOT_ADMINISTRATOR = "Not administrator user"
NOT_MONITOR = "Not monitor user"

Colleagues = Callable[[str], Colleague]


def test_without_credentials_one_is_asked_for_them(api: Api) -> None:
    answer = api.asked_by_nobody().ask("GET", "whoami")
    assert (answer.status, answer.body) == (401, b"")
    assert answer.headers["www-authenticate"] == CHALLENGE


@pytest.mark.parametrize("login", [("guest", "wrong"), ("no such user", "guest"), ("", "")])
def test_wrong_credentials(api: Api, login: tuple[str, str]) -> None:
    answer = api.asked_by(*login).ask("GET", "whoami")
    assert answer.status == 401
    assert answer.json == {"error": "not_authorized", "reason": "Login failed"}
    assert answer.headers["www-authenticate"] == CHALLENGE


def test_a_user_without_tags_is_not_let_in(colleague: Colleagues) -> None:
    answer = colleague("").api.ask("GET", "whoami")
    assert answer.status == 401
    assert answer.json == {"error": "not_authorised", "reason": "Not management user"}


@pytest.mark.parametrize("tags", ["management", "policymaker", "monitoring", "administrator"])
def test_whoami(colleague: Colleagues, tags: str) -> None:
    someone = colleague(tags)
    assert someone.api.get("whoami") == {"name": someone.name, "tags": [tags]}


def test_several_tags(colleague: Colleagues) -> None:
    someone = colleague("management, odd one")
    assert someone.api.get("whoami")["tags"] == ["management", "odd one"]


def test_login_form(api: Api, own_user: str, admin: Admin) -> None:
    admin.put_user(own_user, "secret", "management")
    form = f"username={own_user}&password=secret".encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = api.asked_by_nobody().ask("POST", "login", body=form, headers=headers)
    assert (answer.status, answer.json) == (200, "ok")
    cookie = base64.b64encode(f"{own_user}:secret".encode()).decode()
    assert cookie.rstrip("=") in answer.headers["set-cookie"].replace("%3D", "=")


def test_login_form_with_a_wrong_password(api: Api) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    form = b"username=guest&password=wrong"
    answer = api.asked_by_nobody().ask("POST", "login", body=form, headers=headers)
    assert answer.refusal == (401, "Login failed")


# Rights

ADMINISTRATORS_ONLY = [
    ("GET", "users"),
    ("GET", "permissions"),
    ("GET", "topic-permissions"),
    ("GET", "definitions"),
    ("GET", "feature-flags"),
    ("GET", "users", "guest"),
    ("GET", "users", "without-permissions"),
    ("GET", "vhosts", "/", "permissions"),
    ("PUT", "vhosts", "cf-never"),
    ("DELETE", "vhosts", "cf-never"),
    ("PUT", "users", "cf-never"),
    ("DELETE", "users", "cf-never"),
    ("POST", "users", "bulk-delete"),
    ("PUT", "permissions", "/", "cf-never"),
    ("POST", "definitions"),
    ("PUT", "cluster-name"),
    ("PUT", "vhost-limits", "/", "max-queues"),
    ("PUT", "user-limits", "cf-never", "max-channels"),
    ("PUT", "operator-policies", "/", "cf-never"),
    ("POST", "rebalance", "queues"),
    ("DELETE", "reset"),
]


@pytest.mark.parametrize("request_line", ADMINISTRATORS_ONLY, ids="/".join)
def test_what_only_administrators_may(colleague: Colleagues, request_line: tuple[str, ...]) -> None:
    body: object = None if request_line[0] in ("GET", "DELETE") else {}
    for tags in ("management", "policymaker,monitoring"):
        answer = colleague(tags).api.ask(*request_line, body=body)
        assert (answer.status, answer.json["error"]) == (401, "not_authorised")
        # Requests about a vhost that the user may not access are refused for that reason.
        assert answer.json["reason"] in (NOT_ADMINISTRATOR, CLOSED_OBJECT, CLOSED_VHOST)


def test_nodes_are_for_monitors(colleague: Colleagues) -> None:
    assert colleague("policymaker").api.ask("GET", "nodes").refusal == (401, NOT_MONITOR)
    assert colleague("monitoring").api.get("nodes", columns="name")


@pytest.mark.parametrize("path", [("parameters",), ("global-parameters",)], ids="/".join)
def test_parameters_are_for_policymakers(colleague: Colleagues, path: tuple[str, ...]) -> None:
    assert colleague("management").api.ask("GET", *path).refusal == (401, CLOSED_OBJECT)
    assert isinstance(colleague("policymaker").api.get(*path), list)


def test_policymakers_make_policies_where_they_have_permissions(
    colleague: Colleagues, admin: Admin, own_vhost: str
) -> None:
    someone = colleague("policymaker")
    path = ("policies", own_vhost, "p")
    body = {"pattern": "^a", "definition": {"max-length": 1}}
    assert someone.api.ask("PUT", *path, body=body).refusal == (401, CLOSED_OBJECT)
    admin.permit(own_vhost, someone.name, "", "", "")
    assert someone.api.put(*path, body=body) == 201
    someone.api.delete(*path)


def test_others_read_the_list_of_policies_only(
    colleague: Colleagues, api: Api, admin: Admin, own_vhost: str
) -> None:
    admin.put_policy(own_vhost, "p", "^a", {"max-length": 1})
    someone = colleague("management")
    admin.permit(own_vhost, someone.name, "", "", "")
    assert [row["name"] for row in someone.api.get("policies", own_vhost)] == ["p"]
    assert someone.api.ask("GET", "policies", own_vhost, "p").refusal == (401, CLOSED_OBJECT)
    assert someone.api.ask("DELETE", "policies", own_vhost, "p").refusal == (401, CLOSED_OBJECT)


VHOST_LISTS = ["queues", "exchanges", "bindings", "policies", "operator-policies"]


@pytest.mark.parametrize("kind", VHOST_LISTS)
def test_a_vhost_without_permissions_is_closed(
    colleague: Colleagues, own_vhost: str, kind: str
) -> None:
    for tags in ("management", "monitoring"):
        answer = colleague(tags).api.ask("GET", kind, own_vhost)
        assert answer.refusal == (401, CLOSED_VHOST)
    assert isinstance(colleague("administrator").api.get(kind, own_vhost), list)


def test_lists_show_the_own_vhosts(
    colleague: Colleagues, api: Api, admin: Admin, own_vhost: str
) -> None:
    api.put("queues", own_vhost, "q")
    someone = colleague("management")
    assert someone.api.get("vhosts") == []
    assert someone.api.get("queues") == []
    admin.permit(own_vhost, someone.name, "", "", "")
    assert someone.api.get("vhosts", columns="name") == [{"name": own_vhost}]
    assert someone.api.get("queues", columns="name,vhost") == [{"name": "q", "vhost": own_vhost}]
    assert {row["vhost"] for row in someone.api.get("exchanges")} == {own_vhost}
    assert {row["vhost"] for row in someone.api.get("bindings")} == {own_vhost}
    assert someone.api.get("overview")["object_totals"]["queues"] == 1


def test_monitors_see_all_vhosts(colleague: Colleagues, own_vhost: str) -> None:
    rows = colleague("monitoring").api.get("vhosts", columns="name")
    assert {"name": own_vhost} in rows


def test_amqp_permissions_hold(
    colleague: Colleagues, api: Api, admin: Admin, own_vhost: str
) -> None:
    api.put("queues", own_vhost, "q")
    someone = colleague("administrator")
    admin.permit(own_vhost, someone.name, "", "", "")
    bindings = ("bindings", own_vhost, "e", "amq.direct", "q", "q")
    refused: list[tuple[str, tuple[str, ...]]] = [
        ("PUT", ("queues", own_vhost, "new")),
        ("DELETE", ("queues", own_vhost, "q")),
        ("DELETE", ("queues", own_vhost, "q", "contents")),
        ("PUT", ("exchanges", own_vhost, "new")),
        ("POST", bindings),
    ]
    for verb, path in refused:
        body: object = None if verb == "DELETE" else {}
        answer = someone.api.ask(verb, *path, body=body)
        assert answer.refusal == (401, "Access refused."), (verb, path)
    assert api.get("queues", own_vhost, columns="name") == [{"name": "q"}]


def test_amqp_permissions_hold_for_publish_and_get(
    colleague: Colleagues, api: Api, admin: Admin, own_vhost: str
) -> None:
    api.put("queues", own_vhost, "q")
    someone = colleague("management")
    admin.permit(own_vhost, someone.name, "", "", "")
    body = {"properties": {}, "routing_key": "q", "payload": "", "payload_encoding": "string"}
    answer = someone.api.ask("POST", "exchanges", own_vhost, "amq.direct", "publish", body=body)
    assert answer.status in (400, 401)
    assert "ACCESS_REFUSED" in answer.json["reason"]
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert someone.api.ask("POST", "queues", own_vhost, "q", "get", body=get).status == 401


# Paths and methods

MISSING = [
    ("cf-nothing",),
    ("queues", "/", "cf-nothing"),
    ("queues", "cf-nothing"),
    ("queues", "cf-nothing", "q"),
    ("exchanges", "/", "cf-nothing"),
    ("exchanges", "cf-nothing"),
    ("bindings", "cf-nothing"),
    ("bindings", "/", "e", "amq.direct", "q", "cf-nothing", "x"),
    ("consumers", "cf-nothing"),
    ("vhosts", "cf-nothing"),
    ("vhosts", "cf-nothing", "permissions"),
    ("vhosts", "cf-nothing", "connections"),
    ("vhosts", "cf-nothing", "channels"),
    ("users", "cf-nothing"),
    ("users", "cf-nothing", "permissions"),
    ("users", "cf-nothing", "topic-permissions"),
    ("user-limits", "cf-nothing"),
    ("vhost-limits", "cf-nothing"),
    ("permissions", "/", "cf-nothing"),
    ("permissions", "cf-nothing", "guest"),
    ("topic-permissions", "/", "cf-nothing"),
    ("policies", "cf-nothing"),
    ("policies", "/", "cf-nothing"),
    ("operator-policies", "/", "cf-nothing"),
    ("parameters", "shovel", "/", "cf-nothing"),
    ("global-parameters", "cf-nothing"),
    ("connections", "cf-nothing"),
    ("channels", "cf-nothing"),
    ("aliveness-test", "cf-nothing"),
    ("healthchecks", "node", "cf-nothing@nowhere"),
]


@pytest.mark.parametrize("path", MISSING, ids="/".join)
def test_what_is_not_there(api: Api, path: tuple[str, ...]) -> None:
    answer = api.ask("GET", *path)
    assert (answer.status, answer.json) == (404, NOT_FOUND)


@pytest.mark.parametrize("verb", ["PUT", "POST", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "path", [("whoami",), ("overview",), ("queues",), ("nodes",), ("health", "checks", "alarms")]
)
def test_methods_that_are_not_offered(api: Api, path: tuple[str, ...], verb: str) -> None:
    answer = api.ask(verb, *path, body={})
    assert (answer.status, answer.body) == (405, b"")
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    "path",
    [
        ("queues", "/", "q", "contents"),
        ("queues", "/", "q", "get"),
        ("exchanges", "/", "amq.direct", "publish"),
        ("users", "bulk-delete"),
        ("rebalance", "queues"),
    ],
    ids="/".join,
)
def test_what_cannot_be_read(api: Api, path: tuple[str, ...]) -> None:
    answer = api.ask("GET", *path)
    assert (answer.status, answer.body) == (405, b"")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (("queues",), {"HEAD", "GET", "OPTIONS"}),
        (("queues", "/", "q"), {"HEAD", "GET", "PUT", "DELETE", "OPTIONS"}),
        (("queues", "/", "q", "contents"), {"DELETE", "OPTIONS"}),
        (("definitions",), {"HEAD", "GET", "POST", "OPTIONS"}),
        (("cluster-name",), {"HEAD", "GET", "PUT", "OPTIONS"}),
    ],
    ids=str,
)
def test_options(api: Api, path: tuple[str, ...], methods: set[str]) -> None:
    answer = api.asked_by_nobody().ask("OPTIONS", *path)
    assert (answer.status, answer.body) == (200, b"")
    assert set(answer.headers["allow"].split(", ")) >= methods


@pytest.mark.parametrize("path", ["overview", "queues", "whoami", "exchanges"])
def test_head(api: Api, path: str) -> None:
    answer = api.ask("HEAD", path)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers.get_content_type() == "application/json"


def test_head_of_what_is_not_there(api: Api) -> None:
    assert api.ask("HEAD", "queues", "/", "cf-nothing").status == 404


@pytest.mark.parametrize("accept", ["image/png", "application/xml"])
def test_only_json_is_offered(api: Api, accept: str) -> None:
    answer = api.ask("GET", "whoami", headers={"Accept": accept})
    assert (answer.status, answer.body) == (406, b"")


@pytest.mark.parametrize(
    "accept",
    ["*/*", "application/*", "application/json;q=0.5", "text/html, application/json", "a/b, */*"],
)
def test_ways_to_accept_json(api: Api, accept: str) -> None:
    answer = api.ask("GET", "whoami", headers={"Accept": accept})
    assert answer.status == 200 and answer.headers.get_content_type() == "application/json"


def test_headers_of_every_answer(api: Api) -> None:
    headers = api.ask("GET", "overview").headers
    assert headers["cache-control"] == "no-cache"
    assert "content-security-policy" in headers
    assert {part.strip() for part in headers["vary"].split(",")} >= {"accept", "origin"}
    assert "access-control-allow-origin" not in headers


def test_long_answers_are_compressed_for_those_who_can(api: Api, own_vhost: str) -> None:
    for number in range(12):
        api.put("queues", own_vhost, f"a queue of a rather long name {number}" * 4)
    rows = api.get("bindings", own_vhost)
    answer = api.ask("GET", "bindings", own_vhost, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.body)) == rows


# Bodies


@pytest.mark.parametrize("body", [b"{bad", b"[1]", b"\xff\xfe", b"5", b'"x"', b'"{}"'])
@pytest.mark.parametrize("kind", ["queues", "exchanges"])
def test_bodies_that_are_no_objects(
    api: Api, vhost: str, names: Names, kind: str, body: bytes
) -> None:
    answer = api.ask("PUT", kind, vhost, names.new(), body=body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")


def test_body_that_is_no_json(api: Api, vhost: str, names: Names) -> None:
    answer = api.ask("PUT", "queues", vhost, names.new(), body=b"{bad")
    assert answer.refusal == (400, "not_json")


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_body_that_may_be_missing(api: Api, vhost: str, names: Names, body: bytes) -> None:
    assert api.ask("PUT", "queues", vhost, names.new(), body=body).status == 201


@pytest.mark.parametrize(
    ("path", "body", "missing"),
    [
        (("permissions", "/", "guest"), {"configure": ""}, ["write", "read"]),
        (("topic-permissions", "/", "guest"), {"write": "", "read": ""}, ["exchange"]),
        (("policies", "/", "cf-never"), {}, ["pattern", "definition"]),
        (("policies", "/", "cf-never"), {"pattern": ""}, ["definition"]),
        (("operator-policies", "/", "cf-never"), {"definition": {}}, ["pattern"]),
        (("parameters", "shovel", "/", "cf-never"), {}, ["value"]),
        (("global-parameters", "cf-never"), {}, ["value"]),
        (("vhost-limits", "/", "max-queues"), {}, ["value"]),
        (("user-limits", "guest", "max-channels"), {}, ["value"]),
        (("cluster-name",), {}, ["name"]),
    ],
    ids=str,
)
def test_missing_keys_are_named(
    api: Api, path: tuple[str, ...], body: dict[str, object], missing: list[str]
) -> None:
    terms = ",".join(f"{{key_missing,{key}}}" for key in missing)
    assert api.ask("PUT", *path, body=body).refusal == (400, f"[{terms}]")


@pytest.mark.parametrize(("value", "is_durable"), [("true", True), ("false", False), (True, True)])
def test_booleans_may_be_strings(
    api: Api, vhost: str, names: Names, value: object, is_durable: bool
) -> None:
    name = names.new()
    assert api.put("queues", vhost, name, body={"durable": value}) == 201
    assert api.get("queues", vhost, name, columns="durable") == {"durable": is_durable}


@pytest.mark.parametrize("value", ["yes", 1, "", None])
@pytest.mark.parametrize("kind", ["queues", "exchanges"])
def test_what_is_no_boolean(api: Api, vhost: str, names: Names, kind: str, value: object) -> None:
    answer = api.ask("PUT", kind, vhost, names.new(), body={"durable": value})
    assert answer.refusal == (400, ["not_boolean", value])


def test_keys_that_are_not_known_are_ignored(api: Api, vhost: str, names: Names) -> None:
    name = names.new()
    body = {"name": "other", "vhost": "other", "something": [1], "durable": True}
    assert api.put("queues", vhost, name, body=body) == 201
    assert api.get("queues", vhost, name)["name"] == name


def test_odd_characters_in_names(api: Api, vhost: str, names: Names) -> None:
    name = f"{names.new()} /%?#&+ü世"
    path = ("queues", vhost, name)
    assert api.put(*path) == 201
    assert api.get(*path)["name"] == name
    assert api.publish(vhost, name, "x")
    assert api.got(vhost, name)[0]["routing_key"] == name
    api.delete(*path)


def test_body_of_a_delete_is_ignored(api: Api, vhost: str, names: Names) -> None:
    name = names.new()
    api.put("queues", vhost, name)
    body = {"vhost": vhost, "name": name, "mode": "delete"}
    assert api.ask("DELETE", "queues", vhost, name, body=body).status == 204
