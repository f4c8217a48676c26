"""Sets of upstreams, and the upstreams that the definition of a policy asks for.

A set is a parameter: a list of objects, each of which names an upstream and may override values of
the upstream. The set `all` always exists: every upstream of the virtual host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from warren.core.definitions.validation import ValidationFailed, term
from warren.core.patterns.pattern import compile_pattern
from warren.core.policies.policy_definition import (
    FEDERATION_KEYS,
    FEDERATION_UPSTREAM,
    FEDERATION_UPSTREAM_PATTERN,
    FEDERATION_UPSTREAM_SET,
)
from warren.federation.upstream import OVERRIDES, problems_of
from warren.shovel import checks
from warren.shovel.checks import Problems

COMPONENT = "federation-upstream-set"
ALL = "all"

CHECKS = {"upstream": checks.name, **OVERRIDES}


class SetMember(NamedTuple):
    """An upstream that a policy asks for, and its values, overridden by those of the set."""

    upstream: str
    value: Mapping[str, Any]


def check(name: str, value: Any) -> None:
    """Raise `ValidationFailed` with every problem of a set's parameter, one on each line."""
    # Some languages write an empty list as an empty object.
    if value == {}:
        return
    if not isinstance(value, list):
        raise ValidationFailed(f"{name} should be list, actually was {term(value)}")
    problems: Problems = []
    for member in value:
        if isinstance(member, dict):
            problems += checks.missing(name, member, ("upstream",))
            problems += problems_of(name, member, CHECKS)
        else:
            problems.append(f"{name} not a list {term(member)}")
    if problems:
        raise ValidationFailed("\n".join(problems))


def asks_for_federation(definition: Mapping[str, Any]) -> bool:
    """Whether a policy with this definition federates the exchanges and queues it applies to."""
    return not definition.keys().isdisjoint(FEDERATION_KEYS)


def members(
    definition: Mapping[str, Any], upstreams: Mapping[str, Any], sets: Mapping[str, Any]
) -> list[SetMember]:
    """The existing upstreams that a policy's definition asks for.

    `upstreams` and `sets` are the values of the parameters, by name.
    """
    if FEDERATION_UPSTREAM in definition:
        return _of_names([definition[FEDERATION_UPSTREAM]], upstreams)
    if FEDERATION_UPSTREAM_PATTERN in definition:
        pattern = compile_pattern(definition[FEDERATION_UPSTREAM_PATTERN])
        return _of_names([name for name in upstreams if pattern.search(name)], upstreams)
    name = str(definition.get(FEDERATION_UPSTREAM_SET))
    if name == ALL:
        return _of_names(upstreams, upstreams)
    return [
        SetMember(member["upstream"], {**upstreams[member["upstream"]], **_overrides(member)})
        for member in sets.get(name, ())
        if member["upstream"] in upstreams
    ]


def _of_names(names: Any, upstreams: Mapping[str, Any]) -> list[SetMember]:
    return [SetMember(name, upstreams[name]) for name in names if name in upstreams]


def _overrides(member: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in member.items() if key != "upstream"}
