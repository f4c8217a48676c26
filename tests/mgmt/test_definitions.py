"""Export of definitions, and import of an export into an empty node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from definitions_node import (
    TickingClock,
    binding_item,
    exchange_item,
    exports,
    imports,
    new_node,
    policy_item,
    queue_item,
    turns_of_another_task,
)

from warren.core.definitions.validation import NoSuchVhost
from warren.core.exchanges.binding import Binding
from warren.core.field import Field, long, longstr
from warren.core.node import Node
from warren.mgmt.definitions.export import export_all, export_vhost
from warren.mgmt.definitions.load import import_definitions
from warren.mgmt.definitions.parsing import parse
from warren.mgmt.http import slices

HERE = Path(__file__).parent
FROM_HTTP = parse((HERE / "rabbitmq_http_definitions.json").read_bytes())
FROM_CTL = parse((HERE / "rabbitmq_ctl_definitions.json").read_bytes())


def as_sets(definitions: dict[str, Any]) -> dict[str, Any]:
    """The definitions with the order of their lists taken away."""
    return {
        key: sorted(json.dumps(item, sort_keys=True) for item in value)
        if isinstance(value, list)
        else value
        for key, value in definitions.items()
    }


@pytest.fixture
def filled() -> Node:
    """A node that has read what RabbitMQ 3.10.8 exported over HTTP."""
    node = new_node(empty=True)
    imports(node, FROM_HTTP)
    return node


def test_export_of_what_rabbitmq_exported_is_the_same(filled: Node) -> None:
    expected = dict(FROM_HTTP)
    # RabbitMQ exports queues it named itself, and skips them when it imports.
    for section, field in (("queues", "name"), ("bindings", "destination")):
        expected[section] = [
            item for item in expected[section] if not item[field].startswith("amq.gen-")
        ]
    assert as_sets(exports(filled)) == as_sets(expected)


def test_an_export_fills_an_empty_node(filled: Node) -> None:
    exported = json.loads(json.dumps(exports(filled)))
    other = new_node(empty=True)
    imports(other, exported)
    assert exports(other) == exported
    imports(other, exported)
    assert exports(other) == exported


@pytest.mark.parametrize("name", ["sha256", "sha512", "md5"])
def test_users_of_rabbitmq_log_in(filled: Node, name: str) -> None:
    user = filled.access.authenticate(name, f"secret-{name}", from_loopback=False)
    assert user.tags == {"management", "monitoring"}
    assert filled.access.vhost_allowed(user, "shop")
    filled.access.check_resource(user, "shop", "queue", f"{name}-1", "configure")


def test_users_made_over_http_log_in(filled: Node) -> None:
    assert filled.access.authenticate("plainpw", "plain", False).tags == {"administrator"}
    assert filled.access.authenticate("guest", "guest", True).tags == {"administrator"}


def test_arguments_get_the_types_of_json(filled: Node) -> None:
    arguments = filled.vhosts["shop"].queues["all-arguments"].arguments
    assert arguments["x-max-length"] == long(10)
    assert arguments["x-single-active-consumer"] == Field("t", True)
    assert arguments["whole-float"] == Field("d", 3.0)
    assert arguments["text"] == longstr("ü")
    assert arguments["list"] == Field(
        "A",
        [longstr("a"), long(1), Field("A", [Field("t", True)]), Field("F", {"k": longstr("v")})],
    )
    assert arguments["empty-table"] == Field("F", {})
    assert arguments["empty-list"] == Field("A", [])


def test_policies_of_an_import_apply(filled: Node) -> None:
    vhost = filled.vhosts["shop"]
    assert filled.policies.applied("shop", "dead", "queue").operator_policy == "op"
    assert vhost.queues["dead"].settings.max_length == 1000
    assert vhost.exchanges["heads"].alternate == "unrouted"
    assert filled.vhost_limits.get("shop") == {"max-connections": 20, "max-queues": 50}


def test_export_of_the_command_line_of_rabbitmq_is_imported() -> None:
    node = new_node(empty=True)
    imports(node, FROM_CTL)
    exported = exports(node, for_ctl=True)
    assert exported["queues"] == sorted(
        (item for item in FROM_CTL["queues"] if not item["name"].startswith("amq.")),
        key=lambda item: item["name"],
    )
    assert as_sets(exported)["exchanges"] == as_sets(FROM_CTL)["exchanges"]
    shop = next(item for item in exported["vhosts"] if item["name"] == "shop")
    assert shop == next(item for item in FROM_CTL["vhosts"] if item["name"] == "shop")
    assert exported["parameters"][0]["value"]["definition"] == {
        "expires": 86400000,
        "max-length": 1000,
    }
    assert exported.keys() == FROM_CTL.keys()


def test_identity_of_the_cluster_is_exported_over_http_only(filled: Node) -> None:
    def names(definitions: dict[str, Any]) -> set[str]:
        return {item["name"] for item in definitions["global_parameters"]}

    missing = names(exports(filled)) - names(exports(filled, for_ctl=True))
    assert missing == {"internal_cluster_id"}


def test_export_of_a_virtual_host_has_no_names_of_it(filled: Node) -> None:
    exported = exports(filled, vhost="shop")
    assert list(exported) == [
        "rabbit_version",
        "parameters",
        "policies",
        "queues",
        "exchanges",
        "bindings",
    ]
    for section in ("queues", "exchanges", "bindings"):
        assert exported[section]
        assert all("vhost" not in item for item in exported[section])
    for section in ("parameters", "policies"):
        assert all(item["vhost"] == "shop" for item in exported[section])
    assert exports(filled, vhost="plain")["queues"] == []


def test_export_of_a_virtual_host_goes_into_another(filled: Node) -> None:
    exported = exports(filled, vhost="shop")
    imports(filled, exported, vhost="plain")
    again = exports(filled, vhost="plain")
    for section in ("queues", "exchanges", "bindings"):
        assert again[section] == exported[section]
    assert {item["vhost"] for item in again["policies"] + again["parameters"]} == {"plain"}


def test_only_what_is_in_virtual_hosts_is_imported_into_one() -> None:
    node = new_node()
    user = {"name": "somebody", "tags": "", "password_hash": ""}
    imports(node, {"users": [user], "queues": [queue_item("q", "elsewhere")]}, vhost="/")
    assert [name for name, _ in node.access.users()] == ["guest"]
    assert list(node.vhosts["/"].queues) == ["q"]


def test_unknown_virtual_host_is_neither_exported_nor_filled() -> None:
    node = new_node()
    with pytest.raises(NoSuchVhost):
        exports(node, vhost="nowhere")
    with pytest.raises(NoSuchVhost):
        imports(node, {}, vhost="nowhere")


def test_exclusive_queues_are_not_exported_but_transient_ones_are() -> None:
    node = new_node()
    vhost = node.vhosts["/"]
    for name, durable, owner in (("mine", False, object()), ("transient", False, None)):
        vhost.declare_queue(
            name, durable=durable, exclusive_owner=owner, auto_delete=False, arguments={}
        )
        vhost.bind(Binding("amq.direct", "queue", name, "k", {}), owner)
    exported = exports(node)
    assert [item["name"] for item in exported["queues"]] == ["transient"]
    assert [item["destination"] for item in exported["bindings"]] == ["transient"]
    for_ctl = exports(node, for_ctl=True)
    assert [item["name"] for item in for_ctl["queues"]] == ["transient"]
    assert [item["destination"] for item in for_ctl["bindings"]] == ["mine", "transient"]


def test_exchanges_every_virtual_host_has_are_not_exported() -> None:
    exported = exports(new_node())
    assert exported["exchanges"] == exported["bindings"] == []
    assert exported["users"][0]["name"] == "guest"
    assert exported["vhosts"] == [{"name": "/"}]


def test_fields_json_has_no_type_for_are_shown_as_rabbitmq_does() -> None:
    node = new_node()
    arguments = {
        "void": Field("V", None),
        "time": Field("T", 1577836800),
        "octets": Field("x", b"\xff\x00\x01"),
        "text octets": Field("x", b"abc"),
        "no text": Field("S", b"a\xffb"),
        "decimal": Field("D", (2, 314)),
        "nan": Field("d", float("inf")),
    }
    node.vhosts["/"].declare_queue(
        "q\udcff", durable=True, exclusive_owner=None, auto_delete=False, arguments=arguments
    )
    (item,) = json.loads(json.dumps(exports(node)["queues"], allow_nan=False))
    assert item["name"] == "Not UTF-8, base64 is: cf8="
    assert item["arguments"] == {
        "void": "undefined",
        "time": 1577836800,
        "octets": "Not UTF-8, base64 is: /wAB",
        "text octets": "abc",
        "no text": "Not UTF-8, base64 is: Yf9i",
        "decimal": 3.14,
        "nan": "inf",
    }


def test_clients_have_their_turns_during_an_import() -> None:
    node = new_node(clock=TickingClock())
    queues = [queue_item(f"q{number}") for number in range(500)]
    assert turns_of_another_task(lambda: import_definitions(node, {"queues": queues})) > 50
    assert len(node.vhosts["/"].queues) == 500


MANY = 200
"""Of everything: several times what an export makes in one turn."""


def many_of_all() -> Node:
    names = [f"n{number:03}" for number in range(MANY)]
    node = new_node(empty=True)
    permission = {"vhost": "n000", "configure": "", "write": "", "read": ""}
    imports(
        node,
        {
            "users": [{"name": name, "password_hash": "", "tags": []} for name in names],
            "vhosts": [{"name": name} for name in names],
            "permissions": [{**permission, "user": name} for name in names],
            "topic_permissions": [{**permission, "user": name, "exchange": "x"} for name in names],
            "parameters": [
                {"component": component, "vhost": name, "name": "limits", "value": value}
                for name in names
                for component, value in (
                    ("vhost-limits", {"max-queues": 1000}),
                    ("operator_policy", {"pattern": "", "definition": {"max-length": 1}}),
                )
            ],
            "global_parameters": [{"name": name, "value": 1} for name in names],
            "policies": [policy_item(vhost="n000", name=name) for name in names],
            "queues": [queue_item(name, "n000") for name in names],
            "exchanges": [exchange_item(name, vhost="n000") for name in names],
            "bindings": [binding_item("n000", name, vhost="n000") for name in names],
        },
    )
    return node


@pytest.mark.parametrize("vhost", [None, "n000"])
def test_no_turn_of_the_loop_makes_more_than_a_chunk_of_an_export(
    vhost: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    node = many_of_all()
    made = [0]

    async def watch() -> None:
        while True:
            made.append(0)
            await asyncio.sleep(0)

    async def read(items: AsyncIterator[list[Any]]) -> int:
        before = sum(made)
        async for chunk in items:
            made[-1] += len(chunk)
        return sum(made) - before

    async def read_all() -> None:
        watcher = asyncio.create_task(watch())
        document = export_all(node) if vhost is None else export_vhost(node, vhost)
        for name, value in document.items():
            if not isinstance(value, str):
                expected = 2 if vhost and name == "parameters" else MANY
                assert await read(value) >= expected, name
        watcher.cancel()

    asyncio.run(read_all())
    assert max(made) == slices.CHUNK


def test_what_goes_while_it_is_exported_is_left_out_and_what_comes_is_not_in_it() -> None:
    node = many_of_all()
    vhost = node.vhosts["n000"]

    async def read() -> dict[str, list[Any]]:
        document = export_all(node)
        lists = {name: value for name, value in document.items() if not isinstance(value, str)}
        read = {name: await anext(items) for name, items in lists.items()}
        added = {"queues": [queue_item("new")], "bindings": [binding_item("n000", "new")]}
        await import_definitions(node, added, vhost="n000")
        for queue in list(vhost.queues.values()):
            if queue.name > "n100":
                vhost.delete(queues=[queue])
        vhost.delete_exchange("n150", if_unused=False)
        node.access.delete_user("n150")
        node.delete_vhost("n150")
        node.policies.clear("n000", "n150")
        node.parameters.clear("operator_policy", "n151", "limits")
        for name, items in lists.items():
            async for chunk in items:
                read[name] += chunk
        return read

    exported = asyncio.run(read())
    names = [f"n{number:03}" for number in range(MANY)]
    kept = [name for name in names if name <= "n100"]
    without = [name for name in names if name != "n150"]
    assert [item["name"] for item in exported["queues"]] == kept
    assert [item["destination"] for item in exported["bindings"]] == kept
    for section in ("users", "vhosts", "exchanges", "policies"):
        assert [item["name"] for item in exported[section]] == without, section
    assert [item["user"] for item in exported["permissions"]] == without
    assert [item["vhost"] for item in exported["parameters"]] == [
        *(name for name in without if name != "n151"),
        *without,
    ]


def test_bindings_to_exchanges_and_with_arguments_come_back() -> None:
    node = new_node()
    imports(
        node,
        {
            "exchanges": [exchange_item("heads", "headers"), exchange_item("inner", internal=True)],
            "queues": [queue_item("q")],
            "bindings": [
                binding_item("heads", "inner", destination_type="exchange"),
                binding_item("heads", "q", arguments={"x-match": "all", "n": 1}),
                binding_item("heads", "q", arguments={"x-match": "all", "n": 1.0}),
            ],
        },
    )
    assert len(node.vhosts["/"].bindings_to("queue", "q")) == 2
    assert len(exports(node)["bindings"]) == 3
