"""Policies: choosing those of an object, and working out its settings from them.

Answerable for policies_and_parameters.md sections 1.1 and 1.3, and for keeping policies in the
metadata store. A queue itself follows a change of its settings.

An object has at most one policy and one operator policy: the one with the highest priority of
those that match; among equals the one whose name was set first. The definitions of several
policies are never merged. Of a policy and an operator policy the smaller value counts, as an
operator can only limit. Of that and the argument of the declaration, the smaller counts if section
1.3 says so, otherwise the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from warren.core.backing.stream_limits import SEGMENT_BYTES, StreamLimits
from warren.core.definitions.records import PolicyRecord
from warren.core.definitions.validation import (
    NotThere,
    ValidationFailed,
    expect_vhost,
    is_number,
    is_storable,
    term,
)
from warren.core.exchanges.delay import exchange_behind
from warren.core.patterns.pattern import InvalidPattern, compile_pattern
from warren.core.patterns.stored_patterns import StoredPattern, StoredPatterns
from warren.core.policies.policy_definition import check_definition
from warren.core.policies.policy_set import APPLIES_TO, Kind, Policy, PolicySet
from warren.core.policies.retention_policy import RETENTION, limit_retention, retention_limits
from warren.core.ports import Commit, Key, MetadataStore, Write
from warren.core.queues.queue_arguments import QueueArguments
from warren.core.queues.queue_arguments import QueueSettings as QueueSettings
from warren.core.queues.queue_type import CLASSIC, QUORUM, STREAM, QueueType
from warren.core.queues.stream_arguments import period_s

APPLY_US = 25
TRIED_PER_US = 2
"""The cost of applying policies to a queue, in the microseconds of `core/scheduling/turns.py`, and
the number of policies tried in one of them."""

PATTERNS_MAX = 65_536
"""The most characters in all patterns of a virtual host's policies, and as many in those of its
operator policies. It bounds the time that they take when a node starts, and their memory."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The policies that apply to one object: their names, and the definition that HTTP shows."""

    policy: str | None
    operator_policy: str | None
    definition: Mapping[str, Any]


def merged_definition(user_policy: Policy | None, operator_policy: Policy | None) -> dict[str, Any]:
    """Step 1 of section 1.3: all keys of both, and the smaller value of keys that both have."""
    merged = dict(user_policy.definition) if user_policy is not None else {}
    if operator_policy is not None:
        for key, limit in operator_policy.definition.items():
            if key == RETENTION:
                limit_retention(merged, limit)
            else:
                merged[key] = min(merged[key], limit) if key in merged else limit
    return merged


LONGEST_MS = 100 * 365 * 86_400_000
"""A time in a policy counts as a hundred years at most: the log has 64 bits for a time."""


def _bounded(time_ms: int | None) -> int | None:
    return None if time_ms is None else min(time_ms, LONGEST_MS)


def _smaller(definition: Mapping[str, Any], argument: float | None, key: str) -> Any:
    """The smaller one of an argument and the value of a policy; None if there is neither."""
    given = [limit for limit in (argument, definition.get(key)) if limit is not None]
    return min(given, default=None)


def effective_arguments(declared: QueueArguments, definition: Mapping[str, Any]) -> QueueSettings:
    """Step 2 of section 1.3 for queues: combine their arguments with the merged definition."""

    smaller = partial(_smaller, definition)

    def own(argument: Any, key: str, default: Any = None) -> Any:
        return definition.get(key, default) if argument is None else argument

    if declared.type is QUORUM:
        return _quorum_settings(declared, definition)
    if declared.type is STREAM:
        return _stream_settings(declared, definition)
    delays = own(declared.redelivery_delay_ms, "redelivery-delay")
    return QueueSettings(
        message_ttl_ms=_bounded(smaller(declared.message_ttl_ms, "message-ttl")),
        expires_ms=_bounded(smaller(declared.expires_ms, "expires")),
        max_length=smaller(declared.max_length, "max-length"),
        max_length_bytes=smaller(declared.max_length_bytes, "max-length-bytes"),
        overflow=own(declared.overflow, "overflow", "drop-head"),
        dead_letter_exchange=own(declared.dead_letter_exchange, "dead-letter-exchange"),
        dead_letter_routing_key=own(declared.dead_letter_routing_key, "dead-letter-routing-key"),
        queue_mode=own(declared.queue_mode, "queue-mode", "default"),
        queue_version=own(declared.queue_version, "queue-version", 1),
        queue_master_locator=own(declared.queue_master_locator, "queue-master-locator"),
        max_priority=declared.max_priority,
        single_active_consumer=declared.single_active_consumer,
        delivery_limit=smaller(declared.delivery_limit, "delivery-limit"),
        redelivery_delay_ms=None if delays is None else tuple(delays),
        deduplication_window=declared.deduplication_window,
        retention=retention_limits(definition.get(RETENTION), declared.max_priority),
    )


def _quorum_settings(declared: QueueArguments, definition: Mapping[str, Any]) -> QueueSettings:
    """The settings of a quorum queue (quorum_queues.md section 2)."""

    smaller = partial(_smaller, definition)

    def of_policy(argument: Any, key: str) -> Any:
        return definition.get(key, argument)

    def of_argument(argument: Any, key: str) -> Any:
        return definition.get(key) if argument is None else argument

    overflow = of_policy(declared.overflow, "overflow")
    locator = of_policy(declared.queue_leader_locator, "queue-leader-locator")
    return QueueSettings(
        type=QUORUM,
        message_ttl_ms=_bounded(smaller(declared.message_ttl_ms, "message-ttl")),
        expires_ms=_bounded(of_policy(declared.expires_ms, "expires")),
        max_length=smaller(declared.max_length, "max-length"),
        max_length_bytes=smaller(declared.max_length_bytes, "max-length-bytes"),
        # Quorum queues have no reject-publish-dlx, and accept it because classic ones do.
        overflow="reject-publish" if overflow == "reject-publish" else "drop-head",
        dead_letter_exchange=of_argument(declared.dead_letter_exchange, "dead-letter-exchange"),
        dead_letter_routing_key=of_argument(
            declared.dead_letter_routing_key, "dead-letter-routing-key"
        ),
        dead_letter_strategy=of_argument(declared.dead_letter_strategy, "dead-letter-strategy"),
        delivery_limit=smaller(declared.delivery_limit, "delivery-limit"),
        single_active_consumer=declared.single_active_consumer,
        queue_leader_locator=locator,
        queue_master_locator=_place_of(locator),
        initial_members=declared.initial_members,
        retention=retention_limits(definition.get(RETENTION), None),
    )


def _stream_settings(declared: QueueArguments, definition: Mapping[str, Any]) -> QueueSettings:
    """The settings of a stream: policies count for more than arguments (streams.md, Policies)."""
    age = definition.get("max-age", declared.max_age)
    segment_bytes = definition.get("stream-max-segment-size-bytes", declared.segment_bytes)
    locator = definition.get("queue-leader-locator", declared.queue_leader_locator)
    keeps = StreamLimits(
        octets_max=definition.get("max-length-bytes", declared.max_length_bytes),
        age_max_s=None if age is None else period_s(age),
        segment_bytes=SEGMENT_BYTES if segment_bytes is None else segment_bytes,
    )
    return QueueSettings(
        type=STREAM,
        keeps=keeps,
        queue_mode="lazy",
        queue_leader_locator=locator,
        queue_master_locator=_place_of(locator),
        # As in RabbitMQ, a policy may say 0, which means nothing.
        initial_members=definition.get("initial-cluster-size") or declared.initial_members,
    )


def _place_of(leader_locator: str | None) -> str:
    """The locator of classic queues with the same meaning. All except the default mean the same."""
    return "client-local" if leader_locator in (None, "client-local") else "min-masters"


def validated(
    pattern: Any, definition: Any, priority: Any, apply_to: Any, *, operator: bool
) -> PolicyRecord:
    """The record of a policy as JSON gave it. Raises `ValidationFailed`."""
    if not isinstance(pattern, str):
        raise ValidationFailed(f"pattern should be a binary, actually was {term(pattern)}")
    try:
        compile_pattern(pattern)
    except InvalidPattern as error:
        raise ValidationFailed(
            f"pattern should be regular expression but is invalid: {error.reason}"
        ) from None
    if not isinstance(apply_to, str) or apply_to not in APPLIES_TO:
        shown = apply_to if isinstance(apply_to, str) else term(apply_to)
        raise ValidationFailed(
            f"apply-to '{shown}' unrecognised; should be 'queues', 'exchanges' or 'all'"
        )
    if not is_number(priority) or not is_storable(priority):
        raise ValidationFailed(f"priority should be a number, actually was {term(priority)}")
    check_definition(definition, operator=operator)
    return PolicyRecord(pattern, apply_to, dict(definition), priority)


Override = Callable[[str, str, QueueSettings], QueueSettings]


class Policies:
    """The policies and operator policies of all virtual hosts, kept in the metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # By kind of policy and virtual host; made when first needed.
        self._sets: dict[tuple[str, str], PolicySet] = {}
        self._watchers: list[Callable[[str], None]] = []
        # For tests: changes the settings of a queue, given its virtual host and name.
        self.override: Override | None = None
        self._patterns = StoredPatterns(compile_pattern)
        for operator in (False, True):
            store.watch((_store_kind(operator),), self._changed)

    def set(
        self,
        vhost: str,
        name: str,
        pattern: Any,
        definition: Any,
        priority: Any = 0,
        apply_to: Any = "all",
        *,
        operator: bool = False,
    ) -> Commit:
        """Make or replace a policy. Raises `ValidationFailed` or `NoSuchVhost`.

        If the same policy exists already, nothing changes, and watchers are not told.
        """
        record = validated(pattern, definition, priority, apply_to, operator=operator)
        expect_vhost(self._store, vhost)
        policies = self._set(vhost, operator)
        if policies.characters_without(name) + len(pattern) > PATTERNS_MAX:
            raise ValidationFailed(
                f"the patterns of the policies of vhost '{vhost}' would have more than"
                f" {PATTERNS_MAX} characters together"
            )
        record = msgspec.structs.replace(record, age=policies.age_of(name))
        key = (_store_kind(operator), vhost, name)
        stored = self._store.get(key)
        if stored is not None and stored.record == record:
            # Every queue of the virtual host would look for its policy again.
            return self._store.transact([])
        return self._store.transact([Write(key, record)])

    def clear(self, vhost: str, name: str, *, operator: bool = False) -> Commit:
        """Raises `NotThere`."""
        self.get(vhost, name, operator=operator)
        return self._store.transact([Write((_store_kind(operator), vhost, name), None)])

    def get(self, vhost: str, name: str, *, operator: bool = False) -> Policy:
        """Raises `NotThere`."""
        stored = self._store.get((_store_kind(operator), vhost, name))
        if stored is None:
            raise NotThere("Parameter does not exist")
        return self._policy(stored.key, stored.record)

    def of_vhost(self, vhost: str, *, operator: bool = False) -> list[Policy]:
        """The policies of the virtual host in order of precedence. Not to be changed."""
        return self._set(vhost, operator).ordered()

    def cost_us(self, vhost: str) -> int:
        """The cost of finding the policies of an object, as `core/scheduling/turns.py` counts."""
        tried = len(self._set(vhost, False)) + len(self._set(vhost, True))
        return APPLY_US + tried // TRIED_PER_US

    def _set(self, vhost: str, operator: bool) -> PolicySet:
        prefix = (_store_kind(operator), vhost)
        policies = self._sets.get(prefix)
        if policies is None:
            policies = self._sets[prefix] = PolicySet(self._stored(prefix))
        return policies

    def all(self, *, operator: bool = False) -> Iterator[Policy]:
        """The policies of all virtual hosts by virtual host and name."""
        return self._stored((_store_kind(operator),))

    def applied(
        self, vhost: str, name: str, kind: Kind, queue_type: QueueType = CLASSIC
    ) -> Applied:
        """The policies that apply to the exchange, or to the queue of this type, of this name.

        A delay queue has the policies of a queue with the name of its exchange.
        """
        if kind == "queue":
            name = exchange_behind(name) or name
        policy = self._set(vhost, False).matching(name, kind, queue_type)
        operator_policy = self._set(vhost, True).matching(name, kind, queue_type)
        return Applied(
            policy.name if policy is not None else None,
            operator_policy.name if operator_policy is not None else None,
            merged_definition(policy, operator_policy),
        )

    def queue_settings(self, vhost: str, name: str, declared: QueueArguments) -> QueueSettings:
        """The settings of the queue of this name with these arguments."""
        applied = self.applied(vhost, name, "queue", declared.type)
        exchange = exchange_behind(name)
        if exchange is not None:
            locator = applied.definition.get("queue-master-locator")
            return QueueSettings(queue_mode="lazy", queue_master_locator=locator, delays=exchange)
        settings = effective_arguments(declared, applied.definition)
        return settings if self.override is None else self.override(vhost, name, settings)

    def alternate_exchange(self, vhost: str, name: str) -> str | None:
        """The alternate exchange policies give this exchange; its argument would come first."""
        alternate: str | None = self.applied(vhost, name, "exchange").definition.get(
            "alternate-exchange"
        )
        return alternate

    def watch(self, callback: Callable[[str], None]) -> None:
        """Call back with the virtual host after any of its policies was set or cleared."""
        self._watchers.append(callback)

    def _stored(self, prefix: Key) -> Iterator[Policy]:
        for key, record, _ in self._store.records(prefix):
            yield self._policy(key, record)

    def _policy(self, key: Key, record: object) -> Policy:
        assert isinstance(record, PolicyRecord)
        kind, vhost, name = key
        shown = f"{kind.replace('_', ' ')} '{name}' of virtual host '{vhost}'"
        return Policy(
            vhost,
            name,
            record.pattern,
            record.apply_to,
            record.definition,
            record.priority,
            record.age,
            StoredPattern(self._patterns, record.pattern, shown),
        )

    def _changed(self, key: Key, record: object | None) -> None:
        kind, vhost, name = key
        policies = self._sets.get((kind, vhost))
        if policies is not None:
            if record is None:
                policies.remove(name)
            else:
                policy = self._policy(key, record)
                # Compiled now, or one queue would have to wait for the patterns of thousands.
                policy.expression.search("")
                policies.put(policy)
            if not policies:
                del self._sets[kind, vhost]
        for callback in self._watchers:
            callback(vhost)


def _store_kind(operator: bool) -> str:
    return "operator_policy" if operator else "policy"
