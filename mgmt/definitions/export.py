"""Writes definitions as RabbitMQ 3.10.8 exports them, key by key (management_api.md section 4).

All queues and exchanges are exported, also transient and server-named ones, except exclusive queues
and the exchanges that every virtual host has. The lists are ordered by name.

RabbitMQ has two exports, which differ a little. That of its command line (`for_ctl`) has the limits
and metadata of virtual hosts and the types of queues, and leaves out internal exchanges and the
identity of the cluster. One of its differences is not followed: it writes objects in parameters as
lists of pairs, which RabbitMQ itself refuses to import.

A list may have 100,000 bindings, so the lists are made while they are read, in slices. The keys are
noted when the export begins, in the order of the metadata store, which is that of the names. Each
definition is looked up at its turn: if it has been deleted by then it is left out, and definitions
added later are not in the lists.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable
from heapq import merge
from typing import Any, TypeAlias

from warren.core.definitions.records import (
    GlobalParameterRecord,
    PermissionRecord,
    PolicyRecord,
    TopicPermissionRecord,
    UserRecord,
    VirtualHostRecord,
)
from warren.core.definitions.validation import NoSuchVhost
from warren.core.field import json_text, to_json
from warren.core.node import Node
from warren.core.policies.parameters import INTERNAL_CLUSTER_ID
from warren.core.ports import Key
from warren.mgmt.definitions.names import IMPORTED_HASH, RESERVED_PREFIX, VERSION
from warren.mgmt.http.slices import chunks
from warren.mgmt.messages.jobs import COMPONENT as MESSAGE_JOB

Item: TypeAlias = dict[str, Any]

Document: TypeAlias = dict[str, str | AsyncIterator[list[Item]]]
"""The HTTP server writes this as one JSON object. Each list in it can be read once only."""

Make: TypeAlias = Callable[[Key, object], Item | None]
"""Makes the item of a definition, given as its key and its record; None leaves it out."""


def export_all(node: Node, *, for_ctl: bool = False) -> Document:
    """The definitions of the whole node."""
    export = _Export(node, for_ctl)
    keys = node.metadata.keys
    product = {} if for_ctl else {"product_name": "RabbitMQ", "product_version": VERSION}
    return {
        "rabbit_version": VERSION,
        "rabbitmq_version": VERSION,
        **product,
        "users": export.items(keys(("user",)), _user),
        "vhosts": export.items(keys(("vhost",)), export.vhost),
        "permissions": export.items(keys(("permission",)), _permission),
        "topic_permissions": export.items(keys(("topic_permission",)), _topic_permission),
        "parameters": export.items(
            _parameter_keys(keys(("operator_policy",)), keys(("parameter",))), export.parameter
        ),
        "global_parameters": export.items(keys(("global_parameter",)), export.global_parameter),
        "policies": export.items(keys(("policy",)), _policy),
        "queues": export.items(keys(("queue",)), export.queue),
        "exchanges": export.items(keys(("exchange",)), export.exchange),
        "bindings": export.items(keys(("binding",)), export.binding),
    }


def export_vhost(node: Node, vhost: str) -> Document:
    """The definitions in one virtual host. Raises `NoSuchVhost`."""
    if vhost not in node.vhosts:
        raise NoSuchVhost(f"vhost '{vhost}' does not exist")
    export = _Export(node, for_ctl=False)
    keys = node.metadata.keys
    parameters = [key for key in keys(("parameter",)) if key[2] == vhost]
    return {
        "rabbit_version": VERSION,
        "parameters": export.items(
            _parameter_keys(keys(("operator_policy", vhost)), parameters), export.parameter
        ),
        "policies": export.items(keys(("policy", vhost)), _policy),
        "queues": export.items(keys(("queue", vhost)), _without_vhost(export.queue)),
        "exchanges": export.items(keys(("exchange", vhost)), _without_vhost(export.exchange)),
        "bindings": export.items(keys(("binding", vhost)), _without_vhost(export.binding)),
    }


def _parameter_keys(operator_policies: list[Key], parameters: list[Key]) -> Iterable[Key]:
    """The keys ordered by component, virtual host and name, the last three parts of each.

    Jobs on messages are left out: they are no definitions, and are over soon.
    """
    lasting = [key for key in parameters if key[1] != MESSAGE_JOB]
    return merge(operator_policies, lasting, key=lambda key: key[-3:])


def _without_vhost(make: Make) -> Make:
    def made(key: Key, record: object) -> Item | None:
        item = make(key, record)
        if item is not None:
            del item["vhost"]
        return item

    return made


class _Export:
    """Makes the items that need more than their record."""

    def __init__(self, node: Node, for_ctl: bool) -> None:
        self._node = node
        self._for_ctl = for_ctl

    async def items(self, keys: Iterable[Key], make: Make) -> AsyncIterator[list[Item]]:
        """The items of definitions that still exist, some in each turn of the loop."""
        store = self._node.metadata
        async for chunk in chunks(keys):
            there = [stored for key in chunk if (stored := store.get(key)) is not None]
            made = [make(stored.key, stored.record) for stored in there]
            yield [item for item in made if item is not None]

    def vhost(self, key: Key, record: object) -> Item | None:
        assert isinstance(record, VirtualHostRecord)
        name = key[1]
        if name not in self._node.vhosts:
            return None
        if not self._for_ctl:
            return {"name": name}
        metadata: Item = {"description": record.description, "tags": list(record.tags)}
        if record.default_queue_type is not None:
            metadata["default_queue_type"] = record.default_queue_type
        limits = [list(limit) for limit in self._node.vhost_limits.get(name).items()]
        return {"name": name, "limits": limits, "metadata": metadata}

    def parameter(self, key: Key, record: object) -> Item:
        component, vhost, name = key[-3:]
        value = self._node.parameters.get(component, vhost, name)
        return {"component": component, "vhost": vhost, "name": name, "value": value}

    def global_parameter(self, key: Key, record: object) -> Item | None:
        assert isinstance(record, GlobalParameterRecord)
        name = key[1]
        if name == IMPORTED_HASH or (self._for_ctl and name == INTERNAL_CLUSTER_ID):
            return None
        return {"name": name, "value": record.value}

    # A definition from which no queue, exchange or binding could be made is not exported.

    def queue(self, key: Key, record: object) -> Item | None:
        vhost = self._node.vhosts.get(key[1])
        queue = vhost.queues.get(key[2]) if vhost is not None else None
        if queue is None or queue.exclusive_owner is not None:
            return None
        if queue.settings.delays is not None:
            # The definition of a delayed exchange includes its queue.
            return None
        kind = {"type": str(queue.settings.type)} if self._for_ctl else {}
        return {
            "name": json_text(queue.name),
            "vhost": key[1],
            **kind,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "arguments": to_json(queue.arguments),
        }

    def exchange(self, key: Key, record: object) -> Item | None:
        vhost = self._node.vhosts.get(key[1])
        exchange = vhost.exchanges.get(key[2]) if vhost is not None else None
        if exchange is None or exchange.name.startswith(RESERVED_PREFIX):
            return None
        if self._for_ctl and exchange.internal:
            return None
        internal = {} if self._for_ctl else {"internal": exchange.internal}
        return {
            "name": json_text(exchange.name),
            "vhost": key[1],
            "type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            **internal,
            "arguments": to_json(exchange.arguments),
        }

    def binding(self, key: Key, record: object) -> Item | None:
        vhost = self._node.vhosts.get(key[1])
        binding = vhost.binding(key) if vhost is not None else None
        if vhost is None or binding is None:
            return None
        if binding.destination_kind == "queue" and not self._for_ctl:
            queue = vhost.queues.get(binding.destination)
            if queue is None or queue.exclusive_owner is not None:
                return None
        return {
            "source": json_text(binding.source),
            "vhost": key[1],
            "destination": json_text(binding.destination),
            "destination_type": binding.destination_kind,
            "routing_key": json_text(binding.routing_key),
            "arguments": to_json(binding.arguments),
        }


def _user(key: Key, record: object) -> Item:
    assert isinstance(record, UserRecord)
    return {
        "name": key[1],
        "password_hash": b64encode(record.password_hash).decode("ascii"),
        "hashing_algorithm": record.hashing_algorithm,
        "tags": list(record.tags),
        "limits": dict(record.limits),
    }


def _permission(key: Key, record: object) -> Item:
    assert isinstance(record, PermissionRecord)
    return {
        "user": key[1],
        "vhost": key[2],
        "configure": record.configure,
        "write": record.write,
        "read": record.read,
    }


def _topic_permission(key: Key, record: object) -> Item:
    assert isinstance(record, TopicPermissionRecord)
    return {
        "user": key[1],
        "vhost": key[2],
        "exchange": key[3],
        "write": record.write,
        "read": record.read,
    }


def _policy(key: Key, record: object) -> Item:
    assert isinstance(record, PolicyRecord)
    return {
        "vhost": key[1],
        "name": key[2],
        "pattern": record.pattern,
        "apply-to": record.apply_to,
        "definition": dict(record.definition),
        "priority": record.priority,
    }
