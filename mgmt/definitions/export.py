"""Writes definitions: what RabbitMQ 3.10.8 exports, key by key (management_api.md section 4).

All that is not exclusive is exported, transient queues and exchanges and queues the broker named
included; exchanges that every virtual host has are not. The lists are ordered by the names in them.

The two exports of RabbitMQ differ a little. That of its command line (`for_ctl`) tells the limits
and metadata of virtual hosts and the type of queues, and leaves out internal exchanges and the
identity of the cluster. One of its differences is not followed: it writes objects in parameters as
lists of pairs, which RabbitMQ itself refuses to import.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, TypeAlias

from warren.core.binding import Binding
from warren.core.exchange import Exchange
from warren.core.field import json_text, to_json
from warren.core.node import Node
from warren.core.parameters import INTERNAL_CLUSTER_ID
from warren.core.policy import Policy
from warren.core.queue import Queue
from warren.core.records import (
    PermissionRecord,
    TopicPermissionRecord,
    UserRecord,
    VirtualHostRecord,
)
from warren.core.validation import NoSuchVhost
from warren.core.vhost import VirtualHost
from warren.mgmt.definitions.names import IMPORTED_HASH, RESERVED_PREFIX, VERSION

Item: TypeAlias = dict[str, Any]


def export_all(node: Node, *, for_ctl: bool = False) -> Item:
    """The definitions of the whole node."""
    vhosts = [node.vhosts[name] for name in sorted(node.vhosts)]
    product = {} if for_ctl else {"product_name": "RabbitMQ", "product_version": VERSION}
    return {
        "rabbit_version": VERSION,
        "rabbitmq_version": VERSION,
        **product,
        "users": [_user(name, user) for name, user in node.access.users()],
        "vhosts": [_vhost(node, vhost.name, for_ctl) for vhost in vhosts],
        "permissions": _permissions(node),
        "topic_permissions": _topic_permissions(node),
        "parameters": [parameter._asdict() for parameter in node.parameters.all()],
        "global_parameters": _global_parameters(node, for_ctl),
        "policies": [_policy(policy) for policy in node.policies.all()],
        "queues": [item for vhost in vhosts for item in _queues(vhost, for_ctl)],
        "exchanges": [item for vhost in vhosts for item in _exchanges(vhost, for_ctl)],
        "bindings": [item for vhost in vhosts for item in _bindings(vhost, for_ctl)],
    }


def export_vhost(node: Node, vhost: str) -> Item:
    """The definitions in one virtual host. Raises `NoSuchVhost`."""
    if vhost not in node.vhosts:
        raise NoSuchVhost(f"vhost '{vhost}' does not exist")
    exported = node.vhosts[vhost]
    policies = [policy for policy in node.policies.all() if policy.vhost == vhost]
    return {
        "rabbit_version": VERSION,
        "parameters": [parameter._asdict() for parameter in node.parameters.all(vhost=vhost)],
        "policies": [_policy(policy) for policy in policies],
        "queues": _without_vhost(_queues(exported, False)),
        "exchanges": _without_vhost(_exchanges(exported, False)),
        "bindings": _without_vhost(_bindings(exported, False)),
    }


def _without_vhost(items: list[Item]) -> list[Item]:
    for item in items:
        del item["vhost"]
    return items


def _user(name: str, user: UserRecord) -> Item:
    return {
        "name": name,
        "password_hash": b64encode(user.password_hash).decode("ascii"),
        "hashing_algorithm": user.hashing_algorithm,
        "tags": list(user.tags),
        "limits": dict(user.limits),
    }


def _vhost(node: Node, name: str, for_ctl: bool) -> Item:
    if not for_ctl:
        return {"name": name}
    stored = node.metadata.get(("vhost", name))
    assert stored is not None and isinstance(stored.record, VirtualHostRecord)
    record = stored.record
    metadata: Item = {"description": record.description, "tags": list(record.tags)}
    if record.default_queue_type is not None:
        metadata["default_queue_type"] = record.default_queue_type
    limits = [list(limit) for limit in node.vhost_limits.get(name).items()]
    return {"name": name, "limits": limits, "metadata": metadata}


def _permissions(node: Node) -> list[Item]:
    items = []
    for key, record, _ in node.metadata.records(("permission",)):
        assert isinstance(record, PermissionRecord)
        items.append(
            {
                "user": key[1],
                "vhost": key[2],
                "configure": record.configure,
                "write": record.write,
                "read": record.read,
            }
        )
    return items


def _topic_permissions(node: Node) -> list[Item]:
    items = []
    for key, record, _ in node.metadata.records(("topic_permission",)):
        assert isinstance(record, TopicPermissionRecord)
        items.append(
            {
                "user": key[1],
                "vhost": key[2],
                "exchange": key[3],
                "write": record.write,
                "read": record.read,
            }
        )
    return items


def _global_parameters(node: Node, for_ctl: bool) -> list[Item]:
    internal = {INTERNAL_CLUSTER_ID, IMPORTED_HASH} if for_ctl else {IMPORTED_HASH}
    return [
        {"name": name, "value": value}
        for name, value in node.global_parameters.all()
        if name not in internal
    ]


def _policy(policy: Policy) -> Item:
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def _queues(vhost: VirtualHost, for_ctl: bool) -> list[Item]:
    names = sorted(name for name, queue in vhost.queues.items() if queue.exclusive_owner is None)
    return [_queue(vhost, vhost.queues[name], for_ctl) for name in names]


def _queue(vhost: VirtualHost, queue: Queue, for_ctl: bool) -> Item:
    kind = {"type": "classic"} if for_ctl else {}
    return {
        "name": json_text(queue.name),
        "vhost": vhost.name,
        **kind,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": to_json(queue.arguments),
    }


def _exchanges(vhost: VirtualHost, for_ctl: bool) -> list[Item]:
    return [
        _exchange(vhost, vhost.exchanges[name], for_ctl)
        for name in sorted(vhost.exchanges)
        if name
        and not name.startswith(RESERVED_PREFIX)
        and not (for_ctl and vhost.exchanges[name].internal)
    ]


def _exchange(vhost: VirtualHost, exchange: Exchange, for_ctl: bool) -> Item:
    internal = {} if for_ctl else {"internal": exchange.internal}
    return {
        "name": json_text(exchange.name),
        "vhost": vhost.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        **internal,
        "arguments": to_json(exchange.arguments),
    }


def _bindings(vhost: VirtualHost, for_ctl: bool) -> list[Item]:
    bindings = [
        binding for binding in vhost.bindings() if for_ctl or not _to_exclusive(vhost, binding)
    ]
    bindings.sort(
        key=lambda binding: (
            binding.source,
            binding.destination_kind,
            binding.destination,
            binding.routing_key,
            binding.fingerprint,
        )
    )
    return [_binding(vhost, binding) for binding in bindings]


def _to_exclusive(vhost: VirtualHost, binding: Binding) -> bool:
    if binding.destination_kind != "queue":
        return False
    return vhost.queues[binding.destination].exclusive_owner is not None


def _binding(vhost: VirtualHost, binding: Binding) -> Item:
    return {
        "source": json_text(binding.source),
        "vhost": vhost.name,
        "destination": json_text(binding.destination),
        "destination_type": binding.destination_kind,
        "routing_key": json_text(binding.routing_key),
        "arguments": to_json(binding.arguments),
    }
