"""Import of definitions: which items are overwritten, kept as they are, skipped and refused."""

from __future__ import annotations

from base64 import b64encode
from hashlib import md5
from typing import Any

import pytest
from definitions_node import (
    binding_item,
    exchange_item,
    exports,
    imports,
    new_node,
    policy_item,
    queue_item,
)

from warren.core.access.access_control import LoginRefused
from warren.core.field import NoField, from_json
from warren.core.node import Node
from warren.mgmt.definitions.errors import (
    DefinitionsRefused,
    InvalidItem,
    InvalidUser,
    NoSuchUserYet,
    NoSuchVhostYet,
    NotDefinitions,
    QueueLimitReached,
)
from warren.mgmt.definitions.parsing import parse

PERMISSIONS = {"user": "guest", "vhost": "/", "configure": "a", "write": "b", "read": "c"}
TOPIC = {"user": "guest", "vhost": "/", "exchange": "x", "write": "a", "read": "b"}
LIMITS = {"component": "vhost-limits", "vhost": "/", "name": "limits"}


def refused(definitions: Any, node: Node | None = None) -> DefinitionsRefused:
    with pytest.raises(DefinitionsRefused) as caught:
        imports(node or new_node(), definitions)
    return caught.value


def user(**changes: Any) -> dict[str, Any]:
    return {"name": "u", "password_hash": "", "tags": [], **changes}


# The whole


@pytest.mark.parametrize("octets", [b"{", b"[]", b'"x"', b"3", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(octets: bytes) -> None:
    with pytest.raises(NotDefinitions) as caught:
        parse(octets)
    assert caught.value.reason == "failed_to_parse_json"


@pytest.mark.parametrize("octets", [b'{"a":NaN}', b'{"a":"\\ud800"}', b'{"\\uD800":1}'])
def test_what_json_cannot_say_is_refused(octets: bytes) -> None:
    with pytest.raises(NotDefinitions):
        parse(octets)


def test_nothing_is_no_definitions() -> None:
    assert parse(b"") == {}
    assert imports(new_node(), {}).items == 0


@pytest.mark.parametrize("section", [None, {}, "x", 5, [1], [None], [[]]])
def test_sections_are_lists_of_objects(section: Any) -> None:
    node = new_node()
    error = refused({"users": [user()], "queues": section}, node)
    assert isinstance(error, NotDefinitions)
    assert error.text.startswith("queues should be ")
    # The shape is looked at first.
    assert [name for name, _ in node.access.users()] == ["guest"]


def test_unknown_sections_are_nobodys_business() -> None:
    imports(new_node(), {"bogus": 1, "queues": []})


def test_what_came_before_the_fault_stays() -> None:
    node = new_node()
    queues = [queue_item("good"), queue_item("bad", arguments={"x-max-length": -1})]
    error = refused({"users": [user()], "queues": queues}, node)
    assert isinstance(error, InvalidItem)
    told = "invalid arg 'x-max-length' for queue 'bad' in vhost '/': {value_negative,-1}"
    assert error.reason == f"precondition_failed: {told}"
    assert list(node.vhosts["/"].queues) == ["good"]
    assert node.access.user("u")


# Users


def test_old_definitions_have_md5_and_tags_in_a_string() -> None:
    node = new_node()
    digest = b"salt" + md5(b"saltold").digest()
    item = user(password_hash=b64encode(digest).decode(), tags="administrator, monitoring")
    imports(node, {"rabbit_version": "3.5.7", "users": [item]})
    logged_in = node.access.authenticate("u", "old", False)
    assert logged_in.tags == {"administrator", "monitoring"}
    assert node.access.user("u").hashing_algorithm == "rabbit_password_hashing_md5"


@pytest.mark.parametrize(
    ("versions", "algorithm"),
    [
        ({"rabbitmq_version": "3.5.7"}, "md5"),
        ({"rabbitmq_version": "3.6.0"}, "sha256"),
        ({"rabbit_version": "3.5.7", "rabbitmq_version": "3.6.0"}, "sha256"),
        ({"rabbit_version": "junk"}, "sha256"),
        ({}, "sha256"),
    ],
)
def test_version_says_how_passwords_are_hashed(versions: dict[str, str], algorithm: str) -> None:
    node = new_node()
    imports(node, {**versions, "users": [user()]})
    assert node.access.user("u").hashing_algorithm == f"rabbit_password_hashing_{algorithm}"


def test_users_are_overwritten_and_keep_their_limits() -> None:
    node = new_node()
    item = {"name": "u", "tags": "a", "password": "first", "limits": {"max-channels": 3}}
    imports(node, {"users": [item]})
    assert node.access.authenticate("u", "first", False).tags == {"a"}
    imports(node, {"users": [user(tags=["b"])]})
    with pytest.raises(LoginRefused):
        node.access.authenticate("u", "first", False)
    assert node.access.user("u").tags == ["b"]
    assert node.access.user("u").limits == {"max-channels": 3}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"name": "u"}, "tags_not_present"),
        (user(password="x"), "both_password_and_password_hash_are_provided"),
        (user(password_hash="!!"), ["not_base64", "!!"]),
    ],
)
def test_incomplete_users_are_refused(item: Any, reason: Any) -> None:
    error = refused({"users": [item]})
    assert isinstance(error, InvalidUser)
    assert error.reason == reason


@pytest.mark.parametrize(
    "item",
    [
        {"tags": []},
        user(name=5),
        user(tags=None),
        user(tags=[None]),
        user(password_hash=None),
        user(hashing_algorithm="bogus"),
        user(limits={"bogus": 1}),
        user(limits={"max-channels": "x"}),
        user(limits=[]),
    ],
)
def test_users_of_the_wrong_shape_are_refused(item: Any) -> None:
    node = new_node()
    refused({"users": [item]}, node)
    assert [name for name, _ in node.access.users()] == ["guest"]


# Virtual hosts


def test_metadata_of_virtual_hosts_is_overwritten() -> None:
    node = new_node()
    metadata = {"description": "d", "tags": ["a"], "default_queue_type": "classic"}
    imports(node, {"vhosts": [{"name": "v", "metadata": metadata}]})
    exported = {"name": "v", "limits": [], "metadata": metadata}
    assert _vhost(node, "v") == exported
    imports(node, {"vhosts": [{"name": "v", "description": "new", "tags": "x, y"}]})
    assert _vhost(node, "v")["metadata"] == {
        "description": "new",
        "tags": ["x", "y"],
        "default_queue_type": "classic",
    }


def _vhost(node: Node, name: str) -> Any:
    vhosts = exports(node, for_ctl=True)["vhosts"]
    return next(item for item in vhosts if item["name"] == name)


def test_who_imports_may_use_the_virtual_hosts_made() -> None:
    node = new_node()
    imports(node, {"vhosts": [{"name": "v"}]}, acting_user="guest")
    imports(node, {"vhosts": [{"name": "w"}]}, acting_user="somebody of another kind")
    guest = node.access.authenticate("guest", "guest", True)
    assert node.access.vhost_allowed(guest, "v")
    assert not node.access.vhost_allowed(guest, "w")


def test_a_virtual_host_can_be_traced() -> None:
    node = new_node()
    imports(node, {"vhosts": [{"name": "/", "tracing": True}]})
    assert node.vhosts["/"].observation.firehose is not None


@pytest.mark.parametrize("item", [{}, {"name": 5}, {"name": ""}, {"name": "v", "metadata": []}])
def test_virtual_hosts_of_the_wrong_shape_are_refused(item: Any) -> None:
    refused({"vhosts": [item]})


# Permissions


@pytest.mark.parametrize(
    ("section", "item"), [("permissions", PERMISSIONS), ("topic_permissions", TOPIC)]
)
def test_permissions_need_their_user_and_virtual_host(section: str, item: Any) -> None:
    imports(new_node(), {section: [item]})
    error = refused({section: [{**item, "user": "nobody"}]})
    assert isinstance(error, NoSuchUserYet)
    assert error.reason == ["no_such_user", "nobody"]
    error = refused({section: [{**item, "vhost": "nowhere"}]})
    assert isinstance(error, NoSuchVhostYet)
    assert error.reason == ["no_such_vhost", "nowhere"]
    assert error.text == 'Please create virtual host "nowhere" prior to importing definitions.'
    refused({section: [{**item, "read": "("}]})
    refused({section: [{**item, "read": None}]})
    refused({section: [{key: value for key, value in item.items() if key != "write"}]})


# Parameters and policies


def test_policies_have_defaults() -> None:
    node = new_node()
    item = {"vhost": "/", "name": "p", "pattern": "a", "definition": {"max-length": 1}}
    imports(node, {"policies": [item]})
    policy = node.policies.get("/", "p")
    assert (policy.priority, policy.apply_to) == (0, "all")


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (
            policy_item(definition={"x": 1}),
            'Validation failed\n\n[{<<"x">>,1}] are not recognised policy settings\n (//short)',
        ),
        (
            policy_item(pattern="("),
            "Validation failed\n\npattern should be regular expression but is invalid:"
            ' {"missing )",1}\n (//short)',
        ),
        (policy_item(vhost="nowhere"), ["no_such_vhost", "nowhere"]),
        (
            {"vhost": "/", "pattern": "a", "definition": {"max-length": 1}},
            "policy in virtual host '/' has undefined name",
        ),
    ],
)
def test_invalid_policies_are_refused(item: Any, reason: Any) -> None:
    assert refused({"policies": [item]}).reason == reason


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (
            {**LIMITS, "component": "bogus", "value": 1},
            "Validation failed\n\ncomponent bogus not found\n (//bogus/limits)",
        ),
        (
            {**LIMITS, "value": {"max-queues": "x"}},
            'Validation failed\n\nmax-queues should be a number, actually was <<"x">>'
            "\n (//vhost-limits/limits)",
        ),
        (
            {**LIMITS, "component": "policy", "value": {}},
            "policies may not be set using this method (//policy/limits)",
        ),
        ({**LIMITS, "vhost": "nowhere", "value": {}}, ["no_such_vhost", "nowhere"]),
    ],
)
def test_invalid_parameters_are_refused(item: Any, reason: Any) -> None:
    assert refused({"parameters": [item]}).reason == reason


def test_operator_policies_are_parameters() -> None:
    node = new_node()
    value = {"pattern": "q", "definition": [["max-length", 3]], "priority": 1, "apply-to": "queues"}
    item = {"component": "operator_policy", "vhost": "/", "name": "op", "value": value}
    imports(node, {"parameters": [item], "queues": [queue_item("q")]})
    assert node.vhosts["/"].queues["q"].settings.max_length == 3


def test_global_parameters_are_any_json_and_fit_in_64_bits() -> None:
    node = new_node()
    imports(node, {"global_parameters": [{"name": "g", "value": None}]})
    assert node.global_parameters.get("g") is None
    refused({"global_parameters": [{"name": "g", "value": 1 << 70}]})
    refused({"global_parameters": [{"name": "g"}]})


def test_hash_of_other_imports_is_not_taken_over() -> None:
    node = new_node()
    imports(node, {"global_parameters": [{"name": "imported_definition_hash_value", "value": "x"}]})
    assert dict(node.global_parameters.all()) == {}


# Exchanges, queues and bindings


def test_existing_exchanges_and_queues_are_left_alone() -> None:
    node = new_node()
    imports(node, {"exchanges": [exchange_item("x")], "queues": [queue_item("q")]})
    imports(
        node,
        {
            "exchanges": [exchange_item("x", "fanout"), exchange_item("x", "bogus")],
            "queues": [queue_item("q", durable=False, arguments={"x-max-length": 1})],
        },
    )
    vhost = node.vhosts["/"]
    assert vhost.exchanges["x"].type == "direct"
    assert vhost.queues["q"].durable
    assert vhost.queues["q"].arguments == {}


def test_reserved_names_are_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = new_node()
    exchanges = [exchange_item("amq.x"), exchange_item("amq.direct", "fanout"), exchange_item("")]
    imports(node, {"exchanges": exchanges, "queues": [queue_item("amq.gen-1")]})
    assert "amq.x" not in node.vhosts["/"].exchanges
    assert node.vhosts["/"].exchanges["amq.direct"].type == "direct"
    assert not node.vhosts["/"].queues
    assert "kind=exchange vhost=/ name=amq.x" in caplog.text
    assert "kind=queue vhost=/ name=amq.gen-1" in caplog.text


@pytest.mark.parametrize(
    "item",
    [
        queue_item("q", arguments={"x-max-length": "5"}),
        queue_item("q", arguments={"x-queue-type": "bogus"}),
        queue_item("q", arguments={"n": 1 << 63}),
        queue_item("q", arguments={"n": [{"deep": None}]}),
        queue_item("q", arguments={"k" * 256: 1}),
        queue_item("q", arguments=None),
        queue_item("q", arguments="x"),
        queue_item("q", durable="true"),
        queue_item("q", durable=None),
        queue_item("q", vhost="nowhere"),
        queue_item("q", vhost=None),
        queue_item(""),
        queue_item("q" * 256),
        {**queue_item("q"), "name": 5},
    ],
)
def test_invalid_queues_are_refused(item: Any) -> None:
    node = new_node()
    refused({"queues": [item]}, node)
    assert not node.vhosts["/"].queues


@pytest.mark.parametrize(
    "item",
    [
        exchange_item("x", "bogus"),
        {**exchange_item("x"), "type": None},
        exchange_item("x", arguments={"alternate-exchange": 5}),
        exchange_item("x", internal="no"),
        exchange_item("x", vhost="nowhere"),
    ],
)
def test_invalid_exchanges_are_refused(item: Any) -> None:
    node = new_node()
    refused({"exchanges": [item]}, node)
    assert "x" not in node.vhosts["/"].exchanges


def test_bindings_that_lead_nowhere_are_ignored() -> None:
    node = new_node()
    bindings = [
        binding_item("nowhere", "q"),
        binding_item("amq.direct", "nothing"),
        binding_item("amq.direct", "nothing", destination_type="exchange"),
        binding_item("amq.direct", "q", vhost="nowhere"),
        binding_item("amq.headers", "q", arguments={"x-match": "bogus"}),
        binding_item("", "q"),
        binding_item("amq.direct", "q"),
    ]
    imported = imports(node, {"queues": [queue_item("q")], "bindings": bindings})
    assert imported.bindings_ignored == 5
    assert len(list(node.vhosts["/"].bindings())) == 1


def test_invalid_bindings_are_refused() -> None:
    for changes in (
        {"destination_type": "bogus"},
        {"destination_type": None},
        {"routing_key": None},
        {"routing_key": "r" * 256},
        {"arguments": {"n": 1 << 70}},
    ):
        refused({"bindings": [binding_item("amq.direct", "q", **changes)]})


# Limits


def test_queues_beyond_the_limit_are_refused_before_any_is_made() -> None:
    node = new_node()
    node.vhost_limits.put("/", "max-queues", 2)
    three = [queue_item(name) for name in "abc"]
    error = refused({"users": [user()], "queues": three}, node)
    assert isinstance(error, QueueLimitReached)
    text = (
        'Adding 3 queue(s) to virtual host "/" would exceed the limit of 2 queue(s).\n\n'
        "This virtual host currently has 0 queue(s) defined.\n\nImport aborted!"
    )
    assert error.reason == ["vhost_limit_exceeded", text]
    assert not node.vhosts["/"].queues
    assert node.access.user("u")
    imports(node, {"queues": three[:2]})
    imports(node, {"queues": [*three[:2], queue_item("amq.x")]})
    assert "Adding 1 queue(s)" in refused({"queues": three}, node).text


def test_limits_of_the_same_import_come_too_late() -> None:
    node = new_node()
    node.vhost_limits.put("/", "max-queues", 0)
    raised = {**LIMITS, "value": {"max-queues": 5}}
    error = refused({"parameters": [raised], "queues": [queue_item("q")]}, node)
    assert isinstance(error, QueueLimitReached)
    node = new_node()
    lowered = {**LIMITS, "value": {"max-queues": 0}}
    imports(node, {"parameters": [lowered], "queues": [queue_item("q")]})


def test_json_beyond_a_table_is_refused() -> None:
    for value, text in (
        (None, "arguments should be an object"),
        ({"a": None}, "null_not_allowed"),
        ({"a": 1 << 63}, "argument 'a': 9223372036854775808 does not fit in 64 bits"),
    ):
        with pytest.raises(NoField) as caught:
            from_json(value)
        assert caught.value.text == text
    assert from_json([]) == {}
