"""The keys and values that the definition of a policy may have, and the texts of refusals.

Answerable for the keys of policies_and_parameters.md section 1.2. A policy with a key of another
type of queues does not match a queue at all (`NOT_FOR`). Values are JSON's: `"5"` is no length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from warren.core.definitions.validation import (
    INTEGER_MAX,
    ValidationFailed,
    is_integer,
    is_storable,
    pairs,
    string,
    term,
)
from warren.core.patterns.pattern import InvalidPattern, compile_pattern
from warren.core.policies.retention_policy import RETENTION, RETENTION_IS, is_retention
from warren.core.queues.queue_arguments import PERIOD_MS_MAX, REDELIVERY_DELAYS_MAX
from warren.core.queues.queue_type import CLASSIC, QUORUM, STREAM, QueueType
from warren.core.queues.stream_arguments import SEGMENT_BYTES_MAX, period_s

Valid: TypeAlias = Callable[[Any], bool]

OPERATOR_KEYS = frozenset(
    {
        "expires",
        "message-ttl",
        "max-length",
        "max-length-bytes",
        "delivery-limit",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "retention",
    }
)
HA_KEYS = frozenset(
    {
        "ha-mode",
        "ha-params",
        "ha-sync-mode",
        "ha-sync-batch-size",
        "ha-promote-on-shutdown",
        "ha-promote-on-failure",
        "ha-replication",
        "log-acks",
        "log-min-insync",
        "log-flush",
        "log-max-gap-bytes",
        "log-catchup-rate",
    }
)
FEDERATION_UPSTREAM = "federation-upstream"
FEDERATION_UPSTREAM_SET = "federation-upstream-set"
FEDERATION_UPSTREAM_PATTERN = "federation-upstream-pattern"
FEDERATION_KEYS = frozenset(
    {FEDERATION_UPSTREAM, FEDERATION_UPSTREAM_SET, FEDERATION_UPSTREAM_PATTERN}
)
"""Keys that name the upstreams from which an exchange or queue gets messages; one of these at
most."""
STREAM_KEYS = frozenset({"max-age", "initial-cluster-size", "stream-max-segment-size-bytes"})
# A policy with any of these is not meant for queues of that type (section 1.1).
NOT_FOR: Mapping[QueueType, frozenset[str]] = {
    CLASSIC: STREAM_KEYS
    | {
        "queue-leader-locator",
        "dead-letter-strategy",
        "max-in-memory-length",
        "max-in-memory-bytes",
    },
    QUORUM: STREAM_KEYS | HA_KEYS | {"queue-mode", "queue-master-locator", "redelivery-delay"},
    STREAM: HA_KEYS
    | FEDERATION_KEYS
    | {
        "dead-letter-exchange",
        "dead-letter-routing-key",
        "dead-letter-strategy",
        "delivery-limit",
        "expires",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "max-length",
        "message-ttl",
        "overflow",
        "queue-master-locator",
        "queue-mode",
        "queue-version",
        "redelivery-delay",
        "retention",
    },
}


def _at_least(least: int) -> Valid:
    return lambda value: is_integer(value) and value >= least


def _one_of(*choices: object) -> Valid:
    return lambda value: not isinstance(value, bool | float) and value in choices


def _text(value: object) -> bool:
    return isinstance(value, str)


def _delays(value: object) -> bool:
    """A list of times in milliseconds."""
    if not isinstance(value, list) or not 0 < len(value) <= REDELIVERY_DELAYS_MAX:
        return False
    return all(is_integer(one) and 0 <= one <= PERIOD_MS_MAX for one in value)


# Key: what is valid, and how the refusal goes on after the value.
KEYS: Mapping[str, tuple[Valid, str]] = {
    "alternate-exchange": (_text, "is not a valid alternate exchange name"),
    "dead-letter-exchange": (_text, "is not a valid dead letter exchange name"),
    "dead-letter-routing-key": (_text, "is not a valid dead letter routing key"),
    "message-ttl": (_at_least(0), "is not a valid message TTL"),
    "expires": (_at_least(1), "is not a valid queue expiry"),
    "max-length": (_at_least(0), "is not a valid maximum length"),
    "max-length-bytes": (_at_least(0), "is not a valid maximum length in bytes"),
    "overflow": (
        _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
        "is not a valid overflow value",
    ),
    "queue-mode": (_one_of("default", "lazy"), "is not a valid queue-mode value"),
    "queue-version": (_one_of(1, 2), "is not a valid queue-version value"),
    "queue-master-locator": (
        _one_of("client-local", "min-masters", "random"),
        "invalid queue-master-locator value",
    ),
    "delivery-limit": (_at_least(0), "is not a valid delivery limit"),
    "redelivery-delay": (_delays, "is not a valid list of redelivery delays"),
    RETENTION: (is_retention, "is not a valid retention: " + RETENTION_IS),
    "max-in-memory-length": (_at_least(0), "is not a valid maximum memory in bytes"),
    "max-in-memory-bytes": (_at_least(0), "is not a valid maximum memory in bytes"),
    "dead-letter-strategy": (
        _one_of("at-most-once", "at-least-once"),
        "is not a valid dead letter strategy",
    ),
    "queue-leader-locator": (
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "is not a valid queue leader locator value",
    ),
    "initial-cluster-size": (_at_least(0), "is not a valid cluster size"),
    "max-age": (
        lambda value: isinstance(value, str) and period_s(value) is not None,
        "is not a valid max age",
    ),
    "stream-max-segment-size-bytes": (
        lambda value: is_integer(value) and 0 <= value <= SEGMENT_BYTES_MAX,
        "is not a valid segment size",
    ),
    FEDERATION_UPSTREAM: (_text, "is not a valid federation upstream name"),
    FEDERATION_UPSTREAM_SET: (_text, "is not a valid federation upstream set name"),
    FEDERATION_UPSTREAM_PATTERN: (_text, "is not a valid federation upstream pattern name"),
}
LOG_KEYS: Mapping[str, tuple[Valid, str]] = {
    "log-acks": (
        lambda value: (
            _one_of("async", "one", "majority", "all-in-sync")(value) or _at_least(1)(value)
        ),
        "must be async, one, majority, all-in-sync or an integer greater than 0",
    ),
    "log-min-insync": (_at_least(1), "takes an integer greater than 0"),
    "log-flush": (
        lambda value: _one_of("sync", "async")(value) or _at_least(1)(value),
        "must be sync, async or a number of milliseconds",
    ),
    "log-max-gap-bytes": (_at_least(1 << 20), "takes an integer of 1048576 or more"),
    "log-catchup-rate": (_at_least(0), "takes an integer of 0 or more"),
}
"""Keys that only Warren has: how a queue is replicated where `ha-replication` is `log`."""
HA_CHOICES: Mapping[str, tuple[str, str]] = {
    "ha-sync-mode": ("manual", "automatic"),
    "ha-promote-on-shutdown": ("always", "when-synced"),
    "ha-promote-on-failure": ("always", "when-synced"),
}


def check_definition(definition: Any, *, operator: bool) -> None:
    """Raise `ValidationFailed` with the first problem; values count before unknown keys."""
    if definition == {} or definition == []:
        raise ValidationFailed("no policy provided")
    if not isinstance(definition, dict):
        raise ValidationFailed(f"parse error while reading policy: {term(definition)}")
    if not operator and len(definition.keys() & FEDERATION_KEYS) > 1:
        raise ValidationFailed(
            "cannot specify federation-upstream, federation-upstream-set or"
            " federation-upstream-pattern together"
        )
    unknown = {}
    for key, value in definition.items():
        if operator and key not in OPERATOR_KEYS:
            unknown[key] = value
        elif key in KEYS:
            _check_value(key, value)
        elif key not in HA_KEYS:
            unknown[key] = value
    if not operator:
        _check_federation(definition)
        _check_ha(definition)
    if unknown:
        raise ValidationFailed(f"{pairs(unknown)} are not recognised policy settings")


def _check_value(key: str, value: Any) -> None:
    valid, refusal = KEYS[key]
    if not valid(value) or not is_storable(value):
        raise ValidationFailed(f"{term(value)} {refusal}")


def _check_federation(definition: Mapping[str, Any]) -> None:
    pattern = definition.get(FEDERATION_UPSTREAM_PATTERN)
    if pattern is None:
        return
    try:
        compile_pattern(pattern)
    except InvalidPattern as error:
        raise ValidationFailed(
            f"could not compile pattern {error.pattern} to a regular expression."
            f" Error: {error.reason}"
        ) from None


def _check_ha(definition: Mapping[str, Any]) -> None:
    if not definition.keys() & HA_KEYS:
        return
    if "ha-mode" not in definition:
        raise ValidationFailed(
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
        )
    _check_ha_params(definition["ha-mode"], definition)
    for key, choices in HA_CHOICES.items():
        if key in definition and not _one_of(*choices)(definition[key]):
            first, second = map(string, choices)
            raise ValidationFailed(
                f"{key} must be {first} or {second}, got {term(definition[key])}"
            )
    batch_size = definition.get("ha-sync-batch-size", 1)
    if not _at_least(1)(batch_size):
        raise ValidationFailed(
            f"ha-sync-batch-size takes an integer greater than 0, {term(batch_size)} given"
        )
    _check_size("ha-sync-batch-size", batch_size)
    _check_log(definition)


def _check_log(definition: Mapping[str, Any]) -> None:
    carrier = definition.get("ha-replication", "gm")
    if not _one_of("gm", "log")(carrier):
        raise ValidationFailed(f"ha-replication must be gm or log, got {term(carrier)}")
    for key, (valid, refusal) in LOG_KEYS.items():
        if key not in definition:
            continue
        if carrier != "log":
            raise ValidationFailed(f"ha-replication must be log to specify {key}")
        if not valid(definition[key]):
            raise ValidationFailed(f"{key} {refusal}, {term(definition[key])} given")
        _check_size(key, definition[key])


def _check_size(key: str, value: Any) -> None:
    if not is_storable(value):
        raise ValidationFailed(f"{key} takes integers up to {INTEGER_MAX}, {term(value)} given")


def _check_ha_params(mode: Any, definition: Mapping[str, Any]) -> None:
    given = "ha-params" in definition
    params = definition.get("ha-params")
    shown = term(params) if given else "none"
    match mode:
        case "all":
            if given:
                raise ValidationFailed('ha-mode="all" does not take parameters')
        case "exactly":
            if not _at_least(1)(params):
                raise ValidationFailed(f'ha-mode="exactly" takes an integer, {shown} given')
            _check_size('ha-mode="exactly"', params)
        case "nodes":
            _check_ha_nodes(params, shown)
        case _:
            raise ValidationFailed(f"{term(mode)} is not a valid ha-mode value")


def _check_ha_nodes(params: Any, shown: str) -> None:
    if not isinstance(params, list):
        raise ValidationFailed(f'ha-mode="nodes" takes a list, {shown} given')
    if not params:
        raise ValidationFailed('ha-mode="nodes" list must be non-empty')
    for node in params:
        if not isinstance(node, str):
            raise ValidationFailed(
                f'ha-mode="nodes" takes a list of strings, {term(node)} was not a string'
            )
