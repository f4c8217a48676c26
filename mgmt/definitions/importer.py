"""Imports one item of a section of definitions.

Answerable for which items overwrite, are left alone, left out or refused; the order of the sections
and the time an import may take are up to `load.py`. The log names what is left out: bindings from
or to something that does not exist, and queues and exchanges whose names begin with `amq.`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from warren.core.access.access_control import NoSuchUser
from warren.core.access.limits import effective, validate_user_limits
from warren.core.access.password import DEFAULT_ALGORITHM, OLDEST_ALGORITHM
from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.validation import NoSuchVhost
from warren.core.errors import BrokerError, PreconditionFailed
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import INTERNAL_USER
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.ports import Commit
from warren.core.queues.queue_arguments import check_properties
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.definitions import items
from warren.mgmt.definitions.errors import (
    DefinitionsRefused,
    InvalidItem,
    InvalidUser,
    NoSuchUserYet,
    NoSuchVhostYet,
    QueueLimitReached,
)
from warren.mgmt.definitions.items import Item
from warren.mgmt.definitions.names import IMPORTED_HASH, RESERVED_PREFIX

log = logging.getLogger("warren.definitions")

FIRST_WITH_SHA256 = (3, 6)
"""The version of RabbitMQ from which on definitions name the hash algorithm of passwords."""

DESTINATIONS = ("queue", "exchange")

Import: TypeAlias = Callable[[Item], Commit | None]
"""Imports an item; returns None if there is nothing to write."""


class Importer:
    """Has a function for the items of each section."""

    def __init__(
        self, node: Node, definitions: Item, vhost: str | None, acting_user: str | None
    ) -> None:
        self.bindings_ignored = 0
        self._new_vhosts: set[str] = set()
        self._node = node
        self._only_vhost = vhost
        self._acting_user = acting_user
        self._default_algorithm = _default_algorithm(definitions)

    def of(self, section: str) -> Import:
        """The function that imports one item of the section; raises `DefinitionsRefused`."""
        do: Import = getattr(self, f"_import_{section}")

        def import_item(item: Item) -> Commit | None:
            try:
                return do(item)
            except DefinitionsRefused:
                raise
            except BrokerError as error:
                raise InvalidItem(error.text, _reason(error)) from error

        return import_item

    def check_queue_limits(self, queues: list[Item]) -> None:
        """Raise `QueueLimitReached` if the queues exceed the limit of a virtual host."""
        limits = {
            vhost: limit
            for vhost, set_limits in self._node.vhost_limits.all()
            if (limit := effective(set_limits, "max-queues")) is not None
        }
        if not limits:
            return
        for vhost, names in self._new_queues(queues).items():
            existing = len(self._node.vhosts[vhost].queues)
            if vhost in limits and existing + len(names) > limits[vhost]:
                raise QueueLimitReached(vhost, len(names), existing, limits[vhost])

    def _new_queues(self, queues: list[Item]) -> Mapping[str, set[str]]:
        """The names of queues that do not exist yet, by virtual host."""
        new: dict[str, set[str]] = {}
        for item in queues:
            vhost = item.get("vhost") if self._only_vhost is None else self._only_vhost
            name = item.get("name")
            if not isinstance(vhost, str) or not isinstance(name, str):
                continue
            there = self._node.vhosts.get(vhost)
            if there is None or name in there.queues or name.startswith(RESERVED_PREFIX):
                continue
            new.setdefault(vhost, set()).add(name)
        return new

    def _vhost(self, item: Item, where: str) -> VirtualHost:
        name = self._only_vhost
        if name is None:
            name = items.text(item, "vhost", where)
        vhost = self._node.vhosts.get(name)
        if vhost is None:
            raise NoSuchVhostYet(name)
        return vhost

    # Users and virtual hosts

    def _import_users(self, item: Item) -> Commit:
        name = items.text(item, "name", "user")
        where = f"user '{name}'"
        if "tags" not in item:
            raise InvalidUser(f"{where}: tags_not_present", "tags_not_present")
        tags = items.tags(item["tags"], where)
        if "password" in item and "password_hash" in item:
            reason = "both_password_and_password_hash_are_provided"
            raise InvalidUser(f"{where}: {reason}", reason)
        validate_user_limits(item.get("limits", {}))
        access = self._node.access
        if "password" in item:
            return access.put_user(name, tags, password=items.text(item, "password", where))
        algorithm = item.get("hashing_algorithm") or self._default_algorithm
        hashed = None
        if "password_hash" in item:
            hashed = items.password_hash(item["password_hash"], name)
        return access.put_user(
            name,
            tags,
            password_hash=hashed,
            hashing_algorithm=str(algorithm),
        )

    def _import_user_limits(self, item: Item) -> Commit | None:
        """The second step for a user, once it exists: its limits."""
        limits = validate_user_limits(item.get("limits", {}))
        name = items.text(item, "name", "user")
        return self._node.access.set_user_limits(name, limits) if limits else None

    def _import_vhosts(self, item: Item) -> Commit:
        name = items.name(item, "name", "vhost")
        where = f"vhost '{name}'"
        metadata = item.get("metadata", {})
        if not isinstance(metadata, dict):
            raise InvalidItem(f"{where}: metadata should be an object")
        stored = self._node.metadata.get(("vhost", name))
        record = VirtualHostRecord() if stored is None else stored.record
        assert isinstance(record, VirtualHostRecord)
        said = {**metadata, **item}
        kind = metadata.get("default_queue_type")
        if stored is None:
            self._new_vhosts.add(name)
        return self._node.add_vhost(
            name,
            msgspec.structs.replace(
                record,
                description=items.text(said, "description", where, ""),
                tags=items.tags(said.get("tags", []), where),
                default_queue_type=kind if isinstance(kind, str) else record.default_queue_type,
            ),
        )

    def _import_in_vhosts(self, item: Item) -> Commit | None:
        """The second step for a virtual host, once it exists: tracing and permissions."""
        name = items.name(item, "name", "vhost")
        if "tracing" in item:
            self._node.trace(name, items.flag(item, "tracing", f"vhost '{name}'"))
        return self._let_in_acting_user(name) if name in self._new_vhosts else None

    def _let_in_acting_user(self, vhost: str) -> Commit | None:
        user = self._acting_user
        if user is None or self._node.metadata.get(("user", user)) is None:
            return None
        return self._node.access.set_permissions(user, vhost, ".*", ".*", ".*")

    # Permissions

    def _import_permissions(self, item: Item) -> Commit:
        user = items.text(item, "user", "permissions")
        where = f"permissions of user '{user}'"
        vhost = items.text(item, "vhost", where)
        configure, write, read = (
            items.text(item, key, where) for key in ("configure", "write", "read")
        )
        try:
            return self._node.access.set_permissions(user, vhost, configure, write, read)
        except NoSuchUser:
            raise NoSuchUserYet(user) from None
        except NoSuchVhost:
            raise NoSuchVhostYet(vhost) from None

    def _import_topic_permissions(self, item: Item) -> Commit:
        user = items.text(item, "user", "topic permissions")
        where = f"topic permissions of user '{user}'"
        vhost = items.text(item, "vhost", where)
        exchange, write, read = (
            items.text(item, key, where) for key in ("exchange", "write", "read")
        )
        try:
            return self._node.access.set_topic_permissions(user, vhost, exchange, write, read)
        except NoSuchUser:
            raise NoSuchUserYet(user) from None
        except NoSuchVhost:
            raise NoSuchVhostYet(vhost) from None

    # Parameters and policies

    def _import_global_parameters(self, item: Item) -> Commit | None:
        name = items.text(item, "name", "global parameter")
        if "value" not in item:
            raise InvalidItem(f"global parameter '{name}' has no value")
        if name == IMPORTED_HASH:
            return None
        return self._node.global_parameters.set(name, item["value"])

    def _import_policies(self, item: Item) -> Commit:
        vhost = self._vhost(item, "policy")
        if "name" not in item:
            raise InvalidItem(f"policy in virtual host '{vhost.name}' has undefined name")
        name = items.text(item, "name", "policy")
        try:
            return self._node.policies.set(
                vhost.name,
                name,
                item.get("pattern"),
                item.get("definition"),
                item.get("priority", 0),
                item.get("apply-to", "all"),
            )
        except BrokerError as error:
            raise _not_valid(error, f"{vhost.name}/{name}") from error

    def _import_parameters(self, item: Item) -> Commit:
        component = items.text(item, "component", "parameter")
        where = f"parameter of component '{component}'"
        vhost = self._vhost(item, where)
        name = items.text(item, "name", where)
        path = f"{vhost.name}/{component}/{name}"
        if component == "policy":
            raise InvalidItem(f"policies may not be set using this method ({path})")
        value = item.get("value")
        if component == "operator_policy":
            value = _with_definition_as_object(value)
        try:
            return self._node.parameters.set(component, vhost.name, name, value)
        except BrokerError as error:
            raise _not_valid(error, path) from error

    # Exchanges, queues and bindings

    def _import_exchanges(self, item: Item) -> Commit | None:
        vhost = self._vhost(item, "exchange")
        name = items.name(item, "name", "exchange", may_be_empty=True)
        where = f"exchange '{name}' in vhost '{vhost.name}'"
        if name in vhost.exchanges or _reserved("exchange", vhost.name, name):
            return None
        kind = items.text(item, "type", where)
        arguments = items.arguments(item, where)
        vhost.check_exchange_type(kind)
        vhost.check_exchange_arguments(name, arguments)
        return vhost.declare_exchange(
            name,
            kind,
            durable=items.flag(item, "durable", where),
            auto_delete=items.flag(item, "auto_delete", where, False),
            internal=items.flag(item, "internal", where, False),
            arguments=arguments,
            declared_by=self._acting_user or INTERNAL_USER,
        )

    def _import_queues(self, item: Item) -> Commit | None:
        vhost = self._vhost(item, "queue")
        name = items.name(item, "name", "queue")
        if name in vhost.queues or _reserved("queue", vhost.name, name):
            return None
        where = f"queue '{name}' in vhost '{vhost.name}'"
        durable = items.flag(item, "durable", where)
        auto_delete = items.flag(item, "auto_delete", where, False)
        arguments = items.arguments(item, where)
        try:
            check_properties(
                name,
                vhost.name,
                arguments,
                durable=durable,
                exclusive=False,
                auto_delete=auto_delete,
            )
        except PreconditionFailed as error:
            # RabbitMQ skips such a queue, and imports the rest.
            log_event(log, logging.WARNING, "queue_not_imported", reason=error.text)
            return None
        return vhost.declare_queue(
            name,
            durable=durable,
            exclusive_owner=None,
            auto_delete=auto_delete,
            arguments=arguments,
            declared_by=self._acting_user or "",
            # The other nodes of a cluster may be about to start.
            may_wait=True,
        )

    def _import_bindings(self, item: Item) -> Commit | None:
        source = items.name(item, "source", "binding", may_be_empty=True)
        where = f"binding of exchange '{source}'"
        destination = items.name(item, "destination", where, may_be_empty=True)
        kind = item.get("destination_type")
        if kind not in DESTINATIONS:
            raise InvalidItem(f"{where}: destination_type should be queue or exchange")
        routing_key = items.name(item, "routing_key", where, may_be_empty=True)
        binding = Binding(source, kind, destination, routing_key, items.arguments(item, where))
        try:
            if not source:
                return None
            return self._vhost(item, where).bind(binding, None)
        except BrokerError as error:
            if not self.bindings_ignored:
                # Only the first one is logged; all are counted.
                log_event(log, logging.WARNING, "binding_ignored", reason=error.text)
            self.bindings_ignored += 1
            return None


def _default_algorithm(definitions: Item) -> str:
    """The hash algorithm of users whose definition does not name one."""
    version = definitions.get("rabbitmq_version", definitions.get("rabbit_version"))
    numbers = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    if numbers and (int(numbers[1]), int(numbers[2])) < FIRST_WITH_SHA256:
        return OLDEST_ALGORITHM
    return DEFAULT_ALGORITHM


def _with_definition_as_object(value: Any) -> Any:
    """The operator policy with its definition as an object.

    RabbitMQ's command line exports that as a list of pairs, which RabbitMQ itself does not import.
    """
    if not isinstance(value, dict) or not isinstance(value.get("definition"), list):
        return value
    pairs = value["definition"]
    if all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        return {**value, "definition": {key: item for key, item in pairs}}
    return value


def _reason(error: BrokerError) -> str:
    if isinstance(error, PreconditionFailed):
        return f"precondition_failed: {error.text}"
    return error.text


def _not_valid(error: BrokerError, path: str) -> InvalidItem:
    return InvalidItem(f"Validation failed\n\n{error.text}\n ({path})")


def _reserved(kind: str, vhost: str, name: str) -> bool:
    if not name.startswith(RESERVED_PREFIX):
        return False
    log_event(log, logging.WARNING, "reserved_name_not_imported", kind=kind, vhost=vhost, name=name)
    return True
